"""What users get wrong: each mistake ends in one sentence that names the thing, and in the exit code of its kind."""
import json

import numpy as np
import onnx
import pytest

from program import CHAR_GPT, GOLDEN, TEXT, run, safetensors

GPT = GOLDEN / "gpt2-dynamo-17-eager.onnx"
PERCEPTRON = GOLDEN / "mlp-mse.onnx"
USAGE, UNSUPPORTED, BUDGET, DATA, IO = 2, 3, 4, 5, 6


def refused(folder, code, sentence, *arguments):
    message = run(folder, *arguments, code=code).err
    assert sentence in message, message
    assert not (folder / "out/model.onnx").exists()


def test_model_files(tmp_path):
    whole = GPT.read_bytes()
    for length in 0, 1, 100, 60000, len(whole) - 5:
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        for command in [], ["check"], ["plan"]:
            refused(tmp_path, UNSUPPORTED, "cut.onnx", *command, "cut.onnx", "--data", "x.npz")
    (tmp_path / "text.onnx").write_text("A letter, not a model.\n" * 100)
    refused(tmp_path, UNSUPPORTED, "is not an ONNX model", "text.onnx", "--data", "x.npz")
    refused(tmp_path, IO, "No such file", "missing.onnx", "--data", "x.npz")
    refused(tmp_path, IO, "is a folder", tmp_path, "--data", "x.npz")


