"""Where our step's time goes by op, beside what these ops would take at the rates of the machine. For peers.py."""
import dataclasses
import json
import os

from runs import sh, train

PRODUCTS = ("MatMul", "AccumulateMatMul", "Gemm", "Conv", "ConvInputGrad", "ConvWeightGrad", "ConvTranspose", "Attention", "AttentionGrad", "Recurrent", "RecurrentGrad")
LEAST_SHARE = 0.01  # of a step: ops with less are one row


@dataclasses.dataclass
class Rates:
    products: float  # GFLOP/s
    memory: float    # GB/s


def rates(build, measure_memory):
    # passive: oneDNN's idle threads would take time from ours.
    out = sh(os.path.join(build, "bench-matmul_bench"), str(len(os.sched_getaffinity(0))), "0.1", capture_output=True, text=True,
             env={**os.environ, "OMP_WAIT_POLICY": "passive"}).stdout
    return Rates(json.loads(out.splitlines()[-1])["onednn_gflops"], json.loads(measure_memory())["gigabytes_per_second"])


def command(o, model, work, steps):
    """Of our program."""
    data = ["--data", os.path.join(work, "tokens.bin"), "--task", "causal-lm", "--batch-size", str(model.causal_shape[0]), "--seq-length", str(model.causal_shape[1])]
    if not model.causal:
        data = ["--data", os.path.join(work, "data.npz")]
    return [os.path.join(o.build, "ort-train"), os.path.join(work, "model.onnx"), *data, *model.options, "--no-shuffle", "--learning-rate", str(model.rate),
            "--lr-scheduler-type", "constant", "--max-grad-norm", "0", "--max-steps", str(steps)]


def table(o, model, work, machine):
    """Markdown. A product's time at best is its operations at oneDNN's rate, another op's its bytes at the rate of memory."""
    path = os.path.join(work, "op-times.json")
    train([*command(o, model, work, 6), "--op-times", path], work)
    with open(path) as file:
        entry = next(entry for entry in json.load(file)["entries"] if entry["entry"] == "train")
    rest, best_of_all = [0, 0.0, 0.0], 0.0
    yield "| op | nodes | ms | share | ms at best | of that rate |"
    yield "|---|---|---|---|---|---|"
    row = lambda name, nodes, ms, share, best: f"| {name} | {nodes} | {ms:.2f} | {100 * share:.1f} % | {best:.2f} | {100 * best / ms if ms else 0:.0f} % |"
    total = sum(op["ms"] for op in entry["ops"])
    for op in entry["ops"]:
        best = op["ms"] * (op["gflops"] / machine.products if op["op"].startswith(PRODUCTS) else op["gigabytes_per_second"] / machine.memory)
        best_of_all += best
        if op["share"] < LEAST_SHARE:
            rest = [a + b for a, b in zip(rest, (op["nodes"], op["ms"], best))]
        else:
            yield row(op["op"], op["nodes"], op["ms"], op["share"], best)
    if rest[0]:
        yield row("others", rest[0], rest[1], rest[1] / total, rest[2])
    yield row("all", sum(op["nodes"] for op in entry["ops"]), total, 1, best_of_all)
