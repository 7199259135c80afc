#include "frontend/machine.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "frontend/budget.h"

namespace ort_train {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t number_in(std::string_view text) {
  const size_t begin = text.find_first_of("0123456789");
  int64_t value = 0;
  if (begin != std::string_view::npos) std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

// The number in the line that begins with `key`; none where there is no such line.
std::optional<int64_t> number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return number_in(line);
  }
  return std::nullopt;
}

// What the kernel says where there is no /proc.
int64_t system_memory(bool is_free) {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return kNoLimit;
  return static_cast<int64_t>(is_free ? info.freeram + info.bufferram : info.totalram) * static_cast<int64_t>(info.mem_unit);
}

// False where there is no such file.
bool read_line(const std::string& path, std::string& line) {
  std::ifstream file(path);
  return static_cast<bool>(std::getline(file, line));
}

bool is_among(std::string_view list, std::string_view name) {  // "cpu,cpuacct"
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

// visit(folder, version) for this process's group of a controller ("memory", "cpu") and for each above it: all of their limits hold.
template <typename Visit> void for_each_group(const std::string& root, std::string_view controller, Visit&& visit) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/group" of version 1, "0::/group" of version 2
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !is_among(controllers, controller)) continue;
    std::vector<std::string> mounts;
    if (version == 1)
      mounts = {root + "/sys/fs/cgroup/" + std::string(controller), root + "/sys/fs/cgroup/" + std::string(controllers)};
    else
      mounts = {root + "/sys/fs/cgroup", root + "/sys/fs/cgroup/unified"};
    for (const std::string& mount : mounts) {
      // In a container the path may be the host's, which is not there, and the root is the container's own.
      std::string group = line.substr(second + 1);
      while (!group.empty() && group.back() == '/') group.pop_back();
      for (;; group.resize(group.rfind('/'))) {
        visit(mount + group, version);
        if (group.rfind('/') == std::string::npos) break;
      }
    }
  }
}

int64_t memory_left_in(const std::string& folder, int version) {
  std::string limit, used;
  if (!read_line(folder + (version == 1 ? "/memory.limit_in_bytes" : "/memory.max"), limit) || limit == "max") return kNoLimit;
  if (!read_line(folder + (version == 1 ? "/memory.usage_in_bytes" : "/memory.current"), used)) return kNoLimit;
  // The page cache counts as used and is given back when memory is wanted.
  const int64_t cache = number_after(folder + "/memory.stat", version == 1 ? "total_cache " : "file ").value_or(0);
  return std::max<int64_t>(0, number_in(limit) - std::max<int64_t>(0, number_in(used) - cache));
}

// So many bytes, or what the process's memory cgroups leave, if that is less.
int64_t within_groups(const std::string& root, int64_t bytes) {
  for_each_group(root, "memory", [&](const std::string& folder, int version) { bytes = std::min(bytes, memory_left_in(folder, version)); });
  return bytes;
}

// In a line of /proc/meminfo.
std::optional<int64_t> memory_after(const std::string& root, std::string_view key) {
  const std::optional<int64_t> kilobytes = number_after(root + "/proc/meminfo", key);
  return kilobytes ? std::optional(*kilobytes * 1024) : std::nullopt;
}

// Processors' worth of time; infinite where there is no quota.
double quota_in(const std::string& folder, int version) {
  std::string quota, period;
  if (version == 1) {
    if (!read_line(folder + "/cpu.cfs_quota_us", quota) || !read_line(folder + "/cpu.cfs_period_us", period)) return INFINITY;
    if (quota.starts_with('-')) return INFINITY;
  } else {  // "150000 100000" or "max 100000"
    if (!read_line(folder + "/cpu.max", quota) || quota.starts_with("max")) return INFINITY;
    const size_t space = quota.find(' ');
    if (space != std::string::npos) period = quota.substr(space + 1);
  }
  const int64_t of = number_in(period);
  return of > 0 ? static_cast<double>(number_in(quota)) / static_cast<double>(of) : INFINITY;
}

// Those that the calling thread may run on; 0 where the kernel doesn't say.
int allowed_processors() {
  for (size_t most = 1024; most <= (size_t{1} << 20); most *= 2) {  // EINVAL: the machine has more than the set has room for
    std::vector<cpu_set_t> set(most / (8 * sizeof(cpu_set_t)));
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0) return CPU_COUNT_S(bytes, set.data());
  }
  return 0;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  const std::optional<int64_t> available = memory_after(root, "MemAvailable:");
  return within_groups(root, available ? *available : system_memory(/*is_free=*/true));
}

int64_t obtainable_memory(const std::string& root) {
  const std::optional<int64_t> all = memory_after(root, "MemTotal:");
  return within_groups(root, all ? *all : system_memory(/*is_free=*/false));
}

int available_processors(const std::string& root) {
  int processors = allowed_processors();
  if (processors == 0) processors = static_cast<int>(std::thread::hardware_concurrency());
  double quota = INFINITY;
  for_each_group(root, "cpu", [&](const std::string& folder, int version) { quota = std::min(quota, quota_in(folder, version)); });
  return std::max(1, static_cast<int>(std::min(static_cast<double>(processors), std::ceil(quota))));
}

int64_t budget_by_machine(int64_t wanted, int64_t taken, int64_t available) {
  const int64_t budget = (taken + available - available / 16) / kPage * kPage;
  return wanted <= budget ? 0 : std::max(budget, kPage);
}

}  // namespace ort_train
