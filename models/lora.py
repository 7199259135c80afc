#!/usr/bin/env python3
"""LoRA, DoRA and (IA)3 beside PEFT, on models of several kinds that PyTorch exports:

    an adapter that PEFT wrote, trained further by both     losses, matrices
    an adapter that PEFT wrote, merged by `export`          outputs of the new model.onnx (ONNX Runtime) and of PEFT
    an adapter that ort-train wrote, loaded by PEFT         outputs of PEFT and of ort-train's own model.onnx

    models/lora.py [--ort-train PROGRAM] [--only DoRA]      needs what models/requirements-zoo.txt lists
"""
import argparse
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import zoo  # first: it declares torchvision's operators
import onnxruntime
import peft
import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, BATCH, RATE, RANK, ALPHA = 8, 2, 1e-2, 4, 8


class Words(torch.nn.Module):
    """An embedding, convolutions over time, a head."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.second = torch.nn.Embedding(zoo.VOCABULARY, 16), torch.nn.Conv1d(16, 24, 3, padding=1), torch.nn.Conv1d(24, 16, 3, padding=1, dilation=1)
        self.inner, self.head = torch.nn.Linear(16, 32), torch.nn.Linear(32, 5)

    def forward(self, words):
        x = self.table(words).transpose(1, 2)
        x = torch.relu(self.second(torch.relu(self.first(x)))).transpose(1, 2)
        return self.head(torch.tanh(self.inner(x)))


class Image(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.Conv2d(8, 12, 3, padding=1), torch.nn.Linear(12, 5)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


def options(**patterns):
    return [part for name, values in patterns.items() for value in values for part in ("--" + name.replace("_", "-"), value)]


def lora(targets, **more):
    return peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, **more), ["--lora-rank", RANK, "--lora-alpha", ALPHA, *options(lora_target=targets)]


def lora_of_all(targets, **more):
    """The targets are the default."""
    return lora(targets, **more)[0], lora([])[1]


def dora(targets):
    config, ours = lora(targets, use_dora=True)
    return config, [*ours, "--use-dora"]


def ia3(targets, feedforward):
    return peft.IA3Config(target_modules=[*targets, *feedforward], feedforward_modules=feedforward), options(ia3_target=targets, ia3_feedforward=feedforward)


MODELS = {
    "gpt2": zoo.from_transformers("gpt2"),
    "llama": zoo.from_transformers("llama"),
    "bert": zoo.from_transformers("bert", **zoo.ENCODER),
    "words": zoo.module(Words, ["words"]),
    "image": zoo.module(Image, ["x"]),
}
BOTH, LLAMA = ["dynamo", "torchscript"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Model, exporters, PEFT's configuration and ort-train's options.
CASES = {
    "gpt2": ("gpt2", BOTH, lora_of_all(["c_attn", "c_proj", "c_fc"])),
    "llama": ("llama", BOTH, lora_of_all(LLAMA)),
    "bert": ("bert", ["dynamo"], lora(["query", "value"])),
    "words": ("words", BOTH, lora(["table", "first", "second", "inner"])),
    "image": ("image", ["dynamo"], lora(["first", "second"])),
    "gpt2, DoRA": ("gpt2", BOTH, dora(["c_attn", "c_proj", "c_fc"])),
    "llama, DoRA": ("llama", BOTH, dora(LLAMA)),
    "bert, DoRA": ("bert", ["dynamo"], dora(["query", "value"])),
    "words, DoRA": ("words", ["dynamo"], dora(["first", "second", "inner"])),
    "image, DoRA": ("image", ["dynamo"], dora(["first", "second"])),
    "gpt2, IA3": ("gpt2", BOTH, ia3(["c_attn"], ["mlp.c_proj"])),
    "llama, IA3": ("llama", BOTH, ia3(["k_proj", "v_proj"], ["down_proj"])),
    "bert, IA3": ("bert", ["dynamo"], ia3(["key", "value"], ["output.dense"])),
    "image, IA3": ("image", ["dynamo"], ia3(["first"], ["second"])),
}
EXPORTS = {"dynamo": zoo.EXPORTS["dynamo"], "torchscript": zoo.EXPORTS["torchscript, not folded"]}


def far(ours, theirs):
    return float(np.abs(np.asarray(ours) - np.asarray(theirs)).max())


def run(program, path, data, folder, *more):
    """Trains; returns the losses."""
    log = folder.with_suffix(".jsonl")
    arguments = [path, "--data", data, "--loss", "mse", "--batch-size", BATCH, "--learning-rate", RATE, "--weight-decay", 0, "--lr-scheduler-type", "constant", "--no-shuffle", "--output-dir", folder,
                 "--log-file", log, *more]
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())
    return [row["loss"] for row in map(json.loads, log.read_text().splitlines()) if "loss" in row]


def merge(program, path, adapter, folder):
    done = subprocess.run(list(map(str, [program, "export", path, "--adapter", adapter, "--output-dir", folder])), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())


def outputs_of(path, inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value[:BATCH].numpy() for name, value in inputs.items() if name in names})[0]


def judge(program, name, folder):
    of_model, exporters, (config, ours) = CASES[name]
    torch.manual_seed(7)
    model, names, inputs = MODELS[of_model]()
    model.eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("bias"):  # many are zeros
                value.add_(0.1 * torch.randn_like(value))
    start = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        shape = model(*[value[:BATCH] for value in inputs.values()]).shape
    labels = torch.randn(STEPS * BATCH, *shape[1:])
    for exporter in exporters:
        place = folder / name / exporter
        place.mkdir(parents=True)
        path, data = place / "model.onnx", place / "data.npz"
        if why := zoo.try_export(model, inputs, names, EXPORTS[exporter], path):
            raise SystemExit(f"{name}: {why}")
        fed = {value.name for value in onnxruntime.InferenceSession(str(path)).get_inputs()}
        np.savez(data, labels=labels.numpy()[:STEPS * BATCH], **{key: value.numpy()[:STEPS * BATCH] for key, value in inputs.items() if key in fed})
        batch = lambda step: [value[step * BATCH:(step + 1) * BATCH] for value in inputs.values()]

        # PEFT's, with random numbers in all it trains, trained by both.
        adapted = peft.get_peft_model(model, copy.deepcopy(config)).eval()
        with torch.no_grad():
            for key, value in adapted.named_parameters():
                if "ia3_" in key or "magnitude" in key:
                    value.mul_(1 + 0.1 * torch.randn_like(value))
                elif "lora_" in key:
                    value.normal_(0, 0.1)
        adapted.save_pretrained(place / "theirs")
        with torch.no_grad():
            expected = adapted(*batch(0)).numpy()
        losses, optimizer = [], torch.optim.AdamW([value for value in adapted.parameters() if value.requires_grad], lr=RATE, weight_decay=0.0)
        for step in range(STEPS):
            loss = torch.nn.functional.mse_loss(adapted(*batch(step)), labels[step * BATCH:(step + 1) * BATCH])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(adapted.parameters(), 1.0)
            optimizer.step()
        trained = {key: value.detach().numpy() for key, value in peft.get_peft_model_state_dict(adapted).items()}
        with torch.no_grad():
            after = adapted(*batch(0)).numpy()
        model = adapted.unload()
        model.load_state_dict(start)
        merge(program, path, place / "theirs", place / "merged")
        result = {"merged": far(outputs_of(place / "merged" / "model.onnx", inputs), expected)}
        result["losses"] = far(run(program, path, data, place / "trained", "--adapter", place / "theirs", "--max-steps", STEPS), losses)
        result["trained outputs"] = far(outputs_of(place / "trained" / "model.onnx", inputs), after)
        run(program, path, data, place / "trained-adapter", "--adapter", place / "theirs", "--max-steps", STEPS, "--adapter-only")
        written = {key: value.numpy() for key, value in load_file(place / "trained-adapter" / "adapter_model.safetensors").items()}
        if sorted(written) != sorted(trained):
            raise SystemExit(f"{name}: the adapter has {sorted(written)[:4]}, PEFT's {sorted(trained)[:4]}")
        result["matrices"] = max(far(written[key], trained[key]) for key in trained)

        # Ours from the start, as PEFT reads it.
        more = [*ours, "--max-steps", STEPS]
        run(program, path, data, place / "own", *more)
        run(program, path, data, place / "own-adapter", *more, "--adapter-only")
        loaded = peft.PeftModel.from_pretrained(model, place / "own-adapter").eval()
        with torch.no_grad():
            result["ours in PEFT"] = far(loaded(*batch(0)).numpy(), outputs_of(place / "own" / "model.onnx", inputs))
        model = loaded.unload()
        model.load_state_dict(start)
        bounds = {"merged": 1e-5, "losses": 1e-5, "trained outputs": 1e-4, "matrices": 1e-4, "ours in PEFT": 1e-5}
        good = all(result[key] <= bounds[key] for key in bounds)
        print(f"{'ok  ' if good else 'FAIL'} {name:11} {exporter:12} " + "  ".join(f"{key} {value:.1e}" for key, value in result.items()), flush=True)
        yield good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ort-train", default=os.environ.get("ORT_TRAIN", str(ROOT / "build" / "ort-train")))
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = [good for name in CASES if arguments.only in name for good in judge(arguments.ort_train, name, pathlib.Path(folder))]
    print(f"{sum(results)} of {len(results)} as PEFT's")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
