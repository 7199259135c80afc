#!/usr/bin/env python3
"""Small models with random weights, exported by tf2onnx, Keras, paddle2onnx, skl2onnx and spox, and the gradients that ort-train computes for them
beside finite differences in double. The section "Other exporters" of docs/zoo.md is the table of what comes out, written by

    models/zoo_exporters.py --write

For each trained weight w and three random directions v of norm 1, <gradient, v> is compared with (L(w + hv) - L(w - hv)) / 2h. The loss L is computed
by ONNX's reference evaluator on the same file, turned into double. A file passes where they differ by at most 1e-4 of the gradient's norm, for every
weight. A norm below a hundredth of the weights' median counts as that: some gradients are zero (a bias before a normalization, that of attention's keys),
and what single precision leaves of them is noise. What can't be installed or exported is listed as that.

The exporters don't agree on the versions of the packages that they need. So each has a virtual environment of its own, ~/.cache/ort-train/exporters/NAME,
made in the first run and kept; ONNX's packages for the comparison are in one called judge.

    models/zoo_exporters.py [--ort-train PROGRAM] [--write] [--keep FOLDER] [NAME...]      needs python3 alone; NAME is an exporter or a model
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback

from exporter_models import BATCH, EXPORTERS, file_name, first_line, make_models, seed_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path.home() / ".cache" / "ort-train" / "exporters"
SECTION = "## Other exporters"
DIRECTIONS, STEP, TOLERANCE, FLOOR = 3, 1e-6, 1e-4, 1e-2
PACKAGES = {  # of each environment; first the exporter, then what it exports from
    "tf2onnx": ["tf2onnx==1.17.0", "tensorflow-cpu==2.21.0", "keras==3.15.1", "onnx==1.23.2", "numpy==2.4.6", "protobuf==7.36.2"],
    "keras": ["keras==3.15.1", "tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "onnx==1.23.2", "numpy==2.4.6", "protobuf==7.36.2"],
    "paddle2onnx": ["paddle2onnx==2.1.0", "paddlepaddle==3.3.0", "packaging==26.4", "onnx==1.17.0", "onnxruntime==1.32.0", "onnx-graphsurgeon==0.6.1",
                    "sympy==1.14.0", "numpy==2.4.6", "protobuf==7.36.2"],
    "skl2onnx": ["skl2onnx==1.20.0", "scikit-learn==1.9.1", "onnx==1.23.2", "numpy==2.4.6", "protobuf==7.36.2"],
    "spox": ["spox==0.18.0", "onnx==1.23.2", "numpy==2.4.6", "protobuf==7.36.2"],
    "judge": ["onnx==1.23.2", "onnxruntime==1.32.0", "safetensors==0.8.0", "numpy==2.4.6", "protobuf==7.36.2"],
}


# ---- the comparison


def doubled(model, trained):
    """(the model in double, the values of its trained weights, which have become inputs)"""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    model, values = onnx.ModelProto.FromString(model.SerializeToString()), {}

    def tensor(value):
        if value.data_type == TensorProto.FLOAT:
            value.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(value).astype(np.float64), value.name))

    def nodes(items):
        for node in items:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    tensor(attribute.t)
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    graph(attribute.g)
                elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                    value = np.array(attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64)
                    attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
                elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.DOUBLE
                elif node.op_type == "GroupNormalization" and attribute.name == "stash_type":
                    attribute.i = TensorProto.DOUBLE

    def graph(of):
        for value in [*of.input, *of.output, *of.value_info]:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for value in of.initializer:
            tensor(value)
        nodes(of.node)
        take(of.initializer, lambda value: (value.name, value))
        take(of.node, lambda node: (node.output[0], node.attribute[0].t) if node.op_type == "Constant" else ("", None))

    def take(items, part):
        for index in reversed(range(len(items))):
            name, value = part(items[index])
            if name in trained:
                values[name] = numpy_helper.to_array(value)
                del items[index]

    graph(model.graph)
    for function in model.functions:
        nodes(function.node)
    return model, values


def evaluator_of(model):
    """ONNX's reference evaluator, but for two of its operators: its Erf computes in single, and its Loop joins what it should stack."""
    import math
    import numpy as np
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.ops import op_erf, op_loop

    class Erf(op_erf.Erf):
        op_domain = ""

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self._erf = np.vectorize(math.erf, otypes=[np.float64])

    class Loop(op_loop.Loop):
        op_domain = ""

        def __init__(self, *arguments):
            super().__init__(*arguments)
            inner = self._run_body
            self._run_body = lambda *values, **more: [value[None] if index > self.N else value for index, value in enumerate(inner(*values, **more))]

    return ReferenceEvaluator(model, new_ops=[Erf, Loop])


def ends_with_softmax(graph, output):
    """Whether ort-train's cross_entropy reads what goes into a Softmax at the end."""
    makers = {name: node for node in graph.node for name in node.output}
    while output in makers and makers[output].op_type in ("Identity", "Cast"):
        output = makers[output].input[0]
    return output in makers and makers[output].op_type == "Softmax"


