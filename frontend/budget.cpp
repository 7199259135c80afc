#include "frontend/budget.h"

#include <algorithm>

#include "exec/pages.h"

namespace ort_train {
namespace {

constexpr int64_t kMB = int64_t{1} << 20;

}  // namespace

// Measured, in MB, peak of the process less the arena, after training (Debian bookworm, x86-64, 1 / 2 / 8 threads):
//   a perceptron, 23 instructions            20.0 / 20.4 / 20.7
//   a GPT-2 of two layers, 114               20.3 / 20.8 / 21.1
//   char-gpt, 473                            21.1 / 21.6 / 22.0      with evaluation and accumulation, 690: 21.5 / 22.0 / 22.3
//   GPT-2 124M, 1,034                        23.4 (628 nodes in the file), 24.5 (2,836 nodes)
// 18.3 of it is there before a model is read, 13 are pages of code, of which another kernel may map more at a time; 1.5 come after the
// plan is made. Since then 2.1 have come to all of these: the libraries of the linear solver; and 1 to 5 with Linux 6.18, which maps more
// of a file at a time, the more the larger the pieces are that it has in its cache. (With that, 30.8 are there when char-gpt is planned.)
int64_t reserve_for(const ProcessFootprint& footprint) {
  constexpr int64_t kProcess = 28 * kMB;     // code and data of the program and its libraries
  constexpr int64_t kLibrary = 5 * kMB;      // what a first trainer adds to a process; buffers of checkpoint and export; headroom
  constexpr int64_t kThread = kMB / 2;       // stack, allocator arena, scheduler
  constexpr int64_t kInstruction = 3 << 10;  // nodes, values, instructions, places
  constexpr int64_t kKernel = 8 << 10;       // prepared: generated code and descriptions
  constexpr int64_t kFileNode = 1 << 10;     // while importing
  constexpr int64_t kTensor = 2 << 10;       // places in files, headers of checkpoints
  constexpr int64_t kDisk = 8 * kMB;         // an engine with its threads and rings, checksums, a longer program
  const int64_t bytes = (footprint.whole_process ? kProcess : 0) + kLibrary + kThread * footprint.threads +
                        kInstruction * footprint.instructions + kKernel * footprint.kernels + kFileNode * footprint.file_nodes +
                        kTensor * footprint.parameters + footprint.constant_bytes + footprint.data_bytes + footprint.merging_bytes +
                        (footprint.disk ? kDisk : 0);
  return round_up(bytes, kMB);
}

// Measured beside the reserve, of jobs with next to no tensors: 6 to 14 MB for 3,600 to 6,000 instructions, 28 MB for 13,000.
int64_t planning_bytes(const ProcessFootprint& footprint) {
  constexpr int64_t kInstruction = 3 << 10;  // another candidate's graphs, the problem and the program that are made of them
  return footprint.whole_process ? round_up(kInstruction * footprint.instructions, kMB) : 0;
}

int64_t raised_reserve(int64_t reserve, int64_t resident) {
  const int64_t expected = resident + 4 * kMB;
  return expected <= reserve ? reserve : round_up(expected, 4 * kMB);
}

}  // namespace ort_train
