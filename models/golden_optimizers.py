"""Writes tests/golden/optimizers.safetensors: parameters, gradients, and what the reference implementations make of them, step by step.

    python golden_optimizers.py [FILE]

All cases begin from the same three tensors (vector, matrix, kernels): TENSOR/start, and get the same gradients: TENSOR/gradients (step first).
For case OPTIMIZER/VARIANT the file's metadata hold the options (JSON; weight decay is on tensors of rank 2 and more), and the file
CASE/learning_rates, for each tensor CASE/TENSOR/values (those after the steps SHOWN, in this order) and CASE/TENSOR/state/NAME at the end.
The references compute in float64 from float32 numbers; the printed gap is that of their own float32.

torch.optim has adamw, adam, sgd, adagrad, rmsprop and adafactor_torch; adafactor is that of transformers, by default in the form of Hugging Face's
Trainer (scale_parameter, relative_step and warmup_init off). Lion is that of github.com/google/automl (lion_pytorch.py),
LAMB apex.optimizers.FusedLAMB without its clipping (csrc/multi_tensor_lamb.cu), LARS algorithm 1 of arXiv 1708.03888. tests/optimizer_test.cpp reads the file.
"""
import json, os, sys
import torch
from safetensors.torch import save
from transformers.optimization import Adafactor

