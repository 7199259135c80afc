#include "passes/plan/emit_code.h"

#include <algorithm>

#include "graph/error.h"

namespace ort_train {
namespace {

using planning::Stay;

bool any_class(const Draft& draft, int32_t chain, bool MemoryClass::*is) {
  const std::vector<uint32_t>& classes = draft.chains[static_cast<size_t>(chain)].classes;
  return std::any_of(classes.begin(), classes.end(), [&](uint32_t c) { return draft.model.classes[c].*is; });
}

class CodeMaker {
 public:
  CodeMaker(const Draft& draft, const PlannedRun* planned, const std::vector<Queue>& queues)
      : draft_(draft), planned_(planned), queues_(queues) {}

  // At each step, first in the farthest memory: writes begin, then reads.
  EntryCode make() {
    const size_t layers = layers_of(planned_);
    const auto steps = static_cast<int32_t>(draft_.order.size());
    std::vector<std::vector<std::vector<size_t>>> ends(layers), issues(layers);  // stays, by layer and step
    int32_t last = steps;
    for (size_t l = 0; l < layers; ++l) {
      const std::vector<Stay>& stays = stays_of(planned_, l);
      const auto most = planned_ ? static_cast<int32_t>(planned_->layers[l].run->steps()) : steps;
      last = std::max(last, most);
      ends[l].resize(static_cast<size_t>(most) + 2);
      issues[l].resize(static_cast<size_t>(most) + 2);
      made_.read_at.emplace_back(stays.size(), -1);
      made_.write_at.emplace_back(stays.size(), -1);
      for (size_t i = 0; i < stays.size(); ++i) {
        if (stays[i].reads) issues[l][static_cast<size_t>(stays[i].issue)].push_back(i);
        if (stays[i].writes) ends[l][static_cast<size_t>(stays[i].last) + 1].push_back(i);
      }
    }
    for (int32_t t = 0; t <= last; ++t) {
      for (size_t l = layers; l-- > 0;) {
        if (static_cast<size_t>(t) >= ends[l].size()) continue;
        const SpaceId here = kSpaceOf[l], there = store_of(planned_, l);
        for (const size_t i : ends[l][static_cast<size_t>(t)]) made_.write_at[l][i] = add(Action::copy, queue(here, there));
        for (const size_t i : issues[l][static_cast<size_t>(t)]) made_.read_at[l][i] = add(Action::copy, queue(there, here));
        if (t == 0 && l == 0) lay_feeds();
      }
      if (t >= steps) continue;
      const SpaceId where = kSpaceOf[layer_of_step(planned_, t)];
      const QueueId on = queue(where, where, draft_.beside[static_cast<size_t>(t)]);
      made_.step_at.push_back(add(Action::compute, on, draft_.model.steps[draft_.order[static_cast<size_t>(t)]].node));
    }
    return std::move(made_);
  }

 private:
  QueueId queue(SpaceId from, SpaceId to, bool beside = false) const {
    for (const bool wanted : {beside, false}) {
      for (QueueId q = 0; q < queues_.size(); ++q) {
        if (queues_[q].from == from && queues_[q].to == to && queues_[q].beside == wanted) return q;
      }
    }
    throw error(ErrorCode::device, "internal error: no queue between spaces {} and {}; please report this", from, to);
  }
  int32_t add(Action action, QueueId on, NodeId node = kNone) {
    made_.code.push_back({.action = action, .queue = on, .node = node});
    return static_cast<int32_t>(made_.code.size()) - 1;
  }
  void lay_feeds() {
    made_.fed_at.assign(draft_.chains.size(), -1);
    if (layers_of(planned_) < 2) return;
    for (const RunDraft::BlockOf& block : planned_->draft->blocks) {
      if (block.chain >= 0 && is_fed(draft_, block.chain))
        made_.fed_at[static_cast<size_t>(block.chain)] = add(Action::copy, queue(kHost, kMemory));
    }
  }

  const Draft& draft_;
  const PlannedRun* const planned_;
  const std::vector<Queue>& queues_;
  EntryCode made_;
};

}  // namespace

const std::vector<Stay>& stays_of(const PlannedRun* planned, size_t layer) {
  static const std::vector<Stay> none;
  return planned ? planned->layers[layer].plan->stays : none;
}

bool is_fed(const Draft& draft, int32_t chain) { return any_class(draft, chain, &MemoryClass::fed); }
bool is_kept(const Draft& draft, int32_t chain) { return any_class(draft, chain, &MemoryClass::kept); }

EntryCode lay_code(const Draft& draft, const PlannedRun* planned, const std::vector<Queue>& queues) {
  return CodeMaker(draft, planned, queues).make();
}

}  // namespace ort_train
