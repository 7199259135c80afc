"""This working tree against another revision of the project: both programs do the same jobs, in turns.

    python3 tests/bench/compare.py REVISION [--build build] [--work build-compare] [--nvme FOLDER] [--minutes 10 | --rounds N] [--steps 8]
                                   [--jobs gpt2,gpt2-60,bert,cnn,products]

gpt2      GPT-2 124M, 1 x 256 tokens, everything in memory
gpt2-60   the same within 60 % of the budget which that takes, with a disk
bert      BERT-base, masked language model, 2 x 128 tokens
cnn       ResNet-18, 8 images of 112 x 112, BatchNorm in training mode
products  the matrix products of that GPT-2 against oneDNN's (bench-matmul_bench)

Builds the revision in a git worktree below --work, with its own scripts and the instruction sets that --build has. The first time it makes a
virtual environment with PyTorch there and exports the models, with random weights. A round runs each job once with either program; who begins
changes from round to round. Ends after --rounds, or when another round would take longer than --minutes; one is always done.

Both programs plan by the same measurements of the machine, as long as the newer one can read what the older one wrote. The ratio of a job is the
median of its rounds' new / old, beside the smallest and the largest: a revision against itself (REVISION = HEAD in a clean working tree) says
what of that is noise. "fastest" compares the fastest steps of all rounds. Prints one line of JSON a job, then a table. Whether losses and
weights are the same bits is printed. Exits 1 where a run fails, or where one program's bits differ from round to round or with the budget, or
where it took more than its budget; never because of a time.
"""
import argparse
import array
import dataclasses
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

import gpt2
import needs
import runs
from runs import ROOT, gb, sh

WARM = 2  # steps that don't count
BATCH, TOKENS = 1, 256  # of GPT-2
BERT_BATCH, BERT_TOKENS, BERT_VOCABULARY = 2, 128, 30522
IMAGES, SIDE, CLASSES = 8, 112, 1000
BENCH = "bench-matmul_bench"
problems = []


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- the other revision ---------------------------------------------------------------------------------------------------------------

def git(*command):
    return subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True)


def commit_of(revision):
    return git("rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}").stdout.strip()


def known(revision):
    if not commit_of(revision):
        yield f"{ROOT} has no revision {revision}: give a commit, a branch or a tag of this repository (OLD=main)"


def build_revision(commit, work, build):
    """The folder with its programs."""
    folder = os.path.join(work, commit[:12])
    if not os.path.exists(os.path.join(folder, ".git")):
        git("worktree", "prune")  # what was removed without git's knowing
        added = git("worktree", "add", "--detach", folder, commit)
        if added.returncode != 0:
            sys.exit(f"can't check out {commit} in {folder}: {added.stderr.strip()}")
    begun = time.monotonic()
    sh(os.path.join(folder, ".ci", "configure"), "release", *instruction_sets(build), stdout=sys.stderr)
    make = ["cmake", "--build", os.path.join(folder, "build"), "--target"]
    sh(*make, "ort-train", stdout=sys.stderr)
    if subprocess.run([*make, BENCH], capture_output=True).returncode != 0:
        say(f"{commit[:12]} has no {BENCH} that can be built here: its products are left out")
    say(f"built {commit[:12]} in {time.monotonic() - begun:.0f} s")
    return os.path.join(folder, "build")


def instruction_sets(build):
    """Those of the working tree's build, if it was configured with some."""
    with open(os.path.join(build, "CMakeCache.txt")) as cache:
        for line in cache:
            if line.startswith("ORT_TRAIN_ISAS:"):
                yield "-DORT_TRAIN_ISAS=" + line.strip().split("=", 1)[1]


# --- jobs -----------------------------------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Job:
    model: str
    exported: list  # the script and its options
    data: str
    write: object  # writes the data to a path
    options: list
    share: float = 0  # of the memory that it takes, as its budget; 0: no budget
    longer: int = 1  # so many times the steps


