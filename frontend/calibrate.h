// How fast this machine multiplies matrices and moves memory: for the share of peak in reports, and for predicted times. Never for
// decisions that touch results.

#pragma once

#include <cstdint>
#include <functional>

#include "exec/workers.h"
#include "passes/cost.h"

namespace ort_train {

// Takes about so many `seconds`, and memory below `memory` bytes, which it gives back.
ComputeRates measure_machine(Workers& workers, int64_t memory, double seconds);

// Some milliseconds of what a job computes, in about `memory` bytes: a matrix product, and sweeps over memory. Refers to the workers.
std::function<void()> sample_work(Workers& workers, int64_t memory);

}  // namespace ort_train
