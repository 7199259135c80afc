"""The budget changes where bytes live, never what is computed: one plain run of each job, and many with budgets from the smallest up, with a
disk and without, on 1, 2, 3 and 8 threads. Losses and weights are the same bits in all of them, and each stays inside
its budget. Counted: how often the disk really was in use.
"""
import itertools
import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from program import CHAR_GPT, GOLDEN, TEXT, log, run, smallest_budget

IO = 6
PAGE = 4096
MB = 10**6
THREADS = 1, 2, 3, 8
BUDGETS = 8
RECOMPUTE = "auto", "none"
runs, streamed = [], []  # of the matrix


@pytest.fixture(scope="session")
def profile(tmp_path_factory):
    """What is measured of the machine, once."""
    return tmp_path_factory.mktemp("profile") / "machine.json"


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory):
    """A model whose weights and optimizer state are most of its memory: perceptron.onnx and data.npz; tokens.bin for the golden GPT-2s."""
    folder = tmp_path_factory.mktemp("made")
    numbers = np.random.default_rng(1)
    shapes = {"w1": (512, 2048), "b1": (2048,), "w2": (2048, 512)}
    weights = [helper.make_tensor(name, TensorProto.FLOAT, shape, numbers.standard_normal(shape, np.float32) / 30, raw=True)
               for name, shape in shapes.items()]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Add", ["h", "b1"], ["a"]), helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("MatMul", ["r", "w2"], ["out"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 512]) for name in ("x", "out")]
    model = helper.make_model(helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, folder / "perceptron.onnx")
    x = numbers.standard_normal((60, 512), np.float32)
    np.savez(folder / "data.npz", x=x, labels=x[:, ::-1])
    numbers.integers(0, 50, 8000, np.uint16).tofile(folder / "tokens.bin")
    return folder


def text(batch, length, steps, *more):
    return [CHAR_GPT, "--data", TEXT, "--sample-length", 0, "--task", "causal-lm", "--batch-size", batch, "--seq-length", length, "--max-steps", steps, *more]


EVALUATED = ["--eval-steps", 2, "--eval-batches", 1]
ACCUMULATING = ["--gradient-accumulation-steps", 3]


def perceptron_job(made, batch, *more):
    return [made / "perceptron.onnx", "--data", made / "data.npz", "--loss", "mse", "--batch-size", batch, *more]


def gpt2_job(made, name, *more):
    return [GOLDEN / f"{name}.onnx", "--data", made / "tokens.bin", "--task", "causal-lm", "--seq-length", 16, "--batch-size", 64, *more]