def write_safetensors(path, **tensors):
    """Name -> (type, shape, array of its numbers)."""
    header, at = {}, 0
    for name, (kind, shape, numbers) in tensors.items():
        size = len(numbers) * numbers.itemsize
        header[name] = dict(dtype=kind, shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, numbers in tensors.values():
            numbers.tofile(file)


def write_sentences(path):
    """One batch; a label at every seventh position."""
    numbers, shape = random.Random(0), [BERT_BATCH, BERT_TOKENS]
    count = BERT_BATCH * BERT_TOKENS
    ids = array.array("q", (numbers.randrange(1, BERT_VOCABULARY) for _ in range(count)))
    write_safetensors(path, input_ids=("I64", shape, ids), attention_mask=("I64", shape, array.array("q", [1] * count)),
                      token_type_ids=("I64", shape, array.array("q", [0] * count)),
                      labels=("I64", shape, array.array("q", (ids[i] if i % 7 == 0 else -100 for i in range(count)))))


def write_images(path):
    numbers = random.Random(0)
    pixels = array.array("f", (numbers.uniform(-1, 1) for _ in range(IMAGES * 3 * SIDE * SIDE)))
    write_safetensors(path, image=("F32", [IMAGES, 3, SIDE, SIDE], pixels),
                      labels=("I64", [IMAGES], array.array("q", (numbers.randrange(CLASSES) for _ in range(IMAGES)))))


GPT2 = Job("gpt2.onnx", ["export_gpt2.py", "--size", "124M", "--attention", "eager", "--no-verify"], "tokens.bin",
           lambda path: runs.write_tokens(path, BATCH * TOKENS, gpt2.VOCABULARY),
           ["--task", "causal-lm", "--batch-size", str(BATCH), "--seq-length", str(TOKENS)])
JOBS = {
    "gpt2": GPT2,
    "gpt2-60": dataclasses.replace(GPT2, share=0.6),
    "bert": Job("bert.onnx", ["export_bert.py", "--size", "base", "--no-verify"], "sentences.safetensors", write_sentences,
                ["--batch-size", str(BERT_BATCH), "--shape", f"sequence={BERT_TOKENS}"]),
    "cnn": Job("resnet18.onnx", ["export_cnn.py", "--size", "resnet18", "--image", str(SIDE), "--classes", str(CLASSES), "--exporter", "torchscript",
                                 "--opset", "17", "--training"], "images.safetensors", write_images, ["--batch-size", str(IMAGES)], longer=3),
}
PRODUCTS = "products"


def prepare(o, names):
    """Models and data, where they are not there yet."""
    for job in {JOBS[name].model: JOBS[name] for name in names}.values():
        path = os.path.join(o.work, job.model)
        if not os.path.exists(path):
            begun = time.monotonic()
            o.python = o.python or runs.modern_environment(o.work)
            unfinished = os.path.join(o.work, "unfinished.onnx")
            sh(o.python, os.path.join(ROOT, "models", job.exported[0]), unfinished, *job.exported[1:], stdout=subprocess.DEVNULL)
            os.replace(unfinished, path)
            say(f"exported {job.model} in {time.monotonic() - begun:.0f} s")
        job.write(os.path.join(o.work, job.data))


# --- runs -----------------------------------------------------------------------------------------------------------------------------

class Side:
    """One of the two programs, and what it did."""

    def __init__(self, o, name, build):
        self.o, self.name, self.build = o, name, build
        self.folder = os.path.join(o.work, name)
        self.profile = os.path.join(self.folder, "machine.json")
        self.lines = {}  # job -> a line for each round
        self.results = {}  # model -> its losses and its weights' hash
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)

    def command(self, job, budget=0):
        limit = ["--budget", str(budget), "--nvme-path", self.o.nvme] if budget else []
        return [os.path.join(self.build, "ort-train"), os.path.join(self.o.work, job.model), "--data", os.path.join(self.o.work, job.data), *job.options,
                "--learning-rate", "1e-4", "--lr-scheduler-type", "constant", "--max-steps", str(WARM + self.o.steps * job.longer),
                "--profile", self.profile, *limit]

    def train(self, name, budget):
        job = JOBS[name]
        steps, summary, plan, stolen = runs.train(self.command(job, budget), self.folder)
        for left in os.listdir(self.o.nvme):  # what a run could go on from
            os.remove(os.path.join(self.o.nvme, left))
        milliseconds = [step["ms"] for step in steps[WARM:]]
        result = [step["loss"] for step in steps], summary["weights_hash"]
        line = dict(ms=statistics.median(milliseconds), best_ms=min(milliseconds), rss=summary["rss_peak_bytes"], planned=summary["planned_peak_bytes"]["RAM"],
                    measured=summary["measured_peak_bytes"]["RAM"], read=plan["disk_read_per_step"], written=plan["disk_written_per_step"],
                    predicted_ms=plan["predicted_ms_per_step"], stolen=stolen)
        self.lines.setdefault(name, []).append(line)
        if result != self.results.setdefault(job.model, result):
            problems.append(f"{self.name}: {name} has other losses or weights than an earlier run of {job.model} by the same program")
        if budget and line["rss"] > budget:
            problems.append(f"{self.name}: {name} took {line['rss']:,} bytes of {budget:,}")
        say(f"  {name} {self.name}: {line['ms']:.1f} ms a step")

    def products(self):
        program = os.path.join(self.build, BENCH)
        if not os.path.exists(program):
            return
        # passive: oneDNN's idle threads would take time from ours.
        out = sh(program, str(len(os.sched_getaffinity(0))), str(self.o.product_seconds), capture_output=True, text=True,
                 env={**os.environ, "OMP_WAIT_POLICY": "passive"}).stdout
        line = json.loads(out.splitlines()[-1])
        self.lines.setdefault(PRODUCTS, []).append(line)
        say(f"  {PRODUCTS} {self.name}: {line['gflops']:.0f} GFLOP/s, oneDNN's {line['onednn_gflops']:.0f}")

    def median(self, name, field):
        return statistics.median(line[field] for line in self.lines[name])


