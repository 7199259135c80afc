"""What a budget costs: GPT-2 124M within less memory than it takes, against the bound, and the disk against fio.

    python3 tests/bench/streaming.py [--build build] [--work build/streaming] [--nvme FOLDER] [--steps 12] [--rounds 3] [--turns 1]
                                  [--jobs 1x256,4x512,4x1024] [--only disk,budgets,half,xl] [--xl-steps 0]

disk      reading and writing through our engine against fio on the same disk, in turns (bench-disk_bench).
budgets   1 x 256, 4 x 512 and 4 x 1024 tokens (--jobs) at 90 % and 60 % of what the job takes and at the smallest budget + 10 %: the step
          beside its prediction and beside bounds.py's max(compute, channels). Channels are by fio's rates right before and behind the row's
          run, compute is the nodes' time of runs that have everything in memory, one before and one behind: some disks are half as fast a
          minute later, and so are processors that are shared. "nodes" is the nodes' time of the row's own run: with what is computed again,
          beside transfers. "stolen" is what the machine's host gave to others meanwhile. With --turns, rows are medians of so many turns.
half      4 x 512 tokens in half of the memory that PyTorch takes for it, against the same without a budget.
xl        GPT-2-XL within 4 GB: how long its plan takes to make, and its gap to the planner's bound; with --xl-steps, that many steps of it
          against max(compute, channels). Its model takes 6 GB, the job 47 GB of the disk.

Says at once what it lacks: `make build-bench` builds what it runs, and it needs fio (apt-get install fio). Makes a virtual environment with
PyTorch below --work at the first run, as peers.py does, and exports the models there. Prints one line of JSON a run, then tables, and what was aimed at beside what was found. Exits 1 where losses or weights differ,
or where a process took more than its budget; never because of a time. Run it on a machine that does nothing else.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

import bounds
import gpt2
import needs
import runs
from runs import ROOT, gb, modern_environment, sh, table

WARM = 2  # steps that don't count
PARTS = ("disk", "budgets", "half", "xl")
SPACE = {"disk": 6e9, "budgets": 8e9, "half": 5e9}  # bytes on the disk
XL_MODEL, XL_STATE = 7e9, 48e9
problems = []
aims = [["aimed at", "", "found", ""]]


def show(**line):
    print(json.dumps(line), flush=True)
    return line


def aim(what, found, most=None, least=None):
    """A row of the last table; what is not met is no failure."""
    wanted = " and ".join(f"{sign} {bound:g}" for sign, bound in ((">=", least), ("<=", most)) if bound is not None)
    met = (most is None or found <= most) and (least is None or found >= least)
    aims.append([what, wanted, f"{found:.3f}", "" if met else "not met"])


def profile_of(o):
    return os.path.join(o.work, "machine.json")


def forget_machine(o):
    """The next run measures it anew: prediction and measurement are of one minute."""
    if os.path.exists(profile_of(o)):
        os.remove(profile_of(o))


class Job:
    """GPT-2 on tokens that repeat."""

    def __init__(self, options, batch, tokens, clip, model="gpt2.onnx"):
        self.o, self.batch, self.tokens = options, batch, tokens
        self.arguments = [os.path.join(options.build, "ort-train"), os.path.join(options.work, model), "--task", "causal-lm",
                          "--data", os.path.join(options.work, f"tokens-{batch}x{tokens}.bin"), "--batch-size", str(batch), "--seq-length", str(tokens),
                          "--learning-rate", "1e-4", "--lr-scheduler-type", "constant", "--weight-decay", "0", "--max-grad-norm", str(clip),
                          "--profile", profile_of(options)]
        self.first = None

    def plan(self, *more):
        return runs.plan([*self.arguments, "--max-steps", str(self.o.steps), *more], self.o.work)

    def run(self, name, budget, *more, steps=None):
        """Trains; compares with the first run of this job."""
        limit = ["--budget", str(budget)] if budget else []
        steps, summary, plan, stolen = runs.train([*self.arguments, "--max-steps", str(steps or self.o.steps), *limit, *more], self.o.work)
        milliseconds, computing = ([step[of] for step in steps[WARM:]] for of in ("ms", "computing_ms"))
        result = ([(step["loss"], step["grad_norm"]) for step in steps], summary["weights_hash"])
        self.first = self.first or result
        line = show(run=name, budget_bytes=budget, rss_peak_bytes=summary["rss_peak_bytes"], ms=round(statistics.median(milliseconds), 1),
                    best_ms=round(min(milliseconds), 1), predicted_ms=round(plan["predicted_ms_per_step"], 1),
                    compute_ms=round(statistics.median(computing), 1), stolen=round(stolen, 3),
                    planning_seconds=round(plan["planning_seconds"], 2), gap=gap_of(plan),
                    planned_arena_bytes=summary["planned_peak_bytes"]["RAM"], measured_arena_bytes=summary["measured_peak_bytes"]["RAM"],
                    disk_bytes=summary["planned_peak_bytes"]["NVMe"], read_per_step=plan["disk_read_per_step"], written_per_step=plan["disk_written_per_step"],
                    recomputed=plan["recompute"]["recomputed"], takes=plan["peak"]["total"], minimum=plan["minimum_budget_bytes"],
                    parameters=plan["parameters"], weights_hash=summary["weights_hash"], same=result == self.first, losses=[step["loss"] for step in steps])
        if not line["same"]:
            problems.append(f"{name}: other losses or weights than without a budget")
        if budget and line["rss_peak_bytes"] > budget:
            problems.append(f"{name}: took {line['rss_peak_bytes']:,} bytes of {budget:,}")
        return line


def gap_of(plan):
    """How far the plan is above the planner's bound."""
    return round(plan["predicted_ms_per_step"] / plan["lower_bound_ms_per_step"] - 1, 4)


