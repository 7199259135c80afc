"""Adapters beside weights in few bits: the loss and every gradient of a step are those of the model that the rounded weights make, in float64.

The reference is NumPy's: it rounds weights and goes backward by itself.
"""
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from program import log, run, safetensors

WORDS, TIME, TABLE, IN, INNER, OUT = 4, 3, 60, 128, 96, 48
RANK, SCALE = 4, 2.0  # of the adapters
NF4 = np.array([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
                0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1])


def rounded(weight, base):
    """What is left of it in blocks of 64 numbers."""
    if base == "float32":
        return weight.astype(np.float64)
    blocks = weight.reshape(-1, 64).astype(np.float64)
    largest = np.abs(blocks).max(1, keepdims=True)
    if base == "int8":
        return (np.rint(blocks / largest * 127) * largest / 127).reshape(weight.shape)
    codes = np.abs(blocks[:, :, None] / largest[:, :, None] - NF4).argmin(2)
    return (NF4[codes] * largest).reshape(weight.shape)


def model(path):
    """A table, a product with a matrix [out, in], two of its result with matrices [in, out], a head. Returns the weights."""
    draw = np.random.default_rng(5)
    weights = {"table.weight": draw.normal(0, 1, (TABLE, IN)), "first.weight": draw.normal(0, 0.1, (INNER, IN)), "first.bias": draw.normal(0, 0.1, INNER),
               "second.weight": draw.normal(0, 0.1, (INNER, IN)), "third.weight": draw.normal(0, 0.1, (INNER, IN)), "head.weight": draw.normal(0, 0.1, (IN, OUT))}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    nodes = [helper.make_node("Gather", ["table.weight", "words"], ["x"]), helper.make_node("Transpose", ["first.weight"], ["turned"], perm=[1, 0]),
             helper.make_node("MatMul", ["x", "turned"], ["a"]), helper.make_node("Add", ["a", "first.bias"], ["b"]), helper.make_node("Tanh", ["b"], ["c"]),
             helper.make_node("MatMul", ["c", "second.weight"], ["d"]), helper.make_node("Tanh", ["d"], ["e"]),
             helper.make_node("MatMul", ["c", "third.weight"], ["f"]), helper.make_node("Mul", ["e", "f"], ["g"]), helper.make_node("MatMul", ["g", "head.weight"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", TIME])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", TIME, OUT])],
                              [numpy_helper.from_array(value, name) for name, value in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return weights


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(value.tobytes() for value in tensors.values()))


