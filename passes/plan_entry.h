// PlanEntry: an entry point as the planner is given it.

#pragma once

#include <string>
#include <vector>

#include "exec/program.h"
#include "graph/graph.h"

namespace ort_train {

struct PlanEntry {
  std::string name;
  Graph* graph;               // gets the planned order (order() is the schedule in the end)
  std::vector<ValueId> keep;  // must be intact when the entry has run, besides graph->outputs
  double runs_per_step = 1;   // of an optimizer
  bool ordered = false;       // the graph's own order stays
  EntryRole role{};
};

// What the host may compute beside a device: where state lives in its memory, an update there moves less.
inline bool updates_state(const Node& node) { return node.stage == Stage::update && !node.op->writes.empty(); }

}  // namespace ort_train