def budgets_of(names, old, new):
    """Job -> bytes, the same for both programs: a share of what the old one takes without a budget. Measures the machine, once for both."""
    budgets = dict.fromkeys(names, 0)
    for name in names:
        job = JOBS[name]
        takes = runs.plan(old.command(job), old.folder)["peak"]["total"]
        if job.share:
            budgets[name] = int(job.share * takes)
            runs.plan(old.command(job, budgets[name]), old.folder)  # the disk, too
    if os.path.exists(old.profile):
        shutil.copyfile(old.profile, new.profile)
    return budgets


def rounds(o, names, budgets, old, new):
    """Runs them in turns; returns how many there were."""
    begun, longest, done = time.monotonic(), 0, 0
    while done < o.rounds or o.rounds == 0 and (done == 0 or time.monotonic() - begun + longest <= 60 * o.minutes):
        start = time.monotonic()
        say(f"round {done + 1}")
        for name in names:
            for side in (old, new) if done % 2 == 0 else (new, old):
                side.products() if name == PRODUCTS else side.train(name, budgets[name])
        longest = max(longest, time.monotonic() - start)
        done += 1
    return done


# --- what is said of them -------------------------------------------------------------------------------------------------------------

def ratios_of(name, field, old, new):
    return [b[field] / a[field] for a, b in zip(old.lines[name], new.lines[name])]


def training_line(name, budget, old, new):
    ratios = ratios_of(name, "ms", old, new)
    best = {side: min(line["best_ms"] for line in side.lines[name]) for side in (old, new)}
    losses, weights = zip(*(side.results[JOBS[name].model] for side in (old, new)))
    line = dict(job=name, budget_bytes=budget)
    for side in (old, new):
        line[side.name] = dict(ms=round(side.median(name, "ms"), 1), best_ms=round(best[side], 1), predicted_ms=round(side.median(name, "predicted_ms"), 1),
                               rss_peak_bytes=max(line["rss"] for line in side.lines[name]), planned_arena_bytes=side.lines[name][-1]["planned"],
                               measured_arena_bytes=max(line["measured"] for line in side.lines[name]), read_per_step=side.lines[name][-1]["read"],
                               written_per_step=side.lines[name][-1]["written"], stolen=round(side.median(name, "stolen"), 3))
    return line | dict(ratio=round(statistics.median(ratios), 4), ratios=[round(ratio, 4) for ratio in ratios],
                       fastest=round(best[new] / best[old], 4), same_losses=losses[0] == losses[1], same_weights=weights[0] == weights[1])


def onednn_rate(old, new):
    """The machine's: the best that either program saw; 0 where it was not measured."""
    return max((line["onednn_gflops"] for side in (old, new) for line in side.lines.get(PRODUCTS, [])), default=0)


def products_line(old, new):
    line, rate = dict(job=PRODUCTS, onednn_gflops=onednn_rate(old, new)), onednn_rate(old, new)
    for side in (old, new):
        if PRODUCTS in side.lines:
            best = max(run["gflops"] for run in side.lines[PRODUCTS])
            line[side.name] = dict(gflops=best, share_of_onednn=round(best / rate, 3))
    if PRODUCTS in old.lines and PRODUCTS in new.lines:
        ratios = [1 / ratio for ratio in ratios_of(PRODUCTS, "gflops", old, new)]
        line |= dict(ratio=round(statistics.median(ratios), 4), ratios=[round(ratio, 4) for ratio in ratios])
    return line


def both(line, field, form):
    return [form(line[name][field]) if name in line else "" for name in ("old", "new")]


