"""What no plan can beat: the lower bound of one optimizer step, from measured rates and counted bytes.

    python3 tests/bench/bounds.py --compute-ms 420 --read 1.2e9 --written 1.2e9 --read-rate 2.9e9 --write-rate 5.0e9
    python3 tests/bench/bounds.py --parameters 124e6 --tokens 256 --flops 440e9 --arena 1.2e9 --read-rate 2.9e9 --write-rate 5.0e9

With P parameters, N tokens an optimizer step and F sustained FLOP/s,

    step >= max(compute, channels)        one disk does one after the other, so that reading and writing add up:
    channels = read / B_read + written / B_write
    compute  = 6 P N / F + attention      forward 2 P N, backward twice that (8 instead of 6 where everything is computed again), and
               + 28 P / B_dram            AdamW's traffic in memory: weight, gradient, m and v read, weight, m and v written, float32;
                                          or what was measured: the time of a step that has everything in memory, updates included

and a fill and drain of one transfer at each end, left out here. The bytes are those that a plan moves, or those that any plan has to move:
AdamW changes weight, m and v of each parameter in each step (12 bytes), and of these an arena of A bytes holds A at most from one step to the
next, so that

    read >= 12 P - A,  written >= 12 P - A

(gradients and activations need not leave memory: they can be consumed or computed again). Prints one line of JSON; imports nothing.
"""
import argparse
import json

STATE_BYTES = 12  # of a parameter: weight, m, v in float32
ADAMW_TRAFFIC = 28


def compute_seconds(parameters, tokens, flops, memory_rate=0, recompute=False, attention_flops=0):
    """By the formula; a measured time is better."""
    products = (8 if recompute else 6) * parameters * tokens + attention_flops
    return products / flops + (ADAMW_TRAFFIC * parameters / memory_rate if memory_rate else 0)


def channel_seconds(read, written, read_rate, write_rate):
    return read / read_rate + written / write_rate


def forced_bytes(parameters, arena):
    """What any plan reads a step, and writes, with an arena of so many bytes."""
    return max(0, STATE_BYTES * parameters - arena)


def bound_seconds(compute, read, written, read_rate, write_rate):
    return max(compute, channel_seconds(read, written, read_rate, write_rate))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("compute-ms", "parameters", "tokens", "flops", "memory-rate", "arena", "read", "written"):
        parser.add_argument("--" + name, type=float)
    parser.add_argument("--read-rate", type=float, required=True, help="bytes a second")
    parser.add_argument("--write-rate", type=float, required=True)
    o = parser.parse_args()
    if o.compute_ms is None and None in (o.parameters, o.tokens, o.flops):
        parser.error("give --compute-ms, or --parameters, --tokens and --flops")
    if o.read is None and None in (o.parameters, o.arena):
        parser.error("give --read and --written, or --parameters and --arena")
    compute = o.compute_ms / 1e3 if o.compute_ms is not None else compute_seconds(o.parameters, o.tokens, o.flops, o.memory_rate or 0)
    read = o.read if o.read is not None else forced_bytes(o.parameters, o.arena)
    written = o.written if o.written is not None else read
    channels = channel_seconds(read, written, o.read_rate, o.write_rate)
    print(json.dumps(dict(compute_ms=round(1e3 * compute, 2), channels_ms=round(1e3 * channels, 2), read=int(read), written=int(written),
                          bound_ms=round(1e3 * bound_seconds(compute, read, written, o.read_rate, o.write_rate), 2),
                          bound_by="compute" if compute >= channels else "disk")))


if __name__ == "__main__":
    main()
