#include "passes/entry_set.h"

#include <algorithm>

namespace ort_train {
namespace {

void move_updates(Graph& graph, const PassOptions& passes) {
  run_pass("early_updates", graph, passes, [&] { return early_updates(graph, passes); });
}

// Updates that were deferred stand as late as they may already.
MicroBatches finish_entry(const JobEntry& entry, Graph& graph, const StepStrategy& strategy, const RecomputeChoice& choice,
                          Recomputed* counted, const PassOptions& passes) {
  const EntryRole& role = entry.built.role;
  if (role.kind == EntryKind::update) move_updates(graph, passes);
  if (role.kind != EntryKind::train) return {};
  PassOptions quiet{.skip = passes.skip};
  MicroBatches batches;
  run_pass("recompute", graph, entry.joined ? quiet : passes, [&] { return recompute(graph, choice, counted); });
  if (entry.joined) {
    run_pass("micro_batches", graph, passes, [&] {
      std::vector<ValueId> shared = entry.built.deferred_scalars;
      for (const JobLoss& loss : entry.built.losses) shared.push_back(loss.inverse_count);
      shared.insert(shared.end(), {entry.built.loss_scale, entry.built.deferred_loss_scale});
      batches = join_micro_batches(graph, static_cast<size_t>(strategy.joined_batches), shared);
      return true;
    });
  }
  if (!role.completes_update) move_updates(graph, passes);
  return batches;
}

}  // namespace

int EntrySet::find(const EntryWanted& wanted) const {
  for (size_t i = 0; i < entries.size(); ++i) {
    const JobEntry& entry = entries[i];
    const bool trains = wanted.kind == EntryKind::train;
    const bool fits = wanted.length == 0 || entry.length == wanted.length;
    if (entry.built.role.kind == wanted.kind && entry.joined == wanted.joined && entry.remainder == wanted.remainder && fits &&
        (!trains || entry.built.role.completes_update == wanted.completes_update))
      return static_cast<int>(i);
  }
  return -1;
}

double EntrySet::runs_per_step(const JobEntry& entry) const {
  const EntryRole& role = entry.built.role;
  if (role.kind == EntryKind::update) return strategy.is_deferred() ? 0 : 1;
  if (role.kind != EntryKind::train || entry.remainder || entry.joined != (strategy.joined_batches > 1)) return 0;
  const double runs = static_cast<double>(micro_batches) / static_cast<double>(strategy.joined_batches);
  return entry.share * (!strategy.is_deferred() ? runs : role.completes_update ? 1 : runs - 1);
}

std::vector<const Graph*> EntrySet::graphs() const {
  std::vector<const Graph*> all;
  for (const JobEntry& entry : entries) all.push_back(&entry.built.graph);
  return all;
}

int64_t most_together(const EntrySet& set) {
  if (set.entries[0].length > 0) return 1;  // one after the other may have other lengths
  constexpr int64_t kMostNodes = 20'000;
  const auto nodes = static_cast<int64_t>(set.entries[0].built.graph.order().size());
  int64_t most = set.micro_batches;
  while (most > 1 && (most * nodes > kMostNodes || set.micro_batches % most != 0)) --most;
  return most;
}

std::vector<const Graph*> FinishedGraphs::pointers() const {
  std::vector<const Graph*> all;
  for (const Graph& graph : graphs) all.push_back(&graph);
  return all;
}

int64_t FinishedGraphs::instructions() const {
  int64_t count = 0;
  for (const Graph& graph : graphs) count += static_cast<int64_t>(graph.order().size());
  return count;
}

FinishedGraphs finish(const EntrySet& set, const RecomputeChoice& choice, const PassOptions& passes) {
  FinishedGraphs finished;
  PassOptions quiet{.skip = passes.skip};
  for (const JobEntry& entry : set.entries) finished.graphs.push_back(entry.built.graph);
  for (size_t i = 0; i < set.entries.size(); ++i) {
    const JobEntry& entry = set.entries[i];
    finished.values_of_batch.push_back(finish_entry(entry, finished.graphs[i], set.strategy, choice,
                                                    i == 0 ? &finished.recomputed : nullptr, i == 0 || entry.joined ? passes : quiet));
  }
  return finished;
}

}  // namespace ort_train
