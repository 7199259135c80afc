"""What peers.py runs inside its environments: exports, and PyTorch and ONNX Runtime Training, which train a model in turns.

    python peer_inside.py export MODEL --work FOLDER       module.onnx, weights.pt and the data
    python peer_inside.py export-peer MODEL …              peer.onnx for ONNX Runtime Training (opset 16, logits of labelled positions in rows)
    python peer_inside.py artifacts MODEL …                what that makes of it
    python peer_inside.py eager|compile|eager-bf16|compile-bf16|ort-training MODEL … --steps N
    python peer_inside.py memory MODEL …                   the rate at which memory is read and written

Those that train say `ready`, then take N steps for each line of the standard input, and answer with a line of JSON.
"""
import argparse
import json
import logging
import os
import resource
import sys
import time
import warnings

from peer_models import MODELS
from runs import ROOT, sh


def arrays_of(model):
    """Inputs by name, and labels."""
    import numpy as np
    random = np.random.default_rng(0)
    make = lambda shape, ids: random.integers(0, ids, shape) if ids else random.standard_normal(shape, np.float32)
    return {**{name: make(*kind) for name, kind in model.inputs.items()}, "labels": make(model.labels, model.classes)}


def read(work, model):
    """Inputs, as a list, and labels; of text in which labels are inputs, too, both are cut to what has a label."""
    import numpy as np
    if model.causal:
        ids = np.fromfile(os.path.join(work, "tokens.bin"), "uint16").astype("int64").reshape(model.causal_shape)
        return [ids], ids[:, 1:]
    data = np.load(os.path.join(work, "data.npz"))
    return [data[name] for name in model.inputs], data["labels"]


def export(work, model):
    import numpy as np
    import torch
    module, path = model.build("eager"), os.path.join(work, "model.onnx")
    data = arrays_of(model)
    if model.causal:
        next(iter(data.values())).astype("uint16").tofile(os.path.join(work, "tokens.bin"))
    else:
        np.savez(os.path.join(work, "data.npz"), **data)
    torch.save(module.state_dict(), os.path.join(work, "weights.pt"))
    if model.export:
        return model.export(module, path)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    inputs = tuple(torch.from_numpy(data[name]) for name in model.inputs)
    torch.onnx.export(module.eval(), inputs, path, dynamo=True, opset_version=20, input_names=list(model.inputs), output_names=["logits"],
                      external_data=False, verbose=False, optimize=False)


def rows_of(model, logits):
    """Of classes, one for each label."""
    if model.causal:
        logits = logits[:, :-1]
    if model.axis == 1:
        logits = logits.movedim(1, -1)
    return logits.reshape(-1, model.classes)


def export_peer(work, model):
    import onnx
    import torch
    module, path = model.build("eager"), os.path.join(work, "peer.onnx")

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            return rows_of(model, self.module(*inputs))

    class Masked(torch.nn.Module):  # the exporter can't make the causal mask itself
        def __init__(self):
            super().__init__()
            self.module = module.model if model.causal else None

        def forward(self, ids):
            positions = torch.arange(ids.shape[1])
            return rows_of(model, self.module(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions[None]).logits)

    inputs, _ = read(work, model)
    torch.onnx.export((Masked() if model.causal else Rows()).train(), tuple(map(torch.from_numpy, inputs)), path, input_names=list(model.inputs), output_names=["logits"],
                      opset_version=16, dynamo=False, do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING)
    graph = onnx.load(path)
    graph.ir_version = 8  # the last that the peer reads
    onnx.save(graph, path)


def artifacts(work, model):
    import onnx
    from onnxruntime.training import artifacts as a
    graph = onnx.load(os.path.join(work, "peer.onnx"))
    floats = [i.name for i in graph.graph.initializer if i.data_type == 1 and len(i.dims) > 0]
    statistics = {name for node in graph.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    weights = [name for name in floats if name not in statistics]
    a.generate_artifacts(graph, requires_grad=weights, frozen_params=[i.name for i in graph.graph.initializer if i.name not in weights],
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


def serve(step, steps):
    """Of a turn's steps: their losses and milliseconds."""
    print("ready", flush=True)
    for _ in sys.stdin:
        losses, ms = [], []
        for _ in range(steps):
            start = time.perf_counter()
            losses.append(float(step()))
            ms.append(1e3 * (time.perf_counter() - start))
        print(json.dumps(dict(losses=losses, ms=ms, peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)), flush=True)


def run_torch(work, model, steps, mode):
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    module = model.build("sdpa").train()
    module.load_state_dict(torch.load(os.path.join(work, "weights.pt")))
    inputs, labels = read(work, model)
    inputs, labels = [torch.from_numpy(x) for x in inputs], torch.from_numpy(labels).reshape(-1)
    if model.images:
        module = module.to(memory_format=torch.channels_last)
        inputs = [x.to(memory_format=torch.channels_last) for x in inputs]
    optimizer = torch.optim.AdamW(module.parameters(), lr=model.rate, weight_decay=0, fused=True)

    def loss_of(*inputs):
        return torch.nn.functional.cross_entropy(rows_of(model, module(*inputs)), labels)

    forward = torch.compile(loss_of) if mode.startswith("compile") else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=mode.endswith("bf16")):
            loss = forward(*inputs)
        loss.backward()
        optimizer.step()
        return loss.item()

    serve(step, steps)


def run_ort_training(work, name, model, steps):
    if not os.path.exists(os.path.join(work, "training_model.onnx")):
        sh(sys.executable, __file__, "artifacts", name, "--work", work, stdout=sys.stderr)  # its own process, so that its memory doesn't count
    from onnxruntime.training.api import CheckpointState, Module, Optimizer
    module = Module(os.path.join(work, "training_model.onnx"), CheckpointState.load_checkpoint(os.path.join(work, "checkpoint")), device="cpu")
    optimizer = Optimizer(os.path.join(work, "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(model.rate)
    module.train()
    inputs, labels = read(work, model)
    labels = labels.reshape(-1)

    def step():
        loss = module(*inputs, labels)
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    serve(step, steps)


def memory():
    """GB/s of a sum of two large vectors, three of which move; the best of several."""
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, b, c = (torch.ones(1 << 26) for _ in range(3))
    best = 0.0
    for _ in range(10):
        start = time.perf_counter()
        torch.add(a, b, out=c)
        best = max(best, 12e-9 * a.numel() / (time.perf_counter() - start))
    print(json.dumps(dict(gigabytes_per_second=best)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--work", required=True)
    parser.add_argument("--steps", type=int, default=0)
    o = parser.parse_args()
    model = MODELS[o.model]
    warnings.simplefilter("ignore")
    sys.path.insert(0, os.path.join(ROOT, "models"))
    actions = {"export": lambda: export(o.work, model), "export-peer": lambda: export_peer(o.work, model), "artifacts": lambda: artifacts(o.work, model), "memory": memory,
               "ort-training": lambda: run_ort_training(o.work, o.model, model, o.steps)}
    actions.get(o.action, lambda: run_torch(o.work, model, o.steps, o.action))()


if __name__ == "__main__":
    main()
