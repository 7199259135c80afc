// How fast this machine multiplies matrices and moves memory: for the share of peak in reports, and for predicted times. Never for
// decisions that touch results.

#pragma once

#include <cstdint>

#include "exec/workers.h"

namespace ort_train {

struct MachineRates {
  double flops = 0;             // of a float32 matrix product, a second
  double bytes_per_second = 0;  // read and written, of a loop that does little else
};

// Takes a tenth of a second, and memory below `memory` bytes, which it gives back.
MachineRates measure_machine(Workers& workers, int64_t memory);

}  // namespace ort_train
