// RunTrace: when each instruction of a run was carried out, by the steady clock: what Executor::trace() fills in.

#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace ort_train {

using RunClock = std::chrono::steady_clock;

struct RunSpan {
  RunClock::time_point begin{}, end{};
  bool is_empty() const { return begin == end; }
};

// When a loop that was put aside ran (exec/workers.h), as part of the work of that number.
struct AsideSpan {
  int32_t number = 0;
  RunSpan span{};
};

struct TracedInstruction {
  RunSpan wait{};              // for copies of the file, before it began
  RunSpan work{};              // computing its node; of a copy of the file, giving it to the disk
  bool in_background = false;  // `work` is when its loops ran, beside other nodes
  int64_t ticket = 0;          // of its copy of the file (Disk); 0: there was nothing to move
};

struct RunTrace {
  std::vector<TracedInstruction> instructions;  // by instruction: as many as the longest entry has, or more
  RunSpan run{};                                // from first to last
  RunSpan last_wait{};                          // for copies of the file that only the run's end waits for
};

}  // namespace ort_train
