"""Runs the commands of the README's section "Your own model" as they stand, on a model that it has made itself.

    python own_model.py --build ../build [--work /tmp/own-model] [--kind gpt2] [--steps 600]

What one would otherwise download is made here: a tokenizer (byte-level BPE, 2,048 tokens, learned from tinyshakespeare.txt) and a small GPT-2 or
Llama, trained in PyTorch for some minutes on that text and saved with save_pretrained() into WORK/my-model. WORK/my-text.txt is another text, to
fine-tune on: the licences that Debian installs in /usr/share/common-licenses, else the repository's LICENSE. Then the commands are taken
out of README.md and run in WORK, in this order. At the end ONNX Runtime computes the loss of the model before and after on the end of the text,
which was held out; exit 1 unless it dropped by a fifth at least. `my-model` is kept: a second run is quick.
"""
import argparse, os, pathlib, re, shutil, subprocess, sys, time
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SECTION = "## Your own model"
VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS = 2048, 192, 4, 6, 256
BATCH, TOKENS = 8, 128


def commands():
    """The first indented block of the README's section; a line that ends in a backslash goes on."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("\n" + SECTION + "\n", 1)
    if len(section) != 2:
        sys.exit(f"README.md has no section '{SECTION}'")
    block = re.search(r"(?:^    .+\n)+", section[1].split("\n## ", 1)[0], re.MULTILINE)
    return [line.strip() for line in re.sub(r"\\\n\s*", "", block[0]).strip().splitlines()]


def make_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([str(HERE / "tinyshakespeare.txt")], trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    fast.save_pretrained(folder)
    return fast


def small_model(kind):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, vocab_size=VOCABULARY, n_positions=POSITIONS, bos_token_id=0,
                                          eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, hidden_size=WIDTH,
                                        intermediate_size=512, vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, bos_token_id=0, eos_token_id=0,
                                        tie_word_embeddings=True))


def pretrain(folder, kind, steps):
    """A model that someone has trained: here, on Shakespeare for some minutes."""
    import torch
    torch.manual_seed(0)
    tokenizer = make_tokenizer(folder)
    ids = torch.tensor(tokenizer((HERE / "tinyshakespeare.txt").read_text(encoding="utf-8"), verbose=False)["input_ids"])
    model = small_model(kind).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    start = time.time()
    for step in range(1, steps + 1):
        at = torch.randint(0, len(ids) - TOKENS, (BATCH,))
        batch = torch.stack([ids[i:i + TOKENS] for i in at])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == 1:
            print(f"pretraining step {step}/{steps} loss {loss.item():.3f} {time.time() - start:.0f} s", flush=True)
    model.eval().save_pretrained(folder)


def another_text(path):
    licences = sorted(p for p in pathlib.Path("/usr/share/common-licenses").glob("*") if p.is_file() and not p.is_symlink())
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in licences or [ROOT / "LICENSE"]]
    path.write_text("\n\n".join(texts), encoding="utf-8")


def held_out_loss(model, tokens):
    """The mean loss of the last tenth, in ONNX Runtime."""
    import run_model
    session = run_model.session_of(str(model))
    ids = np.fromfile(tokens, np.uint16).astype(np.int64)
    ids = ids[len(ids) * 9 // 10:]
    ids = ids[:len(ids) // TOKENS * TOKENS].reshape(-1, TOKENS)
    total = count = 0
    for row in np.array_split(ids, max(1, len(ids) // 8)):
        logits = run_model.logits_of(session, row)[:, :-1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        total -= np.take_along_axis(chances, row[:, 1:, None], -1).sum()
        count += row[:, 1:].size
    return total / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"), help="the folder that has ort-train")
    parser.add_argument("--work", default="/tmp/own-model")
    parser.add_argument("--kind", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--steps", type=int, default=600, help="of the training in PyTorch")
    o = parser.parse_args()
    build, work = pathlib.Path(o.build).resolve(), pathlib.Path(o.work).resolve()
    if not (build / "ort-train").exists():
        sys.exit(f"{build} has no ort-train: `make build` makes it")
    lines = commands()
    work.mkdir(parents=True, exist_ok=True)
    made = work / f"my-model-{o.kind}"
    if not (made / "model.safetensors").exists():
        pretrain(made, o.kind, o.steps)
    another_text(work / "my-text.txt")
    for link, target in (("models", HERE), ("my-model", made)):  # the names that the commands use
        (work / link).unlink(missing_ok=True)
        (work / link).symlink_to(target)
    shutil.rmtree(work / "out", ignore_errors=True)
    environment = {**os.environ, "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), str(build), os.environ["PATH"]])}
    for line in lines:
        print(f"\n$ {line}", flush=True)
        if subprocess.run(line, shell=True, cwd=work, env=environment).returncode != 0:
            sys.exit(f"failed: {line}")
    before, after = (held_out_loss(work / model, work / "tokens.bin") for model in ("model.onnx", "out/model.onnx"))
    print(f"\nONNX Runtime, the text's last tenth: loss {before:.3f} before, {after:.3f} after")
    if not after < 0.8 * before:
        sys.exit("the loss did not drop by a fifth")


if __name__ == "__main__":
    main()