def loss_of(kind, output, labels, probabilities):
    import numpy as np
    if kind == "mse":
        return np.mean((output - labels) ** 2)
    if not probabilities:
        output = output - output.max(-1, keepdims=True)
        output = output - np.log(np.exp(output).sum(-1, keepdims=True))
    picked = np.take_along_axis(output, labels[..., None], -1)
    return -np.mean(np.log(picked) if probabilities else picked)


def judge(program, path, loss, output):
    """What a file does: dict(nodes, opset, trained, error, result, reason)."""
    import numpy as np
    import onnx
    import onnxruntime
    from safetensors.numpy import load_file
    model = onnx.load(path)
    row = dict(nodes=len(model.graph.node), opset=next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), reason="")
    output = output or model.graph.output[0].name
    data, random = dict(np.load(path.with_suffix(".npz"))), np.random.default_rng(seed_of(path.stem))
    onnxruntime.set_default_logger_severity(3)
    try:
        single = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"]).run([output], data)[0]
    except Exception as e:
        return dict(row, result="not exported", reason=f"ONNX Runtime doesn't run the file: {first_line(str(e))}")
    labels = random.normal(size=single.shape).astype("float32") if loss == "mse" else random.integers(0, single.shape[-1], single.shape[:-1])
    scratch = path.with_suffix("")
    scratch.mkdir(exist_ok=True)
    np.savez(scratch / "data.npz", labels=labels, **data)
    arguments = [path, "--data", scratch / "data.npz", "--loss", loss, "--output", output, "--batch-size", BATCH, "--max-steps", 1, "--no-shuffle",
                 "--max-grad-norm", 0, "--save-gradients", scratch / "gradients.safetensors", "--log-file", scratch / "log.jsonl",
                 "--output-dir", scratch / "out", "--overwrite"]
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    (scratch / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return dict(row, result="refused", reason=(lines[-1] if lines else f"exit {done.returncode}").replace(str(path), "model.onnx")[:400])
    gradients = load_file(scratch / "gradients.safetensors")
    double, weights = doubled(model, set(gradients))
    evaluator, probabilities = evaluator_of(double), ends_with_softmax(model.graph, output)
    feeds = {key: value.astype(np.float64) if value.dtype == np.float32 else value for key, value in data.items()}
    run = lambda **changed: evaluator.run([output], {**feeds, **weights, **changed})[0]
    row["trained"] = len(gradients)
    if missing := sorted(set(gradients) - set(weights)):
        return dict(row, result="WRONG", reason=f"a gradient of {missing[0]}, which is no tensor of the file")
    start = run()
    assert start.dtype == np.float64 and np.allclose(start, single, rtol=1e-3, atol=1e-4), "the model in double computes something else"
    value = lambda **changed: loss_of(loss, run(**changed), labels, probabilities)
    first = json.loads((scratch / "log.jsonl").read_text().splitlines()[0])["loss"]
    norms = {name: float(np.linalg.norm(gradient.astype(np.float64))) for name, gradient in gradients.items()}
    floor, errors = FLOOR * float(np.median(list(norms.values()))), {}
    for name, gradient in sorted(gradients.items()):
        assert gradient.shape == weights[name].shape, f"the gradient of {name} has another shape"
        for _ in range(DIRECTIONS):
            direction = random.normal(size=gradient.shape)
            direction /= np.linalg.norm(direction)
            slope = (value(**{name: weights[name] + STEP * direction}) - value(**{name: weights[name] - STEP * direction})) / (2 * STEP)
            error = abs(slope - float((gradient * direction).sum())) / max(norms[name], floor, 1e-30)
            errors[name] = max(errors.get(name, 0.0), error)
    (scratch / "errors.json").write_text(json.dumps(dict(errors=errors, norms=norms, loss=[first, float(value())]), indent=1))
    worst = max(errors, key=errors.get)
    row["error"] = errors[worst]
    if abs(first - value()) > TOLERANCE * abs(value()):
        return dict(row, result="WRONG", reason=f"the loss is {first:.6g}, in double {value():.6g}")
    if row["error"] > TOLERANCE:
        return dict(row, result="WRONG", reason=f"{worst}, {sum(error > TOLERANCE for error in errors.values())} weights of {len(errors)}")
    return dict(row, result="passed")


def judge_all(folder, program):
    """Runs in the environment called judge: from the exporters' models.json to rows.json."""
    rows = []
    (folder / "rows.json").write_text("[]")
    for exporter in EXPORTERS:
        listed = folder / exporter / "models.json"
        for name, model in (json.loads(listed.read_text()) if listed.exists() else {}).items():
            if "why" in model:
                row = dict(result=model.get("result", "not exported"), reason=model["why"])
            else:
                try:
                    row = judge(program, folder / exporter / f"{file_name(name)}.onnx", model["loss"], model["output"])
                except Exception as e:
                    traceback.print_exc()
                    row = dict(result="not compared", reason=f"{type(e).__name__}: {first_line(str(e))}")
            rows.append(dict(row, exporter=exporter, name=name))
            print(f"{exporter}, {name}: {row['result']} {format(row['error'], '.1e') if 'error' in row else ''} {row['reason']}".rstrip(), flush=True)
            (folder / "rows.json").write_text(json.dumps(rows))


# ---- environments


def environment(name):
    """None, or why it can't be installed."""
    folder, ready = CACHE / name, CACHE / name / "ready"
    wanted = "\n".join([sys.version, *PACKAGES[name]])
    if ready.exists() and ready.read_text() == wanted:
        return None
    print(f"installing {', '.join(PACKAGES[name])}", flush=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[name]]
    for command in [sys.executable, "-m", "venv", "--clear", folder], install:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or [f"exit {done.returncode}"]
            return first_line(lines[-1])
    ready.write_text(wanted)
    return None


def run_in(name, *arguments, **options):
    """Runs this script in an environment."""
    settings = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", KERAS_BACKEND="tensorflow",
                    KERAS_HOME=str(CACHE / "keras-home"), POLYGRAPHY_AUTOINSTALL_DEPS="0")
    command = [CACHE / name / "bin" / "python", "-W", "ignore", __file__, *arguments]
    return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, env=settings, **options)


