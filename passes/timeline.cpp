#include "passes/timeline.h"

#include <algorithm>
#include <deque>
#include <map>

#include "passes/stream_clock.h"

namespace ort_train {

Timeline make_timeline(const Program& program, const Entry& entry, const Graph& graph, const ComputeRates& compute,
                       const StreamRates& disk) {
  Timeline result;
  std::map<std::pair<SpaceId, int64_t>, Purpose> live;  // by place
  std::multimap<int32_t, const Storage*> begins;
  for (const Storage& storage : entry.storages) begins.emplace(storage.first, &storage);
  std::vector<size_t> transfer(entry.code.size());  // by the instruction that begins it
  StreamClock clock(disk);
  const auto wait = [&](size_t copy) {
    const double before = clock.now();
    if (uses_file(entry.code[copy]) && clock.wait(transfer[copy]) > 0) result.waits.emplace_back(before, clock.now());
  };
  for (size_t at = 0; at < entry.code.size(); ++at) {
    for (auto [i, end] = begins.equal_range(static_cast<int32_t>(at)); i != end; ++i)
      live[{i->second->place.space, i->second->place.offset}] = i->second->purpose;
    const Instruction& instruction = entry.code[at];
    for (const int32_t earlier : instruction.waits) wait(static_cast<size_t>(earlier));
    result.begin.push_back(clock.now());
    if (is_copy(instruction) && !uses_file(instruction)) continue;
    if (is_copy(instruction)) {
      const int64_t bytes = whole_sectors(memory_of(instruction).bytes);
      transfer[at] = clock.begin(is_write(instruction), bytes);
      result.transfers.push_back({.write = is_write(instruction),
                                  .purpose = live.at({memory_of(instruction).space, memory_of(instruction).offset}),
                                  .bytes = bytes});
    } else if (!is_view(graph.node(instruction.node), instruction)) {
      clock.compute(work_of(graph, graph.node(instruction.node), program.threads, compute).seconds);
    }
  }
  for (size_t at = 0; at < entry.code.size(); ++at) wait(at);
  result.begin.push_back(clock.now());
  for (size_t i = 0; i < result.transfers.size(); ++i) {
    result.transfers[i].begin = clock.began(i);
    result.transfers[i].end = clock.ended(i);
  }
  return result;
}

NodeWork run_work(const Program& program, const Entry& entry, const Graph& graph, const ComputeRates& rates) {
  const double share = Workers::aside_share(program.threads);
  NodeWork sum;
  std::deque<std::pair<int32_t, double>> background;  // instructions that aren't over, and what they still take
  for (int32_t at = 0; at < static_cast<int32_t>(entry.code.size()); ++at) {
    const Instruction& instruction = entry.code[static_cast<size_t>(at)];
    for (const int32_t earlier : instruction.waits) {
      if (!program.queues[entry.code[static_cast<size_t>(earlier)].queue].background) continue;
      for (; !background.empty() && background.front().first <= earlier; background.pop_front()) sum.seconds += background.front().second;
    }
    if (instruction.action != Action::compute || is_view(graph.node(instruction.node), instruction)) continue;
    const NodeWork work = work_of(graph, graph.node(instruction.node), program.threads, rates);
    sum.flops += work.flops;
    if (program.queues[instruction.queue].background && share > 0) {
      background.emplace_back(at, work.seconds);
      continue;
    }
    double left = work.seconds;
    while (left > 0 && !background.empty()) {
      const double both = std::min(background.front().second, left / (1 - share));
      sum.seconds += both;
      left -= both * (1 - share);
      if ((background.front().second -= both) <= 0) background.pop_front();
    }
    sum.seconds += left;
  }
  for (const auto& [at, seconds] : background) sum.seconds += seconds;
  return sum;
}

}  // namespace ort_train
