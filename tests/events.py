"""TensorBoard itself reads what a run writes for it, where it is installed."""
import json

import pytest

from program import CHAR_GPT, TEXT, log, nominal_machine, run


def test_tensorboard_reads_a_resumed_run(tmp_path, tmp_path_factory):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed")
    job = [CHAR_GPT, "--data", TEXT, "--task", "causal-lm", "--seq-length", 16, "--eval-steps", 2, "--eval-batches", 1, "--save-steps", 1,
           "--save-total-limit", 9, "--profile", nominal_machine(tmp_path_factory.getbasetemp()), "--sample-length", 0, "--log-file", "log.jsonl",
           "--logging-dir", "runs"]
    run(tmp_path, *job, "--max-steps", 5)
    # From an earlier step, to another end: what the first run has beyond that step isn't shown any more.
    run(tmp_path, *job, "--max-steps", 8, "--resume-from-checkpoint", "out/checkpoint-3", "--overwrite")
    assert len(list((tmp_path / "runs").iterdir())) == 2
    shown = accumulators.EventAccumulator(str(tmp_path / "runs"))
    shown.Reload()
    assert set(shown.Tags()["scalars"]) == {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "train/tokens_per_second",
                                            "train/memory_bytes", "eval/loss"}
    lines, summary = log(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 9)), json.dumps(summary)
    for tag, key in ("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/learning_rate", "learning_rate"), ("eval/loss", "eval_loss"):
        points = [(event.step, event.value) for event in shown.Scalars(tag)]
        logged = [(line["step"], line[key]) for line in lines if key in line]
        assert [step for step, _ in points] == [step for step, _ in logged], tag
        assert [value for _, value in points] == pytest.approx([value for _, value in logged], rel=1e-6), tag