def test_external_data(tmp_path):
    onnx.save(onnx.load(GPT), tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    weights = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(weights[:1000])
    refused(tmp_path, IO, "weights.bin' has 1000 bytes, too few for", "model.onnx", "--data", GPT.with_suffix(".data.safetensors"))
    (tmp_path / "weights.bin").unlink()
    refused(tmp_path, IO, "weights.bin': No such file", "model.onnx", "--data", GPT.with_suffix(".data.safetensors"))


def test_dimensions(tmp_path):
    text = ["--data", TEXT, "--task", "causal-lm"]
    refused(tmp_path, USAGE, "leaves the length of a sample open (input 'input_ids'): give --seq-length", CHAR_GPT, *text)
    refused(tmp_path, USAGE, "the model has no free dimension of that name; it has batch,", CHAR_GPT, *text, "--seq-length", 8, "--shape", "time=8")
    refused(tmp_path, USAGE, "contradicts the length 16", CHAR_GPT, *text, "--shape", "sequence=16", "--seq-length", 8)
    refused(tmp_path, USAGE, "at least 1", CHAR_GPT, *text, "--seq-length", 8, "--batch-size", -1)
    refused(tmp_path, DATA, "index 256 at position 256 is outside an axis of 256", CHAR_GPT, *text, "--seq-length", 257)


@pytest.mark.parametrize("changes, sentence", [
    (lambda a: {"labels": replaced(a["labels"], 61)}, "sample 3: label 61 is outside the 61 classes of the loss"),
    (lambda a: {"labels": replaced(a["labels"], -1)}, "sample 3: label -1 is outside the 61 classes"),
    (lambda a: {"input_ids": replaced(a["input_ids"], 99)}, "sample 3: element 1 of 'input_ids' is 99, the model has 61 rows"),
    (lambda a: {name: array[:0] for name, array in a.items()}, "has no samples"),
    (lambda a: {"labels": a["labels"][:5]}, "'labels' has 5"),
    (lambda a: {"input_ids": a["input_ids"].astype(np.float32)}, "array 'input_ids' is float32, input 'input_ids' wants int64"),
    (lambda a: {"labels": a["labels"].astype(np.float64)}, "array 'labels' is float64, the loss wants int64"),
    (lambda a: {"input_ids": a["input_ids"].astype(str)}, "array 'input_ids.npy': its type"),
    (lambda a: {"input_ids": a["input_ids"][:, :5]}, "dimension 'sequence' of the model would be 5 and 12"),
    (lambda a: {"input_ids": a["input_ids"][..., None]}, "array 'input_ids' has samples of shape [12, 1]"),
    (lambda a: {"labels": a["labels"][:, 1:]}, "array 'labels' has samples of shape [11], the loss wants [12]"),
    (lambda a: {"labels": a["labels"][:, 0]}, "array 'labels' has samples of shape [], the loss wants [12]"),
    (lambda a: {"labels": None}, "has no array 'labels'"),
    (lambda a: {"position_ids": None}, "has no array 'position_ids', which the model wants as an input"),
])
def test_arrays(tmp_path, changes, sentence):
    arrays = safetensors(GPT.with_suffix(".data.safetensors"))
    arrays.update(changes(arrays))
    np.savez(tmp_path / "data.npz", **{name: array for name, array in arrays.items() if array is not None})
    refused(tmp_path, DATA, sentence, GPT, "--data", "data.npz", "--batch-size", 2, "--num-train-epochs", 1)


def test_an_id_beyond_a_table_in_parts(tmp_path):
    rows, width = 300_000, 16
    weights = [onnx.numpy_helper.from_array(np.ones((rows, width), np.float32), "table")]
    inputs = [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", 2])]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 2, width])]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Gather", ["table", "ids"], ["y"])], "table", inputs, outputs, weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "table.onnx")
    command = ["table.onnx", "--data", "data.npz", "--loss", "mse", "--batch-size", 2, "--num-train-epochs", 1]
    ids = np.arange(10).reshape(5, 2) * 200
    np.savez(tmp_path / "data.npz", ids=ids, labels=np.zeros((5, 2, width), np.float32))
    run(tmp_path, "plan", *command, "--plan-json", "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["parts"]["parts"] == 5
    np.savez(tmp_path / "data.npz", ids=replaced(ids, rows), labels=np.zeros((5, 2, width), np.float32))
    refused(tmp_path, DATA, "sample 3: element 1 of 'ids' is 300000, the model has 300000 rows", *command)


def test_a_weight_named_like_anothers_state(tmp_path):
    weights = [onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), name) for name in ("w", "w.exp_avg")]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("MatMul", ["h", "w.exp_avg"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "names", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "names.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((4, 4), np.float32), labels=np.ones((4, 4), np.float32))
    refused(tmp_path, UNSUPPORTED, "'w.exp_avg' is a name in the model that the optimizer's state of 'w' has to have: rename it", "names.onnx",
            "--data", "data.npz", "--loss", "mse", "--batch-size", 2)
    model = (tmp_path / "names.onnx").read_bytes()
    (tmp_path / "names.onnx").write_bytes(model.replace(b"w.exp_avg", b"w\xe4exp_avg"))
    for freeze in [], ["--freeze", "w*", "--train", "w"]:
        refused(tmp_path, UNSUPPORTED, "is not UTF-8 or is reserved by safetensors: rename it", "names.onnx", "--data", "data.npz", "--loss", "mse",
                "--batch-size", 2, *freeze)


def replaced(array, value):
    array = array.copy()
    array[3, 1] = value
    return array


def test_data_files(tmp_path):
    job = [GPT, "--task", "causal-lm", "--seq-length", 8, "--data"]
    for name, content, sentence in [
        ("empty.bin", b"", "has 0 tokens, fewer than one sample of 8"),
        ("odd.bin", b"abc", "no whole number of 2-byte tokens"),
        ("table.csv", b"1,2\n", "data is .txt, .bin, .npy, .npz, .safetensors or .jsonl"),
        ("cut.npz", b"PK\3\4", "not a valid .npz file"),
        ("bad.safetensors", b"\xff" * 64, "not a valid safetensors file"),
        ("a.txt", b"text", "text needs a vocabulary"),
    ]:
        (tmp_path / name).write_bytes(content)
        refused(tmp_path, DATA, sentence, *job, name)
    refused(tmp_path, DATA, "there is no such file or folder", *job, "missing.bin")
    refused(tmp_path, USAGE, "no data is given: --data is a file or a folder", GPT)
    (tmp_path / "mixed").mkdir()
    np.savez(tmp_path / "mixed/train.npz", x=np.ones((4, 4), np.float32))
    (tmp_path / "mixed/valid.bin").write_bytes(bytes(64))
    refused(tmp_path, DATA, "one holds arrays, the other a text or tokens", *job, "mixed", "--eval-steps", 1)
    (tmp_path / "folder").mkdir()
    refused(tmp_path, DATA, "has no train.txt, train.bin, train.npy, train.npz, train.safetensors or train.jsonl", *job, "folder")
    (tmp_path / "latin1.txt").write_bytes("naïve".encode("latin1"))
    refused(tmp_path, DATA, "line 1: is not UTF-8 text", CHAR_GPT, *job[1:], "latin1.txt")
    (tmp_path / "utf8.txt").write_text("to be\nnaïve or not", encoding="utf-8")
    refused(tmp_path, DATA, "line 2: the character 'ï' (U+00EF) is not in", CHAR_GPT, *job[1:], "utf8.txt")


def test_a_validation_file_that_nobody_evaluates(tmp_path):
    (tmp_path / "data").mkdir()
    (np.arange(400) % 61).astype(np.uint16).tofile(tmp_path / "data/train.bin")
    (np.arange(4)).astype(np.uint16).tofile(tmp_path / "data/valid.bin")
    job = [GPT, "--task", "causal-lm", "--seq-length", 8, "--data", "data", "--batch-size", 2, "--max-steps", 1]
    refused(tmp_path, DATA, "valid.bin: has 4 tokens, fewer than one sample of 8", *job, "--eval-steps", 1)
    run(tmp_path, *job)


def test_arrays_that_nothing_reads(tmp_path):
    arrays = safetensors(PERCEPTRON.with_suffix(".data.safetensors"))
    np.savez(tmp_path / "data.npz", seed=42, class_names=np.array(["a", "b"]), mean=np.zeros(3), **arrays)
    job = [PERCEPTRON, "--data", "data.npz", "--loss", "mse", "--max-steps", 1]
    refused(tmp_path, DATA, "array 'seed' is a single number", *job, "--labels", "seed")
    refused(tmp_path, DATA, "array 'class_names.npy': its type '<U1' can't be read", *job, "--labels", "class_names")
    run(tmp_path, *job, "--labels", "y")


def test_compressed_arrays_take_memory(tmp_path):
    arrays = safetensors(PERCEPTRON.with_suffix(".data.safetensors"))
    times = (30 << 20) // sum(array.nbytes for array in arrays.values())
    large = {name: np.concatenate([array] * times) for name, array in arrays.items()}
    np.savez_compressed(tmp_path / "packed.npz", unused=np.zeros((100, 100)), **large)
    np.savez(tmp_path / "plain.npz", **large)
    job = [PERCEPTRON, "--loss", "mse", "--labels", "y", "--max-steps", 1, "--budget", "1MB", "--data"]
    taken = f"{sum(array.nbytes for array in large.values()):,}"
    refused(tmp_path, BUDGET, f"of which {taken} are the data's compressed arrays (numpy.savez instead of savez_compressed", *job, "packed.npz")
    assert "compressed" not in run(tmp_path, *job, "plain.npz", code=BUDGET).err


@pytest.mark.parametrize("arguments, sentence", [
    (["--lerning-rate", 1], "unknown option --lerning-rate; did you mean --learning-rate?"),
    (["--sequence_length", 1], "unknown option --sequence-length; did you mean --seq-length?"),
    (["--gradient-accumulation", 2], "did you mean --gradient-accumulation-steps?"),
    (["--grad-accum", 2], "did you mean --gradient-accumulation-steps?"),
    (["--epochs", 3], "did you mean --num-train-epochs?"),
    (["--steps", 3], "did you mean --max-steps?"),
    (["--batch", 3], "did you mean --batch-size?"),
    (["--nvme", "."], "did you mean --nvme-path?"),
    (["--lr", 1], "unknown option --lr: here it is --learning-rate"),
    (["--gpu"], "unknown option --gpu: here it is --device cuda"),
    (["---"], "unknown option ---: --help shows all"),
    (["--quickly"], "unknown option --quickly: --help shows all"),
    (["--max-steps", "ten"], "--max-steps ten: is not a whole number"),
    (["--num-train-epochs", "two"], "--num-train-epochs two: is not a number"),
    (["--learning-rate", -1], "--learning-rate -1"),
    (["--budget", "4 GX"], "is no number of bytes: write 12GB"),
    (["--threads", -1], "--threads -1: is negative"),
    (["--lr-scheduler-type", "cosin"], "--lr-scheduler-type cosin is not known: linear, cosine, "),
    (["--lr-scheduler-kwargs", "num_cycles"], "--lr-scheduler-kwargs 'num_cycles' is not name=value"),
    (["--lr-scheduler-kwargs", '{"num_cycles": 2}'], "--lr-scheduler-kwargs num_cycles=2: linear has no such argument; it has none"),
    (["--lr-scheduler-kwargs", '{"num_cycles": [2]}'], "--lr-scheduler-kwargs 'num_cycles' has to be a number or a string"),
    (["--lr-scheduler-kwargs", '{"num_cycles"'], "is no JSON object"),
    (["--lr-scheduler-type", "wsd"], "--lr-scheduler-type warmup_stable_decay needs num_decay_steps, the length of its decay (--lr-scheduler-kwargs)"),
    (["--lr-scheduler-type", "reduce_lr_on_plateau"], "follows the held-out loss: it needs evaluations (--eval-steps)"),
    (["--load-best-model-at-end"], "--load-best-model-at-end goes by the held-out loss: it needs evaluations (--eval-steps)"),
    (["--early-stopping-patience", 3], "--early-stopping-patience 3: follows the held-out loss: it needs evaluations (--eval-steps)"),
    (["--early-stopping-threshold", 0.1], "--early-stopping-threshold 0.1 goes with --early-stopping-patience"),
    (["--metric-for-best-model", "accuracy"], "--metric-for-best-model accuracy: is not known here: the held-out loss decides, eval_loss"),
    (["--eval-strategy", "steps"], "--eval-strategy steps needs --eval-steps"),
    (["--evaluation-strategy", "epoch"], "unknown option --evaluation-strategy: here it is --eval-strategy"),
    (["--scale-lr", "linear"], "--base-batch-size"),
    (["--param-group", "*.bias"], "--param-group '*.bias': is not PATTERN:key=value,..."),
    (["--param-group", "*.bias:rate=1"], "'rate' is not known: lr, lr_scale or weight_decay"),
    (["--param-group", "*.bias:lr=fast"], "lr 'fast' is no number"),
    (["--param-group", "bias:lr=1"], "--param-group 'bias' fits no tensor that is trained; '*bias*' fits 2"),
    (["--layer-decay", 0], "--layer-decay 0 has to lie in (0, 1]"),
    (["--layer-decay", 0.5], "--layer-decay: the names of the weights don't tell layers apart"),
    (["--output", "nothing"], "the model has no output 'nothing'; it has: prediction"),
    (["--dump-after", "nothing", "x.onnx"], "no such pass ran; these did: simplify"),
    (["--task", "chat"], "--task chat is not known"),
    (["--data"], "--data"),
    (["--output-dir=", "--overwrite"], "--output-dir= has no value"),
    (["--plan-json", "report", "--op-times", "report"], "--op-times report: is named by another option, too"),
    (["--plan-json", PERCEPTRON], "is read by this run; choose another file"),
    (["--op-times", "out/model.onnx"], "--op-times out/model.onnx: is where the run's result goes"),
    (["--save-gradients", "/dev/null"], "--save-gradients /dev/null: is no regular file, and tensors"),
    (["--max-steps", "9000000000000000000"], "is more than can be counted"),
    (["--max-steps", "99999999999999999999"], "--max-steps 99999999999999999999: is not a whole number, or is too large for one"),
    (["--seed", -1], "--seed -1: is not a whole number from 0 on, or is too large for one"),
    (["--batch-size", "010"], "--batch-size 010: write it without a zero in front"),
    (["--shape", "batch=010"], "--shape batch 010: write it without a zero in front"),
    (["--shape", "batch=0x10"], "--shape batch 0x10: is not a whole number"),
    (["--shape", "batch="], "--shape 'batch=' is not name=value"),
    (["--nvme-budget", 0], "--nvme-budget 0 holds nothing"),
    (["--host-budget", "0GB"], "--host-budget 0 holds nothing"),
    (["--seq-length", 9], "has neither an array 'input_ids' nor another input with samples of that length"),
    (["--loss", "prediction:mse", "--output", "prediction"], "--output prediction: no loss reads it"),
    (["--log-file", "out/.ort-train-lock"], "--log-file out/.ort-train-lock: is where the run's result goes"),
    (["--threads", 100000], "is more than 1,024"),
    (["--skip-pass", "nothing"], "--skip-pass nothing: no such pass can be left out; these can: simplify"),
    (["--skip-pass", "autodiff"], "--skip-pass autodiff: no such pass can be left out"),
])
def test_options(tmp_path, arguments, sentence):
    job = [PERCEPTRON, "--data", PERCEPTRON.with_suffix(".data.safetensors"), "--loss", "mse", "--labels", "y", "--max-steps", 1]
    refused(tmp_path, USAGE, sentence, *job, *arguments)


REPORTS = ["--plan-json", "--plan-svg", "--op-times", "--save-gradients", "--save-optimizer-state"]


def test_reports_replace_their_own_kind_alone(tmp_path):
    job = [PERCEPTRON, "--data", PERCEPTRON.with_suffix(".data.safetensors"), "--loss", "mse", "--labels", "y", "--max-steps", 1, "--overwrite"]
    for option in REPORTS:
        (tmp_path / "mine").write_text("a letter")
        refused(tmp_path, USAGE, f"{option} mine: is there already and isn't known as such a file of ort-train", *job, option, "mine")
        assert (tmp_path / "mine").read_text() == "a letter"
    (tmp_path / "mine").write_text('{"theme": "dark"}')
    refused(tmp_path, USAGE, "--profile mine: is there already and isn't known as such a file of ort-train", *job, "--profile", "mine")
    all_reports = [part for option in REPORTS for part in (option, option[2:])] + ["--dump-after", "simplify", "simplified.onnx"]
    for _ in range(2):
        run(tmp_path, *job, *all_reports)
    for one, other in zip(REPORTS, REPORTS[1:] + REPORTS[:1]):
        message = run(tmp_path, *job, one, other[2:], code=USAGE).err
        assert f"{one} {other[2:]}: is there already and isn't known as such" in message, message
    (tmp_path / "link").symlink_to("plan-json")
    run(tmp_path, *job, "--plan-json", "link")
    assert (tmp_path / "link").is_symlink()
    run(tmp_path, *job, "--plan-json", "/dev/null")


def test_two_weights_of_one_name(tmp_path):
    weights = [onnx.numpy_helper.from_array(np.full((4, 4), value, np.float32), "w") for value in (1, 2)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "twice", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "twice.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((4, 4), np.float32), labels=np.ones((4, 4), np.float32))
    refused(tmp_path, UNSUPPORTED, "two initializers 'w'", "twice.onnx", "--data", "data.npz", "--loss", "mse")
