"""Lets a causal language model write in ONNX Runtime, with the tokenizer of its Hugging Face directory.

    python run_model.py my-model out/model.onnx "The licensee may" [--length 60] [--temperature 0.8] [--seed 0]

For models with the inputs input_ids and, as they like, attention_mask and position_ids, without a key/value cache, as export_hf.py writes them:
each token runs the whole text again, which is slow and simple. A temperature of 0 takes the likeliest token each time.
"""
import argparse, json, os, sys
import numpy as np
import onnxruntime
import tokenize_text


def session_of(path, threads=0):
    if not os.path.isfile(path):
        sys.exit(f"{path}: there is no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def logits_of(session, ids):
    """(batch, sequence, vocabulary) of ids (batch, sequence)."""
    known = dict(input_ids=ids, attention_mask=np.ones_like(ids), position_ids=np.broadcast_to(np.arange(ids.shape[1]), ids.shape))
    unknown = [i.name for i in session.get_inputs() if i.name not in known]
    if unknown:
        sys.exit(f"the model wants {', '.join(unknown)}; only {', '.join(known)} can be given")
    return session.run(["logits"], {i.name: known[i.name] for i in session.get_inputs()})[0]


def longest(folder):
    """The most positions that the model knows."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return config.get("max_position_embeddings") or config.get("n_positions") or 1 << 30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("--length", type=int, default=60, help="tokens to write")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    tokenizer, session, random = tokenize_text.tokenizer_of(o.folder), session_of(o.model), np.random.default_rng(o.seed)
    ids = tokenizer(o.prompt, add_special_tokens=False)["input_ids"]
    if not ids:
        sys.exit("the prompt has no tokens: give some text")
    window = longest(o.folder)
    for _ in range(o.length):
        logits = logits_of(session, np.array([ids[-window:]], np.int64))[0, -1].astype(np.float64)
        if o.temperature > 0:
            scaled = np.exp((logits - logits.max()) / o.temperature)
            ids.append(int(random.choice(len(scaled), p=scaled / scaled.sum())))
        else:
            ids.append(int(logits.argmax()))
        if ids[-1] == tokenizer.eos_token_id:
            break
    print(tokenizer.decode(ids, skip_special_tokens=True))


if __name__ == "__main__":
    main()
