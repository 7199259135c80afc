#include "frontend/anomaly_watch.h"

#include "graph/error.h"

namespace ort_train {

AnomalyWatch::AnomalyWatch(const std::vector<const Graph*>& graphs, bool loss_scaling) : graphs_(graphs), loss_scaling_(loss_scaling) {
  for (const Graph* graph : graphs) detectors_.emplace_back(*graph);
}

void AnomalyWatch::before(size_t entry, NodeId node, std::span<const void* const> inputs) {
  report(entry, node, detectors_[entry].before(node, inputs));
}

void AnomalyWatch::behind(size_t entry, NodeId node, std::span<void* const> outputs) {
  report(entry, node, detectors_[entry].behind(node, outputs));
}

void AnomalyWatch::report(size_t entry, NodeId node, std::string found) {
  if (found.empty()) return;
  if (!loss_scaling_ || graphs_[entry]->node(node).stage == Stage::forward) throw error(ErrorCode::diverged, "{}: {}", place_, found);
  if (kept_.empty()) kept_ = std::move(found);
}

}  // namespace ort_train
