#include "frontend/memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace ort_train {
namespace {

int64_t number_in(std::string_view text) {
  const size_t begin = text.find_first_of("0123456789");
  int64_t value = 0;
  if (begin != std::string_view::npos) std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

// "VmHWM:     1234 kB" -> 1234 * 1024
int64_t kilobytes_after(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return number_in(line) * 1024;
  }
  return 0;
}

// What the limits of a cgroup (version 2) and those above it leave; the largest number where there are none.
int64_t left_in_cgroups() {
  int64_t left = std::numeric_limits<int64_t>::max();
  std::ifstream file("/proc/self/cgroup");
  std::string group;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  for (; !group.empty(); group = group.substr(0, group.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + group;
    std::ifstream maximum(folder + "/memory.max"), current(folder + "/memory.current");
    std::string limit, used;
    if (std::getline(maximum, limit) && std::getline(current, used) && limit != "max") {
      // The page cache counts as used and is given back when memory is wanted.
      const int64_t cache = [&] {
        std::ifstream statistics(folder + "/memory.stat");
        for (std::string line; std::getline(statistics, line);) {
          if (line.starts_with("file ")) return number_in(line);
        }
        return int64_t{0};
      }();
      left = std::min(left, number_in(limit) - std::max<int64_t>(0, number_in(used) - cache));
    }
    if (group == "/") break;
  }
  return left;
}

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  memory.resident = resident * sysconf(_SC_PAGESIZE);
  memory.peak = std::max(kilobytes_after("/proc/self/status", "VmHWM:"), memory.resident);
  return memory;
}

int64_t available_memory() { return std::min(kilobytes_after("/proc/meminfo", "MemAvailable:"), left_in_cgroups()); }

void release_free_heap() { malloc_trim(0); }

}  // namespace ort_train
