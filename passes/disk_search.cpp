#include "passes/disk_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "passes/call_both.h"
#include "passes/problem_dump.h"

namespace ort_train {
namespace {

// Candidates whose bound is within 0.2 % of the best plan's seconds aren't planned; the plain strategy is preferred within as much.
constexpr double kClose = 0.998;

// Before anything is recomputed; of the entries that train, or of all.
int64_t nodes_of(const EntrySet& set, bool training_alone = false) {
  int64_t nodes = 0;
  for (const JobEntry& entry : set.entries) {
    if (training_alone && entry.built.role.kind != EntryKind::train) continue;
    nodes += static_cast<int64_t>(entry.built.graph.order().size()) * (entry.joined ? set.strategy.joined_batches : 1);
  }
  return nodes;
}

// The name of a candidate.
std::string name_of(const StepStrategy& strategy, const RecomputeChoice& recompute) {
  std::string name = strategy.defer == Deferral::none   ? "updates in their step"
                     : strategy.defer == Deferral::most ? "most updates in the next step"
                                                        : "updates in the next step";
  if (strategy.joined_batches > 1) name += fmt::format(", {} micro-batches together", strategy.joined_batches);
  if (recompute.groups < kAllGroups) return name + fmt::format(", {} groups of tensors recomputed", recompute.groups);
  if (recompute.every == 0) return name + ", all but about the square root of the boundaries recomputed";
  return name + (recompute.every == 1 ? ", all but the boundaries recomputed"
                                      : fmt::format(", all but 1 of {} boundaries recomputed", recompute.every));
}

}  // namespace

double DiskSearch::CandidateEstimate::rank() const { return strategy.is_plain() ? kClose * seconds : seconds; }

DiskSearch::DiskSearch(Candidates& candidates, const PlannedCandidate& resident, const DiskLimits& limits, const PlanningRoom& room,
                       SmallestWithDisk& smallest)
    : candidates_(candidates), resident_(resident), limits_(limits), room_(room), smallest_(smallest) {}

bool DiskSearch::fits() const {
  return limits_.budget == 0 ||
         limits_.budget - limits_.reserve(resident_.candidate.finished.instructions()) >= resident_.planned.program.memory().bytes;
}

// Where several plans are made at a time, their linear programs share the room.
Candidate DiskSearch::make(const EntrySet& set, const RecomputeChoice& choice, double beat) const {
  constexpr int64_t kSeveral = 8;
  const bool is_first = &set == &candidates_.first_entries();
  const int64_t bytes = room_.for_several ? room_.bytes / kSeveral : room_.bytes - bytes_to_plan(nodes_of(set), is_first);
  return candidates_.make(set, choice, compute_, beat, /*for_slower_disk=*/room_.for_several, std::max<int64_t>(0, bytes));
}

DiskPlan DiskSearch::best(const ComputeRates& compute, const StreamRates& disk, int64_t pinning, bool dumps) {
  compute_ = compute, disk_ = disk, pinning_ = pinning, dumps_ = dumps;
  estimate_strategies();
  int64_t disk_bytes = 0;  // of those for which the disk has no room, the least
  DiskPlan fastest;
  double rank = INFINITY;  // of that one
  for (CandidateEstimate& estimated : estimates_) {
    if (fastest.placed && (estimated.rank() >= rank || !room_.for_several)) break;
    if (estimated.seconds < INFINITY) {
      PlannedCandidate placed = place(estimated);
      if (placed.planned.program.memory().bytes > limit(estimated.instructions)) continue;
      estimated.disk_bytes = limits_.on_disk(placed.planned.program);
      if (disk_has_room(estimated.disk_bytes)) {
        if (estimated.rank() < rank) {
          rank = estimated.rank();
          fastest = {.placed = std::move(placed), .problems = std::move(estimated.problem)};
        }
        continue;
      }
    }
    disk_bytes = disk_bytes > 0 ? std::min(disk_bytes, estimated.disk_bytes) : estimated.disk_bytes;
  }
  if (fastest.placed) return fastest;
  if (disk_bytes > 0) return {.disk_bytes = disk_bytes};
  return plan_for_smallest_budget();
}

// With addresses, which may make it slower.
PlannedCandidate DiskSearch::place(CandidateEstimate& estimated) {
  PlannedCandidate placed;
  if (estimated.candidate)
    placed.candidate = std::move(*estimated.candidate);
  else
    placed.candidate = make(candidates_.entries(estimated.strategy, room_.for_several), estimated.recompute);
  const Planner& planner = *placed.candidate.planner;
  const int64_t bytes = limit(estimated.instructions);
  if (planner.bytes_in_memory() <= bytes) placed.planned.program = planner.all_in_memory();
  const bool is_in_memory = !placed.planned.program.entries.empty() && placed.planned.program.memory().bytes <= bytes;
  if (!is_in_memory) {
    placed.planned = planner.streamed(bytes, compute_, disk_);
    estimated.seconds = placed.planned.seconds;
  }
  if (dumps_) estimated.problem = dump(placed.candidate);
  if (is_in_memory) add_overlapped(placed);
  placed.candidate.planner.reset();
  return placed;
}

// What the smallest budget was computed from.
DiskPlan DiskSearch::plan_for_smallest_budget() {
  const EntrySet& set = candidates_.first_entries();
  PlannedCandidate placed{.candidate = make(set, smallest_.get().recompute)};
  std::string problems;
  if (dumps_) problems = dump(placed.candidate);
  placed.planned = placed.candidate.planner->streamed(0, compute_, disk_);
  placed.candidate.planner.reset();
  const int64_t disk_bytes = limits_.on_disk(placed.planned.program);
  if (!disk_has_room(disk_bytes)) return {.disk_bytes = disk_bytes};
  return {.placed = std::move(placed), .problems = std::move(problems)};
}

planning::Problem DiskSearch::problem(const Candidate& candidate) const {
  planning::Problem problem = candidate.planner->problem(limit(candidate.finished.instructions()), compute_, disk_);
  problem.name = name_of(candidate.strategy, candidate.recompute);
  return problem;
}

// This one and the others that were looked at.
std::string DiskSearch::dump(const Candidate& chosen) const {
  const planning::Problem first = problem(chosen);
  std::string lines = planning::to_json(first);
  for (const auto& [name, line] : dump_lines_) lines += name == first.name ? std::string() : line;
  return lines;
}

// --- estimates --------------------------------------------------------------------------------------------------------------------------

// The first strategy goes last: it is rarely the fastest, and a good bound found earlier rejects it cheaply.
std::vector<StepStrategy> DiskSearch::strategies() const {
  const EntrySet& first = candidates_.first_entries();
  const int64_t most = candidates_.options().micro_batches == "horizontal" ? 1 : most_together(first);
  std::vector<StepStrategy> strategies;
  // All but the first strategy have more instructions, and are planned where memory is left for it.
  const int64_t batch = nodes_of(first, /*training_alone=*/true);
  const auto add = [&](const StepStrategy& strategy, int64_t more) {
    if (bytes_to_plan(nodes_of(first) + more, /*is_first=*/false) <= room_.bytes) strategies.push_back(strategy);
  };
  // An update at the end of its step waits for the disk; one before the next step's use overlaps with computing.
  if (first.micro_batches == 1) {
    if (!candidates_.options().keeps_gradients && limits_.updates_can_wait_longer) add({Deferral::most, 1}, batch);
    add({Deferral::all, 1}, batch);
  } else {
    if (most > first.strategy.joined_batches) add({Deferral::none, most}, most * batch);
    if (first.strategy.joined_batches == 1) add({Deferral::all, 1}, batch);
    if (most > 1) add({Deferral::all, most}, (1 + 3 * most) * batch);
  }
  strategies.push_back(first.strategy);
  return strategies;
}

// Estimates every strategy with its first rung of recomputation. Then the other rungs: all of them for the strategy with the least bound
// (for every strategy where none has a bound), and for the first strategy those that fit in memory.
void DiskSearch::estimate_strategies() {
  const int64_t state = resident_.planned.program.memory().persistent_bytes;  // which every plan without a disk holds
  const std::vector<StepStrategy> all = strategies();
  std::vector<double> bounds;  // by strategy, with the first rung
  for (const StepStrategy& strategy : all) {
    const EntrySet& set = candidates_.entries(strategy, room_.for_several);
    bounds.push_back(estimate_rungs(set, {rungs(set).front()}, /*in_memory=*/false));
  }
  const auto best = static_cast<size_t>(std::min_element(bounds.begin(), bounds.end()) - bounds.begin());
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_best = i == best || bounds[best] == INFINITY, is_first_strategy = i + 1 == all.size();
    const bool may_fit = is_first_strategy && state <= limit(resident_.candidate.finished.instructions());
    if (!is_best && !may_fit) continue;
    const EntrySet& set = candidates_.entries(all[i], room_.for_several);
    std::vector<RecomputeChoice> others = rungs(set);
    others.erase(others.begin());
    estimate_rungs(set, others, /*in_memory=*/!is_best);
  }
  std::stable_sort(estimates_.begin(), estimates_.end(),
                   [](const CandidateEstimate& a, const CandidateEstimate& b) { return a.rank() < b.rank(); });
}

