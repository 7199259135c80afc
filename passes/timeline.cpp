#include "passes/timeline.h"

#include <algorithm>
#include <map>

#include "passes/stream_clock.h"

namespace ort_train {

Timeline make_timeline(const Program& program, const Entry& entry, const Graph& graph, const ComputeRates& compute,
                       const StreamRates& disk) {
  Timeline result;
  std::map<int64_t, Purpose> live;  // by offset
  std::multimap<int32_t, const Storage*> begins;
  for (const Storage& storage : entry.storages) begins.emplace(storage.first, &storage);
  std::vector<size_t> transfer(entry.code.size());  // by the instruction that begins it
  StreamClock clock(disk);
  for (size_t at = 0; at < entry.code.size(); ++at) {
    for (auto [i, end] = begins.equal_range(static_cast<int32_t>(at)); i != end; ++i) live[i->second->place.offset] = i->second->purpose;
    const Instruction& instruction = entry.code[at];
    result.begin.push_back(clock.now());
    switch (instruction.action) {
      case Action::compute:
        if (!is_view(graph.node(instruction.node), instruction))
          clock.compute(work_of(graph, graph.node(instruction.node), program.threads, compute).seconds);
        break;
      case Action::read:
      case Action::write: {
        const bool write = instruction.action == Action::write;
        const int64_t bytes = whole_sectors(instruction.memory.bytes);
        transfer[at] = clock.begin(write, bytes);
        result.transfers.push_back({.write = write, .purpose = live.at(instruction.memory.offset), .bytes = bytes});
        break;
      }
      case Action::wait: {
        const double before = clock.now();
        if (clock.wait(transfer[static_cast<size_t>(instruction.transfer)]) > 0) result.waits.emplace_back(before, clock.now());
        break;
      }
    }
  }
  result.begin.push_back(clock.now());
  for (size_t i = 0; i < result.transfers.size(); ++i) {
    result.transfers[i].begin = clock.began(i);
    result.transfers[i].end = clock.ended(i);
  }
  return result;
}

}  // namespace ort_train
