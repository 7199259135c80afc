// What the search for a job's plan does with its candidates, by problems alone.

#pragma once

#include <optional>
#include <span>
#include <utility>

#include "passes/plan/search.h"

namespace ort_train::planning {

// The candidate whose plan is the fastest; none where the memory is too small for all of them.
struct Fastest {
  const Problem* problem = nullptr;  // among those that were given
  Plan plan{};
  double bound = 0;
};
inline Fastest fastest_of(std::span<const Problem> candidates) {
  Fastest fastest;
  for (const Problem& problem : candidates) {
    if (problem.memory < floor_bytes(problem)) continue;
    Search search(problem);
    if (fastest.problem && search.bound() >= fastest.plan.seconds) continue;
    const std::optional<Plan> found = search.best();
    Plan plan = found ? *found : least_plan(problem);
    if (!fastest.problem || plan.seconds < fastest.plan.seconds) fastest = {&problem, std::move(plan), search.bound()};
  }
  return fastest;
}

}  // namespace ort_train::planning
