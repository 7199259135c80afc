// DeviceChoice: what a trainer computes on, and what of its way of computing depends on that. Inside the library: the options have names.

#pragma once

#include <cstdint>

namespace ort_train {

struct DeviceChoice {
  int64_t part_bytes = 0;  // that large weights are computed in parts of (passes/split_weights.h); 0: as the model's size says
};

}  // namespace ort_train
