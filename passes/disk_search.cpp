#include "passes/disk_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "exec/pages.h"
#include "passes/call_both.h"
#include "passes/problem_dump.h"

namespace ort_train {
namespace {

// Candidates whose bound is within 0.2 % of the best plan's seconds aren't planned; the plain strategy is preferred within as much.
constexpr double kClose = 0.998;

// Several candidates are kept at once where there is room for this many times the job's graphs (graph_bytes()). A candidate with its search
// takes about twice that. GPT-2-XL's took 12 times 15 MB together; the rest is headroom.
constexpr int64_t kGraphs = 32;

// Before anything is recomputed; of the entries that train, or of all.
int64_t nodes_of(const EntrySet& set, bool training_alone = false) {
  int64_t nodes = 0;
  for (const JobEntry& entry : set.entries) {
    if (training_alone && entry.built.role.kind != EntryKind::train) continue;
    nodes += static_cast<int64_t>(entry.built.graph.order().size()) * (entry.joined ? set.strategy.joined_batches : 1);
  }
  return nodes;
}

// Of a candidate.
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

DiskSearch::DiskSearch(PlanSearch& entries, const PlannedCandidate& resident, const DiskLimits& limits)
    : entries_(entries),
      resident_(resident),
      limits_(limits),
      room_(limits.budget - limits.reserve(resident.of.finished.instructions())),
      has_room_for_several_(room_ >= kGraphs * graph_bytes(resident.of.finished.instructions())),
      search_(least_search()) {
  constexpr double kAmple = 1.25;  // a refusal is unlikely
  share_ = static_cast<double>(limits_.budget) / static_cast<double>(search_.choices.begin()->first);
  finds_least_meanwhile_ = !fits() && plans_two() && share_ >= kAmple;
  searched_ = std::async(finds_least_meanwhile_ ? std::launch::async : std::launch::deferred, [this] { return smallest_of(search_); });
}

bool DiskSearch::fits() const {
  return limits_.budget == 0 ||
         limits_.budget - limits_.reserve(resident_.of.finished.instructions()) >= resident_.made.program.memory().bytes;
}

bool DiskSearch::leaves_room_to_pin() const {
  constexpr double kSpare = 1.05;
  return share_ >= kSpare;
}

// Where several plans are made at a time, their linear programs share the room.
Candidate DiskSearch::candidate(const EntrySet& set, const RecomputeChoice& choice, double beat) const {
  constexpr int64_t kSeveral = 8;
  const int64_t bytes = has_room_for_several_ ? room_ / kSeveral : room_ - bytes_to_plan(nodes_of(set), &set == &entries_.first());
  return entries_.candidate(set, choice, compute_, beat, has_room_for_several_, std::max<int64_t>(0, bytes));
}

const SmallestBudget& DiskSearch::least() {
  if (!least_) {
    least_ = searched_.get();
    search_.choices.clear();
  }
  return *least_;
}

DiskPlan DiskSearch::best(const ComputeRates& compute, const StreamRates& disk, int64_t pinning, bool dumps) {
  compute_ = compute, disk_ = disk, pinning_ = pinning, dumps_ = dumps;
  estimate_strategies();
  int64_t disk_bytes = 0;  // of those for which the disk has no room, the least
  DiskPlan fastest;
  double rank = INFINITY;  // of that one
  for (CandidateEstimate& choice : choices_) {
    if (fastest.placed && (choice.rank() >= rank || !has_room_for_several_)) break;
    if (choice.seconds < INFINITY) {
      PlannedCandidate placed = place(choice);
      if (placed.made.program.memory().bytes > limit(choice.instructions)) continue;
      choice.disk_bytes = limits_.on_disk(placed.made.program);
      if (disk_has_room(choice.disk_bytes)) {
        if (choice.rank() < rank) {
          rank = choice.rank();
          fastest = {.placed = std::move(placed), .problems = std::move(choice.problem)};
        }
        continue;
      }
    }
    disk_bytes = disk_bytes > 0 ? std::min(disk_bytes, choice.disk_bytes) : choice.disk_bytes;
  }
  if (fastest.placed) return fastest;
  if (disk_bytes > 0) return {.disk_bytes = disk_bytes};
  return plan_for_smallest_budget();
}

// With addresses, which may make it slower.
PlannedCandidate DiskSearch::place(CandidateEstimate& choice) {
  PlannedCandidate placed;
  if (choice.candidate)
    placed.of = std::move(*choice.candidate);
  else
    placed.of = candidate(entries_.entries(choice.strategy, has_room_for_several_), choice.recompute);
  const Planner& planner = *placed.of.planner;
  const int64_t most = limit(choice.instructions);
  if (planner.bytes_in_memory() <= most) placed.made.program = planner.all_in_memory();
  const bool is_in_memory = !placed.made.program.entries.empty() && placed.made.program.memory().bytes <= most;
  if (!is_in_memory) {
    placed.made = planner.streamed(most, compute_, disk_);
    choice.seconds = placed.made.seconds;
  }
  if (dumps_) choice.problem = dump(placed.of);
  if (is_in_memory) add_overlapped(placed);
  placed.of.planner.reset();
  return placed;
}

// What the smallest budget was computed from.
DiskPlan DiskSearch::plan_for_smallest_budget() {
  const EntrySet& set = entries_.first();
  PlannedCandidate placed{.of = candidate(set, least().recompute)};
  std::string problems;
  if (dumps_) problems = dump(placed.of);
  placed.made = placed.of.planner->streamed(0, compute_, disk_);
  placed.of.planner.reset();
  const int64_t disk_bytes = limits_.on_disk(placed.made.program);
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

// --- choices ----------------------------------------------------------------------------------------------------------------------------

// The first strategy goes last: it is rarely the fastest, and a good bound found earlier rejects it cheaply.
std::vector<StepStrategy> DiskSearch::strategies() const {
  const EntrySet& first = entries_.first();
  const int64_t most = entries_.options().micro_batches == "horizontal" ? 1 : most_together(first);
  std::vector<StepStrategy> strategies;
  // All but the first strategy have more instructions, and are planned where memory is left for it.
  const int64_t batch = nodes_of(first, /*training_alone=*/true);
  const auto add = [&](const StepStrategy& strategy, int64_t more) {
    if (bytes_to_plan(nodes_of(first) + more, /*is_first=*/false) <= room_) strategies.push_back(strategy);
  };
  // An update at the end of its step waits for the disk; one before the next step's use overlaps with computing.
  if (first.micro_batches == 1) {
    if (!entries_.options().keeps_gradients && limits_.updates_can_wait_longer) add({Deferral::most, 1}, batch);
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
  const int64_t state = resident_.made.program.memory().persistent_bytes;  // which every plan without a disk holds
  const std::vector<StepStrategy> all = strategies();
  std::vector<double> bounds;  // by strategy, with the first rung
  for (const StepStrategy& strategy : all) {
    const EntrySet& set = entries_.entries(strategy, has_room_for_several_);
    bounds.push_back(estimate_rungs(set, {rungs(set).front()}, /*in_memory=*/false));
  }
  const auto best = static_cast<size_t>(std::min_element(bounds.begin(), bounds.end()) - bounds.begin());
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_best = i == best || bounds[best] == INFINITY, is_first_strategy = i + 1 == all.size();
    const bool may_fit = is_first_strategy && state <= limit(resident_.of.finished.instructions());
    if (!is_best && !may_fit) continue;
    const EntrySet& set = entries_.entries(all[i], has_room_for_several_);
    std::vector<RecomputeChoice> others = rungs(set);
    others.erase(others.begin());
    estimate_rungs(set, others, /*in_memory=*/!is_best);
  }
  std::stable_sort(choices_.begin(), choices_.end(),
                   [](const CandidateEstimate& a, const CandidateEstimate& b) { return a.rank() < b.rank(); });
}

// What is recomputed needn't be moved: a few rungs of the ladder.
std::vector<RecomputeChoice> DiskSearch::rungs(const EntrySet& set) const {
  constexpr size_t kParts = 4;
  if (entries_.options().recompute != "auto") return {entries_.first_choice()};
  const std::vector<RecomputeChoice> ladder = recompute_ladder(set.entries[0].built.graph);
  std::vector<RecomputeChoice> rungs;
  for (const size_t rung : sampled_rungs(ladder, kParts)) rungs.push_back(ladder[rung]);
  return rungs;
}

// Seconds that a candidate has to beat: it must be faster than the best by 0.2 % (kClose). The plain strategy may be slower by as much, and
// is still preferred.
double DiskSearch::to_beat(const CandidateEstimate& choice) const {
  double beat = INFINITY;
  for (const CandidateEstimate& other : choices_)
    beat = std::min(beat, choice.strategy.is_plain() && !other.strategy.is_plain() ? other.seconds / kClose : kClose * other.seconds);
  return beat;
}

// Of these rungs, adds those whose step may take less than that of all choices so far; with `in_memory` those that need no disk. Where the
// bound says that it can't, or the disk has no room, a choice's time is infinite. Returns the least bound of those that need a disk.
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
        plans_two() && count > 1, [&] { least[0] = estimate(set, two[0], in_memory); },
        [&] {
          if (count > 1) least[1] = estimate(set, two[1], in_memory);
        });
    for (size_t of = 0; of < count; ++of) {
      bound = std::min(bound, least[of]);
      if (!two[of].problem.empty()) dump_lines_[name_of(set.strategy, two[of].recompute)] = std::move(two[of].problem);
      if (two[of].expected < to_beat(two[of])) choices_.push_back(std::move(two[of]));
    }
  }
  return bound;
}

