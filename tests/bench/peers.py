"""One AdamW training step of GPT-2 124M (1 x 256 tokens, float32 and bfloat16) in ort-train, PyTorch and ONNX Runtime Training, side by side.

    python3 tests/bench/peers.py [--build build] [--work build/peers] [--batch 1] [--tokens 256] [--steps 11]
                                 [--only ort-train,eager,compile,ort-training,ort-train-bf16,eager-bf16,compile-bf16]

Says at once what it lacks; `make build-bench` builds what it runs. Makes its virtual environments below --work at the first run, which takes some
minutes and 3 GB. All train the same weights on the same tokens; each runs alone, in turn, twice. Rows of bfloat16 are ours with --bf16, and
PyTorch's under CPU autocast; fast only on processors that have bfloat16 instructions. Prints one JSON line a run, the machine's product rate
(oneDNN's own, measured in the same run) and a table; exits 1 where the losses don't agree within 1e-4 (bfloat16: 2e-2).
"""
import argparse, json, os, statistics, subprocess, sys, time

import needs
from runs import ROOT, environment, modern_environment, sh, train, write_tokens

VOCABULARY = 50257
OURS, TORCH = ("ort-train", "ort-train-bf16"), ("eager", "compile", "eager-bf16", "compile-bf16")
PEERS = ("ort-train", "eager", "compile", "ort-training", "ort-train-bf16", "eager-bf16", "compile-bf16")


def peer_environment(work):
    return environment(work, "peer", ["onnxruntime-training==1.19.2", "numpy<2", "onnx==1.16.2", "cerberus", "h5py", "setuptools"],
                       ["--no-deps", "torch==2.13.0"], ["filelock", "typing-extensions", "jinja2", "networkx", "fsspec", "sympy", "mpmath"])


# --- run inside the environments ------------------------------------------------------------------------------------------------------

def export_model(work):
    """The same weights as gpt2.onnx for ort-train (dynamo, opset 20) and gpt2.pt for PyTorch."""
    import torch
    sys.path.insert(0, os.path.join(ROOT, "models"))
    import export_gpt2
    model = export_gpt2.build(*export_gpt2.SIZES["124M"], attention="eager")
    export_gpt2.export(model, os.path.join(work, "gpt2.onnx"), "dynamo", 20)
    torch.save(model.state_dict(), os.path.join(work, "gpt2.pt"))
    return model


def export(work, batch, tokens):
    """Besides: peer.onnx for ONNX Runtime Training (opset 16, logits of labelled positions)."""
    import torch
    model = export_model(work)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.m = model

        def forward(self, input_ids, attention_mask):
            positions = torch.arange(input_ids.shape[1])[None]
            logits = self.m(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions).logits
            return logits[:, :-1].reshape(batch * (tokens - 1), VOCABULARY)

    import onnx
    ids = torch.randint(0, VOCABULARY, (batch, tokens))
    path = os.path.join(work, "peer.onnx")
    torch.onnx.export(Logits().eval(), (ids, torch.ones_like(ids)), path, input_names=["input_ids", "attention_mask"], output_names=["logits"],
                      opset_version=16, dynamo=False, do_constant_folding=False)
    graph = onnx.load(path)
    graph.ir_version = 8  # the last that the peer reads
    onnx.save(graph, path)
    write_tokens(os.path.join(work, "tokens.bin"), batch * tokens, VOCABULARY)


def artifacts(work):
    import onnx
    from onnxruntime.training import artifacts as a
    model = onnx.load(os.path.join(work, "peer.onnx"))
    weights = [i.name for i in model.graph.initializer if i.data_type == 1 and len(i.dims) > 0]
    a.generate_artifacts(model, requires_grad=weights, frozen_params=[i.name for i in model.graph.initializer if i.name not in weights],
                         loss=a.LossType.CrossEntropyLoss, optimizer=a.OptimType.AdamW, artifact_directory=work)
    # Its default is another formula (epsilon 1e-6, added before the bias correction): here PyTorch's.
    path = os.path.join(work, "optimizer_model.onnx")
    optimizer = onnx.load(path)
    for node in optimizer.graph.node:
        if node.op_type == "AdamWOptimizer":
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    attribute.f = 1e-8
                elif attribute.name == "adam_mode":
                    attribute.i = 0
    onnx.save(optimizer, path)


def report(peer, losses, seconds):
    import resource
    print(json.dumps(dict(peer=peer, ms=round(1e3 * statistics.median(seconds[3:]), 1), best_ms=round(1e3 * min(seconds), 1),
                          peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, losses=losses)), flush=True)


def timed(step, steps):
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def read_tokens(work, batch, tokens):
    import numpy as np
    return np.fromfile(os.path.join(work, "tokens.bin"), "uint16").astype("int64").reshape(batch, tokens)


