#!/usr/bin/env python3
"""Two fine-tunings that mean something: a language model and a classifier are trained in PyTorch for a minute or two, exported, and fine-tuned on
a shifted task by ort-train and by PyTorch with equal settings. ONNX Runtime runs what ort-train has written.

    models/finetune.py [--ort-train PROGRAM] [--work FOLDER] [--write]       needs torch, transformers, onnx, onnxscript, onnxruntime, scikit-learn

Language model: a GPT-2 over characters, trained on tinyshakespeare.txt; the shifted task is source code in Python, the modules of the standard
library. Classifier: a convolutional network with BatchNormalization, trained on scikit-learn's 8 x 8 digits; the shifted task is the same digits
turned by 90 degrees, white on black. The metric is the accuracy in percent on held-out data (of the next character, of the digit). Passes where
both metrics of the fine-tuned models differ by less than 0.5 points, and the fine-tuned one is better than the model before. `--write` puts the
table into docs/zoo.md.
"""
import argparse
import logging
import math
import pathlib
import re
import subprocess
import sys
import time
import warnings

import numpy as np
import torch
import zoo  # before transformers: declares torchvision's operators, where that is installed
from transformers import GPT2Config, GPT2LMHeadModel

import export_char_gpt

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
POINTS = 0.5
SECTION = "## Fine-tuning"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
LENGTH, BATCH = 64, 16


def pretrain(model, batches, steps, rate, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for step in range(steps):
        loss = loss_of(model, batches(step))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def fine_tune(model, batches, rate, loss_of):
    """As ort-train does it by default: AdamW, betas 0.9 and 0.999, epsilon 1e-8, a rate that falls linearly to zero, gradients clipped to a norm of 1."""
    decayed, others = [p for p in model.parameters() if p.dim() >= 2], [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=0.01), dict(params=others, weight_decay=0.0)], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    for batch in batches:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def run(program, model, work, steps, rate, *options):
    command = [str(program), str(model), "--batch-size", str(BATCH), "--max-steps", str(steps), "--learning-rate", str(rate), "--weight-decay", "0.01",
               "--warmup-steps", "0", "--no-shuffle", "--output-dir", str(work / "out"), "--overwrite", *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(" ".join(command) + "\n" + done.stdout)
    return work / "out" / "model.onnx"


def outputs(model, name, inputs):
    import onnxruntime
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {name: part})[0] for part in np.array_split(inputs, max(1, len(inputs) // 64))])


# --- the language model -----------------------------------------------------------------------------------------------------------------


def encoded(text):
    ids = {c: i for i, c in enumerate(CHARACTERS)}
    tokens = np.array([ids[c] for c in text if c in ids], np.int64)
    return tokens[:len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)


def language_loss(model, batch):
    logits = model(batch)
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def next_character(logits, samples):
    return 100 * float((logits[:, :-1].argmax(-1) == samples[:, 1:]).mean())


def language_model(program, work, steps=300, rate=1e-3):
    torch.manual_seed(1)
    model = export_char_gpt.CharGpt(GPT2LMHeadModel(GPT2Config(
        n_layer=3, n_head=4, n_embd=128, vocab_size=len(CHARACTERS), n_positions=LENGTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        activation_function="gelu_pytorch_tanh", attn_implementation="eager", bos_token_id=0, eos_token_id=0)).eval())
    shakespeare = torch.tensor(encoded((HERE / "tinyshakespeare.txt").read_text(encoding="utf-8")))
    pretrain(model, lambda step: shakespeare[torch.randint(0, len(shakespeare), (BATCH,))], 600, 3e-3, language_loss)
    path = work / "language-model.onnx"
    torch.onnx.export(model, (torch.zeros(2, 8, dtype=torch.int64),), str(path), dynamo=True, opset_version=20, input_names=["input_ids"],
                      output_names=["logits"], external_data=False, verbose=False, dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")},))
    library = pathlib.Path(argparse.__file__).parent
    text = "".join((library / f"{name}.py").read_text(encoding="utf-8") for name in ("argparse", "ast", "tarfile", "pathlib", "typing", "zipfile", "inspect"))
    samples = encoded(text)[np.random.default_rng(0).permutation(len(encoded(text)))]
    train, held_out = samples[:steps * BATCH], samples[steps * BATCH:steps * BATCH + 1000]
    np.savez(work / "code.npz", input_ids=train)
    before = next_character(outputs(path, "input_ids", held_out), held_out)
    ours = run(program, path, work, steps, rate, "--data", work / "code.npz", "--task", "causal-lm", "--budget", "220MB")
    after = next_character(outputs(ours, "input_ids", held_out), held_out)
    fine_tune(model, [torch.tensor(train[i:i + BATCH]) for i in range(0, len(train), BATCH)], rate, language_loss)
    with torch.no_grad():
        theirs = next_character(model(torch.tensor(held_out)).numpy(), held_out)
    return "language model, next character", before, after, theirs


# --- the classifier -----------------------------------------------------------------------------------------------------------------------


class Digits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, padding=1, stride=2),
                                        torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
                                        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))

    def forward(self, images):
        return self.body(images)


