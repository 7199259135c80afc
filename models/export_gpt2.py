"""Exports a Hugging Face GPT-2 with random weights to ONNX. Downloads nothing.

    python export_gpt2.py gpt2.onnx --size 124M --exporter dynamo --opset 20
    python export_gpt2.py small.onnx --n-layer 3 --n-head 3 --n-embd 48 --vocab-size 101 --n-positions 32 --attention sdpa

Every parameter is perturbed, biases and norms included: exporters merge parameters that happen to be equal, and a fresh
GPT-2's biases are all zero. Inputs are input_ids, attention_mask and position_ids (batch, sequence), output logits
(batch, sequence, vocabulary). The file is checked, and ONNX Runtime's logits are compared with PyTorch's.
"""
import argparse, logging, os, tempfile, warnings
import numpy as np
import onnx
import torch
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {  # name: (layers, heads, width, vocabulary, positions)
    "tiny": (2, 2, 32, 97, 32), "mini": (6, 6, 384, 65, 256), "124M": (12, 12, 768, 50257, 1024),
    "355M": (24, 16, 1024, 50257, 1024), "774M": (36, 20, 1280, 50257, 1024), "xl": (48, 25, 1600, 50257, 1024)}
INPUTS = ("input_ids", "attention_mask", "position_ids")
EMBEDDED_LIMIT = 1_900_000_000  # a protobuf message ends at 2 GiB