def run_torch(work, batch, tokens, steps, mode):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.set_num_threads(os.cpu_count())
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)).train()
    model.load_state_dict(torch.load(os.path.join(work, "gpt2.pt")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    forward = torch.compile(model) if mode.startswith("compile") else model
    ids = torch.from_numpy(read_tokens(work, batch, tokens))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=mode.endswith("bf16")):
            logits = forward(input_ids=ids).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    report("torch " + mode, *timed(step, steps))


def run_ort_training(work, batch, tokens, steps):
    import numpy as np
    if not os.path.exists(os.path.join(work, "training_model.onnx")):
        sh(sys.executable, __file__, "--inside", "artifacts", "--work", work)  # its own process, so that its memory doesn't count
    from onnxruntime.training.api import CheckpointState, Module, Optimizer
    state = CheckpointState.load_checkpoint(os.path.join(work, "checkpoint"))
    module = Module(os.path.join(work, "training_model.onnx"), state, device="cpu")
    optimizer = Optimizer(os.path.join(work, "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(1e-4)
    module.train()
    ids = read_tokens(work, batch, tokens)
    mask, labels = np.ones((batch, tokens), np.int64), ids[:, 1:].reshape(-1)

    def step():
        loss = module(ids, mask, labels)
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    report("onnxruntime-training", *timed(step, steps))


# --- run outside ----------------------------------------------------------------------------------------------------------------------

def run_ours(build, work, batch, tokens, steps, peer):
    rows, summary, _, _ = train(
        [os.path.join(build, "ort-train"), os.path.join(work, "gpt2.onnx"), "--data", os.path.join(work, "tokens.bin"), "--task", "causal-lm",
         "--batch-size", str(batch), "--seq-length", str(tokens), "--learning-rate", "1e-4", "--lr-scheduler-type", "constant", "--weight-decay", "0",
         "--max-grad-norm", "0", "--max-steps", str(steps), *(["--bf16"] if peer.endswith("bf16") else [])], work)
    seconds = [row["ms"] / 1e3 for row in rows]
    line = dict(peer=peer, ms=round(1e3 * statistics.median(seconds[3:]), 1), best_ms=round(1e3 * min(seconds), 1),
                peak_mb=summary["rss_peak_bytes"] // (1 << 20), losses=[row["loss"] for row in rows])
    print(json.dumps(line), flush=True)
    return line


def call(python, action, work, batch, tokens, steps, **options):
    """An action inside an environment."""
    return sh(python, os.path.abspath(__file__), "--inside", action, "--work", work, "--batch", str(batch), "--tokens", str(tokens), "--steps", str(steps), **options)


def product_flops(batch, tokens):
    """Of GPT-2 124M's products in one step, forward and backward, causal attention counted in full. (The first layer's products give no input gradient less than this.)"""
    width, layers, rows = 768, 12, batch * tokens
    forward = 2 * rows * (12 * width * width) * layers + 2 * rows * width * VOCABULARY + layers * 4 * batch * tokens * tokens * width
    return 3 * forward


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "peers"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    o = parser.parse_args()
    inside = {"export": lambda: export(o.work, o.batch, o.tokens), "model": lambda: export_model(o.work), "artifacts": lambda: artifacts(o.work),
              "ort-training": lambda: run_ort_training(o.work, o.batch, o.tokens, o.steps),
              **{mode: lambda mode=mode: run_torch(o.work, o.batch, o.tokens, o.steps, mode) for mode in TORCH}}
    if o.inside:
        return inside[o.inside]()

    chosen = o.only.split(",")
    needs.check(needs.choices("--only", chosen, PEERS), needs.programs(o.build, ["ort-train", "bench-matmul_bench"]), needs.packages("", []),
                needs.space(o.work, 0 if os.path.exists(os.path.join(o.work, "modern", "complete")) else 6e9))
    os.makedirs(o.work, exist_ok=True)
    modern = modern_environment(o.work)
    peer = peer_environment(o.work) if "ort-training" in chosen else ""
    made_for = os.path.join(o.work, f"exported-{o.batch}x{o.tokens}")
    if not os.path.exists(made_for):
        sh("rm", "-f", os.path.join(o.work, "training_model.onnx"))
        call(modern, "export", o.work, o.batch, o.tokens, o.steps, stdout=subprocess.DEVNULL)
        open(made_for, "w").close()
    results = {}
    for _ in range(o.rounds):
        for name in chosen:
            if name in OURS:
                line = run_ours(o.build, o.work, o.batch, o.tokens, o.steps, name)
            else:
                out = call(modern if name in TORCH else peer, name, o.work, o.batch, o.tokens, o.steps, capture_output=True, text=True).stdout
                line = json.loads([l for l in out.splitlines() if l.startswith("{")][-1])
                print(json.dumps(line), flush=True)
            results.setdefault(line["peer"], []).append(line)
    products = subprocess.run([os.path.join(o.build, "bench-matmul_bench"), str(os.cpu_count())], check=True, capture_output=True, text=True).stdout
    rate = json.loads(products.splitlines()[-1])["onednn_gflops"]  # over all of the step's products
    reference = next(iter(results.values()))[0]["losses"]
    agree = True
    print(f"\noneDNN's products {rate:.0f} GFLOP/s in this run")
    ours = min(l["ms"] for l in results.get("ort-train", [{"ms": float("nan")}]))
    for name, lines in results.items():
        ms, peak = min(l["ms"] for l in lines), max(l["peak_mb"] for l in lines)
        worst = max(abs(a - b) for l in lines for a, b in zip(l["losses"], reference))
        agree &= worst <= (2e-2 if name.endswith("bf16") else 1e-4)
        share = product_flops(o.batch, o.tokens) / (ms * 1e-3) / (rate * 1e9)
        print(f"{name:22} {ms:8.1f} ms a step  {ms / ours:5.2f} x ort-train  {100 * share:5.1f} % of the product rate  {peak:6,} MB  losses within {worst:.1e}")
    if not agree:
        sys.exit("the losses do not agree")


if __name__ == "__main__":
    main()