def disk(o):
    """Rates of fio, in bytes a second, and of ours against them."""
    out = sh(os.path.join(o.build, "bench-disk_bench"), o.nvme, str(o.rounds), str(o.gigabytes), capture_output=True, text=True).stdout
    line = json.loads(out.splitlines()[-1])
    print(json.dumps(line), flush=True)
    return line


def fio_rates(o):
    """Of fio, reading and writing two gigabytes with 16 MB of memory, in huge pages as ours: bytes a second."""
    path, rates = os.path.join(o.nvme, "ort-train-bench-fio"), []
    for mode in ("write", "read"):  # what was never written reads as zeros, for nothing
        out = sh("fio", "--name=peer", "--filename=" + path, "--size=2g", "--rw=" + mode, "--bs=1m", "--iodepth=16", "--ioengine=io_uring", "--direct=1",
                       "--mem=malloc", "--iomem_align=2m", "--fixedbufs=1", "--output-format=json", capture_output=True, text=True,
                       env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}).stdout
        job = json.loads(out[out.index("{"):])["jobs"][0][mode]
        rates.append(1000 * job["io_bytes"] / job["runtime"])
    os.remove(path)
    return rates[1], rates[0]


def mean_rates(before, behind):
    """Half of the bytes at each."""
    return tuple(2 / (1 / a + 1 / b) for a, b in zip(before, behind))


def aim_arena(name, line):
    aim(f"{name}: bytes of the arena that no tensor touched", line["planned_arena_bytes"] - line["measured_arena_bytes"], most=63, least=0)


COLUMNS = {  # of the tables of budgets: of a line's value, what it is printed as
    "budget": ("GB", gb), "planned_arena_bytes": ("arena", gb), "measured_arena_bytes": ("measured", gb), "read_per_step": ("read", gb),
    "written_per_step": ("written", gb), "recomputed": ("again", "{:.0f}".format), "compute_ms": ("compute", "{:.0f}".format),
    "nodes_ms": ("nodes", "{:.0f}".format), "channels_ms": ("channels", "{:.0f}".format), "bound_ms": ("bound", "{:.0f}".format),
    "ms": ("step ms", "{:.0f}".format), "to_bound": ("/ bound", "{:.3f}".format), "to_own_bound": ("/ own", "{:.3f}".format),
    "predicted_ms": ("predicted", "{:.0f}".format), "predicted_to_step": ("/ step", "{:.3f}".format), "to_forced_bound": ("forced", "{:.3f}".format),
    "gap": ("gap %", lambda share: f"{100 * share:.1f}"), "to_plan_bound": ("/ plan's bound", "{:.3f}".format),
    "stolen": ("stolen %", lambda share: f"{100 * share:.1f}")}


