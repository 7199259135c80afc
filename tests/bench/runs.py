"""What the benchmark scripts share: environments, data, runs of the program, tables. Imports nothing but the standard library."""
import array
import json
import os
import random
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def sh(*command, **options):
    return subprocess.run(command, check=True, **options)


def environment(work, name, *packages_in_turn):
    """A virtual environment with pinned packages; pip options may stand among them."""
    python = os.path.join(work, name, "bin", "python")
    done = os.path.join(work, name, "complete")
    if not os.path.exists(done):
        sh(sys.executable, "-m", "venv", os.path.join(work, name))
        for packages in packages_in_turn:
            installed = subprocess.run([python, "-m", "pip", "install", "-q", *packages], stderr=subprocess.PIPE, text=True)
            if installed.returncode != 0:
                reason = (installed.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
                sys.exit(f"can't install {' '.join(packages)} into {os.path.join(work, name)}: {reason}")
        open(done, "w").close()
    return python


def modern_environment(work):
    """PyTorch and what exports its models."""
    return environment(work, "modern", ["torch==2.13.0"], ["transformers==5.23.0", "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime", "numpy", "safetensors"])


def write_tokens(path, count, vocabulary):
    random_numbers = random.Random(0)
    with open(path, "wb") as file:
        array.array("H", (random_numbers.randrange(vocabulary) for _ in range(count))).tofile(file)


def processor_time():
    """Of all processors since the machine started: all of it, and what its host gave to others meanwhile (steal)."""
    with open("/proc/stat") as file:
        times = [int(number) for number in file.readline().split()[1:9]]
    return sum(times), times[7]


def train(command, folder):
    """Runs the program, with its files in the folder; returns the log's steps, its summary, the plan, and which share of the processors' time the
    machine's host gave to others meanwhile. What was trained is removed."""
    log, output, plan_path = (os.path.join(folder, part) for part in ("log.jsonl", "out", "plan.json"))
    shutil.rmtree(output, ignore_errors=True)
    before = processor_time()
    sh(*command, "--log-file", log, "--output-dir", output, "--plan-json", plan_path, stdout=subprocess.DEVNULL)
    behind = processor_time()
    shutil.rmtree(output, ignore_errors=True)
    with open(log) as file:
        lines = [json.loads(line) for line in file]
    with open(plan_path) as file:
        plan = json.load(file)
    return lines[:-1], lines[-1]["summary"], plan, (behind[1] - before[1]) / (behind[0] - before[0])


def plan(command, folder):
    """What the program would do, without doing it."""
    path = os.path.join(folder, "plan.json")
    sh(*command, "--plan", "--plan-json", path, stdout=subprocess.DEVNULL)
    with open(path) as file:
        return json.load(file)


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip())


def gb(number):
    return f"{number / 1e9:.2f}"
