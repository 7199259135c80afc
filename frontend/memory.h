// What the process has of memory. What it may still take: machine.h.

#pragma once

#include <algorithm>
#include <cstdint>

namespace ort_train {

struct ProcessMemory {
  int64_t resident = 0;  // now
  int64_t peak = 0;      // VmHWM: since the program was started
};
ProcessMemory process_memory();

// The peak of the process since this was made. The kernel keeps one peak alone, of the process's whole life: where that is an older one,
// what is resident now.
class PeakSince {
 public:
  int64_t bytes() const {
    const ProcessMemory now = process_memory();
    return now.peak > before_ ? now.peak : now.resident;
  }

  // Runs `trial`, whose memory follows the budget: with a smaller one it would take less.
  template <typename Trial> void run_trial(const Trial& trial) {
    const int64_t peak = bytes_outside_trials();
    const int64_t before = process_memory().peak;
    trial();
    const int64_t after = process_memory().peak;
    if (after == before) return;
    outside_trials_ = peak;
    of_trial_ = after;
  }
  // A peak below that of a trial isn't seen.
  int64_t bytes_outside_trials() const {
    const ProcessMemory now = process_memory();
    return now.peak == of_trial_ ? std::max(outside_trials_, now.resident) : bytes();
  }

 private:
  int64_t before_ = process_memory().peak;
  int64_t of_trial_ = 0;
  int64_t outside_trials_ = 0;  // where the process's peak is of_trial_
};

// Gives free heap back to the system, so that it does not count as resident.
void release_free_heap();

}  // namespace ort_train
