"""Writes tests/golden/ops.safetensors: single-node ONNX models, their inputs and what the standard says comes out.

    python golden_ops.py [FILE]

Three sources: the standard's own node tests (outputs by its authors); the forms that ops had in older opsets, where
onnxruntime computes the outputs; com.microsoft ops, likewise. For case NAME the file holds NAME/model (the bytes of an ONNX
file), NAME/input/I (NAME/constant/I where the importer must know the value) and NAME/output/I. tests/ops_onnx_test.cpp imports
and runs each. Only types that ort-train computes with; empty arrays (a model file's dimension 0 means an unknown one) and cases of more than 8 kB are left out.
"""
import os, sys, warnings
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import save

warnings.filterwarnings("ignore")
MAX_BYTES = 8000
TYPES = (np.float32, np.float64, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)
OPS = """Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Cast CastLike Ceil Celu Clip Concat ConstantOfShape Conv Cos Cosh CumSum
DepthToSpace Div Dropout Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish
Identity IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min Mish Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not OneHot Or PRelu
Pad Pow RMSNormalization Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare Relu Reshape Round ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss Softplus
Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor""".split()
# Inputs whose values an importer must know: shapes, axes and the like. {-1}: all.
KNOWN = {"Reshape": {1}, "Expand": {1}, "Slice": {1, 2, 3, 4}, "Pad": {1, 3}, "Squeeze": {1}, "Unsqueeze": {1}, "Tile": {1}, "Split": {1}, "TopK": {1},
         "Range": {-1}, "ConstantOfShape": {-1}, "OneHot": {1}, "CumSum": {1}, "Trilu": {1}, "Dropout": {1, 2}, "NonZero": {-1},
         **{f"Reduce{kind}": {1} for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()}}

ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad"}  # what comes out has four digits there: a form below instead

arrays = {}


def add(name, model, inputs, outputs):
    node = model.graph.node[0]
    known = KNOWN.get(node.op_type, set())
    arrays[f"{name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
    for i, (value, array) in enumerate(zip(model.graph.input, inputs)):
        at = list(node.input).index(value.name)
        arrays[f"{name}/{'constant' if at in known or -1 in known else 'input'}/{i}"] = np.ascontiguousarray(array).reshape(np.shape(array))
    for i, array in enumerate(outputs):
        arrays[f"{name}/output/{i}"] = np.ascontiguousarray(array).reshape(np.shape(array))


def official():
    for case in collect_testcases(None):
        graph = case.model.graph
        if len(graph.node) != 1 or case.name in ROUNDED or graph.node[0].op_type not in OPS or graph.node[0].domain not in ("", "ai.onnx"):
            continue
        inputs, outputs = ([np.asarray(a) if not isinstance(a, list) and a is not None else None for a in side] for side in case.data_sets[0])
        if any(a is None or a.dtype.type not in TYPES or a.size == 0 for a in inputs + outputs) or sum(a.nbytes for a in inputs + outputs) > MAX_BYTES:
            continue
        add(case.name.removeprefix("test_"), case.model, inputs, outputs)


# --- older forms, and com.microsoft ---------------------------------------------------------------------------------------------------

random = np.random.default_rng(7)


def floats(*shape, low=-2, high=2):
    return random.uniform(low, high, shape).astype(np.float32)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


def ints(*values, dtype=np.int64):
    return np.array(values, dtype)


def form(name, op, opset, inputs, outputs=1, domain="", initializers=None, reference=False, **attributes):
    """inputs: arrays, None where absent; initializers: which of them stand in the file instead of being fed; reference: the standard's own
    implementation computes the outputs, where onnxruntime can't."""
    initializers = initializers or []
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="tested", domain=domain, **attributes)
    values = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for i, (n, a) in enumerate(zip(names, inputs)) if a is not None and i not in initializers]
    tensors = [numpy_helper.from_array(inputs[i], names[i]) for i in initializers]
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info(o) for o in node.output], tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10)
    fed = {n: a for i, (n, a) in enumerate(zip(names, inputs)) if a is not None and i not in initializers}
    results = ReferenceEvaluator(model).run(None, fed) if reference else run_session(model, fed)
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    for value, array in zip(kept.graph.output, results):
        value.CopyFrom(helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    add(name, kept, list(fed.values()), results)


def run_session(model, fed):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, fed)