JOBS = {
    "char-gpt": lambda made: text(2, 128, 2, *ACCUMULATING, *EVALUATED),
    "perceptron": lambda made: perceptron_job(made, 16, "--max-steps", 6, *EVALUATED),
    "perceptron, accumulating": lambda made: perceptron_job(made, 8, "--max-steps", 3, *ACCUMULATING),
    "perceptron, sgd": lambda made: perceptron_job(made, 16, "--max-steps", 3, "--optim", "sgd", "--max-grad-norm", 0),
    "gpt2 of dynamo": lambda made: gpt2_job(made, "gpt2-dynamo-20-folded", "--max-steps", 4, *EVALUATED),
    "gpt2 of torchscript": lambda made: gpt2_job(made, "gpt2-torchscript-18-folded", "--max-steps", 3),
    "gpt2 of torchscript, accumulating": lambda made: gpt2_job(made, "gpt2-torchscript-23-eager", "--max-steps", 2, *ACCUMULATING),
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

    def plan(self, threads, on, recompute="auto"):
        key = threads, on, recompute
        if key not in self.plans:
            how = ["--threads", threads, "--recompute", recompute, *self.disk(on)]
            run(self.folder, "plan", *self.arguments, "--plan-json", "plan.json", *how)
            self.plans[key] = json.loads((self.folder / "plan.json").read_text())
            assert self.plans[key]["machine"]["threads"] == threads
        return self.plans[key]

    def run(self, *more):
        subprocess.run(["rm", "-rf", self.folder / "out", self.folder / "log", *self.nvme.iterdir()], check=True)
        result = run(self.folder, *self.arguments, "--log-file", "log", *more)
        return result, *self.result()

    def result(self):
        """What must be the same bits, and the summary."""
        steps, summary = log(self.folder / "log")
        numbers = [(step["step"], step["loss"], step["grad_norm"], step.get("eval_loss")) for step in steps]
        return (numbers, summary["eval_loss"], summary["weights_hash"]), summary

    def leftovers(self):
        """What lies on the disk beside the state file that the checkpoint refers to."""
        needed = {path.stat().st_ino for path in self.folder.glob("out/checkpoint-*/state.bin")}
        return sorted(path.name for path in self.nvme.iterdir() if path.stat().st_ino not in needed)


def uses_disk(summary):
    used = summary["planned_peak_bytes"]["NVMe"] > 0
    assert (summary["disk_bytes_read"] > 0) == (summary["disk_bytes_written"] > 0) == used
    return used


@pytest.mark.parametrize("name", JOBS)
def test_every_budget_gives_the_same_bits(tmp_path, profile, perceptron, name):
    job = Job(tmp_path, profile, JOBS[name](perceptron))
    _, wanted, _ = job.run("--threads", 1)
    with_disk = []
    for number, on in itertools.product(range(BUDGETS), (True, False)):
        threads, recompute = THREADS[(number + on) % len(THREADS)], RECOMPUTE[number % len(RECOMPUTE)]
        plan = job.plan(threads, on, recompute)
        least, most = plan["minimum_budget_bytes"], job.plan(threads, on, "none")["peak"]["total"] + MB
        budget = (least + (most - least) * number // (BUDGETS - 1)) // PAGE * PAGE if number else least
        result, left, summary = job.run("--threads", threads, "--recompute", recompute, "--budget", budget, *job.disk(on))
        where = f"{threads} threads, {budget} bytes from {least} to {most}, {'with' if on else 'without'} a disk, recompute {recompute}"
        assert left == wanted, where
        assert result.peak <= budget, where
        assert summary["measured_peak_bytes"]["RAM"] <= summary["planned_peak_bytes"]["RAM"], where
        assert uses_disk(summary) <= on, where
        assert job.leftovers() == [], where
        runs.append(name)
        if on:
            with_disk.append(uses_disk(summary))
            if with_disk[-1]:
                streamed.append(name)
    print(f"{name}: {sum(with_disk)} of {len(with_disk)} runs with a disk streamed")
    assert with_disk[0] and 4 * sum(with_disk) >= len(with_disk)


def test_large_arenas_too(tmp_path, profile):
    job = Job(tmp_path, profile, text(24, 256, 2, "--recompute", "none"))
    _, wanted, summary = job.run("--threads", 2)
    assert summary["planned_peak_bytes"]["RAM"] >= 200 * MB
    least, most = (job.plan(2, on, "none")["minimum_budget_bytes"] for on in (True, False))
    for budget in least, (least + most) // 2 // PAGE * PAGE, most + 180 * MB:
        result, left, summary = job.run("--threads", 2, "--budget", budget, *job.disk(True))
        assert left == wanted
        assert result.peak <= budget
        runs.append("large")
        if uses_disk(summary):
            streamed.append("large")
    assert "large" in streamed


def test_below_the_smallest_budget_is_refused(tmp_path, profile, perceptron):
    job = Job(tmp_path, profile, JOBS["perceptron"](perceptron))
    for threads in THREADS:
        least = job.plan(threads, True)["minimum_budget_bytes"]
        assert least < job.plan(threads, False)["minimum_budget_bytes"]
        refusal = run(tmp_path, *job.arguments, "--threads", threads, "--budget", least - PAGE, *job.disk(True), code=4)
        assert smallest_budget(refusal) == least
        assert job.leftovers() == []


def test_streaming_really_occurred():
    if len(runs) < 50:
        pytest.skip("only a part of the matrix was run")
    print(f"{len(streamed)} of {len(runs)} runs streamed")
    assert 4 * len(streamed) >= len(runs)


def test_a_full_disk_is_one_sentence(tmp_path, profile, perceptron):
    job = Job(tmp_path, profile, JOBS["perceptron"](perceptron))
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
