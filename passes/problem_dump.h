// Problems of the planner as JSON, one on each line: the candidates of a job (passes/plan/problem.h), the one that was chosen first. What
// `ort-train plan --dump-problem` writes, and tests and benchmarks plan again. Keys have the names of the first version: together (duplex),
// beside (while_computing), slowed (compute_lost), always (immovable), disk (store).

#pragma once

#include <string>
#include <vector>

#include "passes/plan/problem.h"

namespace ort_train::planning {

// One line.
std::string to_json(const Problem& problem);
// Throws Error(data) where it isn't one.
Problem problem_from_json(const std::string& text);
// The problems of all lines; at least one.
std::vector<Problem> problems_from_json(const std::string& text);

}  // namespace ort_train::planning
