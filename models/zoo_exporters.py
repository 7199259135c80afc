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

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path.home() / ".cache" / "ort-train" / "exporters"
SECTION = "## Other exporters"
BATCH, LENGTH, VOCABULARY, CLASSES = 3, 6, 31, 5
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


# ---- Keras, exported by tf2onnx and by Keras itself


def dense(layers, ops):
    x = layers.Input((10,), name="x")
    y = layers.Dense(12, activation="tanh")(layers.Dense(16, activation="relu")(x))
    return [x], layers.Dense(CLASSES, activation="softmax")(y)


def convolutions(layers, ops):
    x = layers.Input((12, 12, 3), name="x")
    y = layers.MaxPooling2D(2)(layers.Conv2D(6, 3, activation="relu")(x))
    y = layers.AveragePooling2D(2, padding="same")(layers.Conv2D(8, 3, strides=2, padding="same", activation="elu")(y))
    return [x], layers.Dense(CLASSES, activation="softmax")(layers.Flatten()(y))


def depthwise(layers, ops):
    x = layers.Input((10, 10, 3), name="x")
    y = layers.BatchNormalization()(layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x))
    y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y)))
    y = layers.SeparableConv2D(6, 3, activation="swish")(y)
    return [x], layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(y))


def residual(layers, ops):
    x = layers.Input((8, 8, 3), name="x")
    y = layers.Conv2D(8, 3, padding="same")(x)
    for _ in range(2):
        z = layers.Conv2D(8, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(y)))
        y = y + layers.Conv2D(8, 3, padding="same")(layers.LeakyReLU(0.2)(layers.BatchNormalization()(z)))
    return [x], layers.Dense(CLASSES, activation="softmax")(layers.GlobalMaxPooling2D()(y))


def upsampling(layers, ops):
    x = layers.Input((8, 8, 2), name="x")
    low = layers.Conv2D(6, 3, strides=2, padding="same", activation="softplus")(x)
    y = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(low)
    y = layers.Concatenate()([y, layers.UpSampling2D(2, interpolation="bilinear")(low), x])
    return [x], layers.Conv2D(2, 1)(layers.UnitNormalization()(layers.ZeroPadding2D(1)(y)))


def lstm(layers, ops):
    words = layers.Input((LENGTH,), dtype="int32", name="words")
    y = layers.LSTM(8, return_sequences=True)(layers.Embedding(VOCABULARY, 8)(words))
    return [words], layers.Dense(CLASSES, activation="softmax")(layers.Bidirectional(layers.LSTM(6))(y))


def gru(layers, ops):
    words = layers.Input((LENGTH,), dtype="int32", name="words")
    y = layers.GRU(8, return_sequences=True)(layers.Embedding(VOCABULARY, 8)(words))
    return [words], layers.Dense(CLASSES)(layers.GRU(6, reset_after=False)(y))


def rnn(layers, ops):
    x = layers.Input((None, 4), name="x")
    return [x], layers.Dense(2)(layers.SimpleRNN(7, return_sequences=True)(x))


def attention(layers, ops):
    words = layers.Input((None,), dtype="int32", name="words")
    y = layers.Embedding(VOCABULARY, 12)(words)
    y = layers.LayerNormalization()(y + layers.MultiHeadAttention(3, 4)(y, y, use_causal_mask=True))
    y = layers.LayerNormalization(epsilon=1e-5)(y + layers.Dense(12)(layers.Dense(20, activation=lambda x: ops.gelu(x, approximate=True))(y)))
    return [words], layers.Dense(CLASSES, activation="softmax")(y)


def groups(layers, ops):
    x = layers.Input((16, 4), name="x")
    y = layers.GroupNormalization(2)(layers.Conv1D(8, 3, padding="causal", activation="selu")(x))
    y = layers.GlobalAveragePooling1D()(layers.MaxPooling1D(2)(layers.Conv1D(8, 3, dilation_rate=2)(y)))
    return [x], layers.Dense(3)(layers.PReLU()(layers.Dense(8)(y)))


