#include "frontend/memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace ort_train {
namespace {

// "VmHWM:     1234 kB" -> 1234 * 1024
int64_t peak_resident() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  memory.resident = resident * sysconf(_SC_PAGESIZE);
  memory.peak = std::max(peak_resident(), memory.resident);
  return memory;
}

void release_free_heap() { malloc_trim(0); }

}  // namespace ort_train
