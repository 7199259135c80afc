// How fast this machine is: measured, or as a profile file has it from an earlier run. Rates steer plans, never results.

#pragma once

#include <optional>
#include <string>

#include "exec/cpu_device.h"
#include "frontend/note.h"
#include "frontend/ort_train.h"
#include "offload/calibration.h"
#include "passes/stream.h"

namespace ort_train {

class MachineRates {
 public:
  // All three outlive it.
  MachineRates(const Options& options, CpuDevice& device, const Note& note) : options_(options), device_(device), note_(note) {}

  // Sets the device's rates, in at most `memory` bytes, which it gives back.
  void measure_processor(int64_t memory);
  // The disk of Options::nvme_path, in `memory` bytes. Throws Error(io).
  void measure_disk(int64_t memory);

  // Of the device that most is computed on.
  const ComputeRates& compute() const { return gpu_compute_ ? *gpu_compute_ : device_.rates; }
  const ComputeRates& processor() const { return device_.rates; }
  void compute_on_gpu(const ComputeRates& rates) { gpu_compute_ = rates; }
  const DiskRates& disk() const { return disk_; }  // zero where there is none
  StreamRates stream() const;

 private:
  void keep_profile() const;

  const Options& options_;
  CpuDevice& device_;
  std::optional<ComputeRates> gpu_compute_;
  const Note& note_;
  MachineProfile profile_;
  DiskRates disk_;
};

}  // namespace ort_train
