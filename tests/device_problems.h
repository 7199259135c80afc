// Problems of large transformers on GPUs with pinned host memory and an NVMe, from shapes alone: no graph, no model, no device.
//
// A step: each layer forward, then each backward with its block computed again, as when activations are kept between layers only. Weights
// are bfloat16 on the device; float32 masters and Adam's two moments are the host's, which makes each layer's update when its gradient has
// come down. Everything moves in chunks of at most 64 MiB.

#pragma once

#include <string>
#include <vector>

#include "passes/plan/problem.h"

namespace ort_train::fixtures {

struct DeviceCase {
  std::string name;
  double above = 0;       // per cent, how far above the bound a plan may be: as it is now, with room for what a little rounding changes
  double parameters = 0;  // of all layers
  int layers = 0;
  int64_t width = 0, tokens = 0;             // a step's
  double flops = 0;                          // sustained, of the device
  double link = 0;                           // bytes per second, each way at once
  double host_rate = 0;                      // bytes of the host's memory per second, as its updates go
  int64_t device_bytes = 0, host_bytes = 0;  // what there is
  double disk_read = 0, disk_write = 0;
  int64_t state_bytes = 12;  // a parameter, on the host: masters and moments
};

const std::vector<DeviceCase>& device_cases();
planning::Problem problem_of(const DeviceCase& of);

}  // namespace ort_train::fixtures