def class_loss(model, batch):
    images, labels = batch
    return torch.nn.functional.cross_entropy(model(images), labels)


def classifier(program, work, steps=60, rate=3e-3):
    from sklearn.datasets import load_digits
    torch.manual_seed(2)
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int64)
    order = np.random.default_rng(1).permutation(len(images))
    images, labels = images[order], labels[order]
    model = Digits().train()
    first, second = torch.tensor(images[:800]), torch.tensor(labels[:800])

    def batches(step):
        at = torch.randint(0, 800, (32,))
        return first[at], second[at]

    pretrain(model, batches, 300, 1e-2, class_loss)
    model.eval()
    path = work / "digits.onnx"
    torch.onnx.export(model, (torch.zeros(2, 1, 8, 8),), str(path), dynamo=True, optimize=False, opset_version=20, input_names=["images"], output_names=["logits"],
                      external_data=False, verbose=False, dynamic_shapes=({0: torch.export.Dim("batch")},))
    shifted = np.ascontiguousarray(1 - np.rot90(images, axes=(2, 3)))
    count = steps * BATCH
    epochs = math.ceil(count / 400)
    rows = np.concatenate([np.arange(400)] * epochs)[:count]
    x, y = shifted[rows], labels[rows]
    held_out, wanted = shifted[800:], labels[800:]
    np.savez(work / "digits.npz", images=x, labels=y)

    def accuracy(logits):
        return 100 * float((logits.argmax(-1) == wanted).mean())

    before = accuracy(outputs(path, "images", held_out))
    ours = run(program, path, work, steps, rate, "--data", work / "digits.npz", "--batch-norm", "live")
    after = accuracy(outputs(ours, "images", held_out))
    model.train()
    fine_tune(model, [(torch.tensor(x[i:i + BATCH]), torch.tensor(y[i:i + BATCH])) for i in range(0, count, BATCH)], rate, class_loss)
    model.eval()
    with torch.no_grad():
        theirs = accuracy(model(torch.tensor(held_out)).numpy())
    return "classifier, digit", before, after, theirs


def write(rows):
    path = ROOT / "docs" / "zoo.md"
    text = re.sub(rf"\n{SECTION}\n.*?(?=\n## |\Z)", "", path.read_text(encoding="utf-8"), flags=re.DOTALL).rstrip("\n")
    lines = ["", "", SECTION, "", f"Models trained in PyTorch {torch.__version__.split('+')[0]}, then fine-tuned on a shifted task by ort-train and by PyTorch with equal settings: "
             "a character-level GPT-2 from Shakespeare to Python code (within 220 MB), a convolutional network from digits to digits that are turned by 90 degrees, white on black. Accuracy on held-out data in "
             "percent; ours is that of the file that ort-train wrote, in ONNX Runtime. Written by `models/finetune.py --write`.", "",
             "| model, metric | before | ort-train | PyTorch | difference |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {before:.2f} | {after:.2f} | {theirs:.2f} | {after - theirs:+.2f} |" for name, before, after, theirs in rows]
    path.write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ort-train", default=str(ROOT / "build" / "ort-train"), help="the program")
    parser.add_argument("--work", default="/tmp/fine-tuning")
    parser.add_argument("--write", action="store_true", help="put the table into docs/zoo.md")
    o = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    work = pathlib.Path(o.work)
    work.mkdir(parents=True, exist_ok=True)
    rows, failed = [], False
    for job in (classifier, language_model):
        begin = time.time()
        name, before, after, theirs = row = job(pathlib.Path(o.ort_train).resolve(), work)
        good = abs(after - theirs) < POINTS and after > before
        failed = failed or not good
        rows.append(row)
        print(f"{name}: before {before:.2f} %, ort-train {after:.2f} %, PyTorch {theirs:.2f} %: {'passed' if good else 'FAILED'} ({time.time() - begin:.0f} s)", flush=True)
    if o.write:
        write(rows)
    return failed


if __name__ == "__main__":
    sys.exit(main())
