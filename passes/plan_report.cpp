#include "passes/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "graph/op_def.h"

namespace ort_train {
namespace {

int64_t sum(const PurposeBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

std::string op_at(const Entry& entry, const Graph& graph) {
  const NodeId node = node_at(entry, static_cast<size_t>(entry.peak().instruction));
  return node == kNone ? std::string() : describe(graph, node);
}

// Calls body(instruction, at, purpose) for each read and write of the file in a run.
template <typename Body> void each_transfer(const Entry& entry, Body body) {
  std::map<std::pair<SpaceId, int64_t>, const Storage*> live;  // by place
  const auto at_place = [](const Place& place) { return std::pair(place.space, place.offset); };
  std::multimap<int32_t, const Storage*> begins;
  for (const Storage& storage : entry.storages) begins.emplace(storage.first, &storage);
  for (int32_t at = 0; at < static_cast<int32_t>(entry.code.size()); ++at) {
    for (auto [begin, end] = begins.equal_range(at); begin != end; ++begin) live[at_place(begin->second->place)] = begin->second;
    const Instruction& instruction = entry.code[static_cast<size_t>(at)];
    if (uses_file(instruction)) body(instruction, at, live.at(at_place(memory_of(instruction)))->purpose);
  }
}

nlohmann::ordered_json traffic_json(const std::array<DiskTraffic, kPurposes>& traffic) {
  nlohmann::ordered_json json = {{"read", nlohmann::ordered_json::object()}, {"written", nlohmann::ordered_json::object()}};
  for (size_t purpose = 0; purpose < kPurposes; ++purpose) {
    const std::string name(to_string(static_cast<Purpose>(purpose)));
    if (traffic[purpose].read > 0) json["read"][name] = traffic[purpose].read;
    if (traffic[purpose].written > 0) json["written"][name] = traffic[purpose].written;
  }
  return json;
}

}  // namespace

std::vector<PurposeBytes> live_bytes(const Program& program, const Entry& entry) {
  std::vector<PurposeBytes> live(entry.code.size() + 1);
  for (const Persistent& value : program.persistent) {
    if (value.home.space == kMemory) live[0][static_cast<size_t>(value.purpose)] += aligned(value.home.bytes);
  }
  for (const Storage& storage : entry.storages) {
    if (storage.place.space != kMemory) continue;
    const auto purpose = static_cast<size_t>(storage.purpose);
    live[static_cast<size_t>(storage.first)][purpose] += aligned(storage.place.bytes);
    if (static_cast<size_t>(storage.last) + 1 < live.size())
      live[static_cast<size_t>(storage.last) + 1][purpose] -= aligned(storage.place.bytes);
  }
  for (size_t at = 1; at < live.size(); ++at) {
    for (size_t purpose = 0; purpose < kPurposes; ++purpose) live[at][purpose] += live[at - 1][purpose];
  }
  if (live.size() > 1) live.pop_back();
  return live;
}

MemoryPeak memory_peak(const Program& program, const std::vector<const Graph*>& graphs) {
  MemoryPeak peak;
  if (program.entries.empty()) return peak;
  for (size_t i = 1; i < program.entries.size(); ++i) {
    if (program.entries[i].peak().bytes > program.entries[peak.entry].peak().bytes) peak.entry = i;
  }
  const Entry& entry = program.entries[peak.entry];
  peak.instruction = entry.peak().instruction;
  peak.op = op_at(entry, *graphs[peak.entry]);
  peak.bytes = live_bytes(program, entry)[static_cast<size_t>(peak.instruction)];
  peak.live = sum(peak.bytes);
  peak.gaps = program.memory().bytes - peak.live;
  return peak;
}

std::map<int32_t, int64_t> disk_levels(const Program& program, const Entry& entry) {
  int64_t bytes = 0, state_end = 0;
  for (const Persistent& value : program.persistent) {
    bytes += file_bytes(value);
    if (is_in_file(value)) state_end = std::max(state_end, value.home.offset + file_bytes(value));
  }
  struct Stay {
    int64_t bytes;
    int32_t first, last;
  };
  std::map<int64_t, Stay> stays;  // of what doesn't live across runs, by its place on the disk
  each_transfer(entry, [&](const Instruction& instruction, int32_t at, Purpose) {
    const Place& file = file_of(instruction);
    if (file.offset < state_end) return;
    stays.emplace(file.offset, Stay{whole_sectors(file.bytes), at, at}).first->second.last = at;
  });
  std::map<int32_t, int64_t> levels{{0, bytes}};
  for (const auto& [offset, stay] : stays) {
    levels[stay.first] += stay.bytes;
    levels[stay.last + 1] -= stay.bytes;
  }
  bytes = 0;
  for (auto& [at, level] : levels) level = bytes += level;
  return levels;
}

DiskPeak disk_peak(const Program& program, const Entry& entry, const Graph& graph) {
  const std::map<int32_t, int64_t> levels = disk_levels(program, entry);
  DiskPeak peak{.bytes = levels.at(0)};
  for (const auto& [at, bytes] : levels) {
    if (bytes > peak.bytes) peak = {.bytes = bytes, .instruction = at, .op = describe(graph, node_at(entry, static_cast<size_t>(at)))};
  }
  return peak;
}

std::array<DiskTraffic, kPurposes> disk_traffic(const Program& program, const Entry& entry) {
  std::array<DiskTraffic, kPurposes> traffic{};
  std::set<int64_t> known;
  for (const Persistent& value : program.persistent) {
    if (!is_in_file(value)) continue;
    DiskTraffic& of = traffic[static_cast<size_t>(value.purpose)];
    ++of.tensors;
    of.bytes += value.home.bytes;
    known.insert(value.home.offset);
  }
  each_transfer(entry, [&](const Instruction& instruction, int32_t, Purpose purpose) {
    DiskTraffic& of = traffic[static_cast<size_t>(purpose)];
    (is_read(instruction) ? of.read : of.written) += whole_sectors(memory_of(instruction).bytes);
    if (!known.insert(file_of(instruction).offset).second) return;
    ++of.tensors;
    of.bytes += file_of(instruction).bytes;
  });
  return traffic;
}

std::string memory_table(const Program& program, const std::vector<const Graph*>& graphs, const MemoryFrame& frame) {
  const MemoryPeak peak = memory_peak(program, graphs);
  const int64_t total = frame.reserve + program.memory().bytes;
  const double unit = total >= 1'000'000'000 ? 1e9 : 1e6;
  const auto show = [&](int64_t bytes) {
    return fmt::format("{:.{}f}", static_cast<double>(bytes) / unit, unit > 1e6 || total < 10'000'000 ? 2 : 1);
  };
  std::string head = "          ", row = program.memory().kind == SpaceKind::device ? "  GPU     " : "  RAM     ";
  const auto column = [&](std::string_view name, int64_t bytes) {
    if (bytes == 0) return;
    const size_t width = std::max<size_t>(name.size(), 6) + 2;
    head += fmt::format("{:>{}}", name, width);
    row += fmt::format("{:>{}}", show(bytes), width);
  };
  column("program", frame.reserve);
  for (Purpose purpose : {Purpose::weights, Purpose::gradients, Purpose::optimizer, Purpose::activations, Purpose::inputs,
                          Purpose::constants, Purpose::workspace})
    column(to_string(purpose), peak.bytes[static_cast<size_t>(purpose)]);
  column("gaps", peak.gaps);
  column("total", total);
  row += unit > 1e6 ? " GB" : " MB";
  if (frame.budget > 0) row += " of " + show(frame.budget);
  if (!peak.op.empty()) row += fmt::format(", at {} in '{}'", peak.op, program.entries[peak.entry].name);
  return head + "\n" + row + "\n";
}

nlohmann::ordered_json memory_json(const Program& program, const std::vector<const Graph*>& graphs) {
  using Json = nlohmann::ordered_json;
  const auto by_purpose = [](const PurposeBytes& bytes) {
    Json json;
    for (size_t purpose = 0; purpose < kPurposes; ++purpose) json[std::string(to_string(static_cast<Purpose>(purpose)))] = bytes[purpose];
    return json;
  };
  Json persistent = Json::array(), entries = Json::array();
  for (const Persistent& value : program.persistent) {
    persistent.push_back({{"name", value.name},
                          {"purpose", to_string(value.purpose)},
                          {"dtype", to_string(value.type.dtype)},
                          {"shape", value.type.shape},
                          {"offset", is_in_file(value) ? 0 : value.home.offset},
                          {"bytes", memory_bytes(value)}});
  }
  for (size_t i = 0; i < program.entries.size(); ++i) {
    const Entry& entry = program.entries[i];
    Json storages = Json::array();
    for (const Storage& storage : entry.storages) {
      storages.push_back({{"name", storage.name},
                          {"purpose", to_string(storage.purpose)},
                          {"offset", storage.place.offset},
                          {"bytes", storage.place.bytes},
                          {"first", storage.first},
                          {"last", storage.last}});
    }
    entries.push_back({{"name", entry.name},
                       {"instructions", entry.code.size()},
                       {"disk", traffic_json(disk_traffic(program, entry))},
                       {"peak_live_bytes", entry.peak().bytes},
                       {"peak_instruction", entry.peak().instruction},
                       {"peak_op", op_at(entry, *graphs[i])},
                       {"at_peak", by_purpose(live_bytes(program, entry)[static_cast<size_t>(entry.peak().instruction)])},
                       {"storages", std::move(storages)}});
  }
  return {{"arena_bytes", program.memory().bytes},
          {"persistent_bytes", program.memory().persistent_bytes},
          {"threads", program.threads},
          {"persistent", std::move(persistent)},
          {"entries", std::move(entries)}};
}

}  // namespace ort_train
