"""Writes tests/golden/nf4.safetensors: weights in 4 bits as bitsandbytes makes them.

    python golden_nf4.py [FILE]

numbers: 17,000 of them, with blocks beside thresholds, of tiny numbers and of zeros among them; codes: two a byte; scales: of each 64; scale_codes,
scale_scales, mean: the scales in 8 bits ("double quantization").
tests/weight_blocks_test.cpp reads it. Needs bitsandbytes (0.50.2), besides models/requirements.txt.
"""
import os, sys
import torch
import bitsandbytes.functional as F
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main():
    torch.manual_seed(3)
    code = F.get_4bit_type("nf4", device="cpu").float()
    between = (code[1:] + code[:-1]) / 2  # just beside: on them, its CPU and its GPU code round differently
    ties = torch.cat([between * (1 + 1e-5), torch.ones(1), between * (1 - 1e-5), torch.ones(1)])
    numbers = torch.cat([torch.randn(16000) * torch.logspace(-3, 1, 16000), ties.repeat(2), torch.randn(64) * 1e-30, torch.zeros(64), torch.randn(1000 - 64 * 3)])
    packed, state = F.quantize_4bit(numbers, blocksize=64, quant_type="nf4")
    _, double = F.quantize_4bit(numbers, blocksize=64, quant_type="nf4", compress_statistics=True)
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "golden", "nf4.safetensors")
    save_file({"numbers": numbers, "codes": packed.reshape(-1), "scales": state.absmax, "scale_codes": double.absmax, "scale_scales": double.state2.absmax, "mean": double.offset.reshape(1)},
              path)


if __name__ == "__main__":
    main()
