// The planner: from entry graphs to a Program.
//
// For each entry: workspaces (exec/kernel_table.h), what the values ask of memory (memory_model.h), an order of low peak (schedule.h); then
// the persistent values of all entries get the bottom of the arena, and each entry's transient storages are packed above them (pack.h). A
// fixed function of the graphs: nothing of the machine enters but the number of threads, which sizes workspaces.

#pragma once

#include <string>
#include <vector>

#include "exec/program.h"

namespace ort_train {

struct PlanEntry {
  std::string name;
  Graph* graph;               // gets the planned order (order() is the schedule in the end)
  std::vector<ValueId> keep;  // must be intact when the entry has run, besides graph->outputs
};

struct PlanOptions {
  int threads = 1;  // for workspaces per worker
};

// Persistent values are matched across entries by name and type, constants by content. Throws Error(unsupported) for a node whose op has no
// kernel, Error(device) for entries that contradict each other.
Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options);

}  // namespace ort_train