KERAS = dict(dense=(dense, "cross_entropy"), convolutions=(convolutions, "cross_entropy"), depthwise=(depthwise, "cross_entropy"),
             residual=(residual, "cross_entropy"), upsampling=(upsampling, "mse"), lstm=(lstm, "cross_entropy"), gru=(gru, "mse"), rnn=(rnn, "mse"),
             attention=(attention, "cross_entropy"), groups=(groups, "mse"))


def plain(tensorflow, random):
    """TensorFlow without Keras: (function of the batch, shape of a batch, loss)"""
    nn = tensorflow.nn
    weight = lambda *shape, around=0.0: tensorflow.Variable((around + random.normal(size=shape) * (0.2 if around else 0.3)).astype("float32"))
    first, deep, narrow = weight(3, 3, 2, 6), weight(3, 3, 6, 2), weight(1, 1, 12, 8)
    scales, offsets, means, variances = weight(6, around=1.0), weight(6), weight(6), tensorflow.Variable(random.uniform(0.5, 2, 6).astype("float32"))
    head, bias = weight(8, 2 * CLASSES), weight(2 * CLASSES)

    def function(x):
        y = nn.relu(nn.conv2d(x, first, [1, 2, 2, 1], "SAME"))
        y = tensorflow.compat.v1.nn.fused_batch_norm(y, scales, offsets, means, variances, is_training=False)[0]
        y = nn.conv2d(nn.crelu(nn.depthwise_conv2d(y, deep[:, :, :, :1], [1, 1, 1, 1], "VALID")), narrow, 1, "SAME")
        y = nn.max_pool2d(nn.l2_normalize(y, axis=-1), 2, 1, "VALID")
        left, right = tensorflow.split(tensorflow.reduce_mean(y, [1, 2]) @ head + bias, 2, axis=1)
        return nn.log_softmax(left * nn.sigmoid(right))
    return function, [None, 11, 11, 2], "cross_entropy"


def keras_model(name, random):
    import keras
    keras.backend.clear_session()  # names count from 1 again
    keras.utils.set_random_seed(seed_of(name))
    inputs, output = KERAS[name][0](keras.layers, keras.ops)
    model = keras.Model(inputs, output)
    for variable in model.variables:
        noise = random.normal(size=variable.shape)
        if variable.trainable or variable.path.endswith("moving_mean"):
            variable.assign(variable.numpy() + 0.1 * noise)
        elif variable.path.endswith("moving_variance"):
            variable.assign(0.5 + abs(noise))
    data = {value.name: numbers(random, value.shape, "int" in value.dtype) for value in inputs}
    model.predict(data, verbose=0, batch_size=BATCH)  # without that Keras doesn't export it
    return model, data


def seed_of(name):
    return sum(map(ord, name))


def numbers(random, shape, whole=False):
    """Of an input, for one batch."""
    shape = [BATCH, *[LENGTH if size is None else size for size in shape[1:]]]
    return random.integers(0, VOCABULARY, shape).astype("int32") if whole else random.normal(size=shape).astype("float32")


def by_tf2onnx(name, path, random):
    import tensorflow
    import tf2onnx
    if name == "plain TensorFlow":
        function, shape, loss = plain(tensorflow, random)
        shapes, data = {"x": shape}, {"x": numbers(random, shape)}
    else:
        model, data = keras_model(name, random)
        function, shapes, loss = lambda *inputs: model(*inputs, training=False), {value.name: value.shape for value in model.inputs}, KERAS[name][1]
    signature = [tensorflow.TensorSpec(shapes[key], value.dtype, name=key) for key, value in data.items()]
    function = tensorflow.function(function, input_signature=signature)
    tf2onnx.convert.from_function(function, input_signature=signature, opset=18, output_path=str(path))
    return data, loss


def by_keras(name, path, random):
    model, data = keras_model(name, random)
    model.export(str(path), format="onnx", verbose=False)
    return data, KERAS[name][1]


# ---- paddle2onnx


