"""Where the memory of a training step goes, and what each technique saves: BERT-large, 512 tokens, batch 4, with a classification head.

    python3 tests/bench/anatomy.py [--build build] [--work build/anatomy] [--nvme FOLDER] [--steps 3] [--rows "vanilla; bf16"] [--size large] [--plan]
                                   [--peers | --no-peers]

Each row is the job with other options: the peak that is planned, by kind of tensor; the peak of the process that was measured; and how long a
step takes, predicted and measured. Rows marked "PyTorch" are PyTorch's training of the same weights on the same data, eager, with its AdamW
(bf16: CPU autocast; recompute: checkpoints of each layer); their peak is the process's. "documents" are the published figures of the same job on
a 16 GB V100, in MB of the device's memory, about 1,300 of them CUDA's own.

Says at once what it lacks; `make build-bench` builds what it runs. Makes a virtual environment with PyTorch below --work at the first run and
exports the model there. --plan makes the plans and trains nothing. Prints one line of JSON a row, then the table. Exits 1 where a process takes
more than its plan says, or where the first step's loss is further from PyTorch's than 1e-4 (rows with 16-bit numbers: 1e-2); never because of a time.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import needs
from runs import ROOT, modern_environment, plan, sh, table, train

BATCH, TOKENS, LABELS = 4, 512, 2
ACCUMULATE = ["--batch-size", "1", "--gradient-accumulation-steps", "4"]
RECOMPUTE = ["--recompute", "sqrt"]
ROWS = {  # name: (options, the documents' MB, the documents' samples a second)
    "vanilla": ([], 14949, 8.86),
    "accumulation 1 x 4": (ACCUMULATE, 8681, 7.75),
    "accumulation, recompute": (ACCUMULATE + RECOMPUTE, 6775, 5.99),
    "bf16": (["--bf16"], 13939, 18.64),
    "accumulation, recompute, bf16": (ACCUMULATE + RECOMPUTE + ["--bf16"], 7275, 10.09),
    "… + Adafactor": (ACCUMULATE + RECOMPUTE + ["--bf16", "--optim", "adafactor"], 4847, 9.06),
    "… + 8-bit AdamW": (ACCUMULATE + RECOMPUTE + ["--bf16", "--optim", "adamw_8bit"], 5363, 10.35),
    "bf16, recompute, 8-bit AdamW, no gradient kept": (RECOMPUTE + ["--bf16", "--optim", "adamw_8bit", "--clip-per-layer"], None, None),
    "the same, weights bfloat16": (RECOMPUTE + ["--bf16-full", "--optim", "adamw_8bit", "--clip-per-layer"], None, None),
    "the same in 1.2 GB, and a disk": (RECOMPUTE + ["--bf16-full", "--optim", "adamw_8bit", "--clip-per-layer", "--budget", "1200MB"], None, None),
    "bf16, 8-bit AdamW in 800 MB, and a disk": (["--bf16", "--optim", "adamw_8bit", "--clip-per-layer", "--budget", "800MB"], None, None),
}
PEERS = {  # name: (recompute, low)
    "PyTorch": (False, False), "PyTorch, recompute": (True, False), "PyTorch, bf16": (False, True),
    "PyTorch, recompute, bf16": (True, True)}
SIZES = ("tiny", "mini", "small", "base", "large")  # of models/export_bert.py
KINDS = ("weights", "gradients", "optimizer", "activations", "workspace")


# --- run inside the environment ---------------------------------------------------------------------------------------------------------

def bert(size):
    sys.path.insert(0, os.path.join(ROOT, "models"))
    import export_bert
    return export_bert, export_bert.build(*export_bert.SIZES[size], head="classification", labels=LABELS, attention="sdpa")


def export(work, size):
    """The model for ort-train, its weights for PyTorch, and the data of one batch, which every step repeats."""
    import numpy as np
    import torch
    exporter, model = bert(size)
    exporter.export(model, os.path.join(work, f"bert-{size}.onnx"), "dynamo", 20)
    torch.save(model.state_dict(), os.path.join(work, f"bert-{size}.pt"))
    numbers = np.random.default_rng(0)
    ids = numbers.integers(1, model.config.vocab_size, (BATCH, TOKENS))
    np.savez(os.path.join(work, "data.npz"), input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids),
             labels=numbers.integers(0, LABELS, BATCH))


def run_torch(work, size, steps, recompute, low):
    import resource
    import numpy as np
    import torch
    torch.set_num_threads(os.cpu_count())
    _, model = bert(size)
    model.load_state_dict(torch.load(os.path.join(work, f"bert-{size}.pt")))
    model.train()
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0, fused=True)
    data = {name: torch.from_numpy(values) for name, values in np.load(os.path.join(work, "data.npz")).items()}
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = model(**data).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    print(json.dumps(dict(losses=losses, ms=1e3 * statistics.median(seconds[1:] or seconds),
                          rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)))


# --- run outside ------------------------------------------------------------------------------------------------------------------------

def disk(o):
    return o.nvme or os.path.join(o.work, "disk")


def command(o, options):
    given = ["--batch-size", str(BATCH)] + options
    if "--budget" in options:
        given += ["--nvme-path", disk(o)]
    return [os.path.join(o.build, "ort-train"), os.path.join(o.work, f"bert-{o.size}.onnx"), "--data", os.path.join(o.work, "data.npz"), "--shape",
            f"sequence={TOKENS}", "--learning-rate", "1e-5", "--lr-scheduler-type", "constant", "--max-steps", str(o.steps), "--no-shuffle",
            "--save-steps", "0", "--overwrite", "--output-dir", os.path.join(o.work, "out"), "--profile", os.path.join(o.work, "machine.json"), *given]


def ours(o, name):
    options, documents, _ = ROWS[name]
    made = plan(command(o, options), o.work)
    peak = made["peak"]
    line = dict(row=name, documents_mb=documents, planned_mb=peak["total"] / 1e6, predicted_ms=made["predicted_ms_per_step"],
                **{f"{kind}_mb": peak.get(kind, 0) / 1e6 for kind in KINDS}, minimum_mb=made["minimum_budget_bytes"] / 1e6)
    if not o.plan:
        steps, summary, _, stolen = train(command(o, options), o.work)
        line.update(losses=[step["loss"] for step in steps], ms=statistics.median([step["ms"] for step in steps][1:] or [steps[0]["ms"]]),
                    rss_mb=summary["rss_peak_bytes"] / 1e6, stolen=stolen)
    return line


def peer(o, python, name):
    recompute, low = PEERS[name]
    out = sh(python, os.path.abspath(__file__), "--inside", "torch", "--work", o.work, "--size", o.size, "--steps", str(o.steps),
             *(["--recompute"] if recompute else []), *(["--low"] if low else []), capture_output=True, text=True).stdout
    return dict(row=name, **json.loads([line for line in out.splitlines() if line.startswith("{")][-1]))


def is_low(name):
    return PEERS[name][1] if name in PEERS else any(option.startswith("--bf16") for option in ROWS[name][0])


def disagreements(lines):
    """Sentences; the first float32 row of PyTorch, else of ours, is what the others are compared with."""
    trained = [line for line in lines if "losses" in line]
    reference = next((line for line in trained if line["row"] == "PyTorch"), trained[0] if trained else None)
    for line in trained:
        bound = 1e-2 if is_low(line["row"]) else 1e-4
        difference = abs(line["losses"][0] - reference["losses"][0])
        if not difference <= bound:
            yield f"{line['row']}: the first loss is {line['losses'][0]:.6f}, that of {reference['row']} {reference['losses'][0]:.6f}"
        if "planned_mb" in line and line["rss_mb"] > line["planned_mb"]:
            yield f"{line['row']}: the process took {line['rss_mb']:.0f} MB, planned were {line['planned_mb']:.0f}"


def show(lines):
    number = lambda line, key, digits=0: f"{line[key]:,.{digits}f}" if line.get(key) is not None else "-"
    rows = [["MB, at the planned peak", *KINDS, "planned", "measured", "documents", "ms a step", "predicted"]]
    for line in lines:
        rows.append([line["row"], *(number(line, f"{kind}_mb") for kind in KINDS), number(line, "planned_mb"), number(line, "rss_mb"),
                     number(line, "documents_mb"), number(line, "ms"), number(line, "predicted_ms")])
    print()
    table(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "anatomy"))
    parser.add_argument("--nvme", help="folder on the disk that streamed rows use")
    parser.add_argument("--size", default="large", choices=SIZES)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", help="some of: " + "; ".join([*ROWS, *PEERS]) + " (with semicolons between them)")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--inside", choices=("export", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--recompute", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--low", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.inside == "export":
        return export(o.work, o.size)
    if o.inside == "torch":
        return run_torch(o.work, o.size, o.steps, o.recompute, o.low)

    chosen = [name.strip() for name in o.rows.split(";")] if o.rows else [*ROWS, *(PEERS if o.peers and not o.plan else ())]
    needs.check(needs.choices("--rows", chosen, [*ROWS, *PEERS]), needs.programs(o.build, ["ort-train"]), needs.packages("", []),
                needs.space(o.work, 8e9 if not os.path.exists(os.path.join(o.work, "modern", "complete")) else 5e9))
    for folder in (o.work, disk(o)):
        os.makedirs(folder, exist_ok=True)
    python = modern_environment(o.work)
    made_for = os.path.join(o.work, f"exported-{o.size}")
    if not os.path.exists(made_for):
        sh(python, os.path.abspath(__file__), "--inside", "export", "--work", o.work, "--size", o.size, stdout=subprocess.DEVNULL)
        open(made_for, "w").close()
    lines = []
    for name in chosen:
        lines.append(ours(o, name) if name in ROWS else peer(o, python, name))
        print(json.dumps(lines[-1]), flush=True)
    show(lines)
    problems = list(disagreements(lines))
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
