#include "frontend/budget.h"

#include <algorithm>

namespace ort_train {
namespace {

constexpr int64_t kMB = int64_t{1} << 20;

constexpr int64_t whole(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

int64_t reserve_for(const JobSize& job) {
  constexpr int64_t kProcess = 44 * kMB;        // code and data of the program and its libraries
  constexpr int64_t kLibrary = 12 * kMB;        // what a first trainer adds to a process; buffers of checkpoint and export
  constexpr int64_t kThread = kMB;              // stack, allocator arena, scheduler
  constexpr int64_t kInstruction = 6 << 10;     // nodes, values, instructions, places
  constexpr int64_t kKernel = 40 << 10;         // prepared: generated code and descriptions
  constexpr int64_t kFileNode = 8 << 10;        // while importing
  constexpr int64_t kParameter = 4 << 10;
  const int64_t bytes = (job.whole_process ? kProcess : 0) + kLibrary + kThread * job.threads + kInstruction * job.instructions + kKernel * job.kernels +
                        kFileNode * job.file_nodes + kParameter * job.parameters + 2 * job.constant_bytes + job.data_bytes;
  return whole(bytes, kMB);
}

int64_t raised_reserve(int64_t reserve, int64_t resident) {
  constexpr int64_t kHeadroom = 4 * kMB;
  return resident + kHeadroom <= reserve ? reserve : whole(resident + kHeadroom, 4 * kMB);
}

}  // namespace ort_train
