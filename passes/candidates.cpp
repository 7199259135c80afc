#include "passes/candidates.h"

#include <algorithm>
#include <tuple>

namespace ort_train {
namespace {

// What the planner has to know of the entries, by their finished graphs.
std::vector<PlanEntry> plan_entries(const EntrySet& set, FinishedGraphs& finished, bool keeps_gradients) {
  constexpr double kNowAndThen = 1e-2;  // hardly counts
  std::vector<PlanEntry> wanted;
  for (size_t i = 0; i < set.entries.size(); ++i) {
    const JobEntry& entry = set.entries[i];
    PlanEntry& added = wanted.emplace_back(PlanEntry{.name = entry.name,
                                                     .graph = &finished.graphs[i],
                                                     .runs_per_step = std::max(kNowAndThen, set.runs_per_step(entry)),
                                                     .ordered = entry.joined,
                                                     .role = entry.built.role});
    if (!keeps_gradients || entry.built.role.kind != EntryKind::train || set.strategy.is_deferred()) continue;
    for (const auto& [parameter, gradient] : entry.built.gradients) added.keep.push_back(gradient);
  }
  return wanted;
}

}  // namespace

Candidates::Candidates(EntrySet first, Source source, CandidateOptions options) : source_(std::move(source)), options_(std::move(options)) {
  sets_.push_back(std::move(first));
}

const EntrySet& Candidates::entries(const StepStrategy& strategy, bool keeps_all) {
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const EntrySet& set) { return set.strategy == strategy; });
  if (found != sets_.end()) return *found;
  if (!keeps_all) sets_.resize(1);
  sets_.push_back(source_(strategy));
  return sets_.back();
}

RecomputeChoice Candidates::first_choice() const {
  return options_.recompute == "auto" ? RecomputeChoice{} : recompute_mode(options_.recompute);
}

Candidate Candidates::make(const EntrySet& set, const RecomputeChoice& choice, const ComputeRates& rates, double beat, bool for_slower_disk,
                           int64_t search_bytes) const {
  Candidate made{.strategy = set.strategy, .recompute = choice, .finished = finish(set, choice, {.skip = options_.passes.skip})};
  const std::vector<PlanEntry> wanted = plan_entries(set, made.finished, options_.keeps_gradients);
  const double least = min_counted_runs_per_step(wanted);
  for (const PlanEntry& entry : wanted) {
    if (entry.runs_per_step < least) continue;
    for (const NodeId id : entry.graph->order())
      made.seconds += entry.runs_per_step * work_of(*entry.graph, entry.graph->node(id), options_.threads, rates).seconds;
  }
  if (made.seconds < beat)
    made.planner = std::make_unique<Planner>(
        wanted,
        PlanOptions{
            .threads = options_.threads, .kernels = options_.kernels, .search_bytes = search_bytes, .for_slower_disk = for_slower_disk});
  return made;
}

void add_overlapped(PlannedCandidate& placed) {
  placed.candidate.planner->overlap_updates();
  placed.overlapped = placed.candidate.planner->all_in_memory();
}

PlannedCandidate Candidates::in_memory(const RecomputeChoice& choice, bool overlapped) const {
  PlannedCandidate placed{.candidate = make(first_entries(), choice)};
  placed.planned.program = placed.candidate.planner->all_in_memory();
  if (overlapped) add_overlapped(placed);
  placed.candidate.planner.reset();
  return placed;
}

DiscretePlan Candidates::discrete(const DeviceMemories& memories, const std::function<int64_t(const Program&)>& on_disk,
                                  int64_t disk_bytes) const {
  std::vector<std::string> modes{options_.recompute};
  if (options_.recompute == "auto") modes = {"none", "sqrt", "all"};
  DiscretePlan best;
  for (const std::string& mode : modes) {
    PlannedCandidate placed{.candidate = make(first_entries(), recompute_mode(mode))};
    const auto [device, host] = placed.candidate.planner->least_discrete();
    if (best.least_device == 0 || device < best.least_device) std::tie(best.least_device, best.least_host) = std::tie(device, host);
    std::optional<PlannedProgram> planned = placed.candidate.planner->discrete(memories);
    placed.candidate.planner.reset();
    if (!planned) continue;
    if (const int64_t bytes = on_disk(planned->program); disk_bytes > 0 && bytes > disk_bytes) {
      best.disk_bytes = best.disk_bytes == 0 ? bytes : std::min(best.disk_bytes, bytes);
      continue;
    }
    if (best.placed && planned->seconds >= best.placed->planned.seconds) continue;
    placed.planned = std::move(*planned);
    best.placed = std::move(placed);
  }
  return best;
}

PlannedEntries Candidates::adopt(PlannedCandidate placed) {
  const auto found =
      std::find_if(sets_.begin(), sets_.end(), [&](const EntrySet& set) { return set.strategy == placed.candidate.strategy; });
  PlannedEntries planned{.set = found == sets_.end() ? source_(placed.candidate.strategy) : std::move(*found),
                         .planned = std::move(placed.planned),
                         .recomputed = std::move(placed.candidate.finished.recomputed)};
  sets_.clear();
  if (!options_.passes.dump_after.empty() && !planned.set.strategy.is_deferred())
    finish(planned.set, placed.candidate.recompute, options_.passes);
  for (size_t i = 0; i < planned.set.entries.size(); ++i) {
    planned.set.entries[i].built.graph = std::move(placed.candidate.finished.graphs[i]);
    planned.set.entries[i].values_of_batch = std::move(placed.candidate.finished.values_of_batch[i]);
  }
  return planned;
}

}  // namespace ort_train
