"""Writes tests/golden/schedules.json: learning rates of transformers.get_scheduler, before each step.

    python golden_schedules.py [FILE]

A list of cases: `type`, `kwargs` (as text), `warmup` and `total` (steps), and `groups`, by the highest learning rate of a parameter group (the
first is the optimizer's own) the rates of each step. Cases with `losses` follow the loss: the rates are those after each evaluation.
tests/schedule_test.cpp reads it.
"""
import json, os, sys
import torch
from transformers import get_scheduler

RATES = (3e-4, 1e-3)
CASES = [
    ("linear", {}, 0, 10), ("linear", {}, 3, 10), ("linear", {}, 12, 10),
    ("cosine", {}, 0, 7), ("cosine", {}, 2, 9), ("cosine", dict(num_cycles=1.5), 3, 20),
    ("cosine_with_restarts", {}, 0, 9), ("cosine_with_restarts", dict(num_cycles=3), 4, 25), ("cosine_with_restarts", dict(num_cycles=2), 0, 8),
    ("cosine_with_min_lr", dict(min_lr=3e-5), 0, 9), ("cosine_with_min_lr", dict(min_lr_rate=0.25), 3, 14),
    ("cosine_with_min_lr", dict(min_lr_rate=0.1, num_cycles=1.0), 2, 12),
    ("cosine_warmup_with_min_lr", dict(min_lr=3e-5), 0, 9), ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.2), 4, 13),
    ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.0, warmup_lr_rate=0.3), 5, 12),
    ("constant", {}, 3, 5), ("constant_with_warmup", {}, 0, 4), ("constant_with_warmup", {}, 4, 8), ("constant_with_warmup", {}, 9, 6),
    ("polynomial", {}, 0, 8), ("polynomial", dict(power=2.0), 3, 11), ("polynomial", dict(lr_end=1e-5, power=0.5), 2, 10),
    ("inverse_sqrt", {}, 0, 6), ("inverse_sqrt", {}, 4, 20), ("inverse_sqrt", dict(timescale=7), 2, 15),
    ("warmup_stable_decay", dict(num_decay_steps=5), 0, 12), ("warmup_stable_decay", dict(num_decay_steps=6, decay_type="linear", min_lr_ratio=0.1), 4, 16),
    ("warmup_stable_decay", dict(num_decay_steps=4, warmup_type="cosine", decay_type="1-sqrt"), 5, 14),
    ("warmup_stable_decay", dict(num_decay_steps=4, num_stable_steps=3, warmup_type="1-sqrt", min_lr_ratio=0.05, num_cycles=0.4), 3, 14),
]
FALLING = [5.0, 4.0, 4.1, 3.9995, 4.2, 4.3, 3.0, 3.0, 3.1, 3.2, 2.9999, 3.3, 3.4, 3.5, 3.6, 3.7, 3.8, float("inf"), 2.0, 2.1, 2.2, 2.3, 2.4, 2.5]
PLATEAUS = [dict(patience=0, factor=0.5), dict(patience=1), dict(patience=2, factor=0.3, cooldown=2, min_lr=5e-5),
            dict(patience=1, threshold=0.15, threshold_mode="abs", factor=0.7), dict(patience=0, factor=0.5, eps=2e-5, threshold=0), {}]


def optimizer():
    return torch.optim.SGD([dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=rate) for rate in RATES], lr=RATES[0])


def text(kwargs):
    return {key: str(value) for key, value in kwargs.items()}


def main(path):
    cases = []
    for name, kwargs, warmup, total in CASES:
        opt = optimizer()
        schedule = get_scheduler(name, opt, warmup, total, scheduler_specific_kwargs=kwargs)
        rates = []
        for _ in range(total):
            rates.append(list(schedule.get_last_lr()))
            opt.step()
            schedule.step()
        cases.append(dict(type=name, kwargs=text(kwargs), warmup=warmup, total=total, groups=[dict(rate=r, rates=list(l)) for r, l in zip(RATES, zip(*rates))]))
    for kwargs in PLATEAUS:
        opt = optimizer()
        schedule = get_scheduler("reduce_lr_on_plateau", opt, scheduler_specific_kwargs=kwargs)
        rates = []
        for loss in FALLING:
            schedule.step(loss)
            rates.append([group["lr"] for group in opt.param_groups])
        losses = [loss if loss < float("inf") else None for loss in FALLING]  # JSON has no infinity
        cases.append(dict(type="reduce_lr_on_plateau", kwargs=text(kwargs), warmup=0, total=len(losses), losses=losses,
                          groups=[dict(rate=r, rates=list(l)) for r, l in zip(RATES, zip(*rates))]))
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "golden", "schedules.json"))
