#include "passes/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "exec/pages.h"
#include "passes/plan_report.h"

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

std::string SmallestBudget::set_by() const { return entry.empty() ? op : fmt::format("{} in '{}'", op, entry); }

SmallestBudget least_of(int64_t budget, const Program& made, const std::vector<const Graph*>& graphs) {
  const MemoryPeak peak = memory_peak(made, graphs);
  return {.budget = budget, .op = peak.op, .entry = made.entries[peak.entry].name};
}

PlanSearch::PlanSearch(EntrySet first, Source source, SearchOptions options) : source_(std::move(source)), options_(std::move(options)) {
  sets_.push_back(std::move(first));
}

const EntrySet& PlanSearch::entries(const StepStrategy& strategy, bool keeps_all) {
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const EntrySet& set) { return set.strategy == strategy; });
  if (found != sets_.end()) return *found;
  if (!keeps_all) sets_.resize(1);
  sets_.push_back(source_(strategy));
  return sets_.back();
}

RecomputeChoice PlanSearch::first_choice() const {
  return options_.recompute == "auto" ? RecomputeChoice{} : recompute_mode(options_.recompute);
}

Candidate PlanSearch::candidate(const EntrySet& set, const RecomputeChoice& choice, const ComputeRates& rates, double beat,
                                bool for_slower_disk, int64_t search_bytes) const {
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
  placed.of.planner->overlap_updates();
  placed.overlapped = placed.of.planner->all_in_memory();
}

PlannedCandidate PlanSearch::all_in_memory() const { return in_memory(first_choice(), /*overlapped=*/true); }

PlannedCandidate PlanSearch::in_memory(const RecomputeChoice& choice, bool overlapped) const {
  PlannedCandidate placed{.of = candidate(first(), choice)};
  placed.made.program = placed.of.planner->all_in_memory();
  if (overlapped) add_overlapped(placed);
  placed.of.planner.reset();
  return placed;
}

DiscretePlan PlanSearch::discrete(const DeviceMemories& memories, const std::function<int64_t(const Program&)>& on_disk,
                                  int64_t disk_bytes) const {
  std::vector<std::string> modes{options_.recompute};
  if (options_.recompute == "auto") modes = {"none", "sqrt", "all"};
  DiscretePlan best;
  for (const std::string& mode : modes) {
    PlannedCandidate placed{.of = candidate(first(), recompute_mode(mode))};
    const auto [device, host] = placed.of.planner->least_discrete();
    if (best.least_device == 0 || device < best.least_device) std::tie(best.least_device, best.least_host) = std::tie(device, host);
    std::optional<PlannedProgram> made = placed.of.planner->discrete(memories);
    placed.of.planner.reset();
    if (!made) continue;
    if (const int64_t bytes = on_disk(made->program); disk_bytes > 0 && bytes > disk_bytes) {
      best.disk_bytes = best.disk_bytes == 0 ? bytes : std::min(best.disk_bytes, bytes);
      continue;
    }
    if (best.placed && made->seconds >= best.placed->made.seconds) continue;
    placed.made = std::move(*made);
    best.placed = std::move(placed);
  }
  return best;
}

// The rungs of the ladder are tried by halving, between one that doesn't fit and one that does.
std::optional<PlannedCandidate> PlanSearch::recomputing(int64_t budget, const Reserve& reserve, SmallestBudget& least) const {
  const std::vector<RecomputeChoice> ladder = recompute_ladder(first().entries[0].built.graph);
  std::map<size_t, SmallestBudget> known{{0, least}};
  const auto budget_of = [&](size_t rung) {
    if (const auto found = known.find(rung); found != known.end()) return found->second.budget;
    const PlannedCandidate placed = in_memory(ladder[rung], /*overlapped=*/false);
    const int64_t takes = reserve(placed.of.finished.instructions()) + whole_pages(placed.made.program.memory().bytes);
    return known.emplace(rung, least_of(takes, placed.made.program, placed.of.finished.pointers())).first->second.budget;
  };
  constexpr size_t kParts = 8;
  std::vector<size_t> rungs = sampled_rungs(ladder, kParts);
  const size_t all = rungs.back();
  for (size_t rung = all + 1; rung < ladder.size(); ++rung) rungs.push_back(rung);
  if (budget_of(all) >= budget_of(0)) rungs.clear();  // activations don't make the peak
  size_t smallest = 0;
  for (const size_t rung : rungs) {
    if (budget_of(rung) < budget_of(smallest)) smallest = rung;
  }
  const bool fits = budget == 0 || budget >= budget_of(0);
  least = known[smallest];
  if (fits || budget < least.budget) return std::nullopt;
  size_t below = 0, chosen = smallest;
  while (chosen - below > 1) {
    const size_t between = below + (chosen - below) / 2;
    (budget_of(between) <= budget ? chosen : below) = between;
  }
  return in_memory(ladder[chosen], /*overlapped=*/true);
}

PlannedEntries PlanSearch::adopt(PlannedCandidate placed) {
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const EntrySet& set) { return set.strategy == placed.of.strategy; });
  PlannedEntries planned{.set = found == sets_.end() ? source_(placed.of.strategy) : std::move(*found),
                         .made = std::move(placed.made),
                         .recomputed = std::move(placed.of.finished.recomputed)};
  sets_.clear();
  if (!options_.passes.dump_after.empty() && !planned.set.strategy.is_deferred()) finish(planned.set, placed.of.recompute, options_.passes);
  for (size_t i = 0; i < planned.set.entries.size(); ++i) {
    planned.set.entries[i].built.graph = std::move(placed.of.finished.graphs[i]);
    planned.set.entries[i].values_of_batch = std::move(placed.of.finished.values_of_batch[i]);
  }
  return planned;
}

}  // namespace ort_train
