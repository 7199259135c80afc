// backing: several memories. From a problem and a plan in the nearest memory to the problem of its backing memory, the one behind it; and
// a plan for each memory.
//
// What is read from there has to be there from the beginning of its copy to the end; what is written, likewise; what steps compute there,
// at those steps. Between these it may leave for that memory's own store, unless it is resident there. What is resident in the nearer
// memory is no piece of this problem.
//
// A run has one more step than the one in front of it: the end, at which the last copies are over. One run more is what the memory is used
// for between runs.

#pragma once

#include <optional>
#include <vector>

#include "passes/plan/search.h"
#include "passes/plan/timing.h"

namespace ort_train::planning {

// The problem's memory is that of problem.backing[0]. Pieces have the values of those in front. A run's blocks are the fed ones in front,
// in their order, and its backing_blocks.
Problem backing_problem(const Problem& problem, const std::vector<bool>& resident, const std::vector<RunPlan>& runs);

// A plan for each memory, the nearest first.
struct HierarchyPlan {
  std::vector<Problem> backing{};  // of all but the nearest
  std::vector<Plan> plans{};
  std::vector<StreamForecast> forecasts{};  // by run
  double seconds = 0;                       // of an optimizer step
  double bound = 0;                         // no plan takes less

  std::vector<LevelPlan> of_run(const Problem& nearest, size_t run) const;
};

// By the plans of all memories.
void set_forecasts(const Problem& problem, HierarchyPlan& levels);

// What a plan takes of its problem's memory.
int64_t bytes_of(const Problem& problem, const Plan& plan);

// The fastest that it finds; none where it finds no room. At most one backing memory.
std::optional<HierarchyPlan> plan_hierarchy(const Problem& problem);
// The plan of least memory, the nearest first: all memories are as large as they have to be.
HierarchyPlan least_hierarchy(const Problem& problem);

}  // namespace ort_train::planning
