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

// The number in the line that begins with `key`, 0 where there is none.
int64_t number_after(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return number_in(line);
  }
  return 0;
}

// "VmHWM:     1234 kB" -> 1234 * 1024
int64_t kilobytes_after(const char* path, std::string_view key) { return number_after(path, key) * 1024; }

// A hierarchy of memory cgroups: where this process's line in /proc/self/cgroup has its path, and what version 1 and 2 call things.
struct Hierarchy {
  const char *line, *root, *limit, *used, *cache;
};
constexpr Hierarchy kHierarchies[] = {
    {"0::", "/sys/fs/cgroup", "/memory.max", "/memory.current", "file "},
    {":memory:", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_cache "},
};

// What the limits of this process's group and of those above it leave; the largest number where there are none.
int64_t left_in(const Hierarchy& names) {
  int64_t left = std::numeric_limits<int64_t>::max();
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(names.line);
    if (at == std::string::npos) continue;
    // In a container the path may be the host's, which is not there, and the root is the container's own.
    for (std::string group = line.substr(at + std::string_view(names.line).size());; group.resize(group.rfind('/'))) {
      const std::string folder = names.root + group;
      std::ifstream maximum(folder + names.limit), current(folder + names.used);
      std::string limit, used;
      if (std::getline(maximum, limit) && std::getline(current, used) && limit != "max") {
        // The page cache counts as used and is given back when memory is wanted.
        const int64_t cache = number_after((folder + "/memory.stat").c_str(), names.cache);
        left = std::min(left, number_in(limit) - std::max<int64_t>(0, number_in(used) - cache));
      }
      if (group.rfind('/') == std::string::npos) break;
    }
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

int64_t available_memory() {
  int64_t available = kilobytes_after("/proc/meminfo", "MemAvailable:");
  for (const Hierarchy& hierarchy : kHierarchies) available = std::min(available, left_in(hierarchy));
  return available;
}

void release_free_heap() { malloc_trim(0); }

}  // namespace ort_train
