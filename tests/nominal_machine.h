// A profile that says of this machine and of the disk of a folder what a usual machine does: what a test expects of a plan must not hang on
// how fast, or how busy, the machine is on which it runs.

#pragma once

#include <algorithm>
#include <string>
#include <thread>

#include "offload/calibration.h"
#include "tests/test_files.h"

namespace ort_train {

inline std::string nominal_machine(const TestFolder& folder) {
  MachineProfile profile;
  for (int threads = 1; threads <= std::max(8, static_cast<int>(std::thread::hardware_concurrency())); ++threads) {
    profile.processor[threads] = {.flops = 1e11, .element_flops = 3e10, .bytes_per_second = 3e10, .far_bytes_per_second = 2e10};
    profile.disks[disk_key(folder.path, threads)] = {.read = 3e9,
                                                     .write = 3e9,
                                                     .while_computing = 0.9,
                                                     .compute_lost = 0.05,
                                                     .read_latency = 1e-4,
                                                     .write_latency = 1e-4,
                                                     .block_bytes = int64_t{1} << 20,
                                                     .depth = 8,
                                                     .buffer_bytes = int64_t{64} << 20};
  }
  std::string path = folder / "machine.json";
  save_profile(path, profile);
  return path;
}

}  // namespace ort_train
