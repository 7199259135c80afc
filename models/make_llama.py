#!/usr/bin/env python3
"""Writes a Llama with random weights as ONNX, layer by layer, so that it takes little memory however large the model is: the shapes of a 7B are 13 GB
of bfloat16 in model.onnx.data. Downloads nothing.

    models/make_llama.py llama-7b.onnx [--size 7B]          (tiny, 1B, 7B; needs numpy and onnx)

Input input_ids (batch, sequence), output logits (batch, sequence, vocabulary). Names of weights are those of Hugging Face's.
"""
import argparse
import os

import numpy as np
import onnx
from onnx import TensorProto, helper

SIZES = {  # name: (layers, heads, heads of keys and values, width, inner width, vocabulary)
    "tiny": (2, 4, 2, 64, 160, 97), "1B": (16, 32, 8, 2048, 8192, 32000), "7B": (32, 32, 32, 4096, 11008, 32000)}


class Writer:
    """Nodes, and weights that go to the file as they come."""

    def __init__(self, path, seed=0):
        self.path, self.nodes, self.initializers, self.count = path, [], [], 0
        self.data = open(path + ".data", "wb")
        generator = np.random.default_rng(seed)
        numbers = generator.standard_normal(1 << 24, dtype=np.float32) * np.float32(0.02)
        self.numbers = (numbers.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16

    def node(self, op, inputs, name=None, **attributes):
        self.count += 1
        output = f"{name or op.lower()}_{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"/{name or op}/{op}_{self.count}", **attributes))
        return output

    def external(self, name, shape, write):
        at = self.data.tell()
        at += -at % 4096
        self.data.seek(at)
        write()
        tensor = onnx.TensorProto(name=name, data_type=TensorProto.BFLOAT16, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", os.path.basename(self.path) + ".data"), ("offset", at), ("length", self.data.tell() - at)):
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return name

    def weight(self, name, *shape):
        def write():
            left, at = int(np.prod(shape)), (len(self.initializers) * 7919) % len(self.numbers)
            while left > 0:
                piece = self.numbers[at:at + left]
                self.data.write(piece.tobytes())
                left -= len(piece)
                at = 0
        return self.external(name, shape, write)

    def ones(self, name, width):
        return self.external(name, [width], lambda: self.data.write(np.full(width, 0x3F80, np.uint16).tobytes()))

    def constant(self, values, dtype=np.int64):
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
        return name


def make(path, layers, heads, kv_heads, width, inner, vocabulary, seed=0):
    w = Writer(path, seed)
    depth = width // heads
    linear = lambda x, name, rows, columns: w.node("MatMul", [x, w.node("Transpose", [w.weight(name + ".weight", rows, columns)], perm=[1, 0])], name)
    x = w.node("Gather", [w.weight("model.embed_tokens.weight", vocabulary, width), "input_ids"])
    # cos and sin of each position, (sequence, depth)
    length = w.node("Gather", [w.node("Shape", ["input_ids"]), w.constant(1)])
    positions = w.node("Cast", [w.node("Range", [w.constant(0), length, w.constant(1)])], to=TensorProto.FLOAT)
    frequencies = w.constant(10000.0 ** (-np.arange(0, depth, 2) / depth), np.float32)
    angles = w.node("Mul", [w.node("Unsqueeze", [positions, w.constant([1])]), frequencies])
    angles = w.node("Concat", [angles, angles], axis=-1)
    cos, sin = (w.node("Cast", [w.node(op, [angles])], to=TensorProto.BFLOAT16) for op in ("Cos", "Sin"))
    shape_of = lambda count: w.constant([0, 0, count, depth])

    def rotated(x):
        first, second = (w.node("Slice", [x, w.constant([begin]), w.constant([end]), w.constant([3])]) for begin, end in ((0, depth // 2), (depth // 2, depth)))
        turned = w.node("Concat", [w.node("Neg", [second]), first], axis=-1)
        return w.node("Add", [w.node("Mul", [x, cos]), w.node("Mul", [turned, sin])])

    def split(x, count):
        return w.node("Transpose", [w.node("Reshape", [x, shape_of(count)])], perm=[0, 2, 1, 3])

    for i in range(layers):
        layer = f"model.layers.{i}."
        h = w.node("RMSNormalization", [x, w.ones(layer + "input_layernorm.weight", width)], epsilon=1e-5)
        q = rotated(split(linear(h, layer + "self_attn.q_proj", width, width), heads))
        k = rotated(split(linear(h, layer + "self_attn.k_proj", kv_heads * depth, width), kv_heads))
        v = split(linear(h, layer + "self_attn.v_proj", kv_heads * depth, width), kv_heads)
        attended = w.node("Transpose", [w.node("Attention", [q, k, v], is_causal=1)], perm=[0, 2, 1, 3])
        attended = w.node("Reshape", [attended, w.constant([0, 0, width])])
        x = w.node("Add", [x, linear(attended, layer + "self_attn.o_proj", width, width)])
        h = w.node("RMSNormalization", [x, w.ones(layer + "post_attention_layernorm.weight", width)], epsilon=1e-5)
        gate, up = linear(h, layer + "mlp.gate_proj", inner, width), linear(h, layer + "mlp.up_proj", inner, width)
        gate = w.node("Mul", [gate, w.node("Sigmoid", [gate])])
        x = w.node("Add", [x, linear(w.node("Mul", [gate, up]), layer + "mlp.down_proj", width, inner)])
    x = w.node("RMSNormalization", [x, w.ones("model.norm.weight", width)], epsilon=1e-5)
    linear(x, "lm_head", vocabulary, width)
    w.nodes[-1].output[0] = "logits"
    w.data.close()
    value = lambda name, kind, *dims: helper.make_tensor_value_info(name, kind, dims)
    graph = helper.make_graph(w.nodes, "llama", [value("input_ids", TensorProto.INT64, "batch", "sequence")],
                              [value("logits", TensorProto.BFLOAT16, "batch", "sequence", vocabulary)], w.initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11, producer_name="make_llama"), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--size", default="7B", choices=SIZES)
    arguments = parser.parse_args()
    make(arguments.path, *SIZES[arguments.size])


if __name__ == "__main__":
    main()
