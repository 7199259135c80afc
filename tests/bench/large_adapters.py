"""Adapters beside models that are large for the machine: a GPT-2-XL (1.5 billion parameters, float32) and a Llama of 6.7 billion (bfloat16), LoRA of
rank 16 beside all products but the head, in ort-train within small budgets and in PyTorch with PEFT, in the same run.

    python3 tests/bench/large_adapters.py [--models gpt2-xl,llama-7b] [--build build] [--work build/bench-large] [--nvme FOLDER] [--tokens 256] [--steps 4]

Says at once what it lacks. Makes a virtual environment and the models below --work at the first run (7 and 14 GB). All start from the same weights,
tokens and adapter. Prints one JSON line a run and a table; exits 1 where a process takes more than its budget, or where the first loss is too far from
PyTorch's.
"""
import argparse, json, os, resource, statistics, sys

import gpt2
import needs
from adapters import ALPHA, RANK, adapter_environment
from runs import ROOT, sh, train, write_tokens

LLAMA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FEW_BITS = ["--base-dtype", "nf4", "--double-quant"]
AS_PYTORCH, ROUNDED = 1e-4, 0.5  # how far the first loss may be from PyTorch's; random weights bear few bits badly
MODELS = {  # name: (vocabulary, PEFT's targets, {way: (options, how far the first loss may be)})
    "gpt2-xl": (50257, ["c_attn", "c_proj", "c_fc"], {
        "everything in memory": ([], AS_PYTORCH),
        "2 GB, and a disk": (["--budget", "2GB"], AS_PYTORCH),
        "4 bits, everything in memory": (FEW_BITS, ROUNDED),
        "4 bits, 600 MB, and a disk": ([*FEW_BITS, "--budget", "600MB"], ROUNDED)}),
    "llama-7b": (32000, LLAMA_TARGETS, {
        "bfloat16, 6 GB, and a disk": (["--bf16", "--budget", "6GB"], 5e-2),
        "4 bits, 6 GB": ([*FEW_BITS, "--budget", "6GB"], ROUNDED),
        "4 bits, 4 GB, and a disk": ([*FEW_BITS, "--budget", "4GB"], ROUNDED)}),
}


# --- run inside the environment ---------------------------------------------------------------------------------------------------------

def gpt2_xl(work):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    sys.path.insert(0, os.path.join(ROOT, "models"))
    import export_gpt2
    path = os.path.join(work, "gpt2-xl.pt")
    if not os.path.exists(path):
        model = export_gpt2.build(*export_gpt2.SIZES["xl"], attention="eager")
        export_gpt2.export(model, os.path.join(work, "gpt2-xl.onnx"), "dynamo", 20)
        torch.save(model.state_dict(), path)
    layers, heads, width, vocabulary, positions = export_gpt2.SIZES["xl"]
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=positions, resid_pdrop=0, embd_pdrop=0,
                                           attn_pdrop=0, use_cache=False))
    return with_weights(model, torch.load(path, mmap=True))


def llama_7b(work):
    """The numbers of the ONNX file, where they lie."""
    import numpy as np
    import onnx
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    sys.path.insert(0, os.path.join(ROOT, "models"))
    import make_llama
    path = os.path.join(work, "llama-7b.onnx")
    layers, heads, kv_heads, width, inner, vocabulary = make_llama.SIZES["7B"]
    if not os.path.exists(path):
        make_llama.make(path, *make_llama.SIZES["7B"])
    weights = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        numbers = np.memmap(os.path.join(work, where["location"]), np.int16, "c", int(where["offset"]), tuple(tensor.dims))
        weights[tensor.name] = torch.from_numpy(numbers).view(torch.bfloat16)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                                             vocab_size=vocabulary, rms_norm_eps=1e-5, tie_word_embeddings=False, use_cache=False))
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)  # its numbers aren't in the file
    return with_weights(model, weights)


def with_weights(model, weights):
    """A model that was made without memory, and gets that of the weights."""
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    lacking = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if lacking:
        sys.exit(f"no numbers for {', '.join(lacking)}")
    return model.train()