STEPS = 24
SHOWN = (1, 2, 3, 8, 16, 24)  # kShown in tests/optimizer_test.cpp
SHAPES = {"vector": (13,), "matrix": (12, 10), "kernels": (4, 3, 3, 2)}
# What torch.optim.Adafactor calls what transformers' has, with an axis of 1 more.
STATES = {"row_var": "exp_avg_sq_row", "col_var": "exp_avg_sq_col", "variance": "exp_avg_sq"}
DROPPED = {"row_var": -1, "col_var": -2}
# options, weight decay, the highest learning rate
CASES = {
    "adafactor/plain": (dict(), 0.0, 1e-2),
    "adafactor/options": (dict(adafactor_decay_rate=-0.5, adafactor_clip_threshold=0.6, adafactor_epsilon=1e-8), 0.1, 3e-2),
    "adafactor/mean": (dict(adafactor_beta1=0.9), 0.1, 1e-2),
    "adafactor/scaled": (dict(adafactor_scale_parameter=1, adafactor_scale_epsilon=0.5), 0.1, 1e-2),
    "adafactor/relative": (dict(adafactor_scale_parameter=1, adafactor_relative_step=1), 0.0, 1e-2),
    "adafactor/relative, warm-up": (dict(adafactor_relative_step=1, adafactor_warmup_init=1, adafactor_beta1=0.5), 0.1, 1e-2),
    "adafactor_torch/plain": (dict(), 0.0, 1e-2),
    "adafactor_torch/options": (dict(adafactor_decay_rate=-0.5, adafactor_clip_threshold=1.5, adafactor_epsilon=0.1, adafactor_scale_epsilon=0.5), 0.1,
                                3e-1),
    "adagrad/plain": (dict(), 0.0, 1e-2),
    "adagrad/options": (dict(adagrad_lr_decay=0.1, adagrad_initial_accumulator_value=0.2, adagrad_epsilon=1e-6), 0.1, 1e-1),
    "adam/plain": (dict(), 0.0, 1e-3),
    "adam/options": (dict(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-4), 0.1, 1e-2),
    "adamw/plain": (dict(), 0.0, 1e-3),
    "adamw/options": (dict(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-4), 0.1, 1e-2),
    "lamb/plain": (dict(), 0.0, 1e-3),
    "lamb/options": (dict(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-4, lamb_use_nvlamb=1), 0.1, 1e-2),
    "lamb/uncorrected": (dict(lamb_bias_correction=0, lamb_grad_averaging=0), 0.1, 1e-3),
    "lars/plain": (dict(), 0.1, 3e-2),
    "lars/options": (dict(momentum=0, lars_trust_coefficient=0.02, lars_epsilon=0.1), 0.0, 1e-1),
    "lion/plain": (dict(), 0.0, 1e-3),
    "lion/options": (dict(adam_beta1=0.95, adam_beta2=0.98), 0.3, 1e-2),
    "rmsprop/plain": (dict(), 0.0, 1e-3),
    "rmsprop/options": (dict(rmsprop_alpha=0.9, rmsprop_epsilon=1e-4), 0.1, 1e-2),
    "rmsprop/momentum": (dict(momentum=0.9), 0.1, 1e-3),
    "rmsprop/centered": (dict(rmsprop_centered=1), 0.1, 1e-3),
    "rmsprop/centered momentum": (dict(rmsprop_centered=1, momentum=0.8), 0.1, 1e-3),
    "sgd/plain": (dict(), 0.1, 1e-2),
    "sgd/momentum": (dict(momentum=0.9), 0.1, 1e-2),
    "sgd/dampening": (dict(momentum=0.9, dampening=0.3), 0.1, 1e-2),
    "sgd/nesterov": (dict(momentum=0.9, nesterov=1), 0.1, 1e-2),
}


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas):
        super().__init__(groups, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.add_(torch.sign(m * beta1 + p.grad * (1 - beta1)), alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):
    """apex leaves the trust ratio out where weight decay is 0, which is in training that of tensors of rank 0 and 1."""

    def __init__(self, groups, lr, betas, eps, bias_correction, grad_averaging, use_nvlamb):
        super().__init__(groups, dict(lr=lr, betas=betas, eps=eps))
        self.bias_correction, self.grad_averaging, self.use_nvlamb, self.t = bias_correction, grad_averaging, use_nvlamb, 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            beta3 = 1 - beta1 if self.grad_averaging else 1
            bias1, bias2 = (1 - beta1 ** self.t, 1 - beta2 ** self.t) if self.bias_correction else (1, 1)
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                v = self.state[p].setdefault("exp_avg_sq", torch.zeros_like(p))
                m.mul_(beta1).add_(p.grad, alpha=beta3)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                u = (m / bias1) / ((v / bias2).sqrt() + group["eps"]) + group["weight_decay"] * p
                ratio, p_norm, u_norm = 1.0, p.norm(), u.norm()
                if (p.dim() >= 2 or self.use_nvlamb) and p_norm != 0 and u_norm != 0:
                    ratio = p_norm / u_norm
                p.sub_(group["lr"] * ratio * u)


class Lars(torch.optim.Optimizer):
    def __init__(self, groups, lr, momentum, trust_coefficient, eps):
        super().__init__(groups, dict(lr=lr, momentum=momentum, trust_coefficient=trust_coefficient, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                ratio, p_norm, g_norm = 1.0, p.norm(), p.grad.norm()
                if p.dim() >= 2 and p_norm != 0 and g_norm != 0:
                    ratio = group["trust_coefficient"] * p_norm / (g_norm + group["weight_decay"] * p_norm + group["eps"])
                change = group["lr"] * ratio * (p.grad + group["weight_decay"] * p)
                if group["momentum"] != 0:
                    change = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)).mul_(group["momentum"]).add_(change)
                p.sub_(change)


def reference(name, groups, rate, options):
    def adams(epsilon=1e-8, beta2=0.999):
        return dict(lr=rate, betas=(options.get("adam_beta1", 0.9), options.get("adam_beta2", beta2)), eps=options.get("adam_epsilon", epsilon))

    if name == "adafactor":
        relative = bool(options.get("adafactor_relative_step", 0))
        return Adafactor(groups, lr=None if relative else rate, eps=(options.get("adafactor_epsilon", 1e-30), options.get("adafactor_scale_epsilon", 1e-3)),
                         clip_threshold=options.get("adafactor_clip_threshold", 1.0), decay_rate=options.get("adafactor_decay_rate", -0.8),
                         beta1=options.get("adafactor_beta1"), scale_parameter=bool(options.get("adafactor_scale_parameter", 0)), relative_step=relative,
                         warmup_init=bool(options.get("adafactor_warmup_init", 0)))
    if name == "adafactor_torch":  # the default epsilon is float32's in float64, too
        return torch.optim.Adafactor(groups, lr=rate, beta2_decay=options.get("adafactor_decay_rate", -0.8), d=options.get("adafactor_clip_threshold", 1.0),
                                     eps=(options.get("adafactor_epsilon", 2.0 ** -23), options.get("adafactor_scale_epsilon", 1e-3)))
    if name == "adagrad":
        return torch.optim.Adagrad(groups, lr=rate, **{key.removeprefix("adagrad_").replace("epsilon", "eps"): value for key, value in options.items()})
    if name == "adam":
        return torch.optim.Adam(groups, **adams())
    if name == "adamw":
        return torch.optim.AdamW(groups, **adams())
    if name == "lamb":
        return Lamb(groups, **adams(epsilon=1e-6), bias_correction=options.get("lamb_bias_correction", 1),
                    grad_averaging=options.get("lamb_grad_averaging", 1), use_nvlamb=options.get("lamb_use_nvlamb", 0))
    if name == "lars":
        return Lars(groups, lr=rate, momentum=options.get("momentum", 0.9), trust_coefficient=options.get("lars_trust_coefficient", 0.001),
                    eps=options.get("lars_epsilon", 1e-8))
    if name == "lion":
        return Lion(groups, lr=rate, betas=adams(beta2=0.99)["betas"])
    if name == "rmsprop":
        return torch.optim.RMSprop(groups, lr=rate, **{key.removeprefix("rmsprop_").replace("epsilon", "eps"): value for key, value in options.items()})
    if name == "sgd":
        return torch.optim.SGD(groups, lr=rate, **options)


def gradients(shape, generator):
    """Of changing size, so that some updates are clipped; a row or element is always zero."""
    all_ = torch.randn((STEPS, *shape), generator=generator) * torch.rand((1, *shape), generator=generator)
    all_[7] *= 30
    all_[15:18] *= 0.01
    all_[:, 1] = 0
    return all_


def run(case, starts, gradients_, rates, dtype):
    """What each parameter is after the steps SHOWN, and its state at the end."""
    options, weight_decay, _ = CASES[case]
    parameters = {name: torch.nn.Parameter(start.to(dtype, copy=True)) for name, start in starts.items()}
    groups = [dict(params=[p for p in parameters.values() if p.dim() >= 2], weight_decay=weight_decay),
              dict(params=[p for p in parameters.values() if p.dim() < 2], weight_decay=0.0)]
    optimizer = reference(case.split("/")[0], groups, float(rates[0]), options)
    values = {name: [] for name in starts}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = float(rates[step])
        for name, parameter in parameters.items():
            parameter.grad = gradients_[name][step].to(dtype)
        optimizer.step()
        if step + 1 in SHOWN:
            for name, parameter in parameters.items():
                values[name].append(parameter.detach().clone())
    state = {name: {STATES.get(key, key): value.squeeze(DROPPED[key]) if key in DROPPED else value
                    for key, value in optimizer.state[parameter].items() if torch.is_tensor(value) and key not in ("step", "RMS")}
             for name, parameter in parameters.items()}
    return {name: torch.stack(list_) for name, list_ in values.items()}, state


def main(path):
    generator = torch.Generator().manual_seed(5)
    starts = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    gradients_ = {name: gradients(shape, generator) for name, shape in SHAPES.items()}
    tensors, metadata = {}, {}
    for name in SHAPES:
        tensors[f"{name}/start"] = starts[name]
        tensors[f"{name}/gradients"] = gradients_[name]
    for case, (options, weight_decay, rate) in CASES.items():
        rates = torch.tensor([rate * (1 - step / (2 * STEPS)) for step in range(STEPS)], dtype=torch.float64)
        values, state = run(case, starts, gradients_, rates, torch.float64)
        rounded, _ = run(case, starts, gradients_, rates, torch.float32)
        gap = max(float((values[name] - rounded[name].double()).abs().max()) for name in SHAPES)
        print(f"{case}: float32 off by {gap:.1e}")
        metadata[case] = json.dumps(dict(weight_decay=weight_decay, options=options))
        tensors[f"{case}/learning_rates"] = rates
        for name in SHAPES:
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