def paddle_layers():
    from paddle import nn

    class Words(nn.Layer):
        """A table, layers, a head; of recurrent layers the last position's output if it is all that counts."""

        def __init__(self, body, width, last):
            super().__init__()
            self.table, self.body, self.head, self.last = nn.Embedding(VOCABULARY, 8), body, nn.Linear(width, CLASSES), last

        def forward(self, words):
            x = self.body(self.table(words))
            x = x[0] if isinstance(x, tuple) else x
            return self.head(x[:, -1] if self.last else x)

    class Inverted(nn.Layer):
        """An inverted residual with squeeze and excitation, as in MobileNetV3."""

        def __init__(self, n, m):
            super().__init__()
            self.widen = nn.Sequential(nn.Conv2D(n, m, 1, bias_attr=False), nn.BatchNorm2D(m), nn.Hardswish())
            self.depthwise = nn.Sequential(nn.Conv2D(m, m, 3, padding=1, groups=m, bias_attr=False), nn.BatchNorm2D(m), nn.ReLU6())
            self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Conv2D(m, 4, 1), nn.ReLU(), nn.Conv2D(4, m, 1), nn.Hardsigmoid())
            self.narrow = nn.Sequential(nn.Conv2D(m, n, 1, bias_attr=False), nn.BatchNorm2D(n))

        def forward(self, x):
            y = self.depthwise(self.widen(x))
            return x + self.narrow(y * self.squeeze(y))

    return nn, Words, Inverted


def of_paddle(name):
    """(layer, shape of the input, its name, loss)"""
    nn, Words, Inverted = paddle_layers()
    head = [nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    layer = lambda: nn.TransformerEncoderLayer(8, 2, 20, dropout=0.0, activation="gelu", normalize_before=True)
    encoder = lambda: nn.TransformerEncoder(layer(), 2, nn.LayerNorm(8))
    return {
        "dense": lambda: (nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, CLASSES), nn.Softmax()),
                          [None, 10], "x", "cross_entropy"),
        "convolutions": lambda: (nn.Sequential(nn.Conv2D(3, 6, 3), nn.BatchNorm2D(6), nn.ReLU(), nn.MaxPool2D(2), nn.Conv2D(6, 8, 3, padding=1, stride=2),
                                               nn.Swish(), *head, nn.Softmax()), [None, 3, 12, 12], "x", "cross_entropy"),
        "inverted": lambda: (nn.Sequential(nn.Conv2D(3, 8, 3, stride=2, padding=1), Inverted(8, 16), Inverted(8, 12), *head),
                             [None, 3, 8, 8], "x", "cross_entropy"),
        "decoder": lambda: (nn.Sequential(nn.Conv2D(2, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.LeakyReLU(0.1), nn.AvgPool2D(2),
                                          nn.Conv2DTranspose(8, 6, 4, stride=2, padding=1), nn.InstanceNorm2D(6), nn.GELU(),
                                          nn.Upsample(size=[12, 12], mode="bilinear"), nn.Conv2D(6, 2, 1)), [None, 2, 6, 6], "x", "mse"),
        "lstm": lambda: (Words(nn.LSTM(8, 6, num_layers=2, direction="bidirect"), 12, True), [None, LENGTH], "words", "cross_entropy"),
        "lstm, fixed batch": lambda: (Words(nn.LSTM(8, 6), 6, False), [BATCH, LENGTH], "words", "cross_entropy"),
        "gru": lambda: (Words(nn.GRU(8, 6), 6, True), [BATCH, LENGTH], "words", "mse"),
        "encoder": lambda: (Words(encoder(), 8, False), [None, LENGTH], "words", "cross_entropy"),
    }[name]()


def by_paddle(name, path, random):
    import paddle
    import polygraphy.config  # noqa: F401, before the exporter tells it to install packages by itself
    paddle.disable_signal_handler()
    paddle.seed(seed_of(name))
    with paddle.utils.unique_name.guard():  # names count from 0 again
        layer, shape, key, loss = of_paddle(name)
    layer.eval()
    for parameter in layer.parameters():
        parameter.set_value(parameter.numpy() + 0.1 * random.normal(size=parameter.shape).astype("float32"))
    for key_, buffer in layer.named_buffers():
        if key_.endswith(("_mean", "_variance")):
            noise = random.normal(size=buffer.shape).astype("float32")
            buffer.set_value(0.1 * noise if key_.endswith("_mean") else 0.5 + abs(noise))
    data = numbers(random, shape, key == "words").astype("int64" if key == "words" else "float32")
    paddle.onnx.export(layer, str(path.with_suffix("")), input_spec=[paddle.static.InputSpec(shape, str(data.dtype), key)], opset_version=17)
    return {key: data}, loss


