"""What users get wrong: each mistake ends in one sentence that names the thing, and in the exit code of its kind."""
import numpy as np
import onnx
import pytest

from program import CHAR_GPT, GOLDEN, TEXT, run, safetensors

GPT = GOLDEN / "gpt2-dynamo-17-eager.onnx"
PERCEPTRON = GOLDEN / "mlp-mse.onnx"
USAGE, UNSUPPORTED, DATA, IO = 2, 3, 5, 6


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
    refused(tmp_path, DATA, "index 256 is outside an axis of 256", CHAR_GPT, *text, "--seq-length", 257)


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
    arrays = safetensors(GPT.with_suffix(".data.safetensors"))
    arrays["input_ids"] = replaced(arrays["input_ids"], 61)
    np.savez(tmp_path / "data.npz", **arrays)
    refused(tmp_path, DATA, "sample 3: element 1 of 'input_ids' is 61, the model has 61 rows", GPT, "--data", "data.npz", "--batch-size", 2,
            "--num-train-epochs", 1, "--part-size", 1000)


def replaced(array, value):
    array = array.copy()
    array[3, 1] = value
    return array


def test_data_files(tmp_path):
    job = [GPT, "--task", "causal-lm", "--seq-length", 8, "--data"]
    for name, content, sentence in [
        ("empty.bin", b"", "has 0 tokens, fewer than one sample of 8"),
        ("odd.bin", b"abc", "no whole number of 2-byte tokens"),
        ("table.csv", b"1,2\n", "data is .txt, .bin, .npz or .safetensors"),
        ("cut.npz", b"PK\3\4", "not a valid .npz file"),
        ("bad.safetensors", b"\xff" * 64, "not a valid safetensors file"),
        ("a.txt", b"text", "text needs a vocabulary"),
    ]:
        (tmp_path / name).write_bytes(content)
        refused(tmp_path, DATA, sentence, *job, name)
    refused(tmp_path, DATA, "there is no such file or folder", *job, "missing.bin")
    refused(tmp_path, USAGE, "no data is given: --data PATH", GPT)
    (tmp_path / "folder").mkdir()
    refused(tmp_path, DATA, "has no train.txt, train.bin, train.npz or train.safetensors", *job, "folder")
    (tmp_path / "latin1.txt").write_bytes("naïve".encode("latin1"))
    refused(tmp_path, DATA, "line 1: is not UTF-8 text", CHAR_GPT, *job[1:], "latin1.txt")
    (tmp_path / "utf8.txt").write_text("to be\nnaïve or not", encoding="utf-8")
    refused(tmp_path, DATA, "line 2: the character 'ï' (U+00EF) is not in", CHAR_GPT, *job[1:], "utf8.txt")


@pytest.mark.parametrize("arguments, sentence", [
    (["--lerning-rate", 1], "unknown option --lerning-rate; did you mean --learning-rate?"),
    (["--sequence_length", 1], "unknown option --sequence-length; did you mean --seq-length?"),
    (["--gradient-accumulation", 2], "did you mean --gradient-accumulation-steps?"),
    (["--max-steps", "ten"], "--max-steps"),
    (["--learning-rate", -1], "--learning-rate -1"),
    (["--budget", "4 GX"], "is no number of bytes: write 12GB"),
    (["--threads", -1], "--threads -1: is negative"),
    (["--output", "nothing"], "the model has no output 'nothing'; it has: prediction"),
    (["--dump-after", "nothing", "x.onnx"], "no such pass ran; these did: simplify"),
    (["--task", "chat"], "--task chat is not known"),
    (["--data"], "--data"),
    (["--max-steps", "99999999999999999999"], "is more than can be counted"),
    (["--threads", 100000], "is more than 1,024"),
    (["--skip-pass", "nothing"], "--skip-pass nothing: no such pass can be left out; these can: simplify"),
    (["--skip-pass", "autodiff"], "--skip-pass autodiff: no such pass can be left out"),
])
def test_options(tmp_path, arguments, sentence):
    job = [PERCEPTRON, "--data", PERCEPTRON.with_suffix(".data.safetensors"), "--loss", "mse", "--labels", "y", "--max-steps", 1]
    refused(tmp_path, USAGE, sentence, *job, *arguments)