// What is recomputed needn't be moved: a few rungs of the ladder.
std::vector<RecomputeChoice> DiskSearch::rungs(const EntrySet& set) const {
  constexpr size_t kParts = 4;
  if (candidates_.options().recompute != "auto") return {candidates_.first_choice()};
  const std::vector<RecomputeChoice> ladder = recompute_ladder(set.entries[0].built.graph);
  std::vector<RecomputeChoice> rungs;
  for (const size_t rung : sampled_rungs(ladder, kParts)) rungs.push_back(ladder[rung]);
  return rungs;
}

// Seconds that a candidate has to beat: it must be faster than the best by 0.2 % (kClose). The plain strategy may be slower by as much, and
// is still preferred.
double DiskSearch::to_beat(const CandidateEstimate& estimated) const {
  double beat = INFINITY;
  for (const CandidateEstimate& other : estimates_)
    beat = std::min(beat, estimated.strategy.is_plain() && !other.strategy.is_plain() ? other.seconds / kClose : kClose * other.seconds);
  return beat;
}

// Adds those of the rungs whose step may take less than that of all estimates so far; with `in_memory` only those that need no disk. Where
// the bound says that it can't, or the disk has no room, the seconds are infinite. Returns the least bound of those that need a disk.
double DiskSearch::estimate_rungs(const EntrySet& set, const std::vector<RecomputeChoice>& rungs, bool in_memory) {
  double bound = INFINITY;
  for (size_t i = 0; i < rungs.size(); i += 2) {  // of two that are looked at together neither knows of the other
    CandidateEstimate two[2];
    double least[2] = {INFINITY, INFINITY};
    const size_t count = std::min<size_t>(2, rungs.size() - i);
    for (size_t of = 0; of < count; ++of) {
      two[of].strategy = set.strategy;
      two[of].recompute = rungs[i + of];
    }
    call_both(
        room_.for_two && count > 1, [&] { least[0] = estimate(set, two[0], in_memory); },
        [&] {
          if (count > 1) least[1] = estimate(set, two[1], in_memory);
        });
    for (size_t of = 0; of < count; ++of) {
      bound = std::min(bound, least[of]);
      if (!two[of].problem.empty()) dump_lines_[name_of(set.strategy, two[of].recompute)] = std::move(two[of].problem);
      if (two[of].estimated_seconds < to_beat(two[of])) estimates_.push_back(std::move(two[of]));
    }
  }
  return bound;
}

// Without addresses. Returns the bound where it needs a disk, else infinity.
double DiskSearch::estimate(const EntrySet& set, CandidateEstimate& estimated, bool in_memory) const {
  const double beat = to_beat(estimated);
  Candidate made = make(set, estimated.recompute, dumps_ ? INFINITY : beat);
  estimated.instructions = made.finished.instructions();
  if (dumps_) estimated.problem = planning::to_json(problem(made));
  if (!made.planner) return INFINITY;
  const int64_t bytes = limit(estimated.instructions);
  double bound = INFINITY;
  if (made.planner->bytes_in_memory() <= bytes) {
    estimated.estimated_seconds = estimated.seconds = made.seconds;
  } else if (!in_memory) {
    const PlanEstimate estimate = made.planner->estimate(bytes, compute_, disk_, beat);
    bound = estimate.bound;
    estimated.estimated_seconds = estimate.seconds;
    estimated.disk_bytes = limits_.estimated_on_disk(estimate);
    if (disk_has_room(estimated.disk_bytes)) estimated.seconds = estimate.seconds;
  }
  if (room_.for_several) estimated.candidate = std::move(made);
  return bound;
}

}  // namespace ort_train