def exported(folder, exporter, names):
    """Makes the models of an exporter and models.json, also where that fails."""
    (folder / exporter).mkdir(parents=True, exist_ok=True)
    listed = folder / exporter / "models.json"
    listed.write_text("{}")
    if not names:
        return
    why, result = environment(exporter), "not installed"
    if why is None:
        with open(folder / exporter / "output.txt", "w") as output:
            done = run_in(exporter, "--make", folder, exporter, *names, stdout=output, stderr=subprocess.STDOUT)
        why, result = f"the exporter ended with {done.returncode}", "not exported"
    models = json.loads(listed.read_text()) if listed.exists() else {}
    listed.write_text(json.dumps({name: models.get(name, dict(why=why, result=result)) for name in names}))


def section(rows):
    """Of docs/zoo.md."""
    version = lambda exporter: ", ".join(package.replace("==", " ") for package in PACKAGES[exporter][:2] if not package.startswith("onnx="))
    judged = [row for row in rows if row["result"] in ("passed", "WRONG", "refused")]
    passed = sum(row["result"] == "passed" for row in judged)
    lines = [SECTION, "", f"Small models with random weights, made by other exporters than PyTorch's. **{passed} of {len(judged)} files pass**: for each "
             "trained weight, the gradient along three random directions is within 1e-4 of finite differences, which ONNX's reference evaluator "
             "computes in double. "
             "The error is relative to the gradient's norm; the column has the largest of each file. Written by `models/zoo_exporters.py --write`.", "",
             "| exporter | model | opset | nodes | weights trained | error | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        error = f"{row['error']:.1e}" if "error" in row else ""
        result = f"{row['result']} {row['reason']}".strip().replace("|", "/")
        cells = [version(row["exporter"]), row["name"], row.get("opset", ""), row.get("nodes", ""), row.get("trained", ""), error, result]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ort-train", default=os.environ.get("ORT_TRAIN", ROOT / "build" / "ort-train"))
    parser.add_argument("--write", action="store_true", help='the section "Other exporters" of docs/zoo.md; with all models only')
    parser.add_argument("--keep", help="a folder for the exported files and what was made of them")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if options.make:
        return make_models(pathlib.Path(options.make) / options.names[0], options.names[0], options.names[1:])
    if options.judge:
        return judge_all(pathlib.Path(options.judge), str(options.ort_train))
    wanted = lambda exporter, name: not options.names or exporter in options.names or name in options.names
    chosen = {exporter: [name for name in names if wanted(exporter, name)] for exporter, (_, names) in EXPORTERS.items()}
    if not any(chosen.values()) or options.write and options.names:
        parser.error("no model has such a name" if not any(chosen.values()) else "--write takes all models")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(options.keep or scratch).resolve()
        for exporter, names in chosen.items():
            exported(folder, exporter, names)
        if why := environment("judge"):
            print(f"nothing is compared: {why}")
            return 1
        done = run_in("judge", "--judge", folder, "--ort-train", pathlib.Path(options.ort_train).resolve())
        rows = json.loads((folder / "rows.json").read_text())
    compared = [(row["exporter"], row["name"]) for row in rows]
    rows += [dict(exporter=exporter, name=name, result="not compared", reason=f"the comparison ended with {done.returncode}")
             for exporter, names in chosen.items() for name in names if (exporter, name) not in compared]
    if options.write:
        page = ROOT / "docs" / "zoo.md"
        before, _, after = page.read_text().partition(SECTION)
        others = re.split(r"\n(?=## )", after)[1:]  # sections of other scripts
        page.write_text("\n\n".join(part.strip("\n") for part in [before, section(rows), *others]) + "\n")
    return any(row["result"] in ("WRONG", "refused", "not compared") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
