"""Writes tests/golden/loss_scale/: what torch.amp.GradScaler makes of steps that overflow, and clipping of each parameter by itself.

    python golden_loss_scale.py [FOLDER]

model.onnx is a perceptron, data.safetensors its samples in order. In some of them a label is so large that the scaled gradients overflow;
plain.safetensors has none of these. golden.safetensors has

- updates/CASE/found, scale, tracker: the scaler by itself, after each of many steps with and without infinities; its arguments are the
  metadata of that name, as JSON;
- CASE/losses, norms, scales, skipped, rates by step and CASE/final/NAME: training by AdamW, in float32; the metadata of that name hold the
  arguments of GradScaler, the micro-batches of a step and the norm to which gradients are clipped. The norm is that of the unscaled
  gradients, the scale the one that the step was made with. The learning rate falls with the steps that aren't skipped.
tests/loss_scale_test.cpp reads it.
"""
import json, os, sys
import numpy as np
import onnx, torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save

STEPS, BATCH, RATE, DECAY = 40, 4, 1e-2, 0.01
UPDATES = {
    "usual": dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=5),
    "odd factors": dict(init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=3),
    "at the top": dict(init_scale=2.0 ** 126, growth_factor=2.0, backoff_factor=0.5, growth_interval=2),
}
OVERFLOWS = (0, 5, 6, 7, 19, 31)  # samples' steps
CASES = {
    "overflows": dict(scaler=dict(init_scale=65536.0, growth_interval=4), micro_batches=1, max_norm=0.5, data="data"),
    "overflows, no clipping": dict(scaler=dict(init_scale=3000.0, growth_interval=4), micro_batches=1, max_norm=0.0, data="data"),
    "a micro-batch overflows": dict(scaler=dict(init_scale=65536.0, growth_interval=4), micro_batches=2, max_norm=0.5, data="data"),
    "too large by itself": dict(scaler=dict(init_scale=2.0 ** 100, growth_factor=64.0, growth_interval=2), micro_batches=1, max_norm=0.5,
                                data="plain"),
    "each parameter clipped": dict(scaler=None, micro_batches=1, max_norm=0.05, data="plain"),
}


def perceptron(generator):
    shapes = {"w1": (6, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    return {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def forward(p, x):
    return torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def write_model(start, path):
    nodes = [helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], "hidden"), helper.make_node("Tanh", ["a"], ["h"], "active"),
             helper.make_node("Gemm", ["h", "w2", "b2"], ["out"], "last")]
    graph = helper.make_graph(nodes, "perceptron", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
                              [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 3])],
                              [numpy_helper.from_array(value.numpy(), name) for name, value in start.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def train(start, x, y, scaler, micro_batches, max_norm):
    p = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    groups = [dict(params=[v for v in p.values() if v.dim() >= 2], weight_decay=DECAY),
              dict(params=[v for v in p.values() if v.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    steps = len(x) // (BATCH * micro_batches)
    scale = torch.amp.GradScaler("cpu", enabled=scaler is not None, **(scaler or {}))
    rows, updates = {key: [] for key in ("losses", "norms", "scales", "skipped", "rates")}, 0
    for step in range(steps):
        rate = RATE * (steps - updates) / steps
        for group in optimizer.param_groups:
            group["lr"] = rate
        used, total = scale.get_scale(), 0.0
        for i in range(micro_batches):
            rows_ = slice((step * micro_batches + i) * BATCH, (step * micro_batches + i + 1) * BATCH)
            loss = torch.nn.functional.mse_loss(forward(p, x[rows_]), y[rows_]) / micro_batches
            scale.scale(loss).backward()
            total += float(loss.detach())
        scale.unscale_(optimizer)
        norm = float(torch.linalg.vector_norm(torch.cat([v.grad.flatten() for v in p.values()]).double()))
        if max_norm > 0 and scaler is not None:
            torch.nn.utils.clip_grad_norm_(p.values(), max_norm)
        elif max_norm > 0:
            for value in p.values():
                torch.nn.utils.clip_grad_norm_([value], max_norm)
        before = optimizer.state[p["w1"]]["step"].item() if optimizer.state else 0
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        made = (optimizer.state[p["w1"]]["step"].item() if optimizer.state else 0) > before
        assert made == np.isfinite(norm) and not (made and not 0 <= norm * used < 1e38), "the norm alone overflows"
        updates += made
        for key, value in (("losses", total), ("norms", norm), ("scales", used), ("skipped", 0.0 if made else 1.0), ("rates", rate)):
            rows[key].append(value)
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in rows.items()}, {k: v.detach() for k, v in p.items()}


def main(folder):
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(11)
    tensors, metadata = {}, {}
    for name, arguments in UPDATES.items():
        scaler = torch.amp.GradScaler("cpu", **arguments)
        found = (torch.rand(120, generator=generator) < 0.12).long()
        scaler.scale(torch.zeros(1))  # makes the scale
        scales, trackers = [], []
        for flag in found:
            parameter = torch.nn.Parameter(torch.zeros(1))
            optimizer = torch.optim.SGD([parameter], lr=0.0)
            parameter.grad = torch.tensor([float("inf") if flag else 0.0])
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            trackers.append(scaler._get_growth_tracker())
        tensors |= {f"updates/{name}/found": found, f"updates/{name}/scale": torch.tensor(scales, dtype=torch.float64),
                    f"updates/{name}/tracker": torch.tensor(trackers)}
        metadata["updates/" + name] = json.dumps(arguments)
    start = perceptron(generator)
    write_model(start, os.path.join(folder, "model.onnx"))
    x = torch.randn((STEPS * BATCH, 6), generator=generator)
    y = forward(perceptron(generator), x)
    large = y.clone()
    for step in OVERFLOWS:
        large[step * BATCH + 1, 2] = 3e38
    for file, labels in (("data", large), ("plain", y)):
        with open(os.path.join(folder, file + ".safetensors"), "wb") as out:
            out.write(save({"x": x, "labels": labels}))
    for name, case in CASES.items():
        rows, final = train(start, x, large if case["data"] == "data" else y, case["scaler"], case["micro_batches"], case["max_norm"])
        tensors |= {f"{name}/{key}": value for key, value in rows.items()} | {f"{name}/final/{key}": value for key, value in final.items()}
        metadata[name] = json.dumps(dict(case, batch=BATCH, rate=RATE, decay=DECAY, steps=len(rows["losses"])))
        print(f"{name}: {int(rows['skipped'].sum())} of {len(rows['skipped'])} steps skipped, scale {rows['scales'][0]:g} -> {rows['scales'][-1]:g}, "
              f"norms {rows['norms'].min():.2g} to {rows['norms'][rows['norms'].isfinite()].max():.2g}, loss {rows['losses'][-1]:.4g}")
    content = save({key: value.contiguous() for key, value in tensors.items()}, dict(sorted(metadata.items())))
    with open(os.path.join(folder, "golden.safetensors"), "wb") as out:
        out.write(content)
    print(f"{folder}: {sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)):,} bytes")


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "golden", "loss_scale"))