# ---- skl2onnx


def of_sklearn(name):
    """(estimator, loss, output)"""
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    classifier = lambda sizes, activation: MLPClassifier(hidden_layer_sizes=sizes, activation=activation, max_iter=2, random_state=0)
    regressor = lambda sizes, activation: MLPRegressor(hidden_layer_sizes=sizes, activation=activation, max_iter=2, random_state=0)
    return {
        "classifier": lambda: (classifier((12, 8), "tanh"), "cross_entropy", "probabilities"),
        "classifier, two classes": lambda: (classifier((12,), "relu"), "mse", "probabilities"),
        "classifier, scaled inputs": lambda: (make_pipeline(StandardScaler(), classifier((12,), "logistic")), "cross_entropy", "probabilities"),
        "regressor": lambda: (regressor((16, 8), "relu"), "mse", "variable"),
        "regressor, scaled inputs": lambda: (make_pipeline(StandardScaler(), regressor((12,), "tanh")), "mse", "variable"),
    }[name]()


def by_skl2onnx(name, path, random):
    import skl2onnx
    estimator, loss, output = of_sklearn(name)
    x = random.normal(size=(60, 6)).astype("float32")
    estimator.fit(x, random.integers(0, 2 if "two" in name else CLASSES, 60) if output == "probabilities" else x[:, 0])
    network = estimator[-1] if hasattr(estimator, "steps") else estimator
    for weights in (network.coefs_, network.intercepts_):
        weights[:] = [weight + 0.1 * random.normal(size=weight.shape) for weight in weights]
    scalers = [step for _, step in getattr(estimator, "steps", [])[:-1]]  # by default a Scaler of ai.onnx.ml; with div Sub and Div
    options = {id(network): {"zipmap": False}} if output == "probabilities" else {id(scaler): {"div": "div"} for scaler in scalers}
    model = skl2onnx.to_onnx(estimator, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
    path.write_bytes(model.SerializeToString())
    return {"X": x[:BATCH]}, loss, output


# ---- spox


def of_spox(name, random):
    """(inputs with their shapes, what makes the output of them, loss)"""
    import numpy as np
    import spox.opset.ai.onnx.v17 as op17
    import spox.opset.ai.onnx.v21 as op
    from spox._future import initializer
    weight = lambda *shape: initializer((random.normal(size=shape) / shape[0] ** 0.5 + 0.05).astype("float32"))
    constant = lambda *shape: op.const((random.normal(size=shape) / shape[0] ** 0.5).astype("float32"))
    whole = lambda *values: op17.const(np.array(values, np.int64))
    number = lambda value: op17.const(np.array(value, np.float32))

    def attention(words):
        x = op17.gather(weight(VOCABULARY, 12), words)
        q, k, v = op17.split(op17.add(op17.matmul(x, weight(12, 36)), weight(36)), outputs_count=3, axis=-1)
        heads = lambda x, order: op17.transpose(op17.reshape(x, whole(0, 0, 3, 4)), perm=order)
        scores = op17.mul(op17.matmul(heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1])), number(0.5))
        mixed = op17.matmul(op17.softmax(scores), heads(v, [0, 2, 1, 3]))
        y = op17.matmul(op17.reshape(op17.transpose(mixed, perm=[0, 2, 1, 3]), whole(0, 0, 12)), weight(12, 12))
        y = op17.layer_normalization(op17.add(x, y), weight(12), weight(12))[0]
        return op17.softmax(op17.add(op17.matmul(y, weight(12, CLASSES)), weight(CLASSES)))

    def convolutions(x):
        y = op.conv(op.pad(x, whole(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), weight(6, 2, 3, 3), weight(6))
        y = op.gelu(op.group_normalization(y, weight(6), weight(6), num_groups=3), approximate="tanh")
        y = op.add(y, op.conv(op.mish(y), weight(6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]))
        y = op.reduce_mean(y, whole(2, 3), keepdims=0)
        return op.gemm(op.hard_swish(y), weight(CLASSES, 6), weight(CLASSES), transB=1, alpha=0.5)

    def constants(x):
        y = op.tanh(op.add(op.matmul(x, constant(8, 12)), constant(12)))
        y = op.add(op.einsum([y, constant(12, 12)], equation="bi,oi->bo"), y)
        return op.log_softmax(op.matmul(y, constant(12, CLASSES)), axis=1)

    def recurrent(x):
        x = op.transpose(x, perm=[1, 0, 2])
        y, _, _ = op.lstm(x, weight(2, 20, 4), weight(2, 20, 5), weight(2, 40), hidden_size=5, direction="bidirectional")
        y = op.reshape(op.transpose(y, perm=[0, 2, 1, 3]), whole(0, 0, 10))
        y, last = op.gru(y, weight(1, 18, 10), weight(1, 18, 6), weight(1, 36), hidden_size=6, linear_before_reset=1)
        return op.add(op.matmul(op.squeeze(last, whole(0)), weight(6, 2)), weight(2))

    def loop(x):
        inner, outer, bias = weight(4, 6), weight(6, 6), weight(6)

        def body(time, going, state):
            one = op.reshape(op.gather(x, time, axis=1), whole(-1, 4))
            state = op.tanh(op.add(op.add(op.matmul(one, inner), op.matmul(state, outer)), bias))
            return [going, state, op.identity(state)]
        start = op.matmul(op.reduce_mean(x, whole(1), keepdims=0), weight(4, 6))
        _, states = op.loop(whole(LENGTH), op.const(np.array([True])), [start], body=body)
        return op.matmul(op.transpose(states, perm=[1, 0, 2]), weight(6, 2))

    return {
        "attention": ({"words": [BATCH, LENGTH]}, attention, "cross_entropy"), "convolutions": ({"x": [BATCH, 2, 7, 7]}, convolutions, "cross_entropy"),
        "constants": ({"x": ["batch", 8]}, constants, "cross_entropy"), "recurrent": ({"x": [BATCH, LENGTH, 4]}, recurrent, "mse"),
        "loop": ({"x": [BATCH, LENGTH, 4]}, loop, "mse"),
    }[name]


def by_spox(name, path, random):
    import numpy as np
    import spox
    inputs, make, loss = of_spox(name, random)
    data = {key: numbers(random, shape, key == "words") for key, shape in inputs.items()}
    data = {key: value.astype("int64") if key == "words" else value for key, value in data.items()}
    arguments = {key: spox.argument(spox.Tensor(np.dtype(value.dtype), tuple(inputs[key]))) for key, value in data.items()}
    path.write_bytes(spox.build(arguments, {"output": make(**arguments)}).SerializeToString())
    return data, loss


EXPORTERS = {  # what exports a model, and the models
    "tf2onnx": (by_tf2onnx, [*KERAS, "plain TensorFlow"]), "keras": (by_keras, list(KERAS)),
    "paddle2onnx": (by_paddle, ["dense", "convolutions", "inverted", "decoder", "lstm", "lstm, fixed batch", "gru", "encoder"]),
    "skl2onnx": (by_skl2onnx, ["classifier", "classifier, two classes", "classifier, scaled inputs", "regressor", "regressor, scaled inputs"]),
    "spox": (by_spox, ["attention", "convolutions", "constants", "recurrent", "loop"]),
}


def first_line(text):
    """What is said in one line, without addresses and paths."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m|\w+://\S+", "", text).splitlines() if line.strip()]
    return re.sub(r"(/[\w.+-]+){3,}/", "", lines[0] if lines else "")[:200]


def make_models(folder, exporter, names):
    """Runs in the exporter's environment. models.json says of each model either the loss and the output that it is trained with, or why there is none."""
    import numpy as np
    done = {}
    for name in names:
        random = np.random.default_rng(seed_of(exporter + name))
        path = folder / f"{file_name(name)}.onnx"
        try:
            data, loss, *output = EXPORTERS[exporter][0](name, path, random)
            np.savez(path.with_suffix(".npz"), **data)
            done[name] = dict(loss=loss, output=output[0] if output else None)
        except BaseException as e:  # whatever an exporter throws
            traceback.print_exc()
            done[name] = dict(why=f"{type(e).__name__}: {first_line(str(e))}")
        (folder / "models.json").write_text(json.dumps(done))


def file_name(name):
    return re.sub(r"\W+", "-", name)


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
