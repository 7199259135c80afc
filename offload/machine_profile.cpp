// The profile file, and what it goes with.

#include <sched.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "offload/calibration.h"
#include "offload/file_system.h"

namespace ort_train {
namespace {

constexpr int kVersion = 10;
constexpr int64_t kLargest = int64_t{1} << 20;  // a profile has a few hundred bytes

const std::string& processor() {
  static const std::string name = [] {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
      const size_t colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return std::string("unknown processor");
  }();
  return name;
}

double rate(const nlohmann::json& json, const char* name) {
  const double value = json.at(name).get<double>();
  if (!(value >= 0 && value < 1e18)) throw std::out_of_range(name);
  return value;
}

double at_most_one(const nlohmann::json& json, const char* name) {
  const double value = rate(json, name);
  if (value > 1) throw std::out_of_range(name);
  return value;
}

DiskRates disk_of(const nlohmann::json& json) {
  DiskRates rates{.read = rate(json, "read"),
                  .write = rate(json, "write"),
                  .duplex = rate(json, "together"),
                  .while_computing = at_most_one(json, "beside"),
                  .compute_lost = at_most_one(json, "slowed"),
                  .read_latency = at_most_one(json, "read_latency"),
                  .write_latency = at_most_one(json, "write_latency"),
                  .block_bytes = json.at("block_bytes").get<int64_t>(),
                  .depth = json.at("depth").get<int>(),
                  .buffer_bytes = json.at("buffer_bytes").get<int64_t>()};
  // Whoever edits the file can make us slow, not break us.
  const int64_t piece = int64_t{256} << 10;
  if (rates.block_bytes < piece || rates.block_bytes > (int64_t{64} << 20) || rates.block_bytes % piece != 0 || rates.depth < 1 ||
      rates.depth > 256)
    throw std::out_of_range("block_bytes, depth");
  if (rates.duplex < 1 || rates.duplex > 2) throw std::out_of_range("together");
  if (rates.compute_lost >= rates.while_computing) throw std::out_of_range("slowed");
  return rates;
}

}  // namespace

std::string disk_key(const std::string& folder, int threads) {
  struct stat status {};
  struct statfs system {};
  if (::stat(folder.c_str(), &status) != 0 || ::statfs(folder.c_str(), &system) != 0)
    throw error(ErrorCode::io, "can't look at '{}': {}", folder, reason(errno));
  return fmt::format("device {:x}, file system {:x}, id {:08x}{:08x}, beside {} threads", status.st_dev,
                     static_cast<unsigned long>(system.f_type), static_cast<unsigned>(system.f_fsid.__val[0]),
                     static_cast<unsigned>(system.f_fsid.__val[1]), threads);
}

std::string machine_key() {
  cpu_set_t set;
  const int cores = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const int64_t memory = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  // Kernels differ by a few MB in what they keep for themselves.
  return fmt::format("{}, {} cores, {} GiB", processor(), cores, (memory + (int64_t{1} << 29)) >> 30);
}

std::optional<MachineProfile> load_profile(const std::string& path) {
  try {
    const nlohmann::json json = nlohmann::json::parse(read_small_file(path, kLargest));
    if (json.at("version").get<int>() != kVersion || json.at("machine").get<std::string>() != machine_key()) return std::nullopt;
    MachineProfile profile;
    for (const auto& [threads, rates] : json.at("processor").items()) {
      profile.processor.emplace(std::stoi(threads), ProcessorRates{.flops = rate(rates, "flops"),
                                                                   .element_flops = rate(rates, "element_flops"),
                                                                   .bytes_per_second = rate(rates, "bytes_per_second"),
                                                                   .far_bytes_per_second = rate(rates, "far_bytes_per_second")});
    }
    for (const auto& [key, disk] : json.at("disks").items()) profile.disks.emplace(key, disk_of(disk));
    return profile;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void save_profile(const std::string& path, const MachineProfile& profile) {
  nlohmann::ordered_json json{{"version", kVersion},
                              {"machine", machine_key()},
                              {"processor", nlohmann::ordered_json::object()},
                              {"disks", nlohmann::ordered_json::object()}};
  for (const auto& [threads, rates] : profile.processor) {
    json["processor"][std::to_string(threads)] = {{"flops", rates.flops},
                                                  {"element_flops", rates.element_flops},
                                                  {"bytes_per_second", rates.bytes_per_second},
                                                  {"far_bytes_per_second", rates.far_bytes_per_second}};
  }
  for (const auto& [key, rates] : profile.disks) {
    json["disks"][key] = {{"read", rates.read},
                          {"write", rates.write},
                          {"together", rates.duplex},
                          {"beside", rates.while_computing},
                          {"slowed", rates.compute_lost},
                          {"read_latency", rates.read_latency},
                          {"write_latency", rates.write_latency},
                          {"block_bytes", rates.block_bytes},
                          {"depth", rates.depth},
                          {"buffer_bytes", rates.buffer_bytes}};
  }
  replace_file(path, json.dump(2) + "\n");
}

}  // namespace ort_train
