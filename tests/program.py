"""Runs ort-train as a user does, and measures the memory that it takes."""
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np

PROGRAM = os.environ["ORT_TRAIN"]
ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
CHAR_GPT = ROOT / "models" / "char-gpt.onnx"
TEXT = ROOT / "models" / "tinyshakespeare.txt"
HANGS = 1800  # seconds after which a program that has seconds of work will not end any more

# Reads the peak (VmHWM) while the program runs, and at its end what the kernel counted, which is rounded and has the parent's size in it: so
# the parent is a small process of its own.
LAUNCHER = """
import os, sys, time
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
peak = ended = 0
while not ended:
    time.sleep(0.001)
    with open(f"/proc/{child}/status") as status:
        peak = max([peak] + [int(line.split()[1]) for line in status if line.startswith("VmHWM:")])
    ended, code, usage = os.wait4(child, os.WNOHANG)
with open(sys.argv[1], "w") as file:
    file.write(str(1024 * max(peak, usage.ru_maxrss)))
sys.exit(os.waitstatus_to_exitcode(code) % 256)
"""


@dataclasses.dataclass
class Result:
    code: int
    out: str
    err: str
    peak: int  # bytes of resident memory


def run(folder, *arguments, code=0):
    """Runs the program with its output in `folder`; fails unless it ends with `code`."""
    peak = folder / "peak"
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, peak, PROGRAM, *arguments]
    cache = {**os.environ, "XDG_CACHE_HOME": str(folder)}  # what it measures of the machine is for this folder alone
    done = subprocess.run([str(part) for part in command], cwd=folder, env=cache, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    if code != 0:
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return Result(done.returncode, done.stdout, done.stderr, int(peak.read_text()))


@functools.cache
def nominal_machine(folder):
    """A profile that says of this machine and of the disk of `folder` what a usual machine does: what a test expects of a plan must not hang
    on how fast, or how busy, the machine is. The program measures, so that the file is one of its own; then the figures are replaced."""
    here = folder / "nominal"
    (here / "nvme").mkdir(parents=True)
    job = ["plan", CHAR_GPT, "--data", TEXT, "--task", "causal-lm", "--seq-length", 64, "--nvme-path", "nvme", "--profile", "machine.json"]
    run(here, *job, "--plan-json", "plan.json")
    run(here, *job, "--budget", json.loads((here / "plan.json").read_text())["minimum_budget_bytes"])
    profile = json.loads((here / "machine.json").read_text())
    threads = range(1, max(8, os.cpu_count()) + 1)
    profile["processor"] = {str(count): dict(flops=1e11, element_flops=3e10, bytes_per_second=3e10, far_bytes_per_second=2e10) for count in threads}
    ((key, _),) = profile["disks"].items()
    disk = dict(read=3e9, write=3e9, together=1, beside=0.9, slowed=0.05, read_latency=1e-4, write_latency=1e-4, block_bytes=1 << 20, depth=8, buffer_bytes=64 << 20)
    profile["disks"] = {re.sub(r"\d+ threads$", f"{count} threads", key): disk for count in threads}
    (here / "machine.json").write_text(json.dumps(profile))
    return here / "machine.json"


def smallest_budget(refusal):
    """The number of bytes that an error message names."""
    return int(re.search(r"--budget (\d+)", refusal.err)[1])


def log(path):
    """The lines of a log file, and its summary."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines[:-1], lines[-1]["summary"]


def safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
    arrays = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            arrays[name] = np.frombuffer(data[start + begin:start + end], types[entry["dtype"]]).reshape(entry["shape"])
    return arrays
