"""Exports a Hugging Face GPT-2 with random weights to ONNX. Downloads nothing.

    python export_gpt2.py gpt2.onnx --size 124M --exporter dynamo --opset 20
    python export_gpt2.py small.onnx --n-layer 3 --n-head 3 --n-embd 48 --vocab-size 101 --n-positions 32 --attention sdpa

Every parameter is perturbed, biases and norms included: exporters merge parameters that happen to be equal, and a fresh
GPT-2's biases are all zero. Inputs are input_ids, attention_mask and position_ids (batch, sequence), output logits
(batch, sequence, vocabulary). The file is checked, and ONNX Runtime's logits are compared with PyTorch's.
"""
import argparse
import torch
from transformers import GPT2Config, GPT2LMHeadModel
import exporting

SIZES = {  # name: (layers, heads, width, vocabulary, positions)
    "tiny": (2, 2, 32, 97, 32), "mini": (6, 6, 384, 65, 256), "124M": (12, 12, 768, 50257, 1024),
    "355M": (24, 16, 1024, 50257, 1024), "774M": (36, 20, 1280, 50257, 1024), "xl": (48, 25, 1600, 50257, 1024)}
INPUTS = ("input_ids", "attention_mask", "position_ids")


def build(layers, heads, width, vocabulary, positions, attention="eager", tied=True, dropout=0.0, activation="gelu_new", noise=0.02, seed=0):
    """A GPT-2 in evaluation mode, no two of its parameters alike."""
    torch.manual_seed(seed)
    return exporting.perturbed(GPT2LMHeadModel(GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=positions, tie_word_embeddings=tied,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False, attn_implementation=attention,
        activation_function=activation, bos_token_id=0, eos_token_id=0)), noise)


def example(inputs, vocabulary, batch, sequence):
    values = dict(input_ids=torch.randint(0, vocabulary, (batch, sequence)),
                  attention_mask=torch.ones(batch, sequence, dtype=torch.int64),
                  position_ids=torch.arange(sequence).repeat(batch, 1))
    return tuple(values[name] for name in inputs)


class Logits(torch.nn.Module):
    """The exporters name inputs after the arguments of forward, so there is one form for each list of inputs."""

    def __init__(self, model):
        super().__init__()
        self.transformer, self.lm_head, self.model = model.transformer, model.lm_head, [model]  # a list, so that names have no prefix

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        return self.model[0](input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids).logits


def export(model, path, exporter="dynamo", opset=20, inputs=INPUTS, batch=2, sequence=8, static=False, external=False, fold=False):
    """Writes `path`; with external data, `path`.data beside it."""
    if exporter == "torchscript" and "attention_mask" not in inputs:
        raise SystemExit("the TorchScript exporter has no aten::diff, which masks without attention_mask need: add it to --inputs")
    exporting.export_module(Logits(model), example(inputs, model.config.vocab_size, batch, sequence), path, inputs, exporter, opset, static, external,
                            fold, tied=model.lm_head.weight is model.transformer.wte.weight)


def verify(model, path, inputs, batch, sequence):
    return exporting.difference(Logits(model), example(inputs, model.config.vocab_size, batch, sequence), path, inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exporting.add_options(parser, SIZES, INPUTS)
    parser.add_argument("--untied", action="store_true", help="the head has a weight of its own")
    parser.add_argument("--activation", default="gelu_new", help="gelu_new: primitives; gelu_pytorch_tanh, gelu: the Gelu op from opset 20")
    o = parser.parse_args()
    model = build(*exporting.chosen_shape(o, SIZES), attention=o.attention, tied=not o.untied, dropout=o.dropout, activation=o.activation, seed=o.seed)
    inputs = tuple(o.inputs.split(","))
    export(model, o.path, o.exporter, o.opset, inputs, o.batch, o.sequence, o.static, o.external, o.fold)
    exporting.report(o, model, model.config.n_positions, None if o.no_verify else lambda *shape: verify(model, o.path, inputs, *shape))


if __name__ == "__main__":
    main()
