"""The standard's own tests of its operators, run with ours.

The `onnx` package generates them: for each a model of a node (and one of the function that the node stands for), inputs, and outputs by the
standard's authors. ort-train-conformance imports each model and computes its outputs. tests/conformance/cases.tsv says of every case, behind its
operator, `passed`, `failing` or `out of scope`, with a reason; here each has to do what it says there, and none may be missing. docs/conformance.md
shows it for people. Both are written again by

    make conformance
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import model as model_cases
from onnx.backend.test.case import node as node_cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("ORT_TRAIN", ROOT / "build" / "ort-train")).with_name("ort-train-conformance")
LIST = ROOT / "tests" / "conformance" / "cases.tsv"
PAGE = ROOT / "docs" / "conformance.md"
PASSED, FAILING, OUT = "passed", "failing", "out of scope"
TRAINING = ["test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple", "test_momentum", "test_momentum_multiple",
            "test_nesterov_momentum", "test_gradient_of_add", "test_gradient_of_add_and_mul"]

# What a tensor of ours holds, as safetensors calls it.
TYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
         "uint8": "U8", "bool": "BOOL"}
KINDS = {"uint16": "unsigned integers of 16 bits and more: no weight, activation or index is one", "complex": "complex numbers",
         "float8": "numbers of 8 bits and less", "float4": "numbers of 8 bits and less", "int4": "numbers of 8 bits and less",
         "int2": "numbers of 8 bits and less", "object": "strings", "str": "strings"}
KINDS["uint32"] = KINDS["uint64"] = KINDS["uint16"]
QUANTIZED = ("quantized integers: a model is trained before it is quantized", {
    "ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
RANDOM = "draws random numbers, which are the generator's own"
DECODER = "decodes image files, which is a data set's affair"


class Case:
    def __init__(self, case):
        self.name, self.model, self.rtol, self.atol = case.name, case.model, case.rtol, case.atol
        self.inputs, self.outputs = case.data_sets[0]
        self.ops = [node.op_type for node in self.model.graph.node]
        self.domains = {node.domain for node in self.model.graph.node}

    def out_of_scope(self):
        """Why; None where it is in scope."""
        if "ai.onnx.ml" in self.domains:
            return "ai.onnx.ml: trees, vectorizers and the like, which have no gradient"
        if "ImageDecoder" in self.ops:
            return DECODER
        for value in [*self.model.graph.input, *self.model.graph.output]:
            kind = value.type.WhichOneof("value")
            if kind == "optional_type":
                return "an input or output of the model that may be absent (optional)"
            if kind == "sequence_type":
                return "an input or output of the model that is a sequence of tensors"
            if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                return KINDS["str"]
        reason, quantized = QUANTIZED
        if quantized & set(self.ops):
            return reason
        for value in [*self.inputs, *self.outputs]:
            name = str(array_of(value).dtype)
            if name not in TYPES:
                return next(reason for kind, reason in KINDS.items() if kind in name)
        if any(node.op_type in ("Bernoulli", "RandomUniformLike") for node in self.model.graph.node):
            return RANDOM
        if self.name.startswith("test_training_dropout") and "zero_ratio" not in self.name:
            return RANDOM
        return None


def array_of(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def collect():
    """All cases by name, in order."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = node_cases.collect_testcases() + [case for case in model_cases.collect_testcases() if case.kind == "simple"]
    collected = {case.name: Case(case) for case in sorted(cases, key=lambda case: case.name)}
    assert len(collected) == len(cases)
    return collected


