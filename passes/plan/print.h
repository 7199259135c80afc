// What the planner's modules hand to each other, as text.

#pragma once

#include <string>

#include "passes/plan/search.h"

namespace ort_train::planning {

// A line for memory and disk, and for each run, block and piece.
std::string print(const Problem& problem);
// A line for each stay: when it is used, and whether its content comes from the file and goes there.
std::string print(const Run& run, const std::vector<Stay>& stays);
// The same with addresses and transfers, and a line for each block.
std::string print(const Run& run, const RunPlan& plan);

}  // namespace ort_train::planning
