// What the process has of memory. What it may still take: machine.h.

#pragma once

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

 private:
  int64_t before_ = process_memory().peak;
};

// Gives free heap back to the system, so that it does not count as resident.
void release_free_heap();

}  // namespace ort_train
