"""The budget is a hard limit of the whole process: what the kernel counts stays inside, from the first byte of import on.

Each job's smallest budget is exact: it runs, and one page less is refused. Arenas are 200 MB and more where noise could hide something.
"""
import ctypes
import json
import os
import pathlib
import re
import resource
import subprocess
import uuid

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from program import CHAR_GPT, GOLDEN, PROGRAM, TEXT, log, nominal_machine, run, smallest_budget

PAGE = 4096
MB = 10**6
GROUPS = pathlib.Path("/sys/fs/cgroup")


def text(batch, *more, model=CHAR_GPT):
    return [model, "--data", TEXT, "--task", "causal-lm", "--seq-length", 256, "--batch-size", batch, "--max-steps", 2, *more]


def kept(batch, *more):
    """Nothing is computed again, so that the arena is large."""
    return text(batch, "--recompute", "none", *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Models whose weights are large: wide.onnx, and external.onnx, the same with external data; deep.onnx, in which planning takes more than
    tensors do; arrays.npz, compressed, and arrays.safetensors."""
    folder = tmp_path_factory.mktemp("made")
    random = np.random.default_rng(1)
    names, shapes = ["w1", "b1", "w2"], [(1024, 12288), (12288,), (12288, 1024)]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, shape, random.standard_normal(shape, np.float32) / 100, raw=True)
               for name, shape in zip(names, shapes)]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Add", ["h", "b1"], ["a"]), helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("MatMul", ["r", "w2"], ["out"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1024]) for name in ("x", "out")]
    model = helper.make_model(helper.make_graph(nodes, "wide", value[:1], value[1:], weights), opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, folder / "wide.onnx")
    onnx.save(model, folder / "external.onnx", save_as_external_data=True, location="external.data")
    x = random.standard_normal((64, 1024), np.float32)
    np.savez(folder / "small.npz", x=x, labels=x[:, ::-1])
    layers, width = 200, 128
    weights = [helper.make_tensor(f"w{i}", TensorProto.FLOAT, (width, width), random.standard_normal((width, width), np.float32) / 12, raw=True)
               for i in range(layers)]
    nodes = [node for i in range(layers) for node in (helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]),
                                                      helper.make_node("Tanh", [f"y{i}"], [f"x{i + 1}"]))]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("x0", f"x{layers}")]
    model = helper.make_model(helper.make_graph(nodes, "deep", value[:1], value[1:], weights), opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, folder / "deep.onnx")
    x = random.standard_normal((64, width), np.float32)
    np.savez(folder / "narrow.npz", x0=x, labels=x[:, ::-1])
    zeros = np.zeros((12000, 1024), np.float32)
    zeros[::100] = 1
    np.savez_compressed(folder / "packed.npz", x=zeros, labels=zeros)  # 98 MB unpacked
    return folder


def wide(folder, model="wide.onnx", data="small.npz", *more):
    return [folder / model, "--data", folder / data, "--loss", "mse", "--batch-size", 4, "--max-steps", 2, *more]


def streamed(made, job, *more):
    """With a disk in the job's folder, and the rates of a usual one."""
    return [*job, "--nvme-path", "nvme", "--profile", nominal_machine(made.parent), *more]


SGD = ["--optim", "sgd", "--learning-rate", 1e-3]
VERTICAL = ["--gradient-accumulation-steps", 2, "--micro-batches", "vertical"]
DEEP = ["--gradient-accumulation-steps", 3, "--eval-steps", 1, "--validation-split", 0.2]
JOBS = {
    "200 MB": (200, lambda made: kept(24)),
    "600 MB": (560, lambda made: kept(64)),
    "accumulation and evaluation": (
        200, lambda made: kept(24, "--gradient-accumulation-steps", 2, "--eval-steps", 1, "--eval-batches", 2, "--save-steps", 1)),
    "gradients and pictures": (200, lambda made: kept(24, "--save-gradients", "gradients.safetensors", "--plan-svg", "plan.svg")),
    "one thread": (200, lambda made: kept(24, "--threads", 1)),
    "eight threads": (200, lambda made: kept(24, "--threads", 8)),
    "recompute": (120, lambda made: text(64)),
    "recompute, accumulation and evaluation": (
        50, lambda made: text(24, "--gradient-accumulation-steps", 2, "--eval-steps", 1, "--eval-batches", 2, "--save-steps", 1)),
    "recompute, half as many boundaries": (120, lambda made: text(64, "--recompute", "sqrt")),
    "large weights": (200, lambda made: wide(made, "wide.onnx", "small.npz", *SGD)),
    "large weights, external": (200, lambda made: wide(made, "external.onnx", "small.npz", *SGD)),
    "large optimizer state": (400, lambda made: wide(made, "wide.onnx", "small.npz", "--eval-steps", 1)),
    "compressed data": (200, lambda made: wide(made, "wide.onnx", "packed.npz", *SGD)),
    "a small one": (0, lambda made: [GOLDEN / "gpt2-dynamo-20-folded.onnx", "--data", GOLDEN / "gpt2-dynamo-20-folded.data.safetensors",
                                     "--num-train-epochs", 30]),
    "deep": (0, lambda made: wide(made, "deep.onnx", "narrow.npz", *DEEP, *SGD)),
    "streamed, deep": (5, lambda made: streamed(made, wide(made, "deep.onnx", "narrow.npz", *DEEP))),
    "streamed, vertical": (20, lambda made: streamed(made, kept(24), *VERTICAL, "--sample-length", 0)),
    "streamed, external": (20, lambda made: streamed(made, wide(made, "external.onnx", "small.npz"), "--save-steps", 1)),
    "streamed, vertical, external": (
        20, lambda made: streamed(made, wide(made, "external.onnx", "small.npz"), *VERTICAL, "--save-steps", 1)),
}
# Planning is counted by the number of instructions, of which a deep model has many.
ROOM = {"streamed, deep": 20}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nvme").mkdir()
    return tmp_path


def uses_disk(summary):
    return min(summary[name] for name in ("disk_bytes_read", "disk_bytes_written")) > MB


@pytest.mark.parametrize("name", JOBS)
def test_the_smallest_budget_is_exact_and_holds(folder, made, name):
    arena, job = JOBS[name]
    job = [*job(made), "--log-file", "log"]
    refused = run(folder, *job, "--budget", "1MB", code=4)
    smallest = smallest_budget(refused)
    assert refused.peak <= smallest
    assert smallest_budget(run(folder, *job, "--budget", smallest - PAGE, code=4)) == smallest
    result = run(folder, *job, "--budget", smallest)
    summary = log(folder / "log")[1]
    assert summary["minimum_budget_bytes"] == smallest
    assert result.peak <= smallest
    assert abs(summary["rss_peak_bytes"] - result.peak) <= MB
    assert arena * MB <= summary["measured_peak_bytes"]["RAM"] <= summary["planned_peak_bytes"]["RAM"] < result.peak
    assert result.peak >= smallest - ROOM.get(name, 16) * MB  # the budget is not merely generous
    assert uses_disk(summary) == ("--nvme-path" in job)
    print(f"{name}: smallest {smallest}, peak {result.peak}, {smallest - result.peak} below; refusal took {refused.peak}")


def test_a_resumed_run_stays_inside_the_smallest_budget(tmp_path, made):
    job = [*wide(made, "external.onnx", "small.npz"), "--log-file", "log"]
    smallest = smallest_budget(run(tmp_path, *job, "--budget", "1MB", code=4))
    run(tmp_path, *job, "--budget", smallest)
    result = run(tmp_path, *job, "--max-steps", 4, "--resume", "--budget", smallest)
    assert log(tmp_path / "log")[1]["steps"] == 4
    assert result.peak <= smallest


def test_a_larger_budget_changes_neither_memory_nor_result(tmp_path):
    job = [*kept(8), "--overwrite", "--log-file", "log"]
    smallest = smallest_budget(run(tmp_path, *job, "--budget", "1MB", code=4))
    hashes = set()
    for budget in [smallest], [2 * smallest], []:
        result = run(tmp_path, *job, *(["--budget", *budget] if budget else []))
        assert result.peak <= smallest
        hashes.add(log(tmp_path / "log")[1]["weights_hash"])
    assert len(hashes) == 1


def test_measuring_the_machine_does_not_raise_the_smallest_budget(tmp_path):
    """The trials use what the budget leaves."""
    job = ["plan", *text(64), "--plan-json", "plan.json", "--recalibrate"]
    smallest = smallest_budget(run(tmp_path, *job, "--budget", "1MB", code=4))
    most = smallest_budget(run(tmp_path, *kept(64), "--budget", "1MB", code=4))
    assert 3 * smallest < most
    for budget in ["--budget", most], []:
        run(tmp_path, *job, *budget)
        assert json.loads((tmp_path / "plan.json").read_text())["minimum_budget_bytes"] == smallest


def test_a_budget_says_what_is_computed_again(tmp_path):
    job = [*text(64), "--overwrite", "--log-file", "log", "--plan-json", "plan.json"]
    smallest = smallest_budget(run(tmp_path, *job, "--budget", "1MB", code=4))
    most = smallest_budget(run(tmp_path, *kept(64), "--budget", "1MB", code=4))
    assert 3 * smallest < most
    hashes, counts = set(), []
    for budget in smallest, (smallest + most) // 2, most - PAGE, most:
        result = run(tmp_path, *job, "--budget", budget)
        assert result.peak <= budget
        summary = log(tmp_path / "log")[1]
        assert summary["minimum_budget_bytes"] == smallest
        hashes.add(summary["weights_hash"])
        counts.append(json.loads((tmp_path / "plan.json").read_text())["recompute"]["recomputed"])
    assert len(hashes) == 1
    assert counts == sorted(set(counts), reverse=True) and counts[-1] == 0, counts


# --- cgroups --------------------------------------------------------------------------------------------------------------------------


def own_group():
    """The memory cgroup of this process: its folder and its version."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and (GROUPS / "memory").is_dir():
            return GROUPS / "memory" / path.lstrip("/"), 1
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::") and (GROUPS / "cgroup.controllers").exists():
            return GROUPS / line[3:].lstrip("/"), 2
    return None, 0


@pytest.fixture
def limited(tmp_path):
    """Runs the program in a memory cgroup of its own, below that of this process: call with a limit in bytes."""
    parent, version = own_group()
    if parent is None:
        pytest.skip("this machine has no memory cgroups")
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is in memory, so that files count as the program's")
    group = parent / f"ort-train-{uuid.uuid4().hex[:8]}"
    try:
        if version == 2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as problem:
        pytest.skip(f"no memory cgroup can be made here: {problem}")
    try:
        yield lambda limit, *arguments, huge=True: run_limited(group, version, tmp_path, limit, arguments, huge)
    finally:
        group.rmdir()


def without_huge_pages():
    PR_SET_THP_DISABLE = 41
    assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0


def run_limited(group, version, folder, limit, arguments, huge):
    names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes") if version == 1 else ("memory.max", "memory.peak")
    (group / names[0]).write_text(str(limit))
    swap = group / ("memory.memsw.limit_in_bytes" if version == 1 else "memory.swap.max")
    if swap.exists():
        swap.write_text(str(limit if version == 1 else 0))
    enter = f"echo $$ > '{group}/cgroup.procs' && exec \"$@\""
    cache = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    command = [str(part) for part in ("sh", "-c", enter, "sh", PROGRAM, *arguments)]
    done = subprocess.run(command, cwd=folder, env=cache, capture_output=True, text=True, preexec_fn=None if huge else without_huge_pages)
    peak = group / names[1]
    return done, int(peak.read_text()) if peak.exists() else 0


@pytest.mark.parametrize("name", ["accumulation and evaluation", "recompute", "large weights", "large weights, external",
                                  "large optimizer state", "streamed, vertical", "streamed, external", "streamed, vertical, external"])
def test_a_cgroup_of_the_smallest_budget_is_enough(folder, made, limited, name):
    job = [*JOBS[name][1](made), "--log-file", "log"]
    smallest = smallest_budget(run(folder, *job, "--budget", "1MB", code=4))
    if name == "streamed, external":
        job[job.index("--profile") + 1] = "measured.json"  # so that the disk is measured in there
    done, peak = limited(smallest, *job, "--budget", smallest)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    summary = log(folder / "log")[1]
    assert summary["steps"] == 2 and uses_disk(summary) == ("--nvme-path" in job)
    assert ("measuring the disk" in done.stdout) == (name == "streamed, external")
    assert peak <= smallest
    if peak:
        assert peak > JOBS[name][0] * MB  # it was in there


def may_pin(count):
    """Whether a process of this user may pin so many bytes."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    effective = int(re.search(r"CapEff:\s*(\w+)", pathlib.Path("/proc/self/status").read_text())[1], 16)
    return limit == resource.RLIM_INFINITY or limit >= count or effective >> 14 & 1 == 1


@pytest.mark.parametrize("huge", [True, False], ids=["huge pages", "small pages"])
def test_a_cgroup_holds_what_the_kernel_takes_to_pin(folder, made, limited, huge):
    """Pages that are pinned for the disk have a table, which counts in a cgroup; that of small pages is large."""
    job = [*JOBS["streamed, external"][1](made), "--log-file", "log", "--plan-json", "plan.json"]
    budget = smallest_budget(run(folder, *job, "--budget", "1MB", code=4)) * 3 // 2 // PAGE * PAGE
    done, _ = limited(budget, *job, "--budget", budget, huge=huge)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    summary = log(folder / "log")[1]
    arena = summary["planned_peak_bytes"]["RAM"]
    assert uses_disk(summary)
    pinned = "refuses io_uring" not in done.stdout and may_pin(arena)
    assert summary["pinned_bytes"] == (arena if pinned else 0)
    assert json.loads((folder / "plan.json").read_text())["peak"]["total"] <= budget
    print(f"budget {budget}, arena {arena}")


def test_without_a_budget_a_job_is_planned_for_the_memory_that_the_cgroup_has(tmp_path, limited):
    job = [*text(64), "--log-file", "log"]
    smallest = smallest_budget(run(tmp_path, *job, "--budget", "1MB", code=4))
    most = smallest_budget(run(tmp_path, *kept(64), "--budget", "1MB", code=4))
    done, _ = limited((smallest + 3 * most) // 4 // PAGE * PAGE, *job)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert "this machine has" in done.stdout and "planned for --budget" in done.stdout
    hash = log(tmp_path / "log")[1]["weights_hash"]
    plain = run(tmp_path, *job, "--overwrite")
    assert "planned for" not in plain.out
    assert log(tmp_path / "log")[1]["weights_hash"] == hash


def test_a_cgroup_that_is_too_small_is_an_error_not_a_kill(tmp_path, limited):
    done, _ = limited(150 * MB // PAGE * PAGE, *kept(24))
    assert done.returncode == 4, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert "this machine has" in done.stderr
