// A problem of the planner as JSON: what `ort-train plan --dump-problem` writes, and tests and benchmarks plan again.

#pragma once

#include <string>

#include "passes/plan/problem.h"

namespace ort_train::planning {

std::string to_json(const Problem& problem);
// Throws Error(data) where it isn't one.
Problem problem_from_json(const std::string& text);

}  // namespace ort_train::planning
