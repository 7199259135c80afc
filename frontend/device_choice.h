// DeviceChoice: what a trainer computes on, and what of its way of computing depends on that. Inside the library: the options have names.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/algorithms.h"
#include "exec/device.h"
#include "passes/plan.h"

namespace ort_train {

struct DeviceChoice {
  int64_t part_bytes = 0;  // that large weights are computed in parts of (passes/split_weights.h); 0: as the model's size says
  const KernelTable* kernels = nullptr;  // that the device computes with; null: the processor's
  // A device with memory of its own, for a program in three spaces; null: the processor, whose memory is the host's.
  std::function<std::unique_ptr<Device>(const Program&, const std::vector<const Graph*>&)> make = nullptr;
  DeviceMemories memories{};  // what it has, in place of the options' budgets
  int64_t reserve = 0;        // bytes of the device's memory that no program has: its context, the kernels' code
  int64_t page = 1;           // bytes that the device's memory is given out in
  int64_t mapping = 0;        // bytes of the host's memory that each byte of page tables in the device's maps; 0: there are none in it
  std::string name{};         // for people
  // Of products of 16 bits, where libraries make them: by which algorithms, and what Device::makes_products() says. Null: there are none.
  AlgorithmTable* algorithms = nullptr;
  std::string makes_products{};
};

}  // namespace ort_train
