"""A training step of GPT-2 124M as a whole, with adapters (LoRA of rank 16 beside all products but the head), and with these on a base in 4 bits: in
ort-train and in PyTorch with PEFT, side by side.

    python3 tests/bench/adapters.py [--build build] [--work build/bench-adapters] [--batch 1] [--tokens 256] [--steps 9] [--rounds 3]
                                    [--only ort-train,ort-train-lora,ort-train-nf4,torch,torch-lora]

Says at once what it lacks. Makes a virtual environment below --work at the first run. All train the same weights on the same tokens, LoRA from the
same matrices; each runs alone, in turn. Prints one JSON line a run and a table; exits 1 where losses of the same kind don't agree within 1e-4.
"""
import argparse, json, os, statistics, subprocess, sys

import gpt2
import needs
from runs import ROOT, environment, sh, train, write_tokens

WAYS = ("ort-train", "ort-train-lora", "ort-train-nf4", "torch", "torch-lora")
RANK, ALPHA, TARGETS = 16, 32, ["c_attn", "c_proj", "c_fc"]


def adapter_environment(work):
    return environment(work, "with-peft", ["torch==2.13.0"], ["transformers==5.23.0", "peft==0.21.2", "onnx==1.23.2", "onnxscript==0.7.2", "numpy", "safetensors"])


# --- run inside the environment ---------------------------------------------------------------------------------------------------------

def with_peft(model, folder=None):
    import peft
    if folder is not None:
        return peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    return peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, fan_in_fan_out=True))


def export(work, batch, tokens):
    import torch
    model = gpt2.export_model(work)
    torch.manual_seed(1)
    with_peft(model).save_pretrained(os.path.join(work, "adapter"))
    write_tokens(os.path.join(work, "tokens.bin"), batch * tokens, gpt2.VOCABULARY)


def run_torch(work, batch, tokens, steps, way):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.set_num_threads(os.cpu_count())
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)).train()
    model.load_state_dict(torch.load(os.path.join(work, "gpt2.pt")))
    if way == "torch-lora":
        model = with_peft(model, os.path.join(work, "adapter"))
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-4, weight_decay=0, fused=True)
    ids = torch.from_numpy(gpt2.read_tokens(work, batch, tokens))

    def step():
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, gpt2.VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    gpt2.report(way, *gpt2.timed(step, steps))


# --- run outside ------------------------------------------------------------------------------------------------------------------------

def run_ours(o, way):
    more = [] if way == "ort-train" else ["--adapter", os.path.join(o.work, "adapter")]
    more += ["--base-dtype", "nf4"] if way == "ort-train-nf4" else []
    rows, summary, _, _ = train(
        [os.path.join(o.build, "ort-train"), os.path.join(o.work, "gpt2.onnx"), "--data", os.path.join(o.work, "tokens.bin"), "--task", "causal-lm", "--batch-size", str(o.batch), "--seq-length",
         str(o.tokens), "--learning-rate", "1e-4", "--lr-scheduler-type", "constant", "--weight-decay", "0", "--max-grad-norm", "0", "--max-steps", str(o.steps), *more], o.work)
    seconds = [row["ms"] / 1e3 for row in rows]
    return dict(peer=way, ms=round(1e3 * statistics.median(seconds[3:]), 1), best_ms=round(1e3 * min(seconds), 1), peak_mb=summary["rss_peak_bytes"] // (1 << 20), losses=[row["loss"] for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "bench-adapters"))
    for name, value in (("batch", 1), ("tokens", 256), ("steps", 9), ("rounds", 3)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.inside:
        return export(o.work, o.batch, o.tokens) if o.inside == "export" else run_torch(o.work, o.batch, o.tokens, o.steps, o.inside)

    chosen = o.only.split(",")
    needs.check(needs.choices("--only", chosen, WAYS), needs.programs(o.build, ["ort-train"]), needs.packages("", []),
                needs.space(o.work, 0 if os.path.exists(os.path.join(o.work, "with-peft", "complete")) else 4e9))
    os.makedirs(o.work, exist_ok=True)
    python = adapter_environment(o.work)
    inside = lambda action, **options: sh(python, os.path.abspath(__file__), "--inside", action, "--work", o.work, "--batch", str(o.batch), "--tokens", str(o.tokens), "--steps", str(o.steps), **options)
    made_for = os.path.join(o.work, f"exported-{o.batch}x{o.tokens}")
    if not os.path.exists(made_for):
        inside("export", stdout=subprocess.DEVNULL)
        open(made_for, "w").close()
    results = {}
    for _ in range(o.rounds):
        for way in chosen:
            if way.startswith("torch"):
                out = inside(way, capture_output=True, text=True).stdout
                line = json.loads([l for l in out.splitlines() if l.startswith("{")][-1])
                line["peer"] = way
            else:
                line = run_ours(o, way)
            print(json.dumps(line), flush=True)
            results.setdefault(way, []).append(line)
    print()
    agree = True
    for way, lines in results.items():
        ms, peak = statistics.median(l["ms"] for l in lines), max(l["peak_mb"] for l in lines)
        like = results.get("ort-train-lora" if way == "torch-lora" else "ort-train", [])
        worst = max((abs(a - b) for l in lines for a, b in zip(l["losses"], like[0]["losses"])), default=0) if like and way.startswith("torch") else 0
        agree &= worst <= 1e-4
        print(f"{way:16} {ms:8.1f} ms a step  {peak:6,} MB" + (f"  losses within {worst:.1e}" if way.startswith("torch") else ""))
    if not agree:
        sys.exit("the losses do not agree")


if __name__ == "__main__":
    main()