def write_cases(path, cases):
    header, place, parts = {}, 0, []

    def add(name, kind, array):
        nonlocal place
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(np.shape(array)), "data_offsets": [place, place + len(data)]}
        parts.append(data)
        place += len(data)

    for case in cases:
        add(f"{case.name}/model", "U8", np.frombuffer(case.model.SerializeToString(), np.uint8))
        add(f"{case.name}/tolerance", "F64", np.array([case.rtol, case.atol]))
        for side, values, arrays in (("input", case.model.graph.input, case.inputs), ("output", case.model.graph.output, case.outputs)):
            for value, given in zip(values, arrays):
                array = array_of(given)
                add(f"{case.name}/{side}/{value.name}", TYPES[str(array.dtype)], array)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def judge(cases, folder):
    """Name -> (result, what is to be said of it)."""
    judged = {name: (OUT, reason) for name, case in cases.items() if (reason := case.out_of_scope())}
    path = pathlib.Path(folder) / "cases.safetensors"
    write_cases(path, [case for name, case in cases.items() if name not in judged])
    done = subprocess.run([PROGRAM, path], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        one = json.loads(line)
        known = {"": "", "integers": "integers and booleans known at import", "all": "all inputs known at import"}[one["known"]]
        reason = ("wrong: " if one["result"] == "wrong" else "") + one["reason"]
        judged[one["case"]] = (PASSED, known) if one["result"] == "passed" else (FAILING, " ".join(reason.split()))
    path.unlink()
    lacking = [name for name in cases if name not in judged]
    assert done.returncode == 0 and not lacking, f"exit code {done.returncode} before {lacking[:1]}\n{done.stderr}"
    return {name: judged[name] for name in cases}


def share(judged):
    count = collections.Counter(result for result, _ in judged.values())
    return count[PASSED], count[PASSED] + count[FAILING]


def summary(judged):
    passed, in_scope = share(judged)
    return f"{passed} of {in_scope} cases in scope pass ({100 * passed / in_scope:.1f} %); {len(judged) - in_scope} are out of scope"


# --- the list and the page ----------------------------------------------------------------------------------------------------------------


def listed():
    rows = [line.split("\t") for line in LIST.read_text(encoding="utf-8").splitlines()]
    return {name: (result, said) for name, _, result, said in rows}


def op_of(name, cases):
    base = name.split("_expanded")[0]
    case = cases.get(base, cases[name])
    own = [op for op in case.ops if op != "Constant"] or case.ops
    return own[0] if len(set(own)) == 1 or case.name != name else "(models of several nodes)"


def page(judged, cases):
    by_op = collections.defaultdict(collections.Counter)
    for name, (result, _) in judged.items():
        by_op[op_of(name, cases)][result] += 1
    reasons = collections.Counter(said for result, said in judged.values() if result == OUT)
    failing = [(name, said) for name, (result, said) in judged.items() if result == FAILING]
    known = collections.Counter(said for result, said in judged.values() if result == PASSED and said)
    training = [f"`{name}`: {judged[name][0]}" for name in TRAINING]
    lines = [
        "# Conformance", "",
        "The ONNX standard comes with tests of its operators: a model of one node (and one of the function that the node stands for), inputs,",
        f"and what must come out. These are those of onnx {onnx.__version__}, run with the kernels of the processor.",
        f"**{summary(judged)}.**", "",
        "This page and `tests/conformance/cases.tsv`, the list of all cases, are written by `make conformance`. `make test` runs every case and",
        "fails where one doesn't do what the list says, or isn't in it. Older forms of operators, which these cases don't have, are compared with",
        "ONNX Runtime (`models/golden_ops.py`).", "",
        "## What counts as passed", "",
        "Outputs have the type and shape that the case wants, and differ by no more than the standard's own runner allows (10⁻³ relative; 2⁻⁶ of",
        "bfloat16). A training step has fixed shapes, so what decides a shape must be known when the model is imported: a case is tried with all",
        "inputs fed as data, and only where that is refused with some of them given at import. Of those that pass,", "",
        *[f"- {count} do so with {said}" for said, count in sorted(known.items())], "",
        "## The standard's training operators", "",
        "Of `ai.onnx.preview.training`, of which there are nine cases:", "",
        *[f"- {line}" for line in training], "",
        "## Out of scope", "", "| why | cases |", "|---|---|",
        *[f"| {reason} | {count} |" for reason, count in sorted(reasons.items(), key=lambda item: -item[1])], "",
        "## Failing", ""]
    lines += ["| case | why |", "|---|---|", *[f"| `{name}` | {said.replace('|', chr(92) + '|')} |" for name, said in failing]] if failing else ["None."]
    lines += ["", "## By operator", "", "| operator | passed | failing | out of scope |", "|---|---|---|---|"]
    lines += [f"| {op} | {count[PASSED] or ''} | {count[FAILING] or ''} | {count[OUT] or ''} |" for op, count in sorted(by_op.items())]
    return "\n".join(lines) + "\n"


# --- tests --------------------------------------------------------------------------------------------------------------------------------


def test_cases_do_what_the_list_says(tmp_path):
    cases = collect()
    expected, judged = listed(), judge(cases, tmp_path)
    print(summary(judged))
    assert list(expected) == list(judged), "the list doesn't have the cases that there are: make conformance"
    wrong = [f"{name}: {judged[name]}, listed as {expected[name]}" for name in judged
             if judged[name][0] != expected[name][0] or (judged[name][0] != FAILING and judged[name] != expected[name])]
    assert not wrong, "make conformance, where that is meant:\n" + "\n".join(wrong)
    assert PAGE.read_text(encoding="utf-8") == page(expected, cases), "docs/conformance.md is not what the list says: make conformance"


def main(folder):
    cases = collect()
    judged = judge(cases, folder)
    LIST.write_text("".join(f"{name}\t{op_of(name, cases)}\t{result}\t{said}\n" for name, (result, said) in judged.items()), encoding="utf-8")
    PAGE.write_text(page(judged, cases), encoding="utf-8")
    print(summary(judged))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
    sys.exit(0)