def ratio_cells(line):
    ratios = line.get("ratios")
    return [f"{line['ratio']:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"] if ratios else ["", ""]


def tables(lines):
    """Of training, and of products."""
    training = [["ms a step", "old", "new", "new / old", "of rounds", "fastest", "process, GB: old", "new", "arena, GB: old", "new", "losses", "weights"]]
    products = [["GFLOP/s", "old", "new", "oneDNN", "share of it: old", "new", "time, new / old", "of rounds"]]
    for line in lines:
        if line["job"] == PRODUCTS:
            products.append(["GPT-2's products", *both(line, "gflops", "{:.0f}".format), f"{line['onednn_gflops']:.0f}",
                             *both(line, "share_of_onednn", "{:.1%}".format), *ratio_cells(line)])
            continue
        training.append([line["job"], *both(line, "ms", "{:.1f}".format), *ratio_cells(line), f"{line['fastest']:.3f}", *both(line, "rss_peak_bytes", gb),
                         *both(line, "measured_arena_bytes", gb), *("same" if line[of] else "differ" for of in ("same_losses", "same_weights"))])
    return [rows for rows in (training, products) if len(rows) > 1]


def report(names, budgets, old, new):
    lines = []
    for name in names:
        if name == PRODUCTS:
            lines.append(products_line(old, new))
        else:
            lines.append(training_line(name, budgets[name], old, new))
    measured = {line["job"]: line for line in lines}
    rate = onednn_rate(old, new)
    if "gpt2" in measured and rate:  # how much of it the whole step reaches
        for name in ("old", "new"):
            seconds = measured["gpt2"][name]["ms"] / 1e3
            measured["gpt2"][name]["share_of_onednn"] = round(gpt2.product_flops(BATCH, TOKENS) / seconds / (1e9 * rate), 3)
    for line in lines:
        print(json.dumps(line), flush=True)
    for rows in tables(lines):
        print()
        runs.table(rows)
    shares = [measured.get("gpt2", {}).get(name, {}).get("share_of_onednn") for name in ("old", "new")]
    if all(shares):
        print(f"\nGPT-2's whole step in memory has {shares[0]:.1%} (old) and {shares[1]:.1%} (new) of oneDNN's rate")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build-compare"))
    parser.add_argument("--nvme", help="a folder on the disk (default: --work)")
    parser.add_argument("--python", help="of an environment with PyTorch and transformers, instead of making one")
    parser.add_argument("--minutes", type=float, default=10, help="for the rounds; building and exporting come before them")
    parser.add_argument("--rounds", type=int, default=0, help="so many, however long they take")
    parser.add_argument("--steps", type=int, default=8, help="that count, of a run")
    parser.add_argument("--product-seconds", type=float, default=0.2, help="for a shape of products")
    parser.add_argument("--jobs", default=",".join([*JOBS, PRODUCTS]))
    o = parser.parse_args()
    names = list(dict.fromkeys(o.jobs.split(",")))
    training = [name for name in names if name != PRODUCTS]
    exported = all(os.path.exists(os.path.join(o.work, JOBS[name].model)) for name in training if name in JOBS)
    needs.check(needs.choices("--jobs", names, [*JOBS, PRODUCTS]), known(o.revision), needs.programs(o.build, ["ort-train", BENCH]),
                [] if exported else needs.packages(o.python, ["torch", "transformers", "onnx", "onnxscript", "onnxruntime"]),
                needs.space(o.work, 6e9 if exported else 12e9), needs.space(o.nvme or o.work, 6e9))
    o.work = os.path.abspath(o.work)  # programs may run elsewhere
    o.nvme = os.path.join(os.path.abspath(o.nvme or o.work), "ort-train-compare")  # ours alone
    os.makedirs(o.nvme, exist_ok=True)
    try:
        old = Side(o, "old", build_revision(commit_of(o.revision), o.work, o.build))
        new = Side(o, "new", os.path.abspath(o.build))
        prepare(o, training)
        budgets = budgets_of(training, old, new)
        done = rounds(o, names, budgets, old, new)
    except subprocess.CalledProcessError as failure:
        said = (failure.stderr or "") if isinstance(failure.stderr, str) else ""
        sys.exit(f"{said}this ended with {failure.returncode}: {' '.join(map(str, failure.cmd))}")
    print(f"old: {o.revision} ({commit_of(o.revision)[:12]}), new: the working tree ({commit_of('HEAD')[:12]} and what was changed since); "
          f"{done} round{'s' * (done != 1)} of {o.steps} steps", flush=True)
    report(names, budgets, old, new)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
