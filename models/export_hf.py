"""Exports a causal language model of Hugging Face's transformers from its directory to ONNX, and a text as its tokens.

    python export_hf.py my-model model.onnx
    python export_hf.py my-model model.onnx --text my-text.txt tokens.bin

`my-model` is a directory that save_pretrained() wrote, or that was downloaded from the Hub: config.json and weights, for --text its tokenizer
too. Nothing is downloaded. Inputs of the file are input_ids, attention_mask and, where the model takes them, position_ids, all (batch, sequence);
its output is logits (batch, sequence, vocabulary). Weights are float32, the key/value cache is off. Over 1.9 GB of weights lie beside the file, in
model.onnx.data. The file is checked, ONNX Runtime's logits are compared with PyTorch's, and parameters that the exporter merged or left out are
named. With --text, tokenize_text.py writes the tokens.
"""
import argparse, hashlib, inspect, os, sys
import numpy as np
import onnx
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
import exporting, tokenize_text

INPUTS = ("input_ids", "attention_mask", "position_ids")


def load(folder):
    """The model in evaluation mode, float32."""
    if not os.path.exists(os.path.join(folder, "config.json")):
        sys.exit(f"{folder}: there is no config.json; give the directory that save_pretrained() wrote")
    logging.disable_progress_bar()
    # Mixtures of experts: the one implementation that torch.export takes. It gathers the experts' weights for each token, which takes memory.
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32, use_cache=False,
                                                experts_implementation="batched_mm").eval()


def wrapped(model, inputs):
    """The exporters name inputs after the arguments of forward, and weights after the modules' attributes."""

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, child in model.named_children():
                setattr(self, name, child)
            self.whole = [model]  # a list, so that names have no prefix

    arguments = ", ".join(inputs)
    scope = {}
    exec(f"def forward(self, {arguments}):\n  return self.whole[0]({', '.join(f'{i}={i}' for i in inputs)}).logits", scope)
    Logits.forward = scope["forward"]
    return Logits()


def example(inputs, vocabulary, batch, sequence):
    values = dict(input_ids=torch.randint(0, vocabulary, (batch, sequence)), attention_mask=torch.ones(batch, sequence, dtype=torch.int64),
                  position_ids=torch.arange(sequence).repeat(batch, 1))
    return tuple(values[name] for name in inputs)


def digest(array):
    return array.size, hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()


def shortened(names):
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def notes(model, path):
    """What the exporter has done to parameters: those that are equal share one tensor of the file, and some it can leave out. By their values,
    because a transposed copy may stand in the file under a name of its own."""
    there = {digest(onnx.numpy_helper.to_array(tensor, os.path.dirname(path))) for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    equal, absent = {}, []
    for name, parameter in model.named_parameters():  # a tied one comes once
        array = parameter.detach().numpy()
        forms = [digest(array)] + ([digest(array.T)] if array.ndim == 2 else [])
        equal.setdefault((array.shape, forms[0]), []).append(name)
        if not there & set(forms):
            absent.append(name)
    merged = [name for names in equal.values() for name in names[1:] if name not in absent]
    if merged:
        yield f"{len(merged)} parameters are equal to another one and share its tensor in the file: {shortened(merged)} (ort-train --untie splits them)"
    if absent:
        yield f"{len(absent)} parameters are not in the file and can't be trained: {shortened(absent)}; the exporter left them out or computed with them ahead"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("path")
    parser.add_argument("--text", nargs=2, metavar=("TEXT", "TOKENS"), help="writes this text's tokens, too")
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--opset", type=int, choices=range(17, 24), default=20)
    o = parser.parse_args()
    if o.text:  # first, because it is quick
        print(tokenize_text.write(o.folder, *o.text))
    model = load(o.folder)
    accepted = inspect.signature(model.forward).parameters
    inputs = tuple(name for name in INPUTS if name in accepted)
    vocabulary = model.config.vocab_size
    module = wrapped(model, inputs)
    tied = model.get_output_embeddings() is not None and model.get_output_embeddings().weight is model.get_input_embeddings().weight
    exporting.export_module(module, example(inputs, vocabulary, 2, 8), o.path, inputs, o.exporter, o.opset, static=False, external=False, fold=False, tied=tied)
    error = exporting.difference(module, example(inputs, vocabulary, 3, 11), o.path, inputs)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{o.path}: {type(model).__name__}, {count:,} parameters, inputs {', '.join(inputs)}; logits differ from PyTorch's by {error:.1e}")
    if not error < 1e-4:
        sys.exit(f"{o.path}: ONNX Runtime's logits differ too much from PyTorch's: try --exporter torchscript, or another --opset")
    for note in notes(model, o.path):
        print("note: " + note)


if __name__ == "__main__":
    main()
