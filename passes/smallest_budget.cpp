#include "passes/smallest_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/pages.h"
#include "graph/rounding.h"
#include "passes/call_both.h"
#include "passes/plan_report.h"

namespace ort_train {

// --- what sets it -----------------------------------------------------------------------------------------------------------------------

std::string SmallestBudget::set_by() const { return entry.empty() ? op : fmt::format("{} in '{}'", op, entry); }

void SmallestBudget::raise_for_planning(int64_t reserve, int64_t planning) {
  if (budget < reserve + planning) *this = {.budget = reserve + planning, .op = "planning itself", .entry = "", .recompute = recompute};
}

void SmallestBudget::raise_above(int64_t taken) {
  if (taken > budget) *this = {.budget = budget_above(taken), .op = "importing and planning", .entry = "", .recompute = recompute};
}

int64_t budget_of(int64_t reserve, const Program& program) { return reserve + whole_pages(program.memory().bytes); }

SmallestBudget budget_for(int64_t reserve, const Program& program, const Candidate& candidate) {
  const MemoryPeak peak = memory_peak(program, candidate.finished.pointers());
  return {
      .budget = budget_of(reserve, program), .op = peak.op, .entry = program.entries[peak.entry].name, .recompute = candidate.recompute};
}

SmallestBudget device_budget(int64_t reserve, int64_t bytes, int64_t page) {
  return {.budget = reserve + round_up(whole_pages(bytes), page)};
}

int64_t budget_above(int64_t taken) {
  constexpr int64_t kMB = int64_t{1} << 20;
  return round_up(taken + 2 * kMB, 4 * kMB);
}

// --- without a disk ---------------------------------------------------------------------------------------------------------------------

RecomputeBudgets::RecomputeBudgets(const Candidates& candidates, const Reserve& reserve, SmallestBudget without)
    : candidates_(candidates), reserve_(reserve), ladder_(recompute_ladder(candidates.first_entries().entries[0].built.graph)) {
  constexpr size_t kParts = 8;
  known_.emplace(0, std::move(without));
  std::vector<size_t> rungs = sampled_rungs(ladder_, kParts);
  const size_t all = rungs.back();
  for (size_t rung = all + 1; rung < ladder_.size(); ++rung) rungs.push_back(rung);
  if (at(all).budget >= at(0).budget) return;  // activations don't make the peak
  for (const size_t rung : rungs) {
    if (at(rung).budget < at(smallest_).budget) smallest_ = rung;
  }
}

const SmallestBudget& RecomputeBudgets::at(size_t rung) {
  if (const auto found = known_.find(rung); found != known_.end()) return found->second;
  const PlannedCandidate placed = candidates_.in_memory(ladder_[rung], /*overlapped=*/false);
  const int64_t reserve = reserve_(placed.candidate.finished.instructions());
  return known_.emplace(rung, budget_for(reserve, placed.planned.program, placed.candidate)).first->second;
}

// By halving, between a rung that doesn't fit and one that does.
RecomputeChoice RecomputeBudgets::first_within(int64_t budget) {
  size_t below = 0, chosen = smallest_;
  while (chosen - below > 1) {
    const size_t between = below + (chosen - below) / 2;
    (at(between).budget <= budget ? chosen : below) = between;
  }
  return ladder_[chosen];
}

// --- with a disk ------------------------------------------------------------------------------------------------------------------------

SmallestWithDisk::SmallestWithDisk(const Candidates& candidates, const Reserve& reserve, const PlanningRoom& room)
    : candidates_(candidates), reserve_(reserve), room_(room) {
  constexpr double kNear = 1.05;  // with addresses a plan takes less than 5 % more than its lower bound
  std::vector<RecomputeChoice> choices{candidates.first_choice()};
  if (candidates.options().recompute == "auto") choices = {recompute_mode("none"), recompute_mode("all")};
  contenders_.resize(choices.size());
  const auto look_at = [&](size_t i) { contenders_[i] = contender(choices[i]); };
  call_both(
      choices.size() > 1 && room.for_two, [&] { look_at(0); },
      [&] {
        if (choices.size() > 1) look_at(1);
      });
  std::stable_sort(contenders_.begin(), contenders_.end(),
                   [](const Contender& a, const Contender& b) { return a.lower_bound < b.lower_bound; });
  lower_bound_ = contenders_.front().lower_bound;
  const auto near = static_cast<int64_t>(kNear * static_cast<double>(lower_bound_));
  std::erase_if(contenders_, [&](const Contender& contender) { return contender.lower_bound > near; });
}

SmallestWithDisk::Contender SmallestWithDisk::contender(const RecomputeChoice& choice) const {
  Candidate candidate = candidates_.make(candidates_.first_entries(), choice);
  Contender made{.recompute = choice, .candidate = {}, .reserve = reserve_(candidate.finished.instructions())};
  made.lower_bound = made.reserve + whole_pages(candidate.planner->least_bytes());
  if (room_.for_several) made.candidate = std::move(candidate);
  return made;
}

double SmallestWithDisk::times(int64_t budget) const { return static_cast<double>(budget) / static_cast<double>(lower_bound_); }

void SmallestWithDisk::search_in_background() {
  background_ = std::async(std::launch::async, [this] { return search(); });
}

const SmallestBudget& SmallestWithDisk::get() {
  if (!found_) {
    found_ = background_.valid() ? background_.get() : search();
    contenders_.clear();
  }
  return *found_;
}

// Plans the contenders with addresses, those with the least lower bounds first, until none can need less. Reads only what the constructor
// has made; makes candidates that weren't kept, one at a time.
SmallestBudget SmallestWithDisk::search() const {
  SmallestBudget smallest{.budget = std::numeric_limits<int64_t>::max()};
  for (const Contender& contender : contenders_) {
    if (contender.lower_bound >= smallest.budget) break;
    std::optional<Candidate> made_now;
    if (!contender.candidate) made_now = candidates_.make(candidates_.first_entries(), contender.recompute);
    const Candidate& candidate = contender.candidate ? *contender.candidate : *made_now;
    const Program program = candidate.planner->streamed(0, ComputeRates{}, StreamRates{}).program;
    if (budget_of(contender.reserve, program) >= smallest.budget) continue;
    smallest = budget_for(contender.reserve, program, candidate);
  }
  return smallest;
}

}  // namespace ort_train
