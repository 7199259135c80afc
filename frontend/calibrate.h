// How fast the processor multiplies matrices and moves memory: for the share of peak in reports, and for predicted times. Never for
// decisions that touch results.

#pragma once

#include <cstdint>
#include <functional>

#include "exec/cpu_device.h"

namespace ort_train {

// Sets the device's rates. Takes about so many `seconds`, and memory below `memory` bytes, which it gives back.
void measure_device(CpuDevice& device, int64_t memory, double seconds);

// Some milliseconds of what a job computes, in about `memory` bytes: a matrix product, and sweeps over memory. Refers to the device.
std::function<void()> sample_work(CpuDevice& device, int64_t memory);

}  // namespace ort_train
