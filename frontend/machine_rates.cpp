#include "frontend/machine_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "exec/pages.h"
#include "frontend/calibrate.h"
#include "frontend/file.h"
#include "frontend/machine.h"
#include "frontend/run_disk.h"
#include "graph/error.h"

namespace ort_train {

void MachineRates::measure_processor(int64_t memory) {
  memory = std::max(std::min(memory, available_memory() / 2), kPage);  // where the job's own doesn't fit, a sentence says so later
  if (!options_.profile.empty() && !options_.recalibrate) profile_ = load_profile(options_.profile).value_or(MachineProfile{});
  const int threads = device_.workers().threads();
  if (const auto known = profile_.processor.find(threads); known != profile_.processor.end() && known->second.flops > 0) {
    const ProcessorRates& rates = known->second;
    device_.rates = {.flops = rates.flops,
                     .element_flops = rates.element_flops,
                     .bytes_per_second = rates.bytes_per_second,
                     .far_bytes_per_second = rates.far_bytes_per_second};
    return;
  }
  constexpr int64_t kEnough = int64_t{64} << 20;  // in less, everything is in the cache: no figure to remember
  constexpr double kKept = 1.5, kOnce = 0.2;      // seconds for figures to remember, or for this run alone
  const bool is_kept = !options_.profile.empty() && memory >= kEnough;
  measure_device(device_, memory, is_kept ? kKept : kOnce);
  if (!is_kept) return;
  profile_.processor[threads] = {.flops = device_.rates.flops,
                                 .element_flops = device_.rates.element_flops,
                                 .bytes_per_second = device_.rates.bytes_per_second,
                                 .far_bytes_per_second = device_.rates.far_bytes_per_second};
  keep_profile();
}

void MachineRates::measure_disk(int64_t memory) {
  const std::string key = disk_key(options_.nvme_path, device_.workers().threads());
  constexpr int64_t kMB = int64_t{1} << 20;
  DiskTrial trial;
  // Within the budgets, and within half of what a small disk has left.
  trial.buffer_bytes = std::clamp<int64_t>(memory / 2, kSector, trial.buffer_bytes);
  auto known = profile_.disks.find(key);
  if (known == profile_.disks.end() || known->second.buffer_bytes < trial.buffer_bytes / 2) {
    note_(fmt::format("measuring the disk of {} (a few seconds)", options_.nvme_path));
    const std::filesystem::space_info space = std::filesystem::space(options_.nvme_path);
    int64_t most = static_cast<int64_t>(space.available) / 2;
    if (options_.nvme_budget > 0) most = std::min(most, options_.nvme_budget - state_before(options_).held());
    trial.file_bytes = std::clamp<int64_t>(most / kMB * kMB, kMB, trial.file_bytes);
    trial.work = sample_work(device_, memory - trial.buffer_bytes);
    known = profile_.disks.insert_or_assign(key, ort_train::measure_disk(options_.nvme_path, trial)).first;
    keep_profile();
  }
  disk_ = known->second;
}

StreamRates MachineRates::stream() const {
  return {.read = disk_.read,
          .write = disk_.write,
          .duplex = disk_.duplex,
          .while_computing = disk_.while_computing,
          .compute_lost = disk_.compute_lost,
          .read_latency = disk_.read_latency,
          .write_latency = disk_.write_latency};
}

void MachineRates::keep_profile() const {
  if (options_.profile.empty()) return;
  try {
    make_folders(folder_of(options_.profile));
    save_profile(options_.profile, profile_);
  } catch (const Error& problem) {  // measured again the next time
    note_(problem.what());
  }
}

}  // namespace ort_train
