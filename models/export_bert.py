"""Exports a Hugging Face BERT with random weights to ONNX. Downloads nothing.

    python export_bert.py bert.onnx --size base --head masked-lm --exporter dynamo --opset 20
    python export_bert.py small.onnx --head classification --n-layer 2 --n-head 2 --n-embd 32 --vocab-size 61 --dropout 0.1 --training

Every parameter is perturbed, biases and norms included: exporters merge parameters that happen to be equal. Inputs are input_ids,
attention_mask and token_type_ids (batch, sequence); output logits, of shape (batch, sequence, vocabulary) for masked-lm and (batch, labels)
for classification. With --training the Dropout nodes stay in training mode. The file is checked, and ONNX Runtime's logits are compared with
PyTorch's (not with --training: their masks differ).
"""
import argparse
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification
import exporting

SIZES = {  # name: (layers, heads, width, vocabulary, positions); the inner width is four times the width
    "tiny": (2, 2, 128, 30522, 512), "mini": (4, 4, 256, 30522, 512), "small": (4, 8, 512, 30522, 512), "base": (12, 12, 768, 30522, 512),
    "large": (24, 16, 1024, 30522, 512)}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HEADS = {"masked-lm": BertForMaskedLM, "classification": BertForSequenceClassification}


def build(layers, heads, width, vocabulary, positions, head="masked-lm", labels=3, attention="eager", dropout=0.0, activation="gelu", noise=0.02, seed=0):
    """A BERT in evaluation mode, no two of its parameters alike."""
    torch.manual_seed(seed)
    return exporting.perturbed(HEADS[head](BertConfig(
        num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width, intermediate_size=4 * width, vocab_size=vocabulary,
        max_position_embeddings=positions, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, hidden_act=activation,
        attn_implementation=attention, num_labels=labels, pad_token_id=0)), noise)


def example(inputs, vocabulary, batch, sequence):
    values = dict(input_ids=torch.randint(1, vocabulary, (batch, sequence)),
                  attention_mask=torch.ones(batch, sequence, dtype=torch.int64),
                  token_type_ids=(torch.arange(sequence) >= sequence // 2).long().repeat(batch, 1))
    return tuple(values[name] for name in inputs)


class Logits(torch.nn.Module):
    """The exporters name inputs after the arguments of forward."""

    def __init__(self, model):
        super().__init__()
        for name, child in model.named_children():
            setattr(self, name, child)
        self.model = [model]  # a list, so that names have no prefix

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        return self.model[0](input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


def export(model, path, exporter="dynamo", opset=20, inputs=INPUTS, batch=2, sequence=8, static=False, external=False, fold=False, training=False):
    """Writes `path`; with external data, `path`.data beside it."""
    tied = isinstance(model, BertForMaskedLM)
    exporting.export_module(Logits(model), example(inputs, model.config.vocab_size, batch, sequence), path, inputs, exporter, opset, static, external,
                            fold, tied, training, axes=("batch", "sequence") if tied else ("batch",))


def verify(model, path, inputs, batch, sequence):
    return exporting.difference(Logits(model), example(inputs, model.config.vocab_size, batch, sequence), path, inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exporting.add_options(parser, SIZES, INPUTS)
    parser.add_argument("--head", choices=HEADS, default="masked-lm")
    parser.add_argument("--labels", type=int, default=3, help="classes of the classification")
    parser.add_argument("--activation", default="gelu", help="gelu: Erf in primitives, or the Gelu op from opset 20")
    parser.add_argument("--training", action="store_true", help="leave the Dropout nodes in training mode (attention's own only with --attention eager)")
    o = parser.parse_args()
    model = build(*exporting.chosen_shape(o, SIZES), head=o.head, labels=o.labels, attention=o.attention, dropout=o.dropout, activation=o.activation,
                  seed=o.seed)
    inputs = tuple(o.inputs.split(","))
    export(model, o.path, o.exporter, o.opset, inputs, o.batch, o.sequence, o.static, o.external, o.fold, o.training)
    exporting.report(o, model, model.config.max_position_embeddings,
                     None if o.no_verify or o.training else lambda *shape: verify(model, o.path, inputs, *shape))


if __name__ == "__main__":
    main()
