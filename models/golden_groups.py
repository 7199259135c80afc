"""Writes tests/golden/groups.safetensors: models of tests/golden trained by torch.optim.AdamW with parameter groups and a schedule.

    python golden_groups.py [FILE]

For each case, named as the model: CASE/losses and CASE/learning_rates (of the first group) of 24 steps without shuffling, in float64, and
CASE/weights/INITIALIZER, what each initializer of the file is after them, in its layout. The metadata have the settings. The groups are stated
here by the parameters' names in PyTorch, as Hugging Face's users do, with what the names of layers mean spelled out.
tests/parameter_groups_test.cpp reads it, and says the same by `param_groups` and `layer_decay`.
"""
import fnmatch, json, os, re, sys
import numpy as np
import onnx
import torch
from safetensors.torch import load_file
from transformers import get_scheduler
from golden import CASES, save_sorted

STEPS, EPSILON, CLIP = 24, 1e-5, 1.0
HERE = os.path.dirname(os.path.abspath(__file__))


def by_pattern(name, parameter, rate):
    """The first that fits; weight decay 0.05 on the other matrices."""
    decay = 0.05 if parameter.dim() >= 2 else 0.0
    if fnmatch.fnmatchcase(name, "*.attn.*.bias"):
        return 2e-3, 0.1
    if fnmatch.fnmatchcase(name, "*ln_*"):
        return rate * 0.1, decay
    if fnmatch.fnmatchcase(name, "*.h.1.*"):
        return rate * 3, 0.0
    return rate, decay


def by_layer(name, parameter, rate):
    """BEiT's: embeddings are layer 0, the encoder's layers 1 and 2, the head is layer 3; LayerNorms by a group of their own."""
    if "LayerNorm.weight" in name:
        return 5e-4, 0.02
    layer = re.search(r"encoder\.layer\.(\d+)\.", name)
    depth = int(layer.group(1)) + 1 if layer else 0 if "embeddings" in name else 3
    return rate * 0.6 ** (3 - depth), 0.1 if parameter.dim() >= 2 else 0.0


# model: (groups, learning rate, schedule, its arguments, warm-up steps)
GROUPS = {
    "gpt2-dynamo-17-eager": (by_pattern, 1e-3, "cosine", {}, 4),
    "bert-dynamo-18-masked": (by_layer, 2e-3, "warmup_stable_decay", dict(num_decay_steps=8, decay_type="linear"), 3),
}


def places(graph, model):
    """Each initializer that holds a parameter: (its name, whether it is transposed)."""
    found, parameters = {}, {n: p.detach().float().numpy() for n, p in model.named_parameters()}
    for tensor in graph.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        if value.dtype != np.float32 or value.ndim == 0:
            continue
        for name, parameter in parameters.items():
            if value.shape == parameter.shape and np.array_equal(value, parameter):
                found.setdefault(tensor.name, []).append((name, False))
            elif value.ndim == 2 and value.shape == parameter.T.shape and np.array_equal(value, parameter.T):
                found.setdefault(tensor.name, []).append((name, True))
    if {name for list_ in found.values() for name, _ in list_} != set(parameters):
        raise SystemExit("the file doesn't hold the model's parameters: was it written with other versions?")
    for name, list_ in found.items():
        found[name] = next((pair for pair in list_ if pair[0] == name), list_[0])  # equal ones are told by their names
    return found


def write(name):
    groups, rate, schedule, arguments, warmup = GROUPS[name]
    folder = os.path.join(HERE, "..", "tests", "golden")
    model, _, _, loss, batch_size, _, _ = CASES[name](name)
    initializers = places(onnx.load(os.path.join(folder, name + ".onnx")), model)
    data = load_file(os.path.join(folder, name + ".data.safetensors"))
    samples = len(next(iter(data.values())))
    model.double()
    data = {k: v.double() if v.is_floating_point() else v for k, v in data.items()}
    rows = {}
    for key, parameter in model.named_parameters():
        rows.setdefault(groups(key, parameter, rate), []).append(parameter)
    rows = [dict(params=params, lr=lr, weight_decay=decay) for (lr, decay), params in rows.items()]
    optimizer = torch.optim.AdamW(rows, lr=rate, betas=(0.9, 0.999), eps=EPSILON)
    scheduler = get_scheduler(schedule, optimizer, warmup, STEPS, scheduler_specific_kwargs=arguments)
    base = next(i for i, row in enumerate(rows) if row["initial_lr"] == rate)
    losses, rates = [], []
    for step in range(STEPS):
        at = step * batch_size % samples
        optimizer.zero_grad()
        value, _ = loss(model, {k: v[at:at + batch_size] for k, v in data.items()})
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        losses.append(value.item())
        rates.append(scheduler.get_last_lr()[base])
        optimizer.step()
        scheduler.step()
    tensors = {f"{name}/losses": torch.tensor(losses, dtype=torch.float64), f"{name}/learning_rates": torch.tensor(rates, dtype=torch.float64)}
    for initializer, (key, transposed) in initializers.items():
        value = model.get_parameter(key).detach().float()
        tensors[f"{name}/weights/{initializer}"] = (value.T if transposed else value).contiguous()
    print(f"{name}: {len(rows)} groups, {len(initializers)} initializers, loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)
    settings = dict(learning_rate=rate, lr_scheduler_type=schedule, lr_scheduler_kwargs={k: str(v) for k, v in arguments.items()},
                    warmup_steps=warmup, batch_size=batch_size, adam_epsilon=EPSILON, max_grad_norm=CLIP, groups=len(rows))
    return tensors, settings


def main(path):
    torch.set_num_threads(1)
    tensors, metadata = {}, {}
    for name in GROUPS:
        these, settings = write(name)
        tensors.update(these)
        metadata[name] = json.dumps(settings)
    save_sorted(tensors, path, metadata)
    print(f"{path}: {os.path.getsize(path):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "tests", "golden", "groups.safetensors"))