def each_version(op, first=7, last=24):
    """The opsets at which the standard's text of an op changed, from 7 on."""
    since = sorted({s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""})
    begin = [v for v in since if v <= first][-1:] or since[:1]
    return [max(first, v) for v in begin + [v for v in since if first < v <= last]]


def images():
    x = floats(1, 2, 5, 4)
    for opset in (7, 11, 18):
        form(f"GlobalLpPool_opset{opset}", "GlobalLpPool", opset, [x], p=3)
        form(f"LpPool_opset{opset}", "LpPool", opset, [x], kernel_shape=[2, 3], strides=[2, 1], pads=[1, 0, 0, 1])
        form(f"InstanceNormalization_opset{opset}", "InstanceNormalization", opset, [x, floats(2), floats(2)])
        form(f"LRN_opset{opset}", "LRN", opset, [floats(2, 5, 3, 2)], size=3, alpha=0.1)
        form(f"ConvTranspose_opset{opset}", "ConvTranspose", opset, [x, floats(2, 3, 3, 2), floats(3)], strides=[2, 2], pads=[1, 0, 1, 1],
             output_padding=[1, 0])
        form(f"ConvTranspose_groups_opset{opset}", "ConvTranspose", opset, [floats(1, 4, 3, 3), floats(4, 1, 2, 2)], group=2, dilations=[2, 1])
    scales = ints(1, 1, 2, 3, dtype=np.float32)
    for mode in ("nearest", "linear"):
        form(f"Upsample_{mode}_opset7", "Upsample", 7, [x], mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
        form(f"Upsample_{mode}_opset9", "Upsample", 9, [x, scales], initializers=[1], mode=mode)
        form(f"Resize_{mode}_opset10", "Resize", 10, [x, scales], initializers=[1], mode=mode)
        for opset in (11, 13, 18, 19):
            for place in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
                form(f"Resize_{mode}_{place}_opset{opset}", "Resize", opset, [x, ints(dtype=np.float32), ints(dtype=np.float32), ints(1, 2, 7, 3)],
                     initializers=[1, 2, 3], mode=mode, coordinate_transformation_mode=place)


def recurrent():
    for opset in (7, 14):
        for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            x, h, lengths = floats(4, 3, 2), floats(d, 3, 2), ints(4, 2, 3, dtype=np.int32)

            def of(gates):
                return [x, floats(d, 2 * gates, 2), floats(d, 2 * gates, 2), floats(d, 4 * gates), lengths, h]
            common = dict(hidden_size=2, direction=direction)
            form(f"LSTM_{direction}_opset{opset}", "LSTM", opset, of(4) + [floats(d, 3, 2), floats(d, 6)], 3, **common)
            form(f"GRU_{direction}_opset{opset}", "GRU", opset, of(3), 2, **common)
            form(f"GRU_{direction}_after_opset{opset}", "GRU", opset, of(3), 2, linear_before_reset=1, **common)
            form(f"RNN_{direction}_opset{opset}", "RNN", opset, of(1), 2, **common)


def older_forms():
    # The same node at every opset that had a text of its own (onnxruntime may lack the newest).
    x = floats(3, 5)
    positive = floats(3, 5, low=0.2, high=3)
    unary = {"Abs": x, "Neg": x, "Sqrt": positive, "Reciprocal": positive, "Exp": x, "Log": positive, "Erf": x, "Floor": x, "Ceil": x, "Round": x, "Sign": x,
             "IsNaN": x, "IsInf": x, "Sin": x, "Cos": x, "Tan": x, "Atan": x, "Sinh": x, "Tanh": x, "Sigmoid": x, "Relu": x, "LeakyRelu": x, "Elu": x, "Selu": x,
             "Celu": x, "Softplus": x, "Softsign": x, "HardSigmoid": x, "HardSwish": x, "ThresholdedRelu": x, "Mish": x, "Gelu": x, "Identity": x}
    binary = {"Add": x, "Sub": x, "Mul": x, "Div": positive, "Pow": positive, "Min": x, "Max": x, "Sum": x, "Mean": x}
    for op, data in unary.items():
        for opset in each_version(op, last=22):
            form(f"{op}_opset{opset}", op, opset, [data])
    for op, data in binary.items():
        for opset in each_version(op, last=22):
            broadcasts = opset >= 8 or op not in ("Min", "Max", "Sum", "Mean")
            form(f"{op}_opset{opset}", op, opset, [data, floats(5, low=0.5) if broadcasts else floats(3, 5)])
    images()
    recurrent()
    for opset in each_version("PRelu"):
        form(f"PRelu_opset{opset}", "PRelu", opset, [floats(2, 3, 4), floats(3, 1)])
    # Pow with an exponent of another type.
    form("Pow_integer_exponent", "Pow", 12, [floats(2, 3), ints(2)], initializers=[1])
    form("Pow_integer_base", "Pow", 15, [ints(2, 3, 9, dtype=np.int32), np.array([0.5], np.float32)], initializers=[1])
    form("Sum_three", "Sum", 8, [floats(3, 4), floats(4), floats(3, 1)])
    form("Mean_three", "Mean", 13, [floats(3, 4), floats(4), floats(3, 1)])
    form("Max_one", "Max", 8, [x])
    # Clip: attributes, then inputs.
    form("Clip_attributes", "Clip", 6, [x], min=-0.5, max=1.0)
    form("Clip_max_attribute", "Clip", 6, [x], max=1.0)
    for opset in (11, 12, 13):
        form(f"Clip_constants_opset{opset}", "Clip", opset, [x, scalar(-0.5), scalar(1)], initializers=[1, 2])
    form("Clip_only_max", "Clip", 13, [x, None, scalar(0.25)], initializers=[2])
    form("Clip_computed", "Clip", 13, [x, scalar(-0.25), scalar(0.5)])
    form("Clip_integers", "Clip", 12, [ints(-9, 3, 9), scalar(-2, np.int64), scalar(5, np.int64)], initializers=[1, 2])
    # Softmax: all axes from `axis` on before 13.
    for op in ("Softmax", "LogSoftmax"):
        for opset in (7, 11, 13):
            for axis in (0, 1, 2, None) + ((-2,) if opset >= 11 else ()):
                attributes = {} if axis is None else {"axis": axis}
                form(f"{op}_opset{opset}_axis_{axis}", op, opset, [floats(2, 3, 4)], **attributes)
    # Dropout in evaluation mode.
    form("Dropout_opset7", "Dropout", 7, [x], ratio=0.3)
    form("Dropout_opset10", "Dropout", 10, [x], ratio=0.3)
    form("Dropout_opset12_mask", "Dropout", 12, [x, scalar(0.3)], outputs=2, initializers=[1])
    form("Dropout_opset13_false", "Dropout", 13, [x, scalar(0.3), np.array(False)], initializers=[1, 2])
    # Normalisation.
    for axis in (-1, 1, 0):
        shape = (2, 3, 4)[axis:]
        form(f"LayerNormalization_axis_{axis}", "LayerNormalization", 17, [floats(2, 3, 4), floats(*shape), floats(*shape)], outputs=3, axis=axis)
    form("LayerNormalization_no_bias", "LayerNormalization", 17, [floats(2, 3, 4), floats(4)], epsilon=0.01)
    form("LayerNormalization_scale_broadcast", "LayerNormalization", 17, [floats(2, 3, 4), floats(1, 4), floats(4)], axis=1)
    for opset in (12, 16):
        form(f"SimplifiedLayerNormalization_opset{opset}", "SimplifiedLayerNormalization", opset, [floats(2, 3, 4), floats(4)], axis=-1, epsilon=1e-6)
    # com.microsoft
    ms = dict(domain="com.microsoft")
    form("ms_Gelu", "Gelu", 17, [x], **ms)
    form("ms_BiasGelu", "BiasGelu", 17, [x, floats(5)], **ms)
    form("ms_FastGelu", "FastGelu", 17, [x], **ms)
    form("ms_FastGelu_bias", "FastGelu", 17, [x, floats(5)], **ms)
    form("ms_QuickGelu", "QuickGelu", 17, [x], alpha=1.5, **ms)
    form("ms_SkipLayerNormalization", "SkipLayerNormalization", 17, [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)], epsilon=1e-5, **ms)
    form("ms_SkipLayerNormalization_plain", "SkipLayerNormalization", 17, [floats(2, 3, 8), floats(2, 3, 8), floats(8)], epsilon=1e-5, **ms)
    form("ms_SkipSimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", 17, [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)], epsilon=1e-5, **ms)
    form("ms_FusedMatMul", "FusedMatMul", 17, [floats(2, 4, 3), floats(2, 5, 4)], transA=1, transB=1, alpha=0.5, **ms)
    # Axes, shapes and pads: attributes before they were inputs.
    y = floats(2, 1, 3, 1)
    form("Squeeze_attribute", "Squeeze", 7, [y], axes=[1, 3])
    form("Squeeze_all", "Squeeze", 11, [y])
    form("Squeeze_negative", "Squeeze", 11, [y], axes=[-1])
    form("Unsqueeze_attribute", "Unsqueeze", 7, [x], axes=[0, 2])
    form("Unsqueeze_negative", "Unsqueeze", 11, [x], axes=[-1])
    for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split():
        op = "Reduce" + kind
        for opset in each_version(op, last=20):
            by_input = opset >= (13 if kind == "Sum" else 18)
            data = floats(2, 3, 4, low=0.3)
            axes = [1] if opset < 11 else [-2]
            if by_input:
                form(f"{op}_opset{opset}", op, opset, [data, ints(*axes)], initializers=[1])
            else:
                form(f"{op}_opset{opset}", op, opset, [data], axes=axes)
                form(f"{op}_opset{opset}_all", op, opset, [data], keepdims=0)
    form("Slice_attributes", "Slice", 7, [floats(4, 5)], starts=[1, 0], ends=[-1, 1000], axes=[0, 1])
    form("Slice_opset10", "Slice", 10, [floats(4, 5), ints(3, 0), ints(0, 4), ints(0, 1), ints(-1, 2)], initializers=[1, 2, 3, 4])
    form("Slice_negative_axis", "Slice", 13, [floats(4, 5), ints(1), ints(3), ints(-1)], initializers=[1, 2, 3])
    form("Pad_attributes", "Pad", 7, [floats(3, 4)], pads=[1, 0, 0, 2], value=1.5)
    form("Pad_opset11", "Pad", 11, [floats(3, 4), ints(0, 1, 2, 0), scalar(0.5)], initializers=[1, 2])
    form("Pad_axes", "Pad", 18, [floats(3, 4), ints(1, 2), None, ints(-1)], initializers=[1, 3])
    form("Split_attribute", "Split", 7, [floats(6, 2)], outputs=3, axis=0, split=[1, 2, 3])
    form("Split_equal", "Split", 11, [floats(2, 6)], outputs=3, axis=-1)
    form("Split_input", "Split", 13, [floats(6, 2), ints(4, 2)], outputs=2, initializers=[1])
    form("Split_num_outputs", "Split", 18, [floats(7, 2)], outputs=3, num_outputs=3)
    form("Reshape_zero_and_minus_one", "Reshape", 7, [floats(2, 3, 4), ints(0, -1)], initializers=[1])
    form("Expand_opset8", "Expand", 8, [floats(3, 1), ints(2, 1, 4)], initializers=[1])
    form("Tile_opset7", "Tile", 7, [floats(2, 3), ints(2, 2)], initializers=[1])
    form("Flatten_opset9", "Flatten", 9, [floats(2, 3, 4)], axis=2)
    for opset in (7, 11, 13):
        form(f"Transpose_opset{opset}", "Transpose", opset, [floats(2, 3, 4)], perm=[2, 0, 1])
        form(f"Concat_opset{opset}", "Concat", opset, [floats(2, 3), floats(1, 3)], axis=0)
        form(f"Gather_opset{opset}", "Gather", opset, [floats(5, 3), ints(4, 0, 4)], axis=0)
    form("Cast_opset9", "Cast", 9, [floats(2, 3)], to=TensorProto.INT64)
    form("Cast_to_bool", "Cast", 13, [ints(0, 2, -1)], to=TensorProto.BOOL)
    form("CastLike_opset15", "CastLike", 15, [floats(2, 3), ints(1)])
    form("Where_opset9", "Where", 9, [np.array([[True], [False]]), floats(2, 3), floats(3)])
    for op in ("Greater", "Less", "Equal"):
        for opset in (7, 9, 13):
            if op == "Equal" or opset >= 9:
                same = ints(1, 2, 3, dtype=np.int32) if op == "Equal" and opset < 11 else x
                form(f"{op}_opset{opset}", op, opset, [same, same[..., :1]])
    for op in ("ArgMax", "ArgMin"):
        for opset in (7, 11, 12, 13):
            form(f"{op}_opset{opset}", op, opset, [floats(3, 4)], axis=1, keepdims=0)
    form("TopK_opset10", "TopK", 10, [floats(3, 6), ints(2)], outputs=2, axis=1, initializers=[1])
    form("TopK_smallest", "TopK", 11, [floats(3, 6), ints(3)], outputs=2, axis=0, largest=0, initializers=[1])
    form("CumSum_reverse", "CumSum", 14, [floats(3, 4), scalar(1, np.int32)], exclusive=1, reverse=1, initializers=[1])
    form("Trilu_lower", "Trilu", 14, [floats(2, 4, 4), scalar(-1, np.int64)], upper=0, initializers=[1])
    form("GatherElements_opset11", "GatherElements", 11, [floats(3, 4), ints(0, 2, 1, 1).reshape(1, 4)], axis=0)
    form("GatherND_batch", "GatherND", 12, [floats(2, 3, 4), ints(1, 2).reshape(2, 1)], batch_dims=1)
    form("ScatterND_add", "ScatterND", 16, [floats(5, 2), ints(1, 1, 4).reshape(3, 1), floats(3, 2)], reduction="add")
    form("Scatter_opset9", "Scatter", 9, [floats(3, 4), ints(0, 2, 1, 0).reshape(1, 4), floats(1, 4)], axis=0)
    form("ScatterElements_opset11", "ScatterElements", 11, [floats(3, 4), ints(0, 2, 1, 0).reshape(1, 4), floats(1, 4)], axis=0)
    form("ScatterElements_add", "ScatterElements", 16, [floats(3, 4), ints(0, 0, 1, 1).reshape(2, 2), floats(2, 2)], axis=0, reduction="add")
    form("OneHot_opset9", "OneHot", 9, [ints(0, 2, 1), ints(4), floats(2)], initializers=[1])
    # Products.
    for opset in (7, 9, 11, 13):
        form(f"Gemm_opset{opset}", "Gemm", opset, [floats(4, 3), floats(5, 4), floats(5)], transA=1, transB=1, alpha=0.5, beta=2.0)
        form(f"MatMul_opset{opset}", "MatMul", opset, [floats(2, 3, 4), floats(4, 5)])
    form("Gemm_no_bias", "Gemm", 11, [floats(3, 4), floats(4, 5)])
    form("MatMul_batches", "MatMul", 13, [floats(2, 1, 3, 4), floats(3, 4, 2)])
    form("MatMul_vector", "MatMul", 13, [floats(4), floats(3, 4, 2)])
    # Windows.
    image, line = floats(2, 4, 6, 7), floats(2, 3, 9)
    for opset in each_version("Conv", last=22):
        form(f"Conv_opset{opset}", "Conv", opset, [image, floats(6, 2, 3, 2), floats(6)], group=2, strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2])
    for automatic in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        form(f"Conv_{automatic}", "Conv", 11, [image, floats(3, 4, 3, 2)], auto_pad=automatic, strides=[2, 2])
        form(f"MaxPool_{automatic}", "MaxPool", 12, [image], auto_pad=automatic, kernel_shape=[3, 2], strides=[2, 2])
        form(f"AveragePool_{automatic}", "AveragePool", 11, [image], auto_pad=automatic, kernel_shape=[3, 2], strides=[2, 2])
    form("Conv_one_axis", "Conv", 11, [line, floats(4, 3, 3), floats(4)], kernel_shape=[3], pads=[2, 1], strides=[2])
    form("Conv_depthwise", "Conv", 11, [image, floats(4, 1, 3, 3)], group=4, pads=[1, 1, 1, 1])
    for op in ("MaxPool", "AveragePool"):
        for opset in each_version(op, last=22):
            attributes = dict(kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 1, 1])
            form(f"{op}_opset{opset}", op, opset, [image], **attributes)
            if opset >= 10:
                form(f"{op}_ceil_opset{opset}", op, opset, [image], ceil_mode=1, **attributes)
        form(f"{op}_one_axis", op, 11, [line], kernel_shape=[4], strides=[3], pads=[1, 2])
        form(f"Global{op}_one_axis", f"Global{op}", 7, [line])
    form("MaxPool_dilations", "MaxPool", 12, [image], kernel_shape=[2, 3], dilations=[3, 2])
    form("AveragePool_dilations", "AveragePool", 19, [image], kernel_shape=[2, 3], dilations=[3, 2])
    form("AveragePool_count_include_pad", "AveragePool", 7, [image], kernel_shape=[3, 3], pads=[1, 2, 0, 1], count_include_pad=1)
    form("AveragePool_ceil_padding", "AveragePool", 22, [image], kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1)
    # BatchNormalization: frozen, and live, which onnxruntime can't run.
    statistics = [floats(4), floats(4), floats(4), floats(4, low=0.3)]
    for opset in each_version("BatchNormalization"):
        form(f"BatchNormalization_opset{opset}", "BatchNormalization", opset, [image, *statistics], epsilon=0.01)
    form("BatchNormalization_matrix", "BatchNormalization", 15, [floats(5, 4), *statistics])
    for opset in (14, 15):
        form(f"BatchNormalization_live_opset{opset}", "BatchNormalization", opset, [image, *statistics], outputs=3, initializers=[3, 4], reference=True,
             training_mode=1, momentum=0.75)
    quantized_forms(ms)
    attention_forms(ms)
    group_query_forms(ms)


