"""What a training step would take with more processors than the machine has: by the tasks of its nodes.

    python3 tests/bench/scaling.py [--model gpt2.onnx] [--build build] [--work build/bench-scaling] [--batch 4] [--tokens 512] [--steps 6]
                                   [--threads 2,8,32,96] [--loop-us 5] [--at 32] [--most 0.03]

A kernel divides its work into tasks for as many threads as it is told, of which only as many run as there are processors; --op-times has the
time of each task, and how long the loop would take if all threads ran as fast, each taking the next task of its share, then
those that others have left ("scheduled"). A step is all that plus --loop-us for each loop (to start threads and wait for the last one; with more threads than here it is a guess). Caches, clocks
and memory are taken to be as good for many threads as for those that ran: ops that compute little (under 2 operations a byte) are marked, with the rate
at which memory would have to give their bytes.

The serial share of a node is that of Amdahl's law, by which its time t(N) with N threads follows from t(1): (t(N) / t(1) - 1 / N) / (1 - 1 / N). What is not
inside tasks counts, and threads that wait for the last task. Exits 1 where one is above --most with --at threads, but for nodes so small that a loop's own microseconds
are more than that of them.

GPT-2 124M as bench/gpt2.py exports it, in a virtual environment below --work, unless --model names another causal model (of at least as many words).
"""
import argparse
import json
import os
import sys
from collections import defaultdict

import gpt2
import needs
from runs import ROOT, modern_environment, train, write_tokens

BOUND_BY_MEMORY = 2  # operations a byte, at most


def nodes_with(o, model, threads):
    path = os.path.join(o.work, f"op-times-{threads}.json")
    train([os.path.join(o.build, "ort-train"), model, "--data", os.path.join(o.work, "tokens.bin"), "--task", "causal-lm", "--batch-size", str(o.batch), "--seq-length",
           str(o.tokens), "--learning-rate", "1e-4", "--lr-scheduler-type", "constant", "--max-grad-norm", "0", "--max-steps", str(o.steps + 1), "--threads", str(threads),
           "--op-times", path], o.work)
    with open(path) as file:
        times = json.load(file)
    assert times["threads"] == threads
    return next(entry for entry in times["entries"] if entry["entry"] == "train")["nodes"]


def alone(node):
    """Milliseconds on one thread."""
    return node["tasks"]["outside_ms"] + node["tasks"]["ms"]


def together(o, node):
    """On as many as it was run for, with what its loops take to begin and end."""
    return node["tasks"]["scheduled_ms"] + node["tasks"]["loops"] * o.loop_us * 1e-3


def serial_share(node, threads):
    return max(0.0, (node["tasks"]["scheduled_ms"] / alone(node) - 1 / threads) / (1 - 1 / threads))


def is_bound_by_memory(node):
    return node["gflops"] < BOUND_BY_MEMORY * node["gigabytes_per_second"]


def rows(o, nodes):
    """Markdown: by op, the longest first."""
    most = max(o.threads)
    by_op = {threads: defaultdict(list) for threads in o.threads}
    for threads, of_step in nodes.items():
        for node in of_step:
            by_op[threads][node["op"]].append(node)
    step = {threads: sum(together(o, node) for node in nodes[threads]) for threads in o.threads}
    yield "| op | nodes | " + " | ".join(f"ms, {threads} threads" for threads in o.threads) + f" | share at {most} | tasks a node at {o.at} | longest task, ms | serial share at {o.at} | |"
    yield "|---" * (len(o.threads) + 7) + "|"
    at = by_op[o.at]
    rest, few = {threads: 0.0 for threads in o.threads}, 0
    for op in sorted(at, key=lambda op: -sum(together(o, node) for node in at[op])):
        took = {threads: sum(together(o, node) for node in by_op[threads][op]) for threads in o.threads}
        if took[o.at] < 0.003 * step[o.at]:
            rest = {threads: rest[threads] + took[threads] for threads in o.threads}
            few += len(at[op])
            continue
        tasks = [node["tasks"]["count"] for node in at[op]]
        share = sum(serial_share(node, o.at) * alone(node) for node in at[op]) / sum(alone(node) for node in at[op])
        gigabytes = sum(node["gigabytes_per_second"] * node["ms"] for node in at[op]) / 1e3
        memory = f"needs {gigabytes / took[o.at] * 1e3:,.0f} GB/s at {o.at}" if all(map(is_bound_by_memory, at[op])) else ""
        yield f"| {op} | {len(at[op])} | " + " | ".join(f"{took[threads]:,.1f}" for threads in o.threads) + \
            f" | {100 * took[most] / step[most]:.1f} % | {min(tasks)} to {max(tasks)} | {max(node['tasks']['longest_ms'] for node in at[op]):.2f} | {100 * share:.1f} % | {memory} |"
    yield f"| others | {few} | " + " | ".join(f"{rest[threads]:,.1f}" for threads in o.threads) + f" | {100 * rest[most] / step[most]:.1f} % | | | | |"
    yield f"| a step | {sum(map(len, at.values()))} | " + " | ".join(f"{step[threads]:,.0f}" for threads in o.threads) + " | | | | | |"
    yield "| times as fast as one thread | | " + " | ".join(f"{sum(map(alone, nodes[threads])) / step[threads]:.1f}" for threads in o.threads) + " | | | | | |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "bench-scaling"))
    for name, value in (("batch", 4), ("tokens", 512), ("steps", 6), ("at", 32)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--threads", default="2,8,32,96")
    parser.add_argument("--loop-us", type=float, default=5)
    parser.add_argument("--most", type=float, default=0.03)
    o = parser.parse_args()
    o.threads = sorted({o.at, *map(int, o.threads.split(","))})
    needs.check(needs.programs(o.build, ["ort-train"]), [] if o.model else needs.packages("", []))
    os.makedirs(o.work, exist_ok=True)
    model = o.model or os.path.join(o.work, "gpt2.onnx")
    if not os.path.exists(model):
        gpt2.call(modern_environment(o.work), "model", o.work, o.batch, o.tokens, o.steps)
    write_tokens(os.path.join(o.work, "tokens.bin"), o.batch * o.tokens, gpt2.VOCABULARY)
    nodes = {threads: nodes_with(o, model, threads) for threads in o.threads}
    for row in rows(o, nodes):
        print(row)
    # A loop's own microseconds are more than `most` of the small ones.
    large = [node for node in nodes[o.at] if alone(node) * o.most > max(1, node["tasks"]["loops"]) * o.loop_us * 1e-3]
    small = sum(together(o, node) for node in nodes[o.at]) - sum(together(o, node) for node in large)
    print(f"\n{len(nodes[o.at]) - len(large)} of {len(nodes[o.at])} nodes are small; together they take {small:.1f} ms with {o.at} threads")
    worst = sorted(((serial_share(node, o.at), node) for node in large), key=lambda pair: -pair[0])
    for share, node in worst[:3]:
        print(f"{node['op']} '{node['node']}' {node['result']}: {100 * share:.1f} % serial; tasks {node['tasks']}")
    above = sum(share > o.most for share, _ in worst)
    if above:
        sys.exit(f"{above} nodes have a serial share above {100 * o.most:g} % with {o.at} threads")


if __name__ == "__main__":
    main()
