// The planner: from entry graphs to a Program.

#pragma once

#include <string>
#include <vector>

#include "exec/program.h"

namespace ort_train {

struct PlanEntry {
  std::string name;
  Graph* graph;                   // the planner may reorder it (order() is the schedule in the end)
  std::vector<ValueId> keep;      // must be intact when the entry has run, besides graph->outputs
};

struct PlanOptions {
  int threads = 1;  // for workspaces per worker
};

// Orders, finds storages (alias classes, in-place), packs addresses. Persistent values are matched across entries by name and type.
Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options);

}  // namespace ort_train
