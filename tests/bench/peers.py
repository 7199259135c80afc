"""A training step of models of all kinds in ort-train, PyTorch (eager and compiled) and ONNX Runtime Training, side by side, in float32 and bfloat16.

    python3 tests/bench/peers.py [--build build] [--work build/peers] [--models gpt2-1x256,bert-8x128,resnet18,…] [--rounds 3] [--steps 5]
                                 [--only ort-train,eager,compile,ort-training,ort-train-60,ort-train-bf16,eager-bf16,compile-bf16,ort-train-60-bf16]
                                 [--results FILE.jsonl] [--no-ops]

The models are those of peer_models.py: GPT-2, BERT, a character GPT, an LSTM, ViT, ResNets, MobileNetV3, ConvNeXt, a U-Net. Says at once what it
lacks; `make build-bench` builds what it runs. Makes its virtual environments below --work at the first run, and exports each model there once,
which takes some minutes and 8 GB.

All train the same weights on the same batch, with AdamW; PyTorch as fast as it goes: fused AdamW, scaled_dot_product_attention, channels_last for
images, torch.compile of model and loss. They take turns of two steps that don't count and --steps that do, --rounds times. PyTorch's processes
live from turn to turn, and wait meanwhile; so those of one model must fit into memory together (GPT-2 4 x 512: 18 GB). Rows of bfloat16 are ours
with --bf16, and PyTorch's under CPU autocast; fast only on processors that have bfloat16 instructions. ort-train-60 is ours with a budget: 60 % of
the smaller peak of PyTorch's processes, and a disk, if that isn't enough.

Prints one line of JSON a run; a table of medians, of medians of the turns' ratios and of the peaks of the processes; for each model a table of
where our step's time goes by op (--op-times), beside what these ops would take at oneDNN's product rate and at the rate of memory, both measured
in the same run. --results adds the runs to a file, and makes the table of all that are in it. Exits 1 where the losses of a first turn are
further apart than 1e-4 (bfloat16: than 1e-2 of the loss in float32; its numbers have 8 bits).
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys

import needs
import peer_ops
from peer_models import MODELS
from runs import HERE, ROOT, environment, modern_environment, sh, train

WARM = 2  # steps of a turn that don't count
SHARE = 0.6  # of PyTorch's memory
TORCH = ("eager", "compile", "eager-bf16", "compile-bf16")
PEERS = ("ort-train", "eager", "compile", "ort-training", "ort-train-60", "ort-train-bf16", "eager-bf16", "compile-bf16", "ort-train-60-bf16")
NAMES = {"eager": "PyTorch", "compile": "compiled", "ort-training": "ORT Training"}


def peer_environment(work):
    return environment(work, "peer", ["onnxruntime-training==1.19.2", "numpy<2", "onnx==1.16.2", "cerberus", "h5py", "setuptools"],
                       ["--no-deps", "torch==2.13.0"], ["filelock", "typing-extensions", "jinja2", "networkx", "fsspec", "sympy", "mpmath"])


def inside(python, action, name, work, *more):
    return [python, os.path.join(HERE, "peer_inside.py"), action, name, "--work", work, *map(str, more)]


class Ours:
    """A process a turn. peaks: of the others' processes, in MiB"""

    def __init__(self, o, name, work, peer, peaks):
        model = MODELS[name]
        bf16 = ["--bf16"] if peer.endswith("bf16") else []
        self.command, self.work = peer_ops.command(o, model, work, WARM + o.steps) + bf16, work
        self.peaks = peaks if "-60" in peer else None

    def turn(self):
        budget = []
        if self.peaks is not None:
            least = min((peak for who, peak in self.peaks.items() if who in TORCH), default=None)
            if least is None:
                raise NoTurn("--only names no run of PyTorch's that would say how much memory it is")
            budget = ["--budget", f"{int(SHARE * least)}MiB", "--nvme-path", self.work]
        rows, summary, _, _ = train(self.command + budget, self.work)
        return dict(losses=[row["loss"] for row in rows], ms=[row["ms"] for row in rows], peak_mb=summary["rss_peak_bytes"] >> 20)

    def end(self):
        pass


class NoTurn(Exception):
    """Why."""


