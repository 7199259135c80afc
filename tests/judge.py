"""What ort-train writes, judged by onnx's checker and by ONNX Runtime, which share no code with it.

ORT_TRAIN names the program; ort-train-tests beside it trains models and says what it takes their outputs to be.
"""
import json
import os
import pathlib
import signal
import subprocess
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from program import CHAR_GPT, GOLDEN, PROGRAM, TEXT, log, run, safetensors

TOLERANCE = 1e-5
FILES = sorted(path.stem for path in GOLDEN.glob("*.onnx"))
SPLIT = ["gpt2-dynamo-20-folded-split", "gpt2-torchscript-17-sdpa-split"]  # trained with --untie
CASES = sorted(FILES + SPLIT + ["char-gpt"])


def original(case):
    return CHAR_GPT if case == "char-gpt" else GOLDEN / (case.removesuffix("-split") + ".onnx")


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(evaluating(path), options, providers=["CPUExecutionProvider"])


def evaluating(path):
    """The model, its BatchNormalization in evaluation mode: in training mode ONNX Runtime would normalise by each batch."""
    model, changed = onnx.load(path), False
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "BatchNormalization" and attribute.name == "training_mode" and attribute.i != 0:
                attribute.i, changed = 0, True
                del node.output[1:]
    return model.SerializeToString() if changed else str(path)


def error(actual, expected):
    actual, expected = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def initializers(path):
    return {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}


