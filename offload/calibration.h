// How fast this machine is, and a small file that remembers it: for predicted times and for the planner's choices of where bytes live.
// Never for anything that touches results.
//
// Plain values; the functions may be called from any thread.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "offload/disk_engine.h"

namespace ort_train {

// Of an even number the mean of the two in the middle; 0 of none.
double median(std::vector<double> values);

// Bytes a second of direct I/O on one disk, and what reached them. A drive with a fast cache in front writes slower than this in the long
// run.
struct DiskRates {
  double read = 0, write = 0;  // one of them, while nothing is computed
  double duplex = 1;           // both at once: the sum of the shares of these rates that each reaches, from 1 to 2
  // Computing and transfers share memory, and cores where a drive is emulated or bytes are checked. The share of the rates that is left
  // beside computing, and that of computing that is lost meanwhile, where as much is read as written, both at once.
  double while_computing = 1, compute_lost = 0;
  double read_latency = 0, write_latency = 0;  // seconds that a small request takes beyond its bytes, where no other is under way
  int64_t block_bytes = 0;                     // for DiskOptions
  int depth = 0;
  int64_t buffer_bytes = 0;  // of memory, in which this was measured: little of it makes small requests, which are slower
  bool operator==(const DiskRates&) const = default;
};

struct DiskTrial {
  double seconds = 3;  // in all, besides writing the file once; with `work` twice that
  int64_t file_bytes = int64_t{512} << 20;
  int64_t buffer_bytes = int64_t{64} << 20;  // of memory, which is given back
  DiskMethod method = DiskMethod::automatic;
  std::function<void()> work{};  // some milliseconds of computing as a job does it, to run beside transfers; none: they count as free
};

// Tries block sizes and depths on a file of its own in `folder`, which it removes. Throws Error(io).
DiskRates measure_disk(const std::string& folder, const DiskTrial& trial = {});

// The disk that a folder is on (device, kind of file system, its id: another after a change of disk), beside so many threads that compute.
std::string disk_key(const std::string& folder, int threads);
// What a profile goes with: processor, cores that we may use, memory.
std::string machine_key();

struct ProcessorRates {
  double flops = 0;                 // of a float32 matrix product, a second
  double element_flops = 0;         // of elementwise functions
  double bytes_per_second = 0;      // of memory, some of it in caches
  double far_bytes_per_second = 0;  // of much memory
  bool operator==(const ProcessorRates&) const = default;
};

struct MachineProfile {
  std::map<int, ProcessorRates> processor{};  // by threads
  std::map<std::string, DiskRates> disks{};   // by disk_key
  bool operator==(const MachineProfile&) const = default;
};

// Nothing where there is no such file, or it is of another machine, or is not one of ours: then one measures again.
std::optional<MachineProfile> load_profile(const std::string& path);
// Readers see the old file or the new. Throws Error(io).
void save_profile(const std::string& path, const MachineProfile& profile);

}  // namespace ort_train
