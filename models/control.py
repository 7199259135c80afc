#!/usr/bin/env python3
"""ControlNet's way beside PyTorch, where the same copies and zero-initialised layers are written by hand, on models that PyTorch exports:

    before training    outputs of the new model.onnx (ONNX Runtime) and the first loss, which are the base's; zero layers have gradients, copies none
    eight steps        losses, and outputs of the new model.onnx and of PyTorch

    models/control.py [--ort-train PROGRAM]        needs what models/requirements-zoo.txt lists
"""
import argparse
import copy
import os
import pathlib
import sys
import tempfile

import numpy as np
import zoo  # first: it declares torchvision's operators
import lora
import onnxruntime
import torch
from safetensors.torch import load_file

STEPS, BATCH, RATE = lora.STEPS, lora.BATCH, lora.RATE


def zero(layer):
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer


class Down(torch.nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv, self.norm, self.more = torch.nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), torch.nn.GroupNorm(2, outputs), torch.nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x):
        x = self.conv(x)
        return x + self.more(torch.nn.functional.silu(self.norm(x)))


class UNet(torch.nn.Module):
    """Two levels; the blocks `down` and `middle` are copied."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.down = torch.nn.ModuleList([Down(8, 8, 1), Down(8, 16, 2)])
        self.middle = Down(16, 16, 1)
        self.up, self.head = torch.nn.ConvTranspose2d(32, 8, 2, stride=2), torch.nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        h = self.stem(x)
        first = self.down[0](h)
        second = self.down[1](first)
        return self.decode(first, second, self.middle(second))

    def decode(self, first, second, middle):
        x = torch.relu(self.up(torch.cat([middle, second], 1)))
        return self.head(torch.cat([x, first], 1))


class ControlledUNet(torch.nn.Module):
    def __init__(self, base, condition):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.middle = copy.deepcopy(base.down).requires_grad_(True), copy.deepcopy(base.middle).requires_grad_(True)
        self.zeros = torch.nn.ModuleList([zero(torch.nn.Conv2d(channels, channels, 1)) for channels in (8, 16, 16)])
        self.entry = zero(torch.nn.Conv2d(2, 8, 1)) if condition else None

    def forward(self, x, condition=None):
        h = self.base.stem(x)
        first = self.base.down[0](h)
        second = self.base.down[1](first)
        middle = self.base.middle(second)
        own_first = self.down[0](h if condition is None else h + self.entry(condition))
        own_second = self.down[1](own_first)
        own_middle = self.middle(own_second)
        return self.base.decode(first + self.zeros[0](own_first), second + self.zeros[1](own_second), middle + self.zeros[2](own_middle))


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.norm2, self.up, self.down = torch.nn.LayerNorm(width), torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        x = x + self.out((torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    """Four layers, of which the second and the third are copied."""

    def __init__(self):
        super().__init__()
        self.table, self.layers = torch.nn.Embedding(zoo.VOCABULARY, 16), torch.nn.ModuleList([Layer(16) for _ in range(4)])
        self.norm, self.head = torch.nn.LayerNorm(16), torch.nn.Linear(16, 5)

    def forward(self, words):
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class ControlledTransformer(torch.nn.Module):
    def __init__(self, base, condition):
        super().__init__()
        self.base, self.layers = base.requires_grad_(False), copy.deepcopy(base.layers[1:3]).requires_grad_(True)
        self.zeros, self.entry = torch.nn.ModuleList([zero(torch.nn.Linear(16, 16))]), zero(torch.nn.Linear(6, 16)) if condition else None

    def forward(self, words, condition=None):
        base = self.base
        x = base.layers[0](base.table(words))
        own = x if condition is None else x + self.entry(condition)
        x = base.layers[2](base.layers[1](x)) + self.zeros[0](self.layers[1](self.layers[0](own)))
        return base.head(base.norm(base.layers[3](x)))


# Model, the controlled one, --control, the shape of a sample of the condition (none: no condition), exporters.
CASES = {
    "unet": (zoo.module(UNet, ["x"]), ControlledUNet, ["down", "middle"], None, ["dynamo", "torchscript"]),
    "unet, condition": (zoo.module(UNet, ["x"]), ControlledUNet, ["down", "middle"], (2, None, None), ["dynamo", "torchscript"]),
    "transformer": (zoo.module(Transformer, ["words"]), ControlledTransformer, ["layers.1", "layers.2"], None, ["dynamo", "torchscript"]),
    "transformer, condition": (zoo.module(Transformer, ["words"]), ControlledTransformer, ["layers.1", "layers.2"], (None, 6), ["dynamo", "torchscript"]),
}
EXPORTS = {"dynamo": zoo.EXPORTS["dynamo"], "torchscript": zoo.EXPORTS["torchscript"]}


def outputs_of(path, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # every node as it is, for equal bits
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: inputs[value.name][:BATCH].numpy() for value in session.get_inputs()})[0]


def judge(program, name, folder):
    build, kind, blocks, shape, exporters = CASES[name]
    for exporter in exporters:
        torch.manual_seed(7)
        model, names, inputs = build()
        with torch.no_grad():
            for value in model.parameters():
                value.add_(torch.randn_like(value), alpha=0.05)  # no two alike: exporters store equal ones once
        model.eval()
        place = folder / name / exporter
        place.mkdir(parents=True)
        path, data = place / "model.onnx", place / "data.npz"
        if why := zoo.try_export(model, inputs, names, EXPORTS[exporter], path):
            raise SystemExit(f"{name}: {why}")
        more = [part for block in blocks for part in ("--control", block)]
        if shape is not None:
            first = next(iter(inputs.values()))
            dims = [size or first.shape[axis + 1] for axis, size in enumerate(shape)]
            inputs = {**inputs, "condition": torch.randn(len(first), *dims)}
            more += ["--control-input", "condition=" + ",".join(map(str, dims))]
        batch = lambda step: [value[step * BATCH:(step + 1) * BATCH] for value in inputs.values()]
        controlled = kind(copy.deepcopy(model), shape is not None)
        with torch.no_grad():
            labels = torch.randn(STEPS * BATCH, *model(*batch(0)[:1]).shape[1:])
        np.savez(data, labels=labels.numpy(), **{key: value.numpy()[:STEPS * BATCH] for key, value in inputs.items()})

        losses, trained = [], [value for value in controlled.parameters() if value.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
        for step in range(STEPS):
            loss = torch.nn.functional.mse_loss(controlled(*batch(step)), labels[step * BATCH:(step + 1) * BATCH])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
        with torch.no_grad():
            after = controlled(*batch(0)).numpy()

        before = outputs_of(path, inputs)
        base = lora.run(program, path, data, place / "base", "--max-steps", 1)
        still = lora.run(program, path, data, place / "still", *more, "--max-steps", 1, "--learning-rate", 0, "--save-gradients", place / "gradients.safetensors")
        ours = lora.run(program, path, data, place / "trained", *more, "--max-steps", STEPS)
        gradients = load_file(place / "gradients.safetensors")
        zeros = {key: value.abs().max().item() for key, value in gradients.items() if ".zero." in key}
        copies = {key: value.abs().max().item() for key, value in gradients.items() if ".zero." not in key}
        elements = sum(value.numel() for value in gradients.values())
        result = {"losses": lora.far(ours, losses), "trained outputs": lora.far(outputs_of(place / "trained" / "model.onnx", inputs), after)}
        facts = {"first loss": still[0] == base[0], "first outputs": np.array_equal(outputs_of(place / "still" / "model.onnx", inputs), before),
                 "gradients of zero layers": bool(zeros) and all(value > 0 for value in zeros.values()), "gradients of copies": bool(copies) and not any(copies.values()),
                 "trained parameters": elements == sum(value.numel() for value in trained)}
        good = result["losses"] <= 1e-5 and result["trained outputs"] <= 1e-5 and all(facts.values())
        print(f"{'ok  ' if good else 'FAIL'} {name:22} {exporter:12} " + "  ".join(f"{key} {value:.1e}" for key, value in result.items()) +
              "".join(f"  {key} are wrong" for key, value in facts.items() if not value), flush=True)
        yield good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ort-train", default=os.environ.get("ORT_TRAIN", str(lora.ROOT / "build" / "ort-train")))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = [good for name in CASES for good in judge(arguments.ort_train, name, pathlib.Path(folder))]
    print(f"{sum(results)} of {len(results)} as PyTorch's")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