def within(o, job, name, budget, before):
    """One turn of a row; `before`: a run with everything in memory. Returns the row's values, and such a run behind it."""
    fio_before = fio_rates(o)
    forget_machine(o)
    line = job.run(name, budget, "--nvme-path", o.nvme)
    rates = mean_rates(fio_before, fio_rates(o))
    behind = job.run("all in memory", 0)
    compute = (before["compute_ms"] + behind["compute_ms"]) / 2
    moved = (line["read_per_step"], line["written_per_step"], *rates)
    bound, own = (1e3 * bounds.bound_seconds(ms / 1e3, *moved) for ms in (compute, line["compute_ms"]))
    forced = bounds.forced_bytes(line["parameters"], line["planned_arena_bytes"])
    forced_bound = 1e3 * bounds.bound_seconds(compute / 1e3, forced, forced, *rates)
    values = {**line, "budget": budget, "compute_ms": compute, "nodes_ms": line["compute_ms"], "channels_ms": 1e3 * bounds.channel_seconds(*moved),
              "bound_ms": bound, "to_bound": line["ms"] / bound, "to_own_bound": line["ms"] / own, "predicted_to_step": line["predicted_ms"] / line["ms"],
              "to_forced_bound": line["ms"] / forced_bound, "to_plan_bound": line["ms"] / line["predicted_ms"] * (1 + line["gap"])}
    values = {of: values[of] for of in COLUMNS}
    show(bound_of=name, fio_gb_per_second=[round(rate / 1e9, 3) for rate in rates], **{of: round(value, 4) for of, value in values.items()})
    return values, behind


def budgets(o, batch, tokens):
    """Medians of the turns, value by value."""
    job, of_job = Job(o, batch, tokens, 1.0), f"{batch} x {tokens}"
    resident = job.run("all in memory", 0)
    residents = [resident]
    least = job.plan("--nvme-path", o.nvme)["minimum_budget_bytes"]
    limits = {"90 %": int(0.9 * resident["takes"]), "60 %": int(0.6 * resident["takes"]), "minimum + 10 %": int(1.1 * least)}
    turns = {name: [] for name in limits}
    for _ in range(o.turns):
        for name, budget in limits.items():
            values, resident = within(o, job, name, budget, resident)
            turns[name].append(values)
            residents.append(resident)
    predicted_to_step = statistics.median(line["predicted_ms"] / line["ms"] for line in residents)
    aim(f"{of_job}, all in memory: predicted / step", predicted_to_step, most=1.1, least=0.9)
    aim_arena(f"{of_job}, all in memory", resident)
    rows = [[f"{of_job} tokens", *(title for title, _ in COLUMNS.values())]]
    for name, lines in turns.items():
        line = {of: statistics.median(values[of] for values in lines) for of in COLUMNS}
        rows.append([name, *(shown(line[of]) for of, (_, shown) in COLUMNS.items())])
        aim(f"{of_job}, {name}: step / max(compute, channels)", line["to_bound"], most=1.1)
        aim(f"{of_job}, {name}: step / max(nodes, channels)", line["to_own_bound"], most=1.1)
        aim(f"{of_job}, {name}: step / the plan's bound", line["to_plan_bound"], most=1.1)
        aim(f"{of_job}, {name}: predicted / step", line["predicted_to_step"], most=1.1, least=0.9)
        aim_arena(f"{of_job}, {name}", line)
    return rows


def half(o, python):
    """The same losses as PyTorch's, to rounding; the same bits as our own without a budget."""
    tokens = os.path.join(o.work, "tokens-4x512.bin")
    shutil.copyfile(tokens, os.path.join(o.work, "tokens.bin"))
    out = gpt2.call(python, "eager", o.work, 4, 512, o.steps, capture_output=True, text=True).stdout
    torch = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    print(json.dumps(torch), flush=True)
    budget = torch["peak_mb"] * (1 << 20) // 2
    job = Job(o, 4, 512, 0)
    rows = [["4 x 512 tokens", "GB", "arena", "read", "written", "again", "step ms", "/ without", "predicted"],
            ["PyTorch eager", gb(torch["peak_mb"] * (1 << 20)), "", "", "", "", f"{torch['ms']:.0f}", "", ""]]
    plain = None
    for name, limit, more in (("no budget", 0, []), ("half of it, no disk", budget, []), ("half of it, a disk", budget, ["--nvme-path", o.nvme])):
        line = job.run(name, limit, *more)
        plain = plain or line
        worst = max(abs(a - b) for a, b in zip(line["losses"], torch["losses"]))
        if worst > 1e-4:
            problems.append(f"{name}: the losses are {worst:.1e} from PyTorch's")
        rows.append([name, gb(line["rss_peak_bytes"]), gb(line["planned_arena_bytes"]), gb(line["read_per_step"]), gb(line["written_per_step"]),
                     str(line["recomputed"]), f"{line['ms']:.0f}", f"{line['ms'] / plain['ms']:.3f}", f"{line['predicted_ms']:.0f}"])
        if limit:
            aim(f"4 x 512, {name}: step / that without a budget", line["ms"] / plain["ms"], most=1.05)
    return rows


