#include "passes/plan/fastest_plan.h"

#include <utility>

namespace ort_train::planning {
namespace {

// A drive sometimes stalls, and others use it, too. None where on a slower disk every plan takes clearly longer than the bound, so that a
// plan for it isn't one of about the least time.
std::optional<HierarchyPlan> plan_for_slower_disk(const Problem& problem, double bound, int64_t max_bytes) {
  constexpr double kSlower = 0.8;
  constexpr double kNear = 1.01;  // of the bound: a slower disk must make so little of a difference
  Problem slower = problem;
  slower.store.read *= kSlower;
  slower.store.write *= kSlower;
  Search search(slower, kNear * bound, max_bytes);
  if (search.bound() >= kNear * bound) return std::nullopt;
  std::optional<Plan> plan = search.best();
  if (!plan) return std::nullopt;
  return in_one_memory(problem, std::move(*plan), bound);
}

}  // namespace

HierarchyPlan in_one_memory(const Problem& problem, Plan plan, double bound) {
  HierarchyPlan result{.plans = {std::move(plan)}};
  result.bound = bound;
  set_forecasts(problem, result);
  return result;
}

std::optional<HierarchyPlan> fastest_plan(const Problem& problem, Search& search, bool for_slower_disk, int64_t max_bytes) {
  constexpr double kGood = 1.002;  // times the bound, or the fastest plan
  std::optional<HierarchyPlan> slower;
  if (for_slower_disk) slower = plan_for_slower_disk(problem, search.bound(), max_bytes);
  if (slower && slower->seconds <= kGood * search.bound()) return slower;
  std::optional<Plan> best = search.best();
  if (!best) return slower;
  HierarchyPlan fastest = in_one_memory(problem, std::move(*best), search.bound());
  if (slower && slower->seconds <= kGood * fastest.seconds) return slower;
  return fastest;
}

}  // namespace ort_train::planning