def build(layers, heads, width, vocabulary, positions, attention="eager", tied=True, dropout=0.0, activation="gelu_new", noise=0.02, seed=0):
    """A GPT-2 in evaluation mode, no two of its parameters alike."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=positions, tie_word_embeddings=tied,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False, attn_implementation=attention,
        activation_function=activation, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a tied parameter comes once
            parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model


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
    arguments = example(inputs, model.config.vocab_size, batch, sequence)
    size = 4 * sum(p.numel() for p in model.parameters())
    external = external or size > EMBEDDED_LIMIT
    wrapped = Logits(model).eval()  # TorchScript's exporter sets the modules back to the wrapper's mode
    for old in (path, path + ".data"):
        if os.path.exists(old):
            os.remove(old)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
            torch.onnx.export(wrapped, arguments, path, dynamo=True, opset_version=opset, input_names=list(inputs), output_names=["logits"],
                              dynamic_shapes=None if static else (dims,) * len(inputs), external_data=external, verbose=False)
        else:
            if "attention_mask" not in inputs:
                raise SystemExit("the TorchScript exporter has no aten::diff, which masks without attention_mask need: add it to --inputs")
            axes = None if static else {name: {0: "batch", 1: "sequence"} for name in (*inputs, "logits")}
            with tempfile.TemporaryDirectory(dir=os.path.dirname(path) or ".") as folder:  # over 2 GB it writes a file a tensor
                raw = os.path.join(folder, "model.onnx")
                # Its constant folding stores the tied head a second time, transposed.
                torch.onnx.export(wrapped, arguments, raw, dynamo=False, opset_version=min(opset, 20), input_names=list(inputs),
                                  output_names=["logits"], dynamic_axes=axes, do_constant_folding=fold)
                graph = onnx.load(raw, load_external_data=False)
                if opset > 20:  # the exporter's last opset
                    if size > EMBEDDED_LIMIT:
                        raise SystemExit("TorchScript exports end at opset 20, and the version converter takes no model over 2 GB")
                    graph = onnx.version_converter.convert_version(graph, opset)
                if external:
                    gather_external(graph, folder, path + ".data")
                onnx.save(graph, path)
    graph = onnx.load(path, load_external_data=False)
    opsets = {o.domain: o.version for o in graph.opset_import}
    if opsets[""] != opset:
        raise SystemExit(f"{path}: asked for opset {opset}, the exporter wrote {opsets['']}")
    repaired = opset < 18 and repair_split(graph)
    if not fold and model.lm_head.weight is model.transformer.wte.weight:
        repaired = retie_head(graph, os.path.dirname(path)) or repaired
    if repaired:
        onnx.save(graph, path)


def repair_split(graph):
    """The dynamo exporter writes opset 17 by converting from 18, and forgets that Split has no num_outputs there."""
    repaired = False
    for node in graph.graph.node:
        for attribute in list(node.attribute):
            if node.op_type == "Split" and attribute.name == "num_outputs":  # without it, Split-13 makes equal parts, one an output
                node.attribute.remove(attribute)
                repaired = True
    return repaired


def retie_head(graph, folder):
    """The dynamo exporter folds Transpose(head) into a second copy when the head is small: makes it a Transpose again."""
    initializers = {t.name: t for t in graph.graph.initializer}
    head = next(initializers[n.input[0]] for n in graph.graph.node if n.op_type == "Gather" and n.input[0] in initializers)
    for node in graph.graph.node:
        copy = initializers.get(node.input[1]) if node.op_type == "MatMul" else None
        if copy is None or list(copy.dims) != list(head.dims)[::-1]:
            continue
        if not np.array_equal(onnx.numpy_helper.to_array(copy, folder), onnx.numpy_helper.to_array(head, folder).T):
            continue
        graph.graph.initializer.remove(copy)  # with external data its bytes stay in the file, unused
        kept = [v for v in graph.graph.value_info if v.name != copy.name]
        del graph.graph.value_info[:]
        graph.graph.value_info.extend(kept)
        position = list(graph.graph.node).index(node)
        graph.graph.node.insert(position, onnx.helper.make_node("Transpose", [head.name], [copy.name], name="node_tied_head", perm=[1, 0]))
        return True
    return False


def gather_external(graph, folder, path):
    """Moves every initializer of more than 1 KB to one file, 64-byte aligned, one tensor at a time."""
    with open(path, "wb") as out:
        for tensor in graph.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entry = {e.key: e.value for e in tensor.external_data}
                with open(os.path.join(folder, entry["location"]), "rb") as source:
                    source.seek(int(entry.get("offset", 0)))
                    content = source.read(int(entry["length"]) if "length" in entry else -1)
            elif len(tensor.raw_data) > 1024:
                content = tensor.raw_data
                tensor.ClearField("raw_data")
            else:
                continue
            out.write(bytes(-out.tell() % 64))
            tensor.data_location = onnx.TensorProto.EXTERNAL
            del tensor.external_data[:]
            for key, value in (("location", os.path.basename(path)), ("offset", out.tell()), ("length", len(content))):
                tensor.external_data.add(key=key, value=str(value))
            out.write(content)


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
        expected = Logits(model)(*arguments).numpy()
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
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--opset", type=int, choices=range(17, 24), default=20)
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa")
    parser.add_argument("--inputs", default=",".join(INPUTS), help="which of %(default)s; TorchScript can't do without attention_mask")
    parser.add_argument("--static", action="store_true", help="fix batch and sequence to --batch and --sequence")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=8)
    parser.add_argument("--untied", action="store_true", help="the head has a weight of its own")
    parser.add_argument("--fold", action="store_true", help="leave the tied head stored twice, once transposed, as the exporters fold it")
    parser.add_argument("--activation", default="gelu_new", help="gelu_new: primitives; gelu_pytorch_tanh, gelu: the Gelu op from opset 20")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--external", action="store_true", help="weights in PATH.data (always so over 1.9 GB)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-verify", action="store_true", help="skip the comparison with ONNX Runtime")
    o = parser.parse_args()
    shape = [given or default for given, default in zip((o.n_layer, o.n_head, o.n_embd, o.vocab_size, o.n_positions), SIZES[o.size])]
    model = build(*shape, attention=o.attention, tied=not o.untied, dropout=o.dropout, activation=o.activation, seed=o.seed)
    inputs = tuple(o.inputs.split(","))
    export(model, o.path, o.exporter, o.opset, inputs, o.batch, o.sequence, o.static, o.external, o.fold)
    graph = onnx.load(o.path, load_external_data=False).graph
    line = f"{o.path}: {o.exporter}, opset {o.opset}, {len(graph.node)} nodes, {len(graph.initializer)} initializers, {sum(p.numel() for p in model.parameters()):,} parameters"
    if not o.no_verify:
        shape = (o.batch, o.sequence) if o.static else (3, min(o.sequence + 3, model.config.n_positions))  # not the traced one
        error = verify(model, o.path, inputs, *shape)
        line += f", logits differ from PyTorch's by {error:.1e}"
        if not error < 1e-5:
            raise SystemExit(line)
    print(line)


if __name__ == "__main__":
    main()