def xl(o, python):
    if not os.path.exists(os.path.join(o.work, "gpt2-xl.onnx")):
        sh(python, os.path.join(ROOT, "models", "export_gpt2.py"), os.path.join(o.work, "gpt2-xl.onnx"), "--size", "xl", stdout=subprocess.DEVNULL)
    job = Job(o, 1, 1024, 1.0, "gpt2-xl.onnx")
    limit = ["--budget", "4GB", "--nvme-path", o.nvme]
    job.plan(*limit)  # measures the machine
    plan = job.plan(*limit)
    show(run="xl", planning_seconds=round(plan["planning_seconds"], 2), gap=gap_of(plan), predicted_ms=round(plan["predicted_ms_per_step"], 1))
    aim("GPT-2-XL in 4 GB: seconds to plan", plan["planning_seconds"], most=5)
    aim("GPT-2-XL in 4 GB: gap to the planner's bound, %", 100 * gap_of(plan), most=1)
    if not o.xl_steps:
        return
    before = fio_rates(o)
    line = job.run("xl", 4_000_000_000, "--nvme-path", o.nvme, steps=WARM + o.xl_steps)
    bound = bounds.bound_seconds(line["compute_ms"] / 1e3, line["read_per_step"], line["written_per_step"], *mean_rates(before, fio_rates(o)))
    aim("GPT-2-XL in 4 GB: step / max(compute, channels)", line["ms"] / 1e3 / bound, most=1.15)
    aim("GPT-2-XL in 4 GB: predicted / step", line["predicted_ms"] / line["ms"], most=1.1, least=0.9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "streaming"))
    parser.add_argument("--nvme", help="a folder on the disk (default: --work)")
    parser.add_argument("--python", help="of an environment with PyTorch and transformers, instead of making one")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="of the disk's benchmark")
    parser.add_argument("--turns", type=int, default=1, help="of each row of budgets")
    parser.add_argument("--gigabytes", type=int, default=4, help="of its file")
    parser.add_argument("--jobs", default="1x256,4x512,4x1024", help="of budgets: samples x tokens, with commas")
    parser.add_argument("--only", default="disk,budgets,half", help="of " + ", ".join(PARTS))
    parser.add_argument("--xl-steps", type=int, default=0, help="of GPT-2-XL, a minute each; 0: only its plan")
    o = parser.parse_args()
    parts = o.only.split(",")
    o.nvme = o.nvme or o.work
    needs.check(needs.choices("--only", parts, PARTS), needs.programs(o.build, ["ort-train"] + ["bench-disk_bench"] * ("disk" in parts)),
                needs.tool("fio", "fio"), needs.packages(o.python, ["torch", "transformers", "onnx", "onnxscript", "onnxruntime"]),
                needs.space(o.work, 2e9 + ("xl" in parts) * XL_MODEL),
                needs.space(o.nvme, max([SPACE.get(part, 0) for part in parts] + [XL_STATE * ("xl" in parts and o.xl_steps > 0)])))
    os.makedirs(o.work, exist_ok=True)
    python = o.python or modern_environment(o.work)
    if not os.path.exists(os.path.join(o.work, "gpt2.pt")):
        gpt2.call(python, "model", o.work, 1, 256, o.steps, stdout=subprocess.DEVNULL)
    jobs = [tuple(map(int, job.split("x"))) for job in o.jobs.split(",")]
    for batch, tokens in {*jobs, (4, 512), (1, 1024)}:
        runs.write_tokens(os.path.join(o.work, f"tokens-{batch}x{tokens}.bin"), batch * tokens, gpt2.VOCABULARY)
    forget_machine(o)

    tables = []
    if "disk" in parts:
        fio = disk(o)
        for mode in ("read", "write"):
            aim(f"disk: {mode} / fio", fio[mode]["to fio"]["16MB"], least=0.95)
        tables.append([["GB/s", "16 MB", "16 MB checked", "fio", "to fio"]] + [
            [mode, *(f"{fio[mode]['GB/s'].get(of, float('nan')):.2f}" for of in ("16MB", "16MB checked", "fio")), f"{fio[mode]['to fio']['16MB']:.3f}"]
            for mode in ("read", "write", "mixed")])
    if "budgets" in parts:
        tables += [budgets(o, batch, tokens) for batch, tokens in jobs]
    if "half" in parts:
        tables.append(half(o, python))
    if "xl" in parts:
        xl(o, python)
    for rows in (*tables, aims):
        print()
        table(rows)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
