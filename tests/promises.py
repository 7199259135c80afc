"""The budget changes where bytes live, never what is computed, and bounds the whole process. The matrix of choices runs in one process
(promises_test.cpp); here each job runs as a user runs it where resident memory is the judge: without a budget, at the smallest one with a disk, and
at another. Losses, weights and the model that is written are the same bits, and each run stays inside its budget. Most jobs are small; a few are
large enough that arenas, plans and what planning leaves on the heap are those of real ones.

With ORT_TRAIN_SOAK in the environment the whole matrix runs in processes, and counts how often each mechanism really was in use.
"""
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from program import CHAR_GPT, GOLDEN, TEXT, log, nominal_machine, run, smallest_budget

IO = 6
PAGE = 4096
MB = 10**6
THREADS = 1, 2, 3, 8
SHARES = 0, 0.01, 0.03, 0.06, 0.1, 0.18, 0.4, 1  # of what lies between the smallest budget and all that a job takes
RECOMPUTE = "auto", "none", "sqrt", "all"
MECHANISMS = "recompute", "streamed state", "streamed activations", "vertical", "updates in the next step"
ORDERS = "vertical", "auto", "vertical", "horizontal", "vertical"
AXES = {"threads": THREADS, "disk in use": (True, False), "recompute": RECOMPUTE, "order": set(ORDERS), "share": SHARES}
STATE = {"weights", "gradients", "optimizer"}
SOAK = "ORT_TRAIN_SOAK" in os.environ
seen = []  # of each run of the matrix: its mechanisms, whether it accumulates
ways = []  # of the accumulating ones: where it stood on each axis


@pytest.fixture(scope="session")
def profile(tmp_path_factory):
    return nominal_machine(tmp_path_factory.getbasetemp())