def adapter(folder, kind):
    """As PEFT writes it. Returns its tensors."""
    draw = np.random.default_rng(6)
    tensors = {}
    for module, (rows, columns) in {"first": (INNER, IN), "second": (IN, INNER), "third": (IN, INNER)}.items():  # outputs, inputs
        if kind == "ia3":
            tensors[f"{module}.ia3_l"] = 1 + draw.normal(0, 0.2, (1, columns) if module == "second" else (rows, 1))
            continue
        tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = draw.normal(0, 0.1, (RANK, columns)), draw.normal(0, 0.1, (rows, RANK))
        if kind == "dora":
            tensors[f"{module}.lora_magnitude_vector"] = draw.uniform(0.5, 1.5, rows)
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", {f"base_model.model.{name}": value for name, value in tensors.items()})
    config = {"peft_type": "IA3", "target_modules": ["first", "second", "third"], "feedforward_modules": ["second"]} if kind == "ia3" else \
        {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE, "use_dora": kind == "dora"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return tensors


class Layer:
    """y = x W' + b with an adapter: W [out, in]."""

    def __init__(self, module, weight, bias, tensors):
        self.module, self.weight, self.bias = module, weight, bias
        self.of = {name.removeprefix(module + "."): value.astype(np.float64) for name, value in tensors.items() if name.startswith(module + ".")}
        self.inputs, self.outputs = np.ones(weight.shape[1]), np.ones(weight.shape[0])
        if "ia3_l" in self.of:
            if self.of["ia3_l"].shape[0] == 1:
                self.inputs = self.of["ia3_l"][0]
            else:
                self.outputs = self.of["ia3_l"][:, 0]
            return
        self.weight = weight + SCALE * self.of["lora_B.weight"] @ self.of["lora_A.weight"]
        self.norms = np.linalg.norm(self.weight, axis=1)
        if "lora_magnitude_vector" in self.of:
            self.outputs = self.of["lora_magnitude_vector"] / self.norms

    def forward(self, x):
        self.x, self.product = x, (x * self.inputs) @ self.weight.T
        if "ia3_l" in self.of:
            self.product = self.product + self.bias
            return self.product * self.outputs
        return self.product * self.outputs + self.bias

    def backward(self, dy):
        """Returns dx and the gradients, by name."""
        dz = dy * self.outputs
        dx = dz @ self.weight
        gradients = {}
        if "ia3_l" in self.of:
            gradients["ia3_l"] = ((dx * self.x).sum(0) if self.of["ia3_l"].shape[0] == 1 else (dy * self.product).sum(0)).reshape(self.of["ia3_l"].shape)
        else:
            gradients["lora_A.weight"] = SCALE * (dz @ self.of["lora_B.weight"]).T @ self.x
            gradients["lora_B.weight"] = SCALE * dz.T @ (self.x @ self.of["lora_A.weight"].T)
        if "lora_magnitude_vector" in self.of:
            gradients["lora_magnitude_vector"] = (dy * self.product / self.norms).sum(0)
        return dx * self.inputs, {f"{self.module}.{name}": value for name, value in gradients.items()}


@pytest.mark.parametrize("base", ["float32", "int8", "nf4"])
@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_gradients_are_those_of_the_rounded_weights(tmp_path, kind, base):
    weights = model(tmp_path / "model.onnx")
    tensors = adapter(tmp_path / "adapter", kind)
    draw = np.random.default_rng(7)
    words, labels = draw.integers(0, TABLE, (WORDS, TIME)), draw.normal(0, 1, (WORDS, TIME, OUT)).astype(np.float32)
    np.savez(tmp_path / "data.npz", words=words, labels=labels)
    run(tmp_path, "model.onnx", "--data", "data.npz", "--loss", "mse", "--batch-size", WORDS, "--max-steps", 1, "--learning-rate", 1e-3, "--adapter", "adapter",
        "--base-dtype", base, "--base-target", "table", "--base-target", "head", "--save-gradients", "gradients.safetensors", "--log-file", "log.jsonl", "--adapter-only")

    stored = {name: value.astype(np.float64) if name.endswith("bias") else rounded(value, base) for name, value in weights.items()}
    first = Layer("first", stored["first.weight"], stored["first.bias"], tensors)
    second = Layer("second", stored["second.weight"].T, 0, tensors)
    third = Layer("third", stored["third.weight"].T, 0, tensors)
    c = np.tanh(first.forward(stored["table.weight"][words.ravel()]))
    e, f = np.tanh(second.forward(c)), third.forward(c)
    error = (e * f) @ stored["head.weight"] - labels.reshape(-1, OUT)
    steps, _ = log(tmp_path / "log.jsonl")
    assert abs(steps[0]["loss"] / (error**2).mean() - 1) < 1e-6
    dg = (2 * error / error.size) @ stored["head.weight"].T
    dc, of_second = second.backward(dg * f * (1 - e**2))
    dc_of_third, of_third = third.backward(dg * e)  # which has the same x as the second
    _, of_first = first.backward((dc + dc_of_third) * (1 - c**2))
    expected, gradients = {**of_first, **of_second, **of_third}, safetensors(tmp_path / "gradients.safetensors")
    assert sorted(gradients) == sorted(expected)
    for name, value in expected.items():
        assert gradients[name].shape == value.shape
        assert np.linalg.norm(gradients[name] - value) < 2e-6 * np.linalg.norm(value), name
