"""Writes tests/golden/autocast.json: how far PyTorch's gradients under CPU autocast are from those in double.

    python golden_autocast.py [--folder ../tests/golden] [NAME...]

For each case of golden.py that autocast changes, and each low type: `all`, the norm of the difference of all parameters'
gradients divided by the norm of all gradients, and `median`, the median over parameters of the same for each of them
(parameters whose gradient is less than a thousandth of the median norm don't count: some are zero but for rounding). The
gradients are those of the first batch; of float16, of the loss times 1024, divided by that afterwards.
"""
import json, os, statistics, tempfile
import torch
from golden import CASES, CNN, arguments

SCALE = {torch.bfloat16: 1, torch.float16: 1024}
LEAST = 1e-3


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return [p.grad.double() for p in model.parameters()]


def errors(found, truth):
    difference = [(f - t).norm().item() for f, t in zip(found, truth)]
    norms = [t.norm().item() for t in truth]
    least = LEAST * statistics.median(norms)
    return dict(all=sum(d * d for d in difference) ** 0.5 / sum(n * n for n in norms) ** 0.5,
                median=statistics.median(d / n for d, n in zip(difference, norms) if n >= least))


def measure(name):
    model, write_model, data, loss, batch_size, *_ = CASES[name](name)
    if name in CNN:
        with tempfile.TemporaryDirectory() as scratch:
            write_model(os.path.join(scratch, "model.onnx"))  # which says whether its BatchNorm is live
    model.train(getattr(model, "live", False))
    batch = {k: v[:batch_size] for k, v in data.items()}
    start = {k: v.clone() for k, v in model.state_dict().items()}
    double = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    truth = gradients(model.double(), loss(model, double)[0])
    model.float().load_state_dict(start)
    result = {}
    for low, scale in SCALE.items():
        with torch.autocast("cpu", dtype=low):
            value = loss(model, batch)[0]
        result[str(low).removeprefix("torch.")] = errors([g / scale for g in gradients(model, value.float() * scale)], truth)
        model.load_state_dict(start)
    return result


def main():
    options = arguments(__doc__)
    path = os.path.join(options.folder, "autocast.json")
    known = json.load(open(path)) if options.names and os.path.exists(path) else {}
    for name in options.names or CASES:
        known[name] = measure(name)
        print(name, known[name], flush=True)
    with open(path, "w") as file:
        json.dump(dict(sorted(known.items())), file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