// Without addresses. Returns the bound where it needs a disk, else infinity.
double DiskSearch::estimate(const EntrySet& set, CandidateEstimate& choice, bool in_memory) const {
  const double beat = to_beat(choice);
  Candidate made = candidate(set, choice.recompute, dumps_ ? INFINITY : beat);
  choice.instructions = made.finished.instructions();
  if (dumps_) choice.problem = planning::to_json(problem(made));
  if (!made.planner) return INFINITY;
  const int64_t most = limit(choice.instructions);
  double bound = INFINITY;
  if (made.planner->bytes_in_memory() <= most) {
    choice.expected = choice.seconds = made.seconds;
  } else if (!in_memory) {
    const StreamOutlook outlook = made.planner->outlook(most, compute_, disk_, beat);
    bound = outlook.bound;
    choice.expected = outlook.seconds;
    choice.disk_bytes = limits_.expected_on_disk(outlook);
    if (disk_has_room(choice.disk_bytes)) choice.seconds = outlook.seconds;
  }
  if (has_room_for_several_) choice.candidate = std::move(made);
  return bound;
}

// --- the smallest budget ----------------------------------------------------------------------------------------------------------------

DiskSearch::LeastSearch DiskSearch::least_search() const {
  constexpr double kNear = 1.05;  // with addresses none takes so much more than its floor
  const EntrySet& set = entries_.first();
  const SearchOptions& options = entries_.options();
  std::vector<RecomputeChoice> choices{entries_.first_choice()};
  if (options.recompute == "auto") choices = {recompute_mode("none"), recompute_mode("all")};
  std::vector<std::pair<int64_t, LeastSearch::Of>> found(choices.size());
  const auto look_at = [&](size_t i) {
    Candidate of = entries_.candidate(set, choices[i]);
    const int64_t besides = limits_.reserve(of.finished.instructions());
    found[i] = {besides + whole_pages(of.planner->least_bytes()),
                LeastSearch::Of{.recompute = choices[i], .candidate = {}, .besides = besides}};
    if (has_room_for_several_) found[i].second.candidate = std::move(of);
  };
  call_both(
      choices.size() > 1 && plans_two(), [&] { look_at(0); },
      [&] {
        if (choices.size() > 1) look_at(1);
      });
  LeastSearch search;
  for (auto& [floor, of] : found) search.choices.emplace(floor, std::move(of));
  const auto most = static_cast<int64_t>(kNear * static_cast<double>(search.choices.begin()->first));
  search.choices.erase(search.choices.upper_bound(most), search.choices.end());
  return search;
}

SmallestBudget DiskSearch::smallest_of(const LeastSearch& search) const {
  SmallestBudget smallest{.budget = INT64_MAX};
  for (const auto& [floor, of] : search.choices) {
    if (floor >= smallest.budget) break;
    std::optional<Candidate> made_now;
    if (!of.candidate) made_now = entries_.candidate(entries_.first(), of.recompute);
    const Candidate& candidate = of.candidate ? *of.candidate : *made_now;
    const Program made = candidate.planner->streamed(0, ComputeRates{}, StreamRates{}).program;
    const int64_t budget = of.besides + whole_pages(made.memory().bytes);
    if (budget >= smallest.budget) continue;
    smallest = least_of(budget, made, candidate.finished.pointers());
    smallest.recompute = of.recompute;
  }
  return smallest;
}

}  // namespace ort_train
