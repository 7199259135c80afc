// What the process and the machine have of memory.

#pragma once

#include <cstdint>

namespace ort_train {

struct ProcessMemory {
  int64_t resident = 0;  // now
  int64_t peak = 0;      // VmHWM: since the program was started
};
ProcessMemory process_memory();

// What this process may still take: the machine's available memory, or what its memory cgroups leave, if that is less.
int64_t available_memory();

// Gives free heap back to the system, so that it does not count as resident.
void release_free_heap();

}  // namespace ort_train
