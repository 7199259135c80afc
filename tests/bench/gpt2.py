"""GPT-2 124M, as several benchmarks train it: its export, its data, and a run of PyTorch's eager mode. Imports nothing but the standard library
until a function needs more; `call` runs an action in an environment with PyTorch."""
import argparse
import json
import os
import statistics
import sys
import time

from runs import ROOT, sh

VOCABULARY = 50257


def export_model(work):
    """The same weights as gpt2.onnx for ort-train (dynamo, opset 20) and gpt2.pt for PyTorch."""
    import torch
    sys.path.insert(0, os.path.join(ROOT, "models"))
    import export_gpt2
    model = export_gpt2.build(*export_gpt2.SIZES["124M"], attention="eager")
    export_gpt2.export(model, os.path.join(work, "gpt2.onnx"), "dynamo", 20)
    torch.save(model.state_dict(), os.path.join(work, "gpt2.pt"))
    return model


def read_tokens(work, batch, tokens):
    import numpy as np
    return np.fromfile(os.path.join(work, "tokens.bin"), "uint16").astype("int64").reshape(batch, tokens)


def timed(step, steps):
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def report(peer, losses, seconds):
    import resource
    print(json.dumps(dict(peer=peer, ms=round(1e3 * statistics.median(seconds[3:]), 1), best_ms=round(1e3 * min(seconds), 1),
                          peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, losses=losses)), flush=True)


def run_torch(work, batch, tokens, steps):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.set_num_threads(os.cpu_count())
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)).train()
    model.load_state_dict(torch.load(os.path.join(work, "gpt2.pt")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    ids = torch.from_numpy(read_tokens(work, batch, tokens))

    def step():
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    report("torch eager", *timed(step, steps))


def call(python, action, work, batch, tokens, steps, **options):
    """`model` or `eager` inside an environment."""
    return sh(python, os.path.abspath(__file__), action, "--work", work, "--batch", str(batch), "--tokens", str(tokens), "--steps", str(steps), **options)


def product_flops(batch, tokens):
    """Of its products in one step, forward and backward, causal attention counted in full. (The first layer's products give no input gradient less than this.)"""
    width, layers, rows = 768, 12, batch * tokens
    forward = 2 * rows * (12 * width * width) * layers + 2 * rows * width * VOCABULARY + layers * 4 * batch * tokens * tokens * width
    return 3 * forward


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("model", "eager"))
    parser.add_argument("--work", required=True)
    for name in ("batch", "tokens", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    o = parser.parse_args()
    if o.action == "model":
        export_model(o.work)
    else:
        run_torch(o.work, o.batch, o.tokens, o.steps)


if __name__ == "__main__":
    main()