def trained_names(case):
    """Every initializer that training changes: PyTorch's list for the golden models."""
    if case == "char-gpt":
        return {name for name, tensor in initializers(CHAR_GPT).items() if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims}
    golden = safetensors(GOLDEN / f"{case}.golden.safetensors")
    return {name.removeprefix(start) for name in golden for start in ("gradient/", "running/constant/") if name.startswith(start)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with CASE/model.onnx, trained, and CASE/outputs.npz."""
    folder = tmp_path_factory.mktemp("judge")
    program = pathlib.Path(PROGRAM).with_name("ort-train-tests")
    done = subprocess.run([program, "--gtest_filter=*Judge.*"], env={**os.environ, "ORT_TRAIN_JUDGE_FOLDER": str(folder)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in folder.iterdir()) == CASES
    return folder


@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_gives_our_outputs(trained, case):
    arrays = np.load(trained / case / "outputs.npz")
    inputs = {name.removeprefix("input/"): array for name, array in arrays.items() if name.startswith("input/")}
    after, before = session(trained / case / "model.onnx"), session(original(case))
    names = [output.name for output in after.get_outputs()]
    assert names
    for name, actual, untrained in zip(names, after.run(names, inputs), before.run(names, inputs)):
        assert error(actual, arrays[f"output/{name}"]) <= TOLERANCE
        assert error(untrained, arrays[f"output/{name}"]) > 1e-2


@pytest.mark.parametrize("case", [case for case in CASES if case not in SPLIT])
def test_only_the_bytes_of_weights_change(trained, case):
    path = trained / case / "model.onnx"
    before, after = bytearray(original(case).read_bytes()), bytearray(path.read_bytes())
    assert len(before) == len(after)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    old, new = initializers(original(case)), initializers(path)
    assert {name for name in old if old[name].raw_data != new[name].raw_data} == trained_names(case)
    for name in trained_names(case):
        at = before.find(old[name].raw_data)
        assert at >= 0 and before.find(old[name].raw_data, at + 1) < 0
        assert after[at:at + len(old[name].raw_data)] == new[name].raw_data
        before[at:at + len(old[name].raw_data)] = after[at:at + len(old[name].raw_data)] = bytes(len(old[name].raw_data))
    assert before == after
    if "folded" in case:  # the head is the embedding stored a second time, transposed
        tables = [numpy_helper.to_array(tensor) for tensor in new.values() if len(tensor.dims) == 2 and 61 in tensor.dims]
        assert len(tables) == 2 and np.array_equal(tables[0], tables[1].T)


@pytest.mark.parametrize("case", SPLIT)
def test_a_split_weight_is_a_new_initializer(trained, case):
    old, new = onnx.load(original(case)), onnx.load(trained / case / "model.onnx")
    onnx.checker.check_model(new, full_check=True)
    was, now = initializers(original(case)), initializers(trained / case / "model.onnx")
    added = {name: tensor for name, tensor in now.items() if name not in was}
    assert set(now) >= set(was) and len(added) == (0 if "folded" in case else 1)  # a folded head is stored apart already
    for tensor in added.values():
        assert tensor.dims == was["transformer.wte.weight"].dims
        assert tensor.raw_data != now["transformer.wte.weight"].raw_data
    for a, b in zip(new.graph.node, old.graph.node, strict=True):
        assert (a.name, a.op_type, a.output, a.attribute) == (b.name, b.op_type, b.output, b.attribute)
    read = [(ours, theirs) for a, b in zip(new.graph.node, old.graph.node) for ours, theirs in zip(a.input, b.input) if ours != theirs]
    assert [ours for ours, _ in read] == list(added)


@pytest.mark.parametrize("storage", ["numbers", "external", "files"])
def test_every_storage_keeps_its_layout(tmp_path, storage):
    case = "gpt2-dynamo-23-sdpa"
    model = onnx.load(original(case))
    for tensor in model.graph.initializer if storage == "numbers" else []:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.frombuffer(tensor.raw_data, np.float32)
            tensor.ClearField("raw_data")
            tensor.float_data.extend(values)
    given = tmp_path / "given"
    given.mkdir()
    if storage == "numbers":
        onnx.save(model, given / "model.onnx")
    else:
        onnx.save(model, given / "model.onnx", save_as_external_data=True, all_tensors_to_one_file=storage == "external",
                  location="weights.bin" if storage == "external" else None, size_threshold=100)  # ONNX Runtime wants shapes in the file
    job = ["--data", GOLDEN / f"{case}.data.safetensors", "--max-steps", 3, "--learning-rate", 1e-2, "--batch-size", 2]
    run(tmp_path, original(case), *job, "--output-dir", "raw")
    run(tmp_path, given / "model.onnx", *job, "--output-dir", "out")
    files = {path.name: path.stat().st_size for path in given.iterdir()}
    assert {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir() if path.is_file() and path.name in files} == files
    if storage != "numbers":
        assert (tmp_path / "out/model.onnx").read_bytes() == (given / "model.onnx").read_bytes()  # only places, no weights
    reference, result = initializers(tmp_path / "raw/model.onnx"), initializers(tmp_path / "out/model.onnx")
    old = initializers(given / "model.onnx")
    assert list(result) == list(reference)
    for name, tensor in result.items():
        assert np.array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(reference[name]))
        assert tensor.HasField("raw_data") == old[name].HasField("raw_data")
        assert len(tensor.float_data) == len(old[name].float_data)
    onnx.checker.check_model(str(tmp_path / "out/model.onnx"))
    ids = {"input_ids": np.arange(16).reshape(2, 8), "attention_mask": np.ones((2, 8), np.int64), "position_ids": np.tile(np.arange(8), (2, 1))}
    names = ["logits"]
    assert np.array_equal(session(tmp_path / "out/model.onnx").run(names, ids)[0], session(tmp_path / "raw/model.onnx").run(names, ids)[0])


def rounded(values, type):
    """As ONNX stores them: float16, or the upper halves of float32 (bfloat16)."""
    if type == onnx.TensorProto.FLOAT16:
        return values.clip(-65504, 65504).astype(np.float16)  # masks have the lowest number of their type
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(values, type):
    return values.astype(np.float32) if type == onnx.TensorProto.FLOAT16 else (values.astype(np.uint32) << 16).view(np.float32)


def in_16_bits(model, type):
    """What `model.half()` and `model.bfloat16()` export: numbers and casts of that type. And the float32 model that has the same numbers."""
    low, wide = onnx.ModelProto(), onnx.ModelProto()
    low.CopyFrom(model)
    wide.CopyFrom(model)
    del low.graph.value_info[:]
    for narrow, twin in zip(low.graph.initializer, wide.graph.initializer):
        if twin.data_type == onnx.TensorProto.FLOAT:
            bits = rounded(numpy_helper.to_array(twin), type)
            narrow.data_type, narrow.raw_data, twin.raw_data = type, bits.tobytes(), widened(bits, type).tobytes()
    for value in [*low.graph.input, *low.graph.output]:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = type
    for node in low.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = type
            assert attribute.type != onnx.AttributeProto.TENSOR or attribute.t.data_type != onnx.TensorProto.FLOAT
    return low, wide


@pytest.mark.parametrize("type, option", [(onnx.TensorProto.FLOAT16, "--fp16"), (onnx.TensorProto.BFLOAT16, "--bf16")])
def test_models_in_16_bits_are_trained_in_float32_and_written_back(tmp_path, type, option):
    low, wide = in_16_bits(onnx.load(CHAR_GPT), type)
    onnx.save(low, tmp_path / "low.onnx")
    onnx.save(wide, tmp_path / "wide.onnx")
    for name in "low", "wide":
        (tmp_path / f"{name}.vocab.json").write_bytes(CHAR_GPT.with_suffix(".vocab.json").read_bytes())
    job = ["--data", TEXT, "--task", "causal-lm", "--seq-length", 32, "--batch-size", 4, "--max-steps", 8, "--learning-rate", 1e-3]
    run(tmp_path, tmp_path / "low.onnx", *job, "--output-dir", "low", "--log-file", "low.jsonl")
    run(tmp_path, tmp_path / "wide.onnx", *job, option, "--output-dir", "wide", "--log-file", "wide.jsonl")
    (ours, ended), (theirs, twin) = log(tmp_path / "low.jsonl"), log(tmp_path / "wide.jsonl")
    assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]  # the same numbers are computed
    before, after, masters = initializers(tmp_path / "low.onnx"), initializers(tmp_path / "low/model.onnx"), initializers(tmp_path / "wide/model.onnx")
    trained = [name for name, tensor in before.items() if tensor.data_type == type and tensor.raw_data != after[name].raw_data]
    assert len(trained) > 10
    for name in trained:
        assert after[name].data_type == type
        assert after[name].raw_data == rounded(numpy_helper.to_array(masters[name]), type).tobytes()  # to nearest, ties to even
    onnx.checker.check_model(onnx.load(tmp_path / "low/model.onnx"), full_check=True)
    if type == onnx.TensorProto.FLOAT16:  # ONNX Runtime's CPU has no products of bfloat16
        ids = {"input_ids": np.arange(32).reshape(1, 32)}
        low_logits, wide_logits = (session(tmp_path / name).run(["logits"], ids)[0] for name in ("low/model.onnx", "wide/model.onnx"))
        assert low_logits.dtype == np.float16 and error(low_logits, wide_logits) < 1e-2


def cross_entropy(logits, labels):
    """Mean over the labels that count."""
    logits, labels = logits.reshape(-1, logits.shape[-1]).astype(np.float64), labels.ravel()
    logits = logits - logits.max(axis=1, keepdims=True)
    counts = labels != -100
    return (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), np.where(counts, labels, 0)])[counts].mean()


def shifted(ids):
    return np.concatenate([ids[:, 1:], np.full((len(ids), 1), -100)], axis=1)


def test_held_out_loss_of_text(tmp_path):
    run(tmp_path, CHAR_GPT, "--data", TEXT, "--task", "causal-lm", "--seq-length", 64, "--batch-size", 8, "--max-steps", 6, "--learning-rate", 1e-3,
        "--eval-steps", 3, "--eval-batches", 5, "--log-file", "log")
    vocabulary = {token: i for i, token in enumerate(json.loads(CHAR_GPT.with_suffix(".vocab.json").read_text())["tokens"])}
    ids = np.array([vocabulary[character] for character in TEXT.read_text()])
    samples = ids[:len(ids) // 64 * 64].reshape(-1, 64)
    held_out = samples[len(samples) - -(-len(samples) // 10):][:40]
    logits = session(tmp_path / "out/model.onnx").run(["logits"], {"input_ids": held_out})[0]
    losses = [line["eval_loss"] for line in log(tmp_path / "log")[0] if "eval_loss" in line]
    assert len(losses) == 2 and losses[1] < losses[0]
    assert losses[1] == pytest.approx(cross_entropy(logits, shifted(held_out)), rel=TOLERANCE)


def test_held_out_loss_of_tokens_with_a_short_last_batch(tmp_path):
    random = np.random.default_rng(1)
    data = tmp_path / "data"
    data.mkdir()
    for part, samples in ("train", 40), ("valid", 21):
        random.integers(0, 61, samples * 12 + 5).astype(np.uint32).tofile(data / f"{part}.bin")
    run(tmp_path, original("gpt2-torchscript-23-eager"), "--data", data, "--task", "causal-lm", "--token-type", "uint32", "--seq-length", 12,
        "--batch-size", 8, "--num-train-epochs", 1, "--learning-rate", 1e-2, "--eval-steps", 100, "--log-file", "log")
    ids = np.fromfile(data / "valid.bin", np.uint32)[:21 * 12].reshape(21, 12).astype(np.int64)
    logits = session(tmp_path / "out/model.onnx").run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    lines, summary = log(tmp_path / "log")
    assert summary["steps"] == 5
    assert lines[-1]["eval_loss"] == pytest.approx(cross_entropy(logits, shifted(ids)), rel=TOLERANCE)


@pytest.mark.parametrize("case, loss, labels", [
    ("gpt2-dynamo-17-eager", "cross_entropy", "labels"), ("mlp-mse", "mse", "y"), ("mlp-own-loss", "output", "labels")])
def test_held_out_loss_of_arrays(tmp_path, case, loss, labels):
    arrays = safetensors(GOLDEN / f"{case}.data.safetensors")
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "train.npz", **arrays)
    np.savez_compressed(data / "valid.npz", **{name: array[:5] for name, array in arrays.items()})
    run(tmp_path, original(case), "--data", data, "--loss", loss, "--labels", labels, "--batch-size", 5, "--max-steps", 4,
        "--learning-rate", 1e-2, "--eval-steps", 4, "--log-file", "log")
    judge = session(tmp_path / "out/model.onnx")
    output = judge.run(None, {entry.name: arrays[entry.name][:5] for entry in judge.get_inputs()})[0].astype(np.float64)
    if loss == "cross_entropy":
        assert (arrays[labels][:5] == -100).any()
        output = cross_entropy(output, arrays[labels][:5])
    elif loss == "mse":
        output = ((output - arrays[labels][:5]) ** 2).mean()
    assert log(tmp_path / "log")[0][-1]["eval_loss"] == pytest.approx(float(output), rel=TOLERANCE)


def test_a_resumed_run_writes_the_same_bytes(tmp_path):
    given = tmp_path / "given.onnx"
    onnx.save(onnx.load(CHAR_GPT), given, save_as_external_data=True, location="given.data", size_threshold=0)
    (tmp_path / "given.vocab.json").write_bytes(CHAR_GPT.with_suffix(".vocab.json").read_bytes())
    job = [given, "--data", TEXT, "--task", "causal-lm", "--seq-length", 48, "--batch-size", 4, "--max-steps", 60, "--eval-steps", 20,
           "--eval-batches", 2, "--gradient-accumulation-steps", 2, "--lr-scheduler-type", "cosine", "--warmup-steps", 5, "--learning-rate", 1e-3]
    run(tmp_path, *job, "--output-dir", "whole", "--log-file", "whole.jsonl")
    piece = subprocess.Popen([str(part) for part in (PROGRAM, *job, "--output-dir", "pieces", "--log-file", "pieces.jsonl")], cwd=tmp_path,
                             stdout=subprocess.DEVNULL)
    lines = tmp_path / "pieces.jsonl"
    while piece.poll() is None and (not lines.exists() or lines.read_bytes().count(b"\n") < 8):
        time.sleep(0.001)
    piece.send_signal(signal.SIGINT)
    assert piece.wait() == 130
    assert 8 <= log(lines)[1]["steps"] < 60 and not (tmp_path / "pieces/model.onnx").exists()
    run(tmp_path, *job, "--output-dir", "pieces", "--log-file", "pieces.jsonl", "--resume")
    for name in "model.onnx", "given.data":
        assert (tmp_path / "pieces" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "whole/given.data").read_bytes() != (tmp_path / "given.data").read_bytes()
    (ours, ended), (theirs, whole) = log(lines), log(tmp_path / "whole.jsonl")
    assert ended["weights_hash"] == whole["weights_hash"]
    same = "step", "loss", "grad_norm", "learning_rate", "eval_loss"
    assert [[line.get(key) for key in same] for line in ours] == [[line.get(key) for key in same] for line in theirs]


@pytest.mark.parametrize("case", ["char-gpt", "gpt2-dynamo-17-eager", "gpt2-torchscript-23-eager"])
def test_training_graphs_open_in_onnx(tmp_path, case):
    data = ["--data", TEXT, "--task", "causal-lm", "--seq-length", 16] if case == "char-gpt" else ["--data", GOLDEN / f"{case}.data.safetensors"]
    passes = ["simplify", "fuse_attention", "loss", "autodiff", "update"]
    run(tmp_path, "plan", original(case), *data, *(part for name in passes for part in ("--dump-after", name, f"{name}.onnx")))
    nodes = {}
    for name in passes:
        graph = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(graph, full_check=True)
        assert {opset.domain for opset in graph.opset_import} == {"", "ort_train"}
        assert {node.domain for node in graph.graph.node} <= {"", "ort_train"}
        assert graph.graph.name == ("train" if name in ("loss", "autodiff", "update") else onnx.load(original(case)).graph.name)
        nodes[name] = [node.op_type for node in graph.graph.node]
    alone = nodes["update"].count("AdamW") - nodes["update"].count("Pack")
    assert alone + nodes["update"].count("PackMember") == len(trained_names(case)) and alone > 0
    assert len(nodes["fuse_attention"]) < len(nodes["simplify"]) < len(nodes["autodiff"]) < len(nodes["update"])
