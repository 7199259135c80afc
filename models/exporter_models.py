"""The models of zoo_exporters.py: what each exporter makes of small networks with random weights. make_models() runs in the exporter's own
environment; no package is imported before it is needed there.
"""
import json
import re
import traceback

BATCH, LENGTH, VOCABULARY, CLASSES = 3, 6, 31, 5


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
