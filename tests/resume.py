"""A crash loses nothing that was saved: runs that stream, killed at random moments or stopped, and resumed as they were or otherwise, end with
the bits of the run that nobody disturbed; and what they leave on the disk doesn't pile up.
"""
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from program import HANGS, PROGRAM, log, nominal_machine, run

IO, CORRUPT = 6, 8
KILLS = 54 if "ORT_TRAIN_SOAK" in os.environ else 30
FEW, MANY = KILLS // 10, 3 * KILLS // 8  # how many of them have to meet the rare moments, and the usual ones
STEPS = 216
# The checkpoints' file system is the disk tier's, or another; gradients live through a step, or through several batches, which have a weight in parts
# whose update is of the whole (Adafactor). The first has 16-bit weights and 8-bit state, rounded at random.
pytestmark = pytest.mark.parametrize("out, job", [("one file system", "a batch a step"), ("two file systems", "three batches a step")], indirect=True)


def persistent_bytes(shape, adafactor):
    """Of a weight and its optimizer state."""
    count = int(np.prod(shape))
    if adafactor:  # float32; rows and columns, of a vector itself
        return 4 * count + 4 * sum(shape)
    weight, moment = (2 * count, count + 4 * -(-count // 256)) if len(shape) > 1 else (4 * count, 4 * count)
    return weight + 2 * moment


@functools.cache
def make_job(folder, profile, *more):
    """A job whose weights and optimizer state are most of its memory; what the run leaves that nobody disturbs, its smallest budget, the bytes
    of its state file."""
    folder.mkdir()
    numbers = np.random.default_rng(1)
    shapes = {"w1": (128, 512), "b1": (512,), "w2": (512, 512), "w3": (512, 128)}
    weights = [helper.make_tensor(name, TensorProto.FLOAT, shape, numbers.standard_normal(shape, np.float32) / 20, raw=True)
               for name, shape in shapes.items()]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Add", ["h", "b1"], ["a"]), helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("MatMul", ["r", "w2"], ["s"]), helper.make_node("Relu", ["s"], ["t"]), helper.make_node("MatMul", ["t", "w3"], ["out"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 128]) for name in ("x", "out")]
    model = helper.make_model(helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, folder / "perceptron.onnx")
    x = numbers.standard_normal((60, 128), np.float32)
    np.savez(folder / "data.npz", x=x, labels=x[:, ::-1])
    arguments = [folder / "perceptron.onnx", "--data", folder / "data.npz", "--loss", "mse", "--batch-size", 8, "--max-steps", STEPS,
                 "--save-steps", 2, "--threads", 2, "--overwrite", "--log-file", "log", "--profile", profile, *more]
    (folder / "nvme").mkdir()
    run(folder, "plan", *arguments, "--nvme-path", "nvme", "--plan-json", "plan.json")
    least = json.loads((folder / "plan.json").read_text())["minimum_budget_bytes"]
    run(folder, "plan", *arguments, "--nvme-path", "nvme", "--budget", least, "--plan-json", "plan.json")
    plan = json.loads((folder / "plan.json").read_text())
    state = sum(persistent_bytes(shape, "adafactor" in more) for shape in shapes.values())
    assert 2 * state <= plan["disk"]["state_file_bytes"] <= 2 * state + 40 * 4096
    assert plan["planned_peak_bytes"]["NVMe"] == plan["disk"]["state_file_bytes"] + plan["disk"]["spill_bytes"]
    run(folder, *arguments)
    return arguments, result(folder), least, plan["disk"]["state_file_bytes"]


@pytest.fixture
def job(request, tmp_path_factory):
    accumulating, folder = request.param.startswith("three"), tmp_path_factory.getbasetemp()
    more = (["--gradient-accumulation-steps", 3, "--optim", "adafactor"] if accumulating
            else ["--bf16-full", "--optim", "adamw_8bit"])
    return make_job(folder / f"resume-{accumulating}", nominal_machine(folder), *more)


def result(folder):
    steps, summary = log(folder / "log")
    assert summary["steps"] == STEPS
    return [(step["step"], step["loss"], step["grad_norm"]) for step in steps], summary["weights_hash"]


def written(folder):
    return (folder / "log").read_bytes() if (folder / "log").exists() else b""


def lines(folder):
    return written(folder).count(b"\n")


def checkpoints(folder, out="out"):
    return sorted(int(path.name.split("-")[1]) for path in (folder / out).glob("checkpoint-*"))


def half_made(folder, out="out"):
    return [path.name for path in (folder / out).glob(".tmp-checkpoint-*")]


def start(folder, *arguments):
    return subprocess.Popen([str(part) for part in (PROGRAM, *arguments)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for(process, condition):
    while process.poll() is None and not condition():
        time.sleep(0.0002)


def end(process, number):
    """Whether the signal hit it alive."""
    process.send_signal(number)
    code = process.wait()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert code in (-number, 128 + number, 0), error
    return code != 0


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def out(request, tmp_path):
    """A folder for checkpoints, on the disk tier's file system or on another: with and without a name of the state file of their own."""
    if request.param == "one file system":
        yield tmp_path / "out"
        return
    other = pathlib.Path("/dev/shm") / f"ort-train-{os.getpid()}"
    if not other.parent.is_dir() or other.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    try:
        yield other
    finally:
        shutil.rmtree(other, ignore_errors=True)


def test_a_run_that_is_killed_again_and_again(tmp_path, job, out):
    arguments, wanted, least, state_bytes = job
    nvme = tmp_path / "nvme"
    nvme.mkdir()
    command = [*arguments, "--budget", least, "--nvme-path", nvme, "--output-dir", out]
    moments = random.Random(str(out.parent == tmp_path) + os.environ.get("ORT_TRAIN_SOAK", ""))
    killed = early = training = saving = spilled = whole = 0
    while killed < KILLS or ((min(early, saving) < FEW or min(training, spilled) < MANY) and killed < 4 * KILLS):  # how often a kill meets what it is for is the machine's
        before, kind, text, there = checkpoints(tmp_path, out), (killed + whole) % 3, written(tmp_path), names(nvme)
        moment = time.monotonic() + moments.uniform(0, 0.2)
        process = start(tmp_path, *command, *(["--resume"] if before else []))
        if kind == 0 and (killed + whole) % 2:
            wait_for(process, lambda: time.monotonic() > moment or checkpoints(tmp_path, out) != before)
        elif kind == 0:
            wait_for(process, lambda: set(names(nvme)) - set(there))  # it has begun to take its space
        elif kind == 1:
            wait_for(process, lambda: checkpoints(tmp_path, out) != before)  # there were steps
            time.sleep(moments.uniform(0, 0.02))
        else:
            wait_for(process, lambda: half_made(tmp_path, out))
            time.sleep(moments.choice((0, 0, 0.0005, 0.001)))
        if not end(process, signal.SIGKILL):  # it was faster: so there is nothing to lose, and the next begins anew
            assert result(tmp_path) == wanted
            whole += 1
            assert whole < 4 * KILLS, "most runs end before they are killed"
            shutil.rmtree(out)
            for path in nvme.iterdir():
                path.unlink()
            continue
        killed += 1
        after = checkpoints(tmp_path, out)
        assert not before or after and after[-1] >= before[-1]  # what was saved is not lost
        stepped = lines(tmp_path) > (before[-1] if before else 0) and written(tmp_path) != text
        training += stepped
        early += not stepped
        saving += bool(half_made(tmp_path, out)) or len(after) > 1
        left = names(nvme)
        spilled += any(name.startswith("ort-train-spill-") for name in left)
        assert sum(name.startswith("ort-train-state-") for name in left) <= 1 and len(left) <= 3, left  # a dead one's file may be held for a moment more
        assert len(after) <= 2
    print(f"{killed} kills: {early} before a step, {training} after some, {saving} while a checkpoint was made; {spilled} left a spill file")
    finished = run(tmp_path, *command, *(["--resume"] if checkpoints(tmp_path, out) else []))
    assert result(tmp_path) == wanted
    assert finished.peak <= least
    assert min(early, saving) >= FEW and min(training, spilled) >= MANY
    (state,) = nvme.iterdir()
    assert checkpoints(tmp_path, out) == [STEPS] and not half_made(tmp_path, out)
    assert state.stat().st_size == state_bytes and state.stat().st_blocks * 512 < 0.6 * state_bytes  # one copy, when nobody runs
    assert (out / f"checkpoint-{STEPS}" / "state.bin").exists() == (out.parent == tmp_path)
    # The job is begun anew beside it, and in its place: one state file stays.
    run(tmp_path, *command)
    assert result(tmp_path) == wanted
    assert len(names(nvme)) == 1 and names(nvme) != [state.name]


def test_a_checkpoint_writes_only_what_lives_in_memory(tmp_path, job, out):
    arguments, wanted, least, state_bytes = job
    (tmp_path / "nvme").mkdir()
    where = ["--nvme-path", "nvme", "--output-dir", out]
    refusal = run(tmp_path, *arguments, *where, "--budget", least, "--nvme-budget", state_bytes - 1, code=4).err
    assert f"more than --nvme-budget {state_bytes - 1}" in refusal
    run(tmp_path, "plan", *arguments, *where, "--budget", least, "--plan-json", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    state = [value for value in plan["memory"]["persistent"] if value["purpose"] in ("weights", "optimizer")]
    resident = sum(-(-value["bytes"] // 4096) * 4096 for value in state)
    assert any(value["bytes"] == 0 for value in state) and 0 < resident < state_bytes / 4
    traffic = []
    for steps in 0, 4:
        run(tmp_path, *arguments, *where, "--budget", least, "--save-steps", steps)
        assert result(tmp_path) == wanted
        summary = log(tmp_path / "log")[1]
        traffic.append((summary["disk_bytes_read"], summary["disk_bytes_written"]))
    # An update that waits for the next step is made before a checkpoint, which moves what it needs; without such, nothing is read.
    if all(entry["name"] != "train-first" for entry in plan["memory"]["entries"]):
        assert traffic[1] == (traffic[0][0], traffic[0][1] + (STEPS // 4 - 1) * resident)


def test_it_resumes_under_other_budgets_folders_and_threads(tmp_path, job, out):
    own, wanted, least, _ = job
    a, b, c = (tmp_path / name for name in "abc")
    a.mkdir()
    b.mkdir()
    disk = lambda folder, budget=least: ["--budget", budget, "--nvme-path", folder]
    alone = ["--threads", 1]  # takes less: all of it fits in what two threads need with a disk
    run(tmp_path, "plan", *own, *alone, "--nvme-path", a, "--output-dir", out, "--plan-json", "alone.json")
    least_alone = json.loads((tmp_path / "alone.json").read_text())["minimum_budget_bytes"]
    stages = [  # the job, options, folder to move before, what lies in the folders afterwards
        (own, disk(a), None, {a: 1}),
        (own, disk(a, least_alone) + alone, None, {a: 1}),
        (own, disk(b, least + 300_000), None, {a: 0, b: 1}),
        (own, [], None, {b: 0}),  # everything in memory: two checkpoints later nobody needs the state file
        (own, disk(a), None, {a: 1}),
        (own, disk(c, least + 100_000), (a, c), {c: 1}),
        (own, ["--nvme-path", c], None, {c: 0}),  # as much memory as it takes
        (own, ["--nvme-path", c, "--threads", 8], None, {}),
    ]
    for number, (arguments, options, move, files) in enumerate(stages):
        last = number == len(stages) - 1
        if move:
            move[0].rename(move[1])
            a.mkdir()
        target = STEPS * (number + 1) // (len(stages) + 1)
        command = [*arguments, *options, "--output-dir", out, *(["--resume"] if number else [])]
        if last:
            run(tmp_path, *command)
            break
        process = start(tmp_path, *command)
        wait_for(process, lambda: lines(tmp_path) > target)
        assert end(process, signal.SIGKILL if number % 2 else signal.SIGINT)
        for folder, count in files.items():
            assert sum(name.startswith("ort-train-state-") for name in names(folder)) == count, (number, names(folder))
    assert result(tmp_path) == wanted
    assert checkpoints(tmp_path, out) == [STEPS - 2, STEPS]  # whole ones
    assert names(a) == names(b) == names(c) == []


def begun(tmp_path, arguments, least, out):
    """A run that streams, after a few steps: the folder of the disk tier, the command, the process."""
    nvme = tmp_path / "nvme"
    nvme.mkdir()
    command = [*arguments, "--budget", least, "--nvme-path", nvme, "--output-dir", out]
    process = start(tmp_path, *command)
    wait_for(process, lambda: lines(tmp_path) > 5)
    return nvme, command, process


def test_a_state_file_that_is_lost_or_damaged_is_one_sentence(tmp_path, job, out):
    arguments, _, least, _ = job
    nvme, command, process = begun(tmp_path, arguments, least, out)
    assert end(process, signal.SIGINT)
    (state,) = nvme.iterdir()
    (step,) = checkpoints(tmp_path, out)
    table = json.loads((out / f"checkpoint-{step}" / "state.json").read_text())["body"]["slots"]
    for name in "w3", next(name for name in ("w1.exp_avg", "w1.exp_avg_sq_col") if name in table["tensors"]):
        with open(state, "r+b") as file:
            file.seek(table["tensors"][name]["slots"][table["tensors"][name]["current"]] + 1000)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 4]))
        for options in command, [*command, "--no-nvme-checksums"], [*arguments, "--output-dir", out]:
            assert f"'{name}' fails its checksum" in run(tmp_path, *options, "--resume", code=CORRUPT).err
        with open(state, "r+b") as file:
            file.seek(table["tensors"][name]["slots"][table["tensors"][name]["current"]] + 1000)
            file.write(byte)
    assert names(nvme) == [state.name]
    for path in state, out / f"checkpoint-{step}" / "state.bin":
        path.unlink(missing_ok=True)
    assert f"{state.name}', the state file to which the checkpoint refers, is missing" in run(tmp_path, *command, "--resume", code=CORRUPT).err
    assert names(nvme) == [] and checkpoints(tmp_path, out) == [step]


def damage(path):
    """The lowest bit of each float32's fraction."""
    with open(path, "r+b") as file:
        bits = np.frombuffer(file.read(), np.uint32) ^ 1
        file.seek(0)
        file.write(bits.tobytes())
        os.fsync(file.fileno())


@pytest.mark.parametrize("checked", [True, False])
def test_damage_during_the_run_is_found_unless_nothing_is_checked(tmp_path, job, out, checked):
    arguments, wanted, least, _ = job
    nvme, _, process = begun(tmp_path, [*arguments, *([] if checked else ["--no-nvme-checksums"])], least, out)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert lines(tmp_path) < STEPS
    for path in nvme.iterdir():
        damage(path)
    process.send_signal(signal.SIGCONT)
    error = process.communicate(timeout=HANGS)[1].decode()
    if checked:
        assert process.returncode == IO and error.count("\n") == 1
        assert "the disk returned other bytes than were written: " in error and str(nvme) in error
    else:
        assert process.returncode == 0, error
        assert result(tmp_path)[1] != wanted[1]
    assert not any(name.startswith("ort-train-spill-") for name in names(nvme))


def test_a_state_file_that_is_deleted_during_the_run(tmp_path, job, out):
    arguments, wanted, least, _ = job
    nvme, command, process = begun(tmp_path, arguments, least, out)
    process.send_signal(signal.SIGSTOP)
    for path in [*nvme.iterdir(), *out.glob("*/state.bin")]:
        path.unlink()
    process.send_signal(signal.SIGCONT)
    wait_for(process, lambda: lines(tmp_path) > 20)
    assert end(process, signal.SIGKILL)  # the checkpoints are whole by now
    run(tmp_path, *command, "--resume")
    assert result(tmp_path) == wanted
    assert len(names(nvme)) == 1
