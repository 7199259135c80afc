"""Writes tests/golden/optimizers.safetensors: parameters, gradients, and what the reference implementations make of them, step by step.

    python golden_optimizers.py [FILE]

For case OPTIMIZER/VARIANT the file's metadata hold the options (JSON; weight decay is on tensors of rank 2 and more), and the file for each tensor of the case (vector, matrix, kernels):
CASE/TENSOR/start, CASE/TENSOR/gradients and CASE/TENSOR/values (step first; values are those after each step), and CASE/TENSOR/state/NAME at
the end. CASE/learning_rates has the steps'. The references compute in float64 from these float32 numbers; the printed gap is that of their
own float32. transformers.Adafactor in the form of Hugging Face's Trainer: scale_parameter, relative_step and warmup_init off.
tests/optimizer_test.cpp reads it.
"""
import json, os, sys
import torch
from safetensors.torch import save
from transformers.optimization import Adafactor

STEPS = 24
SHAPES = {"vector": (13,), "matrix": (12, 10), "kernels": (4, 3, 3, 2)}
CASES = {
    "adafactor/plain": (dict(), 0.0, 1e-2),
    "adafactor/options": (dict(adafactor_decay_rate=-0.5, adafactor_clip_threshold=0.6, adafactor_epsilon=1e-8), 0.1, 3e-2),
}


def adafactor(parameters, options, weight_decay, rate):
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=weight_decay),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
    return Adafactor(groups, lr=rate, eps=(options.get("adafactor_epsilon", 1e-30), 1e-3), clip_threshold=options.get("adafactor_clip_threshold", 1.0),
                     decay_rate=options.get("adafactor_decay_rate", -0.8), scale_parameter=False, relative_step=False,
                     warmup_init=False)


def gradients(shape, generator):
    """Of changing size, so that some updates are clipped; a row or element is always zero."""
    all_ = torch.randn((STEPS, *shape), generator=generator) * torch.rand((1, *shape), generator=generator)
    all_[7] *= 30
    all_[15:18] *= 0.01
    all_[:, 1] = 0
    return all_


def run(starts, gradients_, options, weight_decay, rates, dtype):
    parameters = {name: torch.nn.Parameter(start.to(dtype, copy=True)) for name, start in starts.items()}
    optimizer = adafactor(list(parameters.values()), options, weight_decay, rates[0])
    values = {name: [] for name in starts}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = float(rates[step])
        for name, parameter in parameters.items():
            parameter.grad = gradients_[name][step].to(dtype)
        optimizer.step()
        for name, parameter in parameters.items():
            values[name].append(parameter.detach().clone())
    state = {name: {key: value for key, value in optimizer.state[parameter].items() if key.startswith("exp_avg")}
             for name, parameter in parameters.items()}
    return {name: torch.stack(list_) for name, list_ in values.items()}, state


def main(path):
    generator = torch.Generator().manual_seed(5)
    tensors, metadata = {}, {}
    for case, (options, weight_decay, rate) in CASES.items():
        starts = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        gradients_ = {name: gradients(shape, generator) for name, shape in SHAPES.items()}
        rates = torch.tensor([rate * (1 - step / (2 * STEPS)) for step in range(STEPS)], dtype=torch.float64)
        values, state = run(starts, gradients_, options, weight_decay, rates, torch.float64)
        rounded, _ = run(starts, gradients_, options, weight_decay, rates, torch.float32)
        gap = max(float((values[name] - rounded[name].double()).abs().max()) for name in SHAPES)
        print(f"{case}: float32 off by {gap:.1e}")
        metadata[case] = json.dumps(dict(weight_decay=weight_decay, options=options))
        tensors[f"{case}/learning_rates"] = rates
        for name in SHAPES:
            tensors[f"{case}/{name}/start"] = starts[name]
            tensors[f"{case}/{name}/gradients"] = gradients_[name]
            tensors[f"{case}/{name}/values"] = values[name].float()
            for key, value in state[name].items():
                tensors[f"{case}/{name}/state/{key}"] = value.float()
    content = save({key: value.contiguous() for key, value in tensors.items()}, dict(sorted(metadata.items())))
    with open(path, "wb") as file:
        file.write(content)
    print(f"{path}: {len(content):,} bytes")


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "golden", "optimizers.safetensors"))