def quantized_forms(ms):
    """Codes and scales stand in the file, as the weights that they are."""
    def codes(*shape, dtype=np.uint8):
        return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)

    for opset in (10, 13, 19, 21, 23):
        form(f"DequantizeLinear_opset{opset}", "DequantizeLinear", opset, [codes(3, 4), scalar(0.02), scalar(130, np.uint8)], initializers=[0, 1, 2])
    for dtype in (np.int8, np.uint8):
        for axis in (0, 1, -1):
            size = (4, 3, 5)[axis]
            form(f"DequantizeLinear_{dtype.__name__}_axis_{axis}", "DequantizeLinear", 13,
                 [codes(4, 3, 5, dtype=dtype), floats(size, low=0.01, high=0.1), codes(size, dtype=dtype)], axis=axis, initializers=[0, 1, 2])
        for axis, shape in ((0, (2, 6)), (1, (8, 2))):
            form(f"DequantizeLinear_{dtype.__name__}_blocks_{axis}", "DequantizeLinear", 21,
                 [codes(8, 6, dtype=dtype), floats(*shape, low=0.01, high=0.1), codes(*shape, dtype=dtype)], axis=axis, block_size=4 - axis,
                 initializers=[0, 1, 2])
    form("DequantizeLinear_bias", "DequantizeLinear", 13, [random.integers(-1000, 1000, 6).astype(np.int32), scalar(1e-3)], initializers=[0, 1])
    for bits in (4, 8):
        for k, block in ((32, 16), (40, 16), (64, 32)):
            n, blocks = 6, -(-k // block)
            size = block * bits // 8
            packed = codes(n, -(-blocks * bits // 8))
            scales = floats(n * blocks, low=0.005, high=0.05)
            weight = codes(n, blocks, size)
            attributes = dict(K=k, N=n, bits=bits, block_size=block, **ms)
            form(f"ms_MatMulNBits_{bits}_{k}", "MatMulNBits", 17, [floats(2, 3, k), weight, scales], initializers=[1, 2], **attributes)
            form(f"ms_MatMulNBits_{bits}_{k}_zeros", "MatMulNBits", 17, [floats(5, k), weight, scales, packed.reshape(-1)], initializers=[1, 2, 3], **attributes)
    form("ms_MatMulNBits_bias", "MatMulNBits", 17, [floats(5, k), weight, scales, None, None, floats(n)], initializers=[1, 2, 5], **attributes)
    form("ml_Scaler", "Scaler", 17, [floats(4, 3)], domain="ai.onnx.ml", offset=[0.5, -1.0, 2.0], scale=[2.0, 0.25, 3.0])
    form("ml_Scaler_all", "Scaler", 17, [random.integers(-9, 9, (4, 3)).astype(np.int64)], domain="ai.onnx.ml", offset=[1.5], scale=[0.5])


LOWEST = float(np.finfo(np.float32).min)


def attention_forms(ms):
    """Where a mask hides all, scores of about -10,000 are rounded to 2^-10, which takes nothing from what comes of quarters."""
    batch, length, width, heads = 2, 4, 8, 2

    def quarters(*shape):
        return np.round(4 * floats(*shape)) / np.float32(4)

    def attention(name, *rest, outputs=1, x=quarters(batch, length, width), weights=quarters(width, 24), bias=quarters(24), **attributes):
        form(f"ms_Attention_{name}", "Attention", 17, [x, weights, bias, *rest], outputs, initializers=[1, 2], num_heads=heads, **attributes, **ms)

    def int32(rows):
        return np.array(rows, np.int32)

    padded, hidden = int32([[1, 1, 1, 0], [0, 0, 2, 1]]), int32([[1, 0, 1, 1], [0, 0, 0, 0]])
    some = (random.uniform(size=(batch, length, length)) < 0.6).astype(np.int32)
    some[..., 0] = 1
    attention("plain")
    attention("unidirectional", unidirectional=1)
    attention("scale", scale=0.3)
    attention("present", outputs=2)
    attention("sizes", weights=floats(width, 28), bias=floats(28), qkv_hidden_sizes=[8, 8, 12])
    attention("mask", padded)
    attention("mask_hides_all", hidden)
    attention("mask_unidirectional", hidden, unidirectional=1)
    attention("mask_lowest", padded, unidirectional=1, mask_filter_value=LOWEST)
    attention("mask_little", hidden, mask_filter_value=-2.0)
    attention("mask_of_no_axis", int32([[1], [0]]))
    attention("ends", int32([3, 0]))
    attention("starts", int32([4, 3, 1, 2]), unidirectional=1)
    attention("places", int32([3, 2, 0, 3, 5, 0, 3, 5]))
    attention("scores", some)
    attention("scores_unidirectional", np.where(np.arange(length) == 2, 0, some).astype(np.int32), unidirectional=1)
    attention("bias", None, None, floats(1, heads, length, length))
    attention("bias_mask", some, None, floats(batch, 1, length, length))

    keys = 5
    q, k, v = quarters(batch, 3, 8), quarters(batch, keys, 8), floats(batch, keys, 12)

    def several(name, *inputs, outputs=1, **attributes):
        form(f"ms_MultiHeadAttention_{name}", "MultiHeadAttention", 17, list(inputs), outputs, num_heads=heads, **attributes, **ms)

    bias = quarters(28)
    padded = int32([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0]])
    several("plain", q, k, v)
    several("bias", q, k, v, bias, outputs=3, scale=0.4)
    several("unidirectional", k, k[::-1].copy(), v, bias, unidirectional=1)
    several("mask", q, k, v, bias, padded)
    several("mask_lowest", k, k[::-1].copy(), v, bias, int32([[0, 0, 1, 1, 1], [1, 1, 0, 1, 0]]), unidirectional=1, mask_filter_value=LOWEST)
    several("ends", q, k, v, None, int32([2, 9]))
    several("scores", q, k, v, bias, (random.uniform(size=(batch, 3, keys)) < 0.5).astype(np.int32))
    several("attention_bias", q, k, v, bias, int32([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0]]), floats(1, heads, 3, keys))
    several("heads", q, quarters(batch, heads, keys, 4), floats(batch, heads, keys, 4), quarters(24), padded, outputs=3)

    angles = np.arange(9)[:, None] * 0.4 ** np.arange(4)[None]
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    ids = ints(4, 0, 8, 2, 7, 7).reshape(2, 3)
    for interleaved in (0, 1):
        for name, x, places, tables, attributes in (
                ("flat", floats(2, 3, 24), ids, 4, {}),
                ("heads", floats(2, 3, 3, 8), ids, 4, {}),
                ("first", floats(2, 3, 24), ints(5), 4, dict(num_heads=3)),
                ("part", floats(2, 3, 24), ids, 2, dict(num_heads=3, rotary_embedding_dim=4)),
                ("part_of_heads", floats(2, 3, 3, 8), ids, 2, dict(num_heads=3, rotary_embedding_dim=4, scale=2.0))):
            for known in ([1, 2, 3], [2, 3]) if name == "first" else ([2, 3],):
                form(f"ms_RotaryEmbedding_{name}_{interleaved}{'_known' if 1 in known else ''}", "RotaryEmbedding", 17,
                     [x, places, cosines[:, :tables].copy(), sines[:, :tables].copy()], initializers=known, interleaved=interleaved, **attributes, **ms)

    words, segments = int32([[3, 0, 6, 1], [2, 2, 5, 4]]), int32([[0, 0, 1, 1], [0, 1, 1, 0]])
    tables = [floats(7, 6), floats(5, 6), floats(2, 6)]
    mask = int32([[1, 1, 1, 0], [1, 0, 2, 0]])
    for name, ids, rest in (("plain", [words, segments], []), ("mask", [words, segments], [mask]), ("one_segment", [words, None], [mask]),
                            ("positions", [words, segments], [None, int32([[4, 3, 0, 1]])]), ("no_segments", [words, None], [mask, int32([[0, 1, 1, 2]] * 2)])):
        form(f"ms_EmbedLayerNormalization_{name}", "EmbedLayerNormalization", 17,
             [*ids, *tables[:2], None if name == "no_segments" else tables[2], floats(6), floats(6), *rest], 3, initializers=[2, 3, 5, 6], epsilon=1e-5, **ms)


def group_query_forms(ms):
    batch, length = 2, 4
    angles = np.arange(9)[:, None] * 0.3 ** np.arange(8)[None]
    tables = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]

    def group(name, size=8, lengths=None, turns=False, places=None, bias=None, sink=None, packed=False, known=True, outputs=3, **attributes):
        q, k, v = floats(batch, length, 4 * size), floats(batch, length, 2 * size), floats(batch, length, 2 * size)
        inputs = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
        last = np.array(lengths or [length] * batch, np.int32) - 1
        inputs += [None, None, last, np.array([length], np.int32), *(tables if turns else [None, None]), places, bias, sink]
        while inputs[-1] is None:
            inputs.pop()
        form(f"ms_GroupQueryAttention_{name}", "GroupQueryAttention", 17, inputs, outputs, initializers=([5, 6] if known else []) + ([7, 8] if turns else []),
             num_heads=4, kv_num_heads=2, **attributes, **ms)

    group("plain")
    group("fed", known=False, scale=0.5)
    group("packed", packed=True, size=16, turns=True, do_rotary=1)
    group("turns_ignored", size=16, turns=True)
    group("turns_interleaved", size=16, turns=True, do_rotary=1, rotary_interleaved=1)
    group("turns_part", size=32, turns=True, do_rotary=1)
    group("turns_part_interleaved", size=32, turns=True, do_rotary=1, rotary_interleaved=1)
    group("positions", size=16, turns=True, do_rotary=1, places=np.tile(np.arange(3, 3 + length), (batch, 1)))
    group("window", local_window_size=2)
    group("wide_window", local_window_size=4)
    group("lengths", lengths=[2, 3])
    group("lengths_fed", lengths=[1, 4], known=False)
    group("lengths_window", lengths=[1, 4], known=False, local_window_size=2, outputs=1)  # with three, onnxruntime has padding see less
    group("both_ways", causal=0)
    group("both_ways_lengths", causal=0, lengths=[1, 3], known=False)
    group("softcap", softcap=0.7)
    group("softcap_lengths", softcap=0.7, lengths=[2, 3], known=False)
    group("softcap_window_lengths", softcap=0.7, lengths=[1, 4], known=False, local_window_size=2)
    group("smooth", smooth_softmax=1, known=False)
    group("smooth_window", smooth_softmax=1, local_window_size=2, lengths=[2, 3])
    group("sink", sink=floats(4))
    group("bias", bias=floats(1, 4, length, length), known=False)
    group("bias_softcap_sink", bias=floats(batch, 1, length, length), softcap=1.5, sink=floats(4), smooth_softmax=1)


if __name__ == "__main__":
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "ops.safetensors")
    official()
    count = len({name.split("/")[0] for name in arrays})
    older_forms()
    path = sys.argv[1] if len(sys.argv) > 1 else default
    with open(path, "wb") as file:
        file.write(save(arrays))
    total = len({name.split("/")[0] for name in arrays})
    print(f"{path}: {count} of the standard's node tests, {total - count} other forms, {os.path.getsize(path):,} bytes")