def write_perceptron(folder, name, width, inner, samples, numbers):
    """A model whose weights and optimizer state are most of its memory, and its data: NAME.onnx, NAME.npz."""
    shapes = {"w1": (width, inner), "b1": (inner,), "w2": (inner, width)}
    weights = [helper.make_tensor(name, TensorProto.FLOAT, shape, numbers.standard_normal(shape, np.float32) / 30, raw=True)
               for name, shape in shapes.items()]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Add", ["h", "b1"], ["a"]), helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("MatMul", ["r", "w2"], ["o"]), helper.make_node("Tanh", ["o"], ["out"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("x", "out")]
    model = helper.make_model(helper.make_graph(nodes, name, ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, folder / f"{name}.onnx")
    x = numbers.standard_normal((samples, width), np.float32)
    np.savez(folder / f"{name}.npz", x=x, labels=x[:, ::-1])


def write_network(folder, name, emit, size):
    """A classifier of images with live BatchNorm: NAME.onnx. `emit` gets what makes a node, a normalisation and a weight."""
    numbers = np.random.default_rng(3)
    weights, nodes = [], []

    def weight(*shape, low=-0.1, high=0.1):
        weights.append(onnx.numpy_helper.from_array(numbers.uniform(low, high, shape).astype(np.float32), f"w{len(weights)}"))
        return weights[-1].name

    def node(op, *inputs, **attributes):
        outputs = [f"{op}_{len(nodes)}_{i}" for i in range(3 if op == "BatchNormalization" else 1)]
        nodes.append(helper.make_node(op, inputs, outputs, f"{op}_{len(nodes)}", **attributes))
        return outputs[0]

    def norm(x, channels):
        return node("BatchNormalization", x, weight(channels, low=0.5, high=1.5), weight(channels), weight(channels), weight(channels, low=0.5, high=1.5),
                    training_mode=1)

    result = emit(node, norm, weight)
    ends = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *size]),
            helper.make_tensor_value_info(result, TensorProto.FLOAT, ["batch", 5])]
    model = helper.make_model(helper.make_graph(nodes, name, ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, folder / f"{name}.onnx")


def residual(node, norm, weight):
    """70,000 parameters: two convolutions, a residual one of two groups, pools."""
    x = node("Relu", norm(node("Conv", "image", weight(32, 3, 3, 3), pads=[1, 1, 1, 1]), 32))
    x = node("MaxPool", norm(node("Conv", x, weight(48, 32, 3, 3), pads=[1, 1, 1, 1]), 48), kernel_shape=[2, 2], strides=[2, 2])
    y = node("Relu", norm(node("Conv", x, weight(48, 24, 3, 3), pads=[1, 1, 1, 1], group=2), 48))
    x = node("Relu", node("Add", x, norm(node("Conv", y, weight(48, 48, 3, 3), weight(48), pads=[1, 1, 1, 1]), 48)))
    return node("Gemm", node("Flatten", node("GlobalAveragePool", x)), weight(48, 5), weight(5))


def wide(node, norm, weight):
    """Running statistics of 80 kB each: large enough to leave the memory."""
    return node("Gemm", norm(node("Flatten", "image"), 20_000), weight(20_000, 5), weight(5))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Perceptrons; data for the golden models: tokens.bin, and masked.npz and classes.npz with samples of all lengths."""
    folder = tmp_path_factory.mktemp("made")
    numbers = np.random.default_rng(1)
    write_perceptron(folder, "perceptron", 512, 2048, 60, numbers)
    write_perceptron(folder, "large", 1024, 8192, 20, numbers)
    numbers.integers(0, 50, 8000, np.uint16).tofile(folder / "tokens.bin")
    tokens, ends = numbers.integers(1, 61, (150, 16)), numbers.integers(5, 17, 150)
    inside = np.arange(16) < ends[:, None]
    arrays = dict(input_ids=tokens, attention_mask=inside.astype(np.int64), token_type_ids=numbers.integers(0, 2, (150, 16)))
    np.savez(folder / "masked.npz", **arrays, labels=np.where(inside & (numbers.random((150, 16)) < 0.3), tokens, -100))
    np.savez(folder / "classes.npz", **arrays, labels=tokens[:, 1] % 3)
    np.savez(folder / "images.npz", image=numbers.standard_normal((150, 3, 8, 8), np.float32), labels=numbers.integers(0, 5, 150))
    np.savez(folder / "wide.npz", image=numbers.standard_normal((60, 20_000), np.float32), labels=numbers.integers(0, 5, 60))
    write_network(folder, "residual", residual, (3, 8, 8))
    write_network(folder, "wide", wide, (20_000,))
    return folder


def text(batch, length, steps, *more):
    return [CHAR_GPT, "--data", TEXT, "--sample-length", 0, "--task", "causal-lm", "--batch-size", batch, "--seq-length", length, "--max-steps", steps, *more]


EVALUATED = ["--eval-steps", 2, "--eval-batches", 1]
ACCUMULATING = ["--gradient-accumulation-steps", 3]


def perceptron_job(made, batch, *more):
    return [made / "perceptron.onnx", "--data", made / "perceptron.npz", "--loss", "mse", "--batch-size", batch, *more]


def gpt2_job(made, name, *more):
    return [GOLDEN / f"{name}.onnx", "--data", made / "tokens.bin", "--task", "causal-lm", "--seq-length", 16, "--batch-size", 64, *more]


def bert_job(made, name, data, batch, *more):
    return [GOLDEN / f"{name}.onnx", "--data", made / f"{data}.npz", "--batch-size", batch, "--learning-rate", 1e-3, *more]


def image_job(made, model, batch, *more, data="images"):
    return [model, "--data", made / f"{data}.npz", "--batch-size", batch, "--learning-rate", 1e-3, *more]


JOBS = {
    "char-gpt": lambda made: text(2, 128, 2, *ACCUMULATING, *EVALUATED),
    "perceptron": lambda made: perceptron_job(made, 16, "--max-steps", 6, *EVALUATED),
    "perceptron, accumulating": lambda made: perceptron_job(made, 8, "--max-steps", 3, *ACCUMULATING),
    "perceptron, adafactor": lambda made: perceptron_job(made, 16, "--max-steps", 3, "--optim", "adafactor"),
    "perceptron, sgd": lambda made: perceptron_job(made, 16, "--max-steps", 3, "--optim", "sgd", "--max-grad-norm", 0),
    "gpt2 of dynamo": lambda made: gpt2_job(made, "gpt2-dynamo-20-folded", "--max-steps", 4, *EVALUATED),
    "gpt2 of torchscript": lambda made: gpt2_job(made, "gpt2-torchscript-18-folded", "--max-steps", 3),
    "gpt2 of torchscript, accumulating": lambda made: gpt2_job(made, "gpt2-torchscript-23-eager", "--max-steps", 2, *ACCUMULATING),
    "bert of dynamo": lambda made: bert_job(made, "bert-dynamo-18-masked", "masked", 64, "--max-steps", 3, *EVALUATED),
    "bert of torchscript, accumulating": lambda made: bert_job(made, "bert-torchscript-20-classes", "classes", 48, "--max-steps", 2, *ACCUMULATING),
    "bert of torchscript, dropout": lambda made: bert_job(made, "dropout/bert-torchscript-17", "masked", 64, "--max-steps", 4, *EVALUATED),
    "bert of dynamo, dropout, accumulating": lambda made: bert_job(made, "dropout/bert-dynamo-20", "classes", 32, "--max-steps", 3, *ACCUMULATING),
    "cnn of torchscript, accumulating": lambda made: image_job(made, GOLDEN / "cnn-torchscript-17-live.onnx", 40, "--max-steps", 3, *ACCUMULATING, *EVALUATED),
    "residual cnn": lambda made: image_job(made, made / "residual.onnx", 32, "--max-steps", 4, *EVALUATED),
    "residual cnn, sgd, accumulating": lambda made: image_job(made, made / "residual.onnx", 16, "--max-steps", 2, "--optim", "sgd", "--momentum", 0.9,
                                                              *ACCUMULATING),
    "residual cnn, frozen": lambda made: image_job(made, made / "residual.onnx", 32, "--max-steps", 3, "--batch-norm", "frozen", "--max-grad-norm", 0),
    "running statistics that leave the memory": lambda made: image_job(made, made / "wide.onnx", 8, "--max-steps", 2, *ACCUMULATING, *EVALUATED, data="wide"),
    "gpt2 of dynamo, accumulating": lambda made: gpt2_job(made, "gpt2-dynamo-20-sdpa-odd", "--max-steps", 2, *ACCUMULATING),
}


class Job:
    """A job in a folder: its plans, and what a run of it leaves."""

    def __init__(self, folder, profile, arguments):
        self.folder, self.nvme = folder, folder / "nvme"
        self.nvme.mkdir()
        self.arguments = [*arguments, "--profile", profile]
        self.plans = {}

    def disk(self, on):
        return ["--nvme-path", self.nvme] if on else []

    def plan(self, threads, on, recompute="auto", order="auto"):
        key = threads, on, recompute, order
        if key not in self.plans:
            how = ["--threads", threads, "--recompute", recompute, "--micro-batches", order, *self.disk(on)]
            run(self.folder, "plan", *self.arguments, "--plan-json", "plan.json", *how)
            self.plans[key] = json.loads((self.folder / "plan.json").read_text())
            assert self.plans[key]["machine"]["threads"] == threads
        return self.plans[key]

    def run(self, *more):
        subprocess.run(["rm", "-rf", self.folder / "out", self.folder / "log", *self.nvme.iterdir()], check=True)
        result = run(self.folder, *self.arguments, "--log-file", "log", "--plan-json", "planned.json", *more)
        self.planned = json.loads((self.folder / "planned.json").read_text())
        return result, *self.result()

    def refusal(self, budget, *more):
        return run(self.folder, *self.arguments, "--budget", budget, *more, code=4)

    def mechanisms(self):
        """What the last run did, by its plan."""
        plan = self.planned
        steps = [entry for entry in plan["memory"]["entries"] if entry["name"].startswith(("train", "update"))]
        together = plan["micro_batches"]["together"] > 1  # then "train" is for what is left of an epoch
        moved = [entry["disk"][way] for entry in steps for way in ("read", "written") if not (together and entry["name"] == "train")]
        used = {name for entry in moved for name, size in entry.items() if size > 0}
        return {name for name, there in (("recompute", plan["recompute"]["recomputed"] > 0), ("streamed state", used & STATE),
                                         ("streamed activations", "activations" in used), ("vertical", together), ("updates in the next step", plan["updates_in_next_step"])) if there}

    def result(self):
        """What must be the same bits, and the summary."""
        steps, summary = log(self.folder / "log")
        numbers = [(step["step"], step["loss"], step["grad_norm"], step.get("eval_loss")) for step in steps]
        model = hashlib.sha256((self.folder / "out" / "model.onnx").read_bytes()).hexdigest()
        return (numbers, summary["eval_loss"], summary["weights_hash"], model), summary

    def leftovers(self):
        """What lies on the disk beside the state file that the checkpoint refers to."""
        needed = {path.stat().st_ino for path in self.folder.glob("out/checkpoint-*/state.bin")}
        return sorted(path.name for path in self.nvme.iterdir() if path.stat().st_ino not in needed)


def uses_disk(summary):
    used = summary["planned_peak_bytes"]["NVMe"] > 0
    assert (summary["disk_bytes_read"] > 0) == (summary["disk_bytes_written"] > 0) == used
    return used


@pytest.mark.parametrize("name", JOBS)
def test_every_budget_gives_the_same_bits(tmp_path, profile, made, name):
    """Where a run stands on one axis says nothing of the others: each number of threads meets each recompute, order, share and so on."""
    job, place = Job(tmp_path, profile, JOBS[name](made)), list(JOBS).index(name)
    accumulates = ACCUMULATING[0] in job.arguments
    _, wanted, _ = job.run("--threads", 1)
    here = []
    for number, share in enumerate(SHARES):
        for turn, on in enumerate((True, False, True)[:3 - number % 2]):  # most of what can go wrong needs a disk
            other = number == 1 + place % (len(SHARES) - 1) and turn == place % 2
            if not SOAK and not other and (number, turn) != (0, 0):
                continue
            threads, order = THREADS[(place + number - turn) % len(THREADS)], ORDERS[(place + number + turn) % len(ORDERS)]
            recompute = RECOMPUTE[(place - number + number // 4) % len(RECOMPUTE)]
            least = job.plan(threads, on, recompute, order)["minimum_budget_bytes"]
            most = max(least, job.plan(threads, on, "none")["peak"]["total"] + MB)
            budget = least + int(share * (most - least)) // PAGE * PAGE
            how = ["--threads", threads, "--recompute", recompute, "--micro-batches", order, *job.disk(on)]
            if not here:  # at the smallest budget, with a disk
                assert smallest_budget(job.refusal(least - PAGE, *how)) == least
            result, left, summary = job.run(*how, "--budget", budget)
            where = f"{threads} threads, {budget} bytes from {least} to {most}, {'with' if on else 'without'} a disk, recompute {recompute}, {order}"
            assert left == wanted, where
            assert result.peak <= budget, where
            assert summary["measured_peak_bytes"]["RAM"] <= summary["planned_peak_bytes"]["RAM"], where
            assert uses_disk(summary) <= on, where
            assert job.leftovers() == [], where
            used = job.mechanisms()
            assert uses_disk(summary) >= bool(used & {"streamed state", "streamed activations"}), where
            assert ("recompute" in used) == (recompute in ("sqrt", "all")) or recompute == "auto", where
            assert ("vertical" in used) == (accumulates and order == "vertical") or accumulates and order == "auto", where
            assert job.planned["machine"]["threads"] == threads, where
            here.append(used)
            if accumulates:
                ways.append({"threads": threads, "disk in use": uses_disk(summary), "recompute": recompute, "order": order, "share": share})
    print(f"{name}: of {len(here)} runs", ", ".join(f"{sum(mechanism in used for used in here)} with {mechanism}" for mechanism in MECHANISMS))
    seen.extend((used, accumulates) for used in here)


LARGE = {
    "char-gpt": lambda made: text(32, 256, 2),
    "perceptron": lambda made: [made / "large.onnx", "--data", made / "large.npz", "--loss", "mse", "--batch-size", 4, "--max-steps", 3],
}


def test_large_arenas_too(tmp_path, profile, made):
    large = set()
    for name, arguments in LARGE.items():
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, profile, arguments(made))
        _, wanted, summary = job.run("--threads", 2, "--recompute", "none")
        assert summary["planned_peak_bytes"]["RAM"] >= 200 * MB
        for recompute, share in ("none", 0), ("none", 0.4), ("none", 0.9), ("auto", 0.5), ("all", 0):
            least, most = job.plan(2, True, recompute)["minimum_budget_bytes"], job.plan(2, False, "none")["peak"]["total"]
            budget = least + int(share * (most - least)) // PAGE * PAGE
            result, left, summary = job.run("--threads", 2, "--budget", budget, "--recompute", recompute, *job.disk(True))
            assert left == wanted
            assert result.peak <= budget
            used = job.mechanisms()
            seen.append((used, False))
            if summary["measured_peak_bytes"]["RAM"] >= 200 * MB:
                large |= used
    assert large >= {"streamed state", "streamed activations"}


def write_gpt(folder, layers, heads, width, vocabulary, length, numbers):
    """A GPT-2 of random weights for `length` tokens, its head tied to the embedding, and its data: gpt.onnx, gpt.bin."""
    weights, nodes = [], []

    def keep(name, array):
        weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def weight(name, *shape):
        return keep(name, numbers.standard_normal(shape, np.float32) / 50)

    def emit(op, *inputs, outputs=1, **attributes):
        names = [f"{op}_{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(op, inputs, names, f"{op}_{len(nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def normalize(name, x):
        return emit("LayerNormalization", x, weight(f"{name}.weight", width), weight(f"{name}.bias", width))

    def linear(name, x, start, end):
        return emit("Add", emit("MatMul", x, weight(f"{name}.weight", start, end)), weight(f"{name}.bias", end))

    parts, whole = keep("parts", np.array([0, 0, heads, width // heads])), keep("whole", np.array([0, 0, width]))
    scale = keep("scale", np.float32((width // heads) ** -0.5))
    past, never = keep("past", np.tri(length, dtype=bool)), keep("never", np.float32(-1e9))
    embedding = weight("wte", vocabulary, width)
    x = emit("Add", emit("Gather", embedding, "input_ids"), weight("wpe", length, width))
    for layer in range(layers):
        name = f"h.{layer}"
        q, k, v = emit("Split", linear(f"{name}.attn", normalize(f"{name}.ln_1", x), width, 3 * width), outputs=3, axis=-1, num_outputs=3)
        q, k, v = (emit("Transpose", emit("Reshape", part, parts), perm=perm)
                   for part, perm in ((q, (0, 2, 1, 3)), (k, (0, 2, 3, 1)), (v, (0, 2, 1, 3))))
        scores = emit("Softmax", emit("Where", past, emit("Mul", emit("MatMul", q, k), scale), never), axis=-1)
        mixed = emit("Reshape", emit("Transpose", emit("MatMul", scores, v), perm=(0, 2, 1, 3)), whole)
        x = emit("Add", x, linear(f"{name}.proj", mixed, width, width))
        inner = emit("Gelu", linear(f"{name}.fc", normalize(f"{name}.ln_2", x), width, 4 * width), approximate="tanh")
        x = emit("Add", x, linear(f"{name}.out", inner, 4 * width, width))
    nodes.append(helper.make_node("MatMul", [normalize("ln_f", x), emit("Transpose", embedding, perm=(1, 0))], ["logits"]))
    ends = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", length]),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", length, vocabulary])]
    model = helper.make_model(helper.make_graph(nodes, "gpt", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.save(model, folder / "gpt.onnx")
    numbers.integers(0, vocabulary, 1000 * length, np.uint16).tofile(folder / "gpt.bin")


# Micro-batches of a step, steps; of each run: the budget's share of what lies between the smallest and all that the job takes, the order.
SCALE = {
    "updates in the next step": (1, 3, [(0, "auto"), (0.4, "auto")]),
    "eight micro-batches": (8, 1, [(0, "auto"), (0.4, "vertical")]),
}


@pytest.fixture
def roomy(tmp_path):
    """A folder that does not outlive its test: more than a gigabyte lies in it."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def planned_end(plan, steps, together, later):
    """The end of the last byte that an entry uses, of those that run."""
    idle = {"train", "train-first"} if together else set()
    if later and steps == 1:  # no step is behind another's update
        idle |= {"train", "train-together"}
    ran = [entry for entry in plan["memory"]["entries"] if entry["name"] not in idle]
    return max(place["offset"] + place["bytes"] for entry in ran for place in entry["storages"])


@pytest.mark.parametrize("name", SCALE)
def test_at_scale_the_process_stays_inside_its_budget(roomy, profile, name):
    """500 MB of state and plans of thousands of nodes: what planning takes of the heap is more than the reserve has to spare."""
    batches, steps, budgets = SCALE[name]
    write_gpt(roomy, 12, 7, 448, 8000, 64, np.random.default_rng(2))
    job = Job(roomy, profile, [roomy / "gpt.onnx", "--data", roomy / "gpt.bin", "--task", "causal-lm", "--batch-size", 1, "--seq-length", 64,
                               "--max-steps", steps, "--gradient-accumulation-steps", batches, "--threads", 2])
    _, wanted, summary = job.run()
    assert summary["measured_peak_bytes"]["RAM"] >= 500 * MB
    least, most = job.plan(2, True)["minimum_budget_bytes"], summary["minimum_budget_bytes"]
    assert 4 * least < most
    for share, order in budgets:
        budget = least + int(share * (most - least)) // PAGE * PAGE
        result, left, summary = job.run("--budget", budget, "--micro-batches", order, *job.disk(True))
        used = job.mechanisms()
        where = f"{name}, {budget} bytes from {least} to {most}, {', '.join(sorted(used))}"
        assert left == wanted, where
        assert max(result.peak, summary["rss_peak_bytes"]) <= budget, where
        assert result.peak > budget - 48 * MB, where
        plan = json.loads((roomy / "planned.json").read_text())
        assert summary["measured_peak_bytes"]["RAM"] == planned_end(plan, steps, "vertical" in used, "updates in the next step" in used), where
        assert summary["planned_peak_bytes"]["RAM"] == plan["memory"]["arena_bytes"], where
        assert "streamed state" in used and job.leftovers() == [], where
        assert "vertical" in used or order == "auto", where
        print(f"{where}: arena {summary['measured_peak_bytes']['RAM']}, process {result.peak}, {budget - result.peak} below")


def test_what_was_measured_of_the_machine_is_kept_for_each_number_of_threads(tmp_path, made):
    job = Job(tmp_path, tmp_path / "machine.json", LARGE["perceptron"](made))
    flops = {threads: job.plan(threads, False)["machine"]["flops"] for threads in (1, 2)}
    kept = json.loads((tmp_path / "machine.json").read_text())["processor"]
    assert {int(threads): rates["flops"] for threads, rates in kept.items()} == flops
    job.plans.clear()
    assert job.plan(1, False)["machine"]["flops"] == flops[1]


def test_measuring_stays_inside_the_smallest_budget(tmp_path, made):
    """And its figures change no bit: all other plans here are made for nominal ones."""
    job = Job(tmp_path, tmp_path / "machine.json", LARGE["perceptron"](made))
    _, wanted, _ = job.run("--threads", 2)
    least = job.plan(2, True)["minimum_budget_bytes"]
    for _ in range(2):
        result, left, _ = job.run("--threads", 2, "--budget", least, "--recalibrate", *job.disk(True))
        assert "measuring the disk" in result.out
        assert left == wanted
        assert result.peak <= least


def test_a_refusal_without_a_disk_says_what_a_disk_allows(tmp_path, profile, made):
    helped = []
    for name in "perceptron", "perceptron, accumulating", "char-gpt":
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, profile, JOBS[name](made))
        refusal, least = job.refusal("1MB", "--threads", 2), job.plan(2, True)["minimum_budget_bytes"]
        said = re.search(r"; with --nvme-path on a disk, ([\d,]+) \(--budget (\d+)\)\n$", refusal.err)
        assert (said is not None) == ("--nvme-path" in refusal.err), refusal.err
        if said is None:
            assert least > smallest_budget(refusal) - 4 * MB
            continue
        allowed = int(said[2])
        assert said[1] == f"{allowed:,}" and allowed == least < smallest_budget(refusal)
        result, left, summary = job.run("--threads", 2, "--budget", allowed, *job.disk(True))
        assert result.peak <= allowed and uses_disk(summary)
        assert left == job.run("--threads", 2)[1]
        helped.append(name)
    assert len(helped) >= 2


