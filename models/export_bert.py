"""Exports a Hugging Face BERT with random weights to ONNX. Downloads nothing.

    python export_bert.py bert.onnx --size base --head masked-lm --exporter dynamo --opset 20
    python export_bert.py small.onnx --head classification --n-layer 2 --n-head 2 --n-embd 32 --vocab-size 61 --dropout 0.1 --training

Every parameter is perturbed, biases and norms included: exporters merge parameters that happen to be equal. Inputs are input_ids,
attention_mask and token_type_ids (batch, sequence); output logits, of shape (batch, sequence, vocabulary) for masked-lm and (batch, labels)
for classification. With --training the Dropout nodes stay in training mode. The file is checked, and ONNX Runtime's logits are compared with
PyTorch's (not with --training: their masks differ).
"""
import argparse, logging, os, tempfile, warnings
import numpy as np
import onnx
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification
from export_gpt2 import EMBEDDED_LIMIT, gather_external, repair_split, retie_head

SIZES = {  # name: (layers, heads, width, vocabulary, positions); the inner width is four times the width
    "tiny": (2, 2, 128, 30522, 512), "mini": (4, 4, 256, 30522, 512), "small": (4, 8, 512, 30522, 512), "base": (12, 12, 768, 30522, 512),
    "large": (24, 16, 1024, 30522, 512)}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HEADS = {"masked-lm": BertForMaskedLM, "classification": BertForSequenceClassification}


def build(layers, heads, width, vocabulary, positions, head="masked-lm", labels=3, attention="eager", dropout=0.0, activation="gelu", noise=0.02, seed=0):
    """A BERT in evaluation mode, no two of its parameters alike."""
    torch.manual_seed(seed)
    model = HEADS[head](BertConfig(
        num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width, intermediate_size=4 * width, vocab_size=vocabulary,
        max_position_embeddings=positions, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, hidden_act=activation,
        attn_implementation=attention, num_labels=labels, pad_token_id=0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a tied parameter comes once
            parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model


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
    arguments = example(inputs, model.config.vocab_size, batch, sequence)
    size = 4 * sum(p.numel() for p in model.parameters())
    external = external or size > EMBEDDED_LIMIT
    wrapped = Logits(model).train(training)
    for old in (path, path + ".data"):
        if os.path.exists(old):
            os.remove(old)
    tied = isinstance(model, BertForMaskedLM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
            torch.onnx.export(wrapped, arguments, path, dynamo=True, opset_version=opset, input_names=list(inputs), output_names=["logits"],
                              dynamic_shapes=None if static else (dims,) * len(inputs), external_data=external, verbose=False)
        else:
            axes = None if static else dict({name: {0: "batch", 1: "sequence"} for name in inputs}, logits={0: "batch", 1: "sequence"} if tied else {0: "batch"})
            with tempfile.TemporaryDirectory(dir=os.path.dirname(path) or ".") as folder:  # over 2 GB it writes a file a tensor
                raw = os.path.join(folder, "model.onnx")
                torch.onnx.export(wrapped, arguments, raw, dynamo=False, opset_version=min(opset, 20), input_names=list(inputs), output_names=["logits"],
                                  dynamic_axes=axes, do_constant_folding=fold,
                                  training=torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL)
                graph = onnx.load(raw, load_external_data=False)
                if opset > 20:  # the exporter's last opset
                    if size > EMBEDDED_LIMIT:
                        raise SystemExit("TorchScript exports end at opset 20, and the version converter takes no model over 2 GB")
                    graph = onnx.version_converter.convert_version(graph, opset)
                if external:
                    gather_external(graph, folder, path + ".data")
                onnx.save(graph, path)
    wrapped.eval()
    graph = onnx.load(path, load_external_data=False)
    opsets = {o.domain: o.version for o in graph.opset_import}
    if opsets[""] != opset:
        raise SystemExit(f"{path}: asked for opset {opset}, the exporter wrote {opsets['']}")
    repaired = opset < 18 and repair_split(graph)
    if not fold and tied:
        repaired = retie_head(graph, os.path.dirname(path)) or repaired
    if repaired:
        onnx.save(graph, path)


def verify(model, path, inputs, batch, sequence):
    """Largest difference between ONNX Runtime's and PyTorch's logits over PyTorch's largest logit."""
    import onnxruntime
    onnx.checker.check_model(path, full_check=os.path.getsize(path) < EMBEDDED_LIMIT)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    arguments = example(inputs, model.config.vocab_size, batch, sequence)
    with torch.no_grad():
        expected = Logits(model).eval()(*arguments).numpy()
    actual = session.run(["logits"], {name: value.numpy() for name, value in zip(inputs, arguments)})[0]
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    for option in ("layer", "head", "embd"):
        parser.add_argument(f"--n-{option}", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--n-positions", type=int)
    parser.add_argument("--head", choices=HEADS, default="masked-lm")
    parser.add_argument("--labels", type=int, default=3, help="classes of the classification")
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--opset", type=int, choices=range(17, 24), default=20)
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa")
    parser.add_argument("--inputs", default=",".join(INPUTS), help="which of %(default)s")
    parser.add_argument("--static", action="store_true", help="fix batch and sequence to --batch and --sequence")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=8)
    parser.add_argument("--activation", default="gelu", help="gelu: Erf in primitives, or the Gelu op from opset 20")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--training", action="store_true", help="leave the Dropout nodes in training mode (attention's own only with --attention eager)")
    parser.add_argument("--fold", action="store_true", help="leave the tied head stored twice, once transposed, as the exporters fold it")
    parser.add_argument("--external", action="store_true", help="weights in PATH.data (always so over 1.9 GB)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-verify", action="store_true", help="skip the comparison with ONNX Runtime")
    o = parser.parse_args()
    shape = [given or default for given, default in zip((o.n_layer, o.n_head, o.n_embd, o.vocab_size, o.n_positions), SIZES[o.size])]
    model = build(*shape, head=o.head, labels=o.labels, attention=o.attention, dropout=o.dropout, activation=o.activation, seed=o.seed)
    inputs = tuple(o.inputs.split(","))
    export(model, o.path, o.exporter, o.opset, inputs, o.batch, o.sequence, o.static, o.external, o.fold, o.training)
    graph = onnx.load(o.path, load_external_data=False).graph
    line = f"{o.path}: {o.exporter}, opset {o.opset}, {len(graph.node)} nodes, {len(graph.initializer)} initializers, {sum(p.numel() for p in model.parameters()):,} parameters"
    if not o.no_verify and not o.training:
        shape = (o.batch, o.sequence) if o.static else (3, min(o.sequence + 3, model.config.max_position_embeddings))  # not the traced one
        error = verify(model, o.path, inputs, *shape)
        line += f", logits differ from PyTorch's by {error:.1e}"
        if not error < 1e-5:
            raise SystemExit(line)
    print(line)


if __name__ == "__main__":
    main()
