"""What the export scripts share: both of PyTorch's exporters, repairs of what they write, the check against ONNX Runtime, options."""
import logging, os, tempfile, warnings
import numpy as np
import onnx
import torch

EMBEDDED_LIMIT = 1_900_000_000  # a protobuf message ends at 2 GiB


def perturbed(model, noise):
    """In evaluation mode, no two of its parameters alike."""
    with torch.no_grad():
        for parameter in model.parameters():  # a tied parameter comes once
            parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model.eval()


def export_module(module, arguments, path, inputs, exporter, opset, static, external, fold, tied, training=False, axes=("batch", "sequence")):
    """Writes `path`; with external data, `path`.data beside it. The module gives `logits`, whose first dimensions are the axes."""
    size = 4 * sum(p.numel() for p in module.parameters())
    external = external or size > EMBEDDED_LIMIT
    module.train(training)  # TorchScript's exporter sets all modules to this one's mode
    for old in (path, path + ".data"):
        if os.path.exists(old):
            os.remove(old)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
            torch.onnx.export(module, arguments, path, dynamo=True, opset_version=opset, input_names=list(inputs), output_names=["logits"],
                              dynamic_shapes=None if static else (dims,) * len(inputs), external_data=external, verbose=False)
        else:
            dynamic = None if static else dict({name: {0: "batch", 1: "sequence"} for name in inputs}, logits=dict(enumerate(axes)))
            with tempfile.TemporaryDirectory(dir=os.path.dirname(path) or ".") as folder:  # over 2 GB it writes a file a tensor
                raw = os.path.join(folder, "model.onnx")
                # Its constant folding stores a tied head a second time, transposed.
                torch.onnx.export(module, arguments, raw, dynamo=False, opset_version=min(opset, 20), input_names=list(inputs),
                                  output_names=["logits"], dynamic_axes=dynamic, do_constant_folding=fold,
                                  training=torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL)
                graph = onnx.load(raw, load_external_data=False)
                if opset > 20:  # the exporter's last opset
                    if size > EMBEDDED_LIMIT:
                        raise SystemExit("TorchScript exports end at opset 20, and the version converter takes no model over 2 GB")
                    graph = onnx.version_converter.convert_version(graph, opset)
                if external:
                    gather_external(graph, folder, path + ".data")
                onnx.save(graph, path)
    module.eval()
    graph = onnx.load(path, load_external_data=False)
    opsets = {o.domain: o.version for o in graph.opset_import}
    if opsets[""] != opset:
        raise SystemExit(f"{path}: asked for opset {opset}, the exporter wrote {opsets['']}")
    repaired = opset < 18 and repair_split(graph)
    if not fold and tied:
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


def difference(module, arguments, path, inputs):
    """Largest difference between ONNX Runtime's and PyTorch's logits over PyTorch's largest logit; the file is checked, too."""
    import onnxruntime
    onnx.checker.check_model(path, full_check=os.path.getsize(path) < EMBEDDED_LIMIT)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = module.eval()(*arguments).numpy()
    actual = session.run(["logits"], {name: value.numpy() for name, value in zip(inputs, arguments)})[0]
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def add_options(parser, sizes, inputs):
    parser.add_argument("path")
    parser.add_argument("--size", choices=sizes, default="tiny")
    for option in ("layer", "head", "embd"):
        parser.add_argument(f"--n-{option}", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--n-positions", type=int)
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--opset", type=int, choices=range(17, 24), default=20)
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa")
    parser.add_argument("--inputs", default=",".join(inputs), help="which of %(default)s")
    parser.add_argument("--static", action="store_true", help="fix batch and sequence to --batch and --sequence")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=8)
    parser.add_argument("--fold", action="store_true", help="leave the tied head stored twice, once transposed, as the exporters fold it")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--external", action="store_true", help="weights in PATH.data (always so over 1.9 GB)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-verify", action="store_true", help="skip the comparison with ONNX Runtime")


def chosen_shape(o, sizes):
    return [given or default for given, default in zip((o.n_layer, o.n_head, o.n_embd, o.vocab_size, o.n_positions), sizes[o.size])]


def report(o, model, positions, verify):
    """Says what was written; `verify(batch, sequence)`, where there is one, tries another shape than the traced one."""
    graph = onnx.load(o.path, load_external_data=False).graph
    count = sum(p.numel() for p in model.parameters())
    line = f"{o.path}: {o.exporter}, opset {o.opset}, {len(graph.node)} nodes, {len(graph.initializer)} initializers, {count:,} parameters"
    if verify:
        error = verify(*((o.batch, o.sequence) if o.static else (3, min(o.sequence + 3, positions))))
        line += f", logits differ from PyTorch's by {error:.1e}"
        if not error < 1e-5:
            raise SystemExit(line)
    print(line)
