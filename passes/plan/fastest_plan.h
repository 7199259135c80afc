// fastest_plan: the plan that is taken of those which the searches for a problem in one memory find.

#pragma once

#include <cstdint>
#include <optional>

#include "passes/plan/backing.h"

namespace ort_train::planning {

// A plan of a problem in one memory, with its forecasts. `bound`: of the problem; 0: not known.
HierarchyPlan in_one_memory(const Problem& problem, Plan plan, double bound);

// The fastest plan that `search`, of that problem, finds; with `for_slower_disk` the one that was made for a slower disk, if at the
// measured speed it takes about as long. None where no plan is found. `max_bytes`: as in Bound, for the search with the slower disk.
std::optional<HierarchyPlan> fastest_plan(const Problem& problem, Search& search, bool for_slower_disk, int64_t max_bytes);

}  // namespace ort_train::planning
