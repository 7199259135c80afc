#include "passes/timeline.h"

#include <algorithm>
#include <map>

namespace ort_train {

Timeline make_timeline(const Program& program, const Entry& entry, const Graph& graph, const ComputeRates& compute,
                       const StreamRates& disk) {
  Timeline result;
  std::map<int64_t, Purpose> live;  // by offset
  std::multimap<int32_t, const Storage*> begins;
  for (const Storage& storage : entry.storages) begins.emplace(storage.first, &storage);
  std::vector<double> over(entry.code.size());  // of transfers, by the instruction that begins them
  double now = 0, free = 0;
  for (size_t at = 0; at < entry.code.size(); ++at) {
    for (auto [i, end] = begins.equal_range(static_cast<int32_t>(at)); i != end; ++i) live[i->second->place.offset] = i->second->purpose;
    const Instruction& instruction = entry.code[at];
    result.begin.push_back(now);
    switch (instruction.action) {
      case Action::compute:
        if (!is_view(graph.node(instruction.node), instruction))
          now += work_of(graph, graph.node(instruction.node), program.threads, compute).seconds;
        break;
      case Action::read:
      case Action::write: {
        const bool write = instruction.action == Action::write;
        const int64_t bytes = whole_sectors(instruction.memory.bytes);
        const double begin = std::max(now, free);
        free = over[at] = begin + static_cast<double>(bytes) / (write ? disk.write : disk.read);
        result.transfers.push_back({write, live.at(instruction.memory.offset), bytes, begin, free});
        break;
      }
      case Action::wait: {
        const double end = over[static_cast<size_t>(instruction.transfer)];
        if (end > now) result.waits.emplace_back(now, end);
        now = std::max(now, end);
        break;
      }
    }
  }
  result.begin.push_back(now);
  return result;
}

}  // namespace ort_train