def test_passes_are_written_out_with_a_disk_too(tmp_path, profile, made):
    job = Job(tmp_path, profile, JOBS["perceptron"](made))
    run(tmp_path, "plan", *job.arguments, *job.disk(True), "--dump-after", "simplify", "simplified.onnx")  # whose weights are looked at in parts, too
    assert len(onnx.load(tmp_path / "simplified.onnx").graph.node) >= 3


def test_a_full_disk_is_one_sentence(tmp_path, profile, made):
    job = Job(tmp_path, profile, JOBS["perceptron"](made))
    least = job.plan(2, True)["minimum_budget_bytes"]
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        (small / "mine.txt").write_text("a letter\n" * 1000)
        message = run(tmp_path, *job.arguments, "--threads", 2, "--budget", least, "--nvme-path", small, code=IO).err
        assert str(small) in message
        assert [path.name for path in small.iterdir()] == ["mine.txt"]
        assert (small / "mine.txt").read_text() == "a letter\n" * 1000
        assert not (tmp_path / "out" / "model.onnx").exists()
    finally:
        subprocess.run(["umount", small], check=True)


if SOAK:  # these count the whole matrix

    def test_each_mechanism_really_occurred():
        count = {mechanism: sum(mechanism in used for used, _ in seen) for mechanism in MECHANISMS}
        accumulating = sum(accumulates for _, accumulates in seen)
        print(f"of {len(seen)} runs, {accumulating} accumulating,", ", ".join(f"{number} with {mechanism}" for mechanism, number in count.items()))
        assert all(4 * count[mechanism] >= len(seen) for mechanism in MECHANISMS[:4]), count
        assert 2 * count["vertical"] >= accumulating > 0, count
        for accumulates in False, True:  # each in its own way
            later = ["updates in the next step" in used for used, accumulated in seen if accumulated == accumulates]
            assert sum(later) >= 4, (accumulates, sum(later), len(later))

    def test_each_choice_met_each_other():
        """Of any three axes every combination was run; with the shares, every pair (of a disk in use only while memory is short)."""
        for axes in [*itertools.combinations(list(AXES)[:4], 3), *((axis, "share") for axis in ("threads", "recompute", "order"))]:
            met = {tuple(way[axis] for axis in axes) for way in ways}
            missing = set(itertools.product(*(AXES[axis] for axis in axes))) - met
            assert not missing, (axes, missing)
