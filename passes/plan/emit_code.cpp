#include "passes/plan/emit_code.h"

#include <algorithm>

#include "graph/error.h"

namespace ort_train {

// At each step, first in the farthest memory: writes begin, then reads. If anything moves, no step runs in the
// background: what an update changes is written to the store right after it, and that write would wait for the update.
EntryCode lay_code(const Draft& draft, const EntryPlan& plan, const std::vector<Queue>& queues) {
  EntryCode made;
  const auto add = [&](SpaceId from, SpaceId to, NodeId node = kNone, bool background = false) {
    const auto find = [&](bool wanted) {
      return std::find_if(queues.begin(), queues.end(),
                          [&](const Queue& q) { return q.from == from && q.to == to && q.background == wanted; });
    };
    auto queue = find(background);
    if (queue == queues.end()) queue = find(false);
    if (queue == queues.end()) throw internal_error("no queue between spaces {} and {}", from, to);
    const Action action = node == kNone ? Action::copy : Action::compute;
    made.code.push_back({.action = action, .queue = static_cast<QueueId>(queue - queues.begin()), .node = node});
    return static_cast<int32_t>(made.code.size()) - 1;
  };
  const size_t levels = plan.levels.size(), steps = draft.order.size();
  std::vector<std::vector<std::vector<size_t>>> ends(levels), issues(levels);  // stays, by level and step
  size_t last = steps;
  bool moves = false;
  for (size_t l = 0; l < levels; ++l) {
    const std::vector<planning::Stay>& stays = stays_of(plan, l);
    last = std::max(last, plan.levels[l].run->steps());
    for (auto* by_step : {&ends[l], &issues[l]}) by_step->resize(plan.levels[l].run->steps() + 2);
    made.read_at.emplace_back(stays.size(), -1);
    made.write_at.emplace_back(stays.size(), -1);
    for (size_t i = 0; i < stays.size(); ++i) {
      moves |= stays[i].reads || stays[i].writes;
      if (stays[i].reads) issues[l][static_cast<size_t>(stays[i].issue)].push_back(i);
      if (stays[i].writes) ends[l][static_cast<size_t>(stays[i].last) + 1].push_back(i);
    }
  }
  made.fed_at.assign(draft.buffers.size(), -1);
  for (size_t t = 0; t <= last; ++t) {
    for (size_t l = levels; l-- > 0;) {
      if (t >= ends[l].size()) continue;
      for (const size_t i : ends[l][t]) made.write_at[l][i] = add(kSpaceOfLevel[l], store_of(plan, l));
      for (const size_t i : issues[l][t]) made.read_at[l][i] = add(store_of(plan, l), kSpaceOfLevel[l]);
    }
    if (t == 0 && levels > 1) {
      for (const RunDraft::BlockOf& block : plan.run_draft->blocks) {
        if (block.buffer >= 0 && draft.buffers[static_cast<size_t>(block.buffer)].fed)
          made.fed_at[static_cast<size_t>(block.buffer)] = add(kHost, kMemory);
      }
    }
    if (t >= steps) continue;
    const SpaceId where = kSpaceOfLevel[level_of_step(plan, static_cast<int32_t>(t))];
    made.step_at.push_back(add(where, where, draft.model.steps[draft.order[t]].node, !moves && draft.background[draft.order[t]]));
  }
  return made;
}

}  // namespace ort_train
