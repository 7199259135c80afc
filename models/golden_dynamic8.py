"""Writes tests/golden/dynamic8.safetensors: optimizer state in 8 bits as bitsandbytes' CUDA kernels make it.

    python golden_dynamic8.py [FILE]

map/KIND is the map of codes (KIND: signed, unsigned) of bitsandbytes itself; numbers/KIND are numbers in whole blocks of 256, with ties
and tiny ones among them, codes/KIND and scales/KIND what the kernels' search and sign rule give for them (csrc/kernels.cu:
quantize_2D, kOptimizerStatic8bit2StateBlockwise), written in NumPy here because they need a GPU. adam/...: 20 steps of Adam so
(kOptimizerStatic8bit2StateBlockwise without weight decay), with what the parameters are after each.
tests/quantized_state_test.cpp reads it. Needs bitsandbytes (0.50.2), besides models/requirements.txt.
"""
import os, sys
import numpy as np
from bitsandbytes.functional import create_dynamic_map
from safetensors.numpy import save

BLOCK, STEPS = 256, 20
F = np.float32


def search(map_, x, signed):
    """quantize_2D: a binary search whose last pivot is even."""
    pivot, upper_pivot, lower_pivot = 127, 255, 0
    lower, upper, value = F(-1 if signed else 0), F(1), map_[127]
    step = 64
    while step > 0:
        if x > value:
            lower_pivot, lower = pivot, value
            pivot += step
        else:
            upper_pivot, upper = pivot, value
            pivot -= step
        value = map_[pivot]
        step >>= 1
    if x > value:
        return upper_pivot if x > F((upper + value) * F(0.5)) else pivot
    return lower_pivot if x < F((lower + value) * F(0.5)) else pivot


def quantize(map_, numbers, signed):
    scales = np.abs(numbers.reshape(-1, BLOCK)).max(1)
    codes = np.zeros(numbers.size, np.uint8)
    for i, x in enumerate(numbers):
        code = search(map_, F(x / scales[i // BLOCK]), signed)
        if signed and np.signbit(map_[code]) != np.signbit(x):
            code += 1 if x > 0 else -1
        codes[i] = code
    return codes, scales


def numbers_for(map_, signed, random):
    plain = random.standard_normal(BLOCK).astype(F)
    decades = (10 ** random.uniform(-8, 0, BLOCK) * random.choice([-1, 1], BLOCK)).astype(F)
    ties = np.concatenate([((map_[:-1] + map_[1:]) * F(0.5)), [F(1)]]).astype(F)
    near = np.nextafter(ties, F(2)).astype(F)
    near[-1] = F(1)
    all_ = np.concatenate([plain, decades, ties, near])
    return all_ if signed else np.abs(all_)


def adam(maps, starts, gradients, rate, beta1, beta2, epsilon):
    p, values = starts.copy(), []
    state = [(np.zeros(p.size, np.uint8), np.zeros(p.size // BLOCK, F)) for _ in range(2)]
    for step, g in enumerate(gradients, 1):
        m, v = (map_[codes] * np.repeat(scales, BLOCK) for map_, (codes, scales) in zip(maps, state))
        m = F(beta1) * m + F(1 - beta1) * g
        v = F(beta2) * v + F(1 - beta2) * g * g
        root = F(np.sqrt(1 - beta2**step))
        p = p + F(-rate / (1 - beta1**step)) * root * (m / (np.sqrt(v) + F(epsilon) * root))
        values.append(p.copy())
        state = [quantize(map_, x.astype(F), signed) for map_, x, signed in zip(maps, (m, v), (True, False))]
    return np.stack(values)


def main(path):
    random = np.random.default_rng(3)
    maps = [create_dynamic_map(signed=signed).numpy() for signed in (True, False)]
    tensors = {}
    for kind, map_, signed in zip(("signed", "unsigned"), maps, (True, False)):
        numbers = numbers_for(map_, signed, random)
        codes, scales = quantize(map_, numbers, signed)
        tensors |= {f"map/{kind}": map_, f"numbers/{kind}": numbers, f"codes/{kind}": codes, f"scales/{kind}": scales}
    starts = random.standard_normal(2 * BLOCK).astype(F)
    gradients = (random.standard_normal((STEPS, 2 * BLOCK)) * random.uniform(0.1, 1, 2 * BLOCK)).astype(F)
    tensors |= {"adam/start": starts, "adam/gradients": gradients, "adam/values": adam(maps, starts, gradients, 1e-2, 0.9, 0.999, 1e-8).astype(F)}
    content = save({key: np.ascontiguousarray(value) for key, value in tensors.items()})
    with open(path, "wb") as file:
        file.write(content)
    print(f"{path}: {len(content):,} bytes")


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "golden", "dynamic8.safetensors"))