def adapted(o, model):
    import peft
    import torch
    folder = os.path.join(o.work, o.model + "-adapter")
    if os.path.exists(folder):
        return peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    torch.manual_seed(1)
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=MODELS[o.model][1], fan_in_fan_out=o.model == "gpt2-xl"))
    model.save_pretrained(folder)
    return model


def run_torch(o):
    import torch
    torch.set_num_threads(os.cpu_count())
    model = adapted(o, gpt2_xl(o.work) if o.model == "gpt2-xl" else llama_7b(o.work))
    if o.inside == "export":
        return
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-4, weight_decay=0, fused=True)
    ids = torch.from_numpy(gpt2.read_tokens(o.work, 1, o.tokens))

    def step():
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=ids).logits.float()
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
        loss.backward()
        optimizer.step()
        return loss.item()

    losses, seconds = gpt2.timed(step, o.steps)
    print(json.dumps(dict(peer="PyTorch", ms=round(1e3 * statistics.median(seconds[1:]), 1), best_ms=round(1e3 * min(seconds), 1),
                          peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, losses=losses)), flush=True)


# --- run outside ------------------------------------------------------------------------------------------------------------------------

def run_ours(o, name, way, options):
    rows, summary, plan, _ = train(
        [os.path.join(o.build, "ort-train"), os.path.join(o.work, name + ".onnx"), "--data", os.path.join(o.work, "tokens.bin"), "--task", "causal-lm",
         "--batch-size", "1", "--seq-length", str(o.tokens), "--learning-rate", "1e-4", "--lr-scheduler-type", "constant", "--weight-decay", "0",
         "--max-grad-norm", "0", "--max-steps", str(o.steps), "--adapter", os.path.join(o.work, name + "-adapter"), "--adapter-only",
         *(["--nvme-path", o.nvme] if "disk" in way else []), *options], o.work)
    return dict(peer=way, ms=round(statistics.median(row["ms"] for row in rows[1:]), 1), best_ms=round(min(row["ms"] for row in rows), 1),
                peak_mb=summary["rss_peak_bytes"] // (1 << 20), losses=[row["loss"] for row in rows], budget=plan.get("budget_bytes", 0), rss=summary["rss_peak_bytes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "bench-large"))
    parser.add_argument("--nvme", help="folder for what doesn't fit the budget (--work)")
    parser.add_argument("--models", default=",".join(MODELS))
    for name, value in (("tokens", 256), ("steps", 4)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    o = parser.parse_args()
    o.nvme = o.nvme or o.work
    if o.inside:
        return run_torch(o)

    chosen = o.models.split(",")
    needs.check(needs.choices("--models", chosen, MODELS), needs.programs(o.build, ["ort-train"]), needs.packages("", []), needs.space(o.work, 0 if os.path.exists(os.path.join(o.work, chosen[-1] + "-adapter")) else 30e9))
    os.makedirs(o.work, exist_ok=True)
    python = adapter_environment(o.work)
    wrong = []
    for name in chosen:
        vocabulary, _, ways = MODELS[name]
        write_tokens(os.path.join(o.work, "tokens.bin"), o.tokens, vocabulary)
        inside = lambda action: sh(python, os.path.abspath(__file__), "--inside", action, "--model", name, "--work", o.work, "--tokens", str(o.tokens), "--steps", str(o.steps),
                                   capture_output=True, text=True).stdout
        if not os.path.exists(os.path.join(o.work, name + "-adapter")):
            inside("export")
        lines = [json.loads([line for line in inside("torch").splitlines() if line.startswith("{")][-1])]
        print(json.dumps(lines[0]), flush=True)
        for way, (options, most) in ways.items():
            lines.append(run_ours(o, name, way, options))
            print(json.dumps(lines[-1]), flush=True)
            far = abs(lines[-1]["losses"][0] - lines[0]["losses"][0])
            if far > most:
                wrong.append(f"{name}, {way}: the first loss is {far:.1e} from PyTorch's")
            if 0 < lines[-1]["budget"] < lines[-1]["rss"]:
                wrong.append(f"{name}, {way}: {lines[-1]['rss']} bytes of {lines[-1]['budget']}")
        print()
        for line in lines:
            print(f"{name:10} {line['peer']:30} {line['ms']:9.1f} ms a step  {line['peak_mb']:7,} MB  first loss {line['losses'][0]:.5f}")
        print(flush=True)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