class Theirs:
    """A process that waits between its turns. One that can't train the model ends, and says why on its standard error."""

    def __init__(self, o, python, name, work, peer):
        settings = dict(TORCHINDUCTOR_CACHE_DIR=os.path.join(o.work, "inductor"), TOKENIZERS_PARALLELISM="false")
        self.log = open(os.path.join(work, peer + ".log"), "w")
        self.process = subprocess.Popen(inside(python, peer, name, work, "--steps", WARM + o.steps), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, **settings})
        for line in self.process.stdout:  # what it does until then would take time from others
            if line == "ready\n":
                break

    def turn(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise NoTurn(last_line(self.log.name))
        for line in self.process.stdout:  # an environment may print other lines first
            if line.startswith("{"):
                return json.loads(line)
        raise NoTurn(last_line(self.log.name))

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()
        self.log.close()


def last_line(path):
    with open(path) as file:
        return (file.read().strip().splitlines() or ["it gave no reason"])[-1]


def exported(o, name, modern, peer):
    """The folder of the model, with what its trainers read."""
    work = os.path.join(o.work, name)
    os.makedirs(work, exist_ok=True)
    for action, python in (("export", modern), ("export-peer", modern if peer else None)):
        done = os.path.join(work, action + "-done")
        if python is None or os.path.exists(done):
            continue
        with open(os.path.join(work, action + ".log"), "w") as log:
            failed = subprocess.run(inside(python, action, name, work), stdout=log, stderr=log).returncode
        if failed and action == "export":
            sys.exit(f"{name} can't be exported: {last_line(log.name)}")
        if not failed:
            open(done, "w").close()
    return work


def compare(o, name, chosen, modern, peer, keep):
    """Its runs, in turns."""
    work = exported(o, name, modern, peer)
    for precision in (False, True):  # one after the other: half as many processes
        trainers, peaks = {}, {}
        for who in chosen:
            if who.endswith("bf16") == precision:
                is_ours = who.startswith("ort-train-") or who == "ort-train"
                trainers[who] = Ours(o, name, work, who, peaks) if is_ours else Theirs(o, modern if who in TORCH else peer, name, work, who)
        for turn in range(o.rounds):
            for who, trainer in list(trainers.items()):
                try:
                    result = trainer.turn()
                except NoTurn as reason:
                    trainers.pop(who).end()
                    keep(dict(model=name, peer=who, error=str(reason)))
                    continue
                peaks[who] = max(peaks.get(who, 0), result["peak_mb"]) if turn == 0 else peaks[who]
                ms = result["ms"][WARM:]
                keep(dict(model=name, peer=who, turn=turn, ms=round(statistics.median(ms), 2), best_ms=round(min(ms), 2), peak_mb=result["peak_mb"], losses=result["losses"]))
        for trainer in trainers.values():
            trainer.end()


# --- what is said of them -------------------------------------------------------------------------------------------------------------

def summary(lines):
    """(model, peer) -> median ms, peak, runs; and problems with losses."""
    found, problems = {}, []
    for line in lines:
        if "error" not in line:
            found.setdefault((line["model"], line["peer"]), []).append(line)
    for (name, who), runs in found.items():
        ours = next((line for line in found.get((name, "ort-train"), []) if line["turn"] == 0), None) or runs[0]
        first = next((line for line in runs if line["turn"] == 0), runs[0])
        is_bf16 = who.endswith("bf16")
        apart = [abs(a - b) / (max(1, abs(b)) if is_bf16 else 1) for a, b in zip(first["losses"], ours["losses"])]
        worst = math.nan if any(map(math.isnan, apart)) else max(apart)
        if not worst <= (1e-2 if is_bf16 else 1e-4):
            problems.append(f"{name}: the losses of {who} are {worst:.1e} from ort-train's{' (a share of the loss)' if is_bf16 else ''}")
    return {key: (statistics.median(run["ms"] for run in runs), max(run["peak_mb"] for run in runs), runs)
            for key, runs in found.items()}, problems


def ratio(ours, theirs):
    """Median of the turns' ratios: what slows the machine down for a while slows down all that take that turn."""
    return statistics.median(mine["ms"] / other["ms"] for mine, other in zip(ours[2], theirs[2]))  # one that ends early has none of the last


def table(results, bf16):
    """Markdown: times, then peaks, then the runs in less memory, if there are any."""
    suffix = "-bf16" if bf16 else ""
    others = [who for who in NAMES if any(peer == who + suffix for _, peer in results)]
    names = [NAMES[who] for who in others]
    rows = [(model.title, results[name, "ort-train" + suffix], [results.get((name, who + suffix)) for who in others], name)
            for name, model in MODELS.items() if (name, "ort-train" + suffix) in results]
    line = lambda cells: "| " + " | ".join(cells) + " |"
    milliseconds = lambda x: f"{x:,.0f}" if x >= 1000 else f"{x:.4g}"
    rule = lambda columns: "|" + "---|" * columns
    yield line(["ms a step", "ort-train", *names, *(f"ours / {name}" for name in names)])
    yield rule(2 + 2 * len(others))
    for title, ours, theirs, _ in rows:
        yield line([title, milliseconds(ours[0]), *(milliseconds(t[0]) if t else "-" for t in theirs), *(f"{ratio(ours, t):.2f}" if t else "-" for t in theirs)])
    yield ""
    yield line(["MB", "ort-train", *names, "ours / the least"])
    yield rule(3 + len(others))
    for title, ours, theirs, _ in rows:
        yield line([title, f"{ours[1]:,}", *(f"{t[1]:,}" if t else "-" for t in theirs), f"{ours[1] / min(t[1] for t in theirs if t):.2f}" if any(theirs) else "-"])
    less = [(title, results[name, "ort-train-60" + suffix], [results[name, who] for who in TORCH if who.endswith("bf16") == bf16 and (name, who) in results])
            for title, _, _, name in rows if (name, "ort-train-60" + suffix) in results]
    if less:
        yield ""
        yield line([f"in {SHARE} of PyTorch's memory", "MB", "ms a step", "/ the faster PyTorch"])
        yield rule(4)
    for title, ours, torch in less:
        yield line([title, f"{ours[1]:,}", milliseconds(ours[0]), f"{max(ratio(ours, t) for t in torch):.2f}" if torch else "-"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "peers"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=5, help="of a turn, that count")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--results", help="a file of runs, which these are added to")
    parser.add_argument("--ops", action=argparse.BooleanOptionalAction, default=True, help="where our step's time goes")
    o = parser.parse_args()
    chosen, models = o.only.split(",") if o.only else [], o.models.split(",")
    needs.check(needs.choices("--only", chosen, PEERS), needs.choices("--models", models, MODELS), needs.programs(o.build, ["ort-train", "bench-matmul_bench"]),
                needs.packages("", []), needs.space(o.work, 0 if os.path.exists(os.path.join(o.work, "modern", "complete")) else 8e9))
    os.makedirs(o.work, exist_ok=True)
    modern = modern_environment(o.work)
    peer = peer_environment(o.work) if "ort-training" in chosen else ""
    lines = []
    if o.results and os.path.exists(o.results):
        with open(o.results) as file:
            lines = [json.loads(line) for line in file]

    def keep(line):
        lines.append(line)
        print(json.dumps(line), flush=True)
        if o.results:
            with open(o.results, "a") as file:
                file.write(json.dumps(line) + "\n")

    for name in models if chosen else ():
        compare(o, name, chosen, modern, peer, keep)
    results, problems = summary(lines)
    for bf16 in (False, True):
        if any(peer.endswith("bf16") == bf16 for _, peer in results):
            print(f"\n{'bfloat16' if bf16 else 'float32'}\n", *table(results, bf16), sep="\n")
    for line in lines:
        if "error" in line:
            print(f"{line['model']}: {line['peer']} can't train it: {line['error'][:200]}")
    if o.ops:
        rates = peer_ops.rates(o.build, lambda: sh(*inside(modern, "memory", models[0], o.work), capture_output=True, text=True).stdout)
        print(f"\noneDNN's products {rates.products:.0f} GFLOP/s, memory {rates.memory:.0f} GB/s in this run")
        for name in models:
            work = exported(o, name, modern, "")
            print(f"\n{MODELS[name].title}\n", *peer_ops.table(o, MODELS[name], work, rates), sep="\n")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
