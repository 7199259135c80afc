// What the process has of memory. What it may still take: machine.h.

#pragma once

#include <cstdint>

namespace ort_train {

struct ProcessMemory {
  int64_t resident = 0;  // now
  int64_t peak = 0;      // VmHWM: since the program was started
};
ProcessMemory process_memory();

// Gives free heap back to the system, so that it does not count as resident.
void release_free_heap();

}  // namespace ort_train
