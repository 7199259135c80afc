// make_entry: from a draft, and what was planned of it, to an entry of a program: its instructions, transfers among them, with addresses.

#pragma once

#include <vector>

#include "exec/program.h"
#include "passes/plan/assign.h"
#include "passes/plan_draft.h"

namespace ort_train {

// What of an entry moves, when, and where all of it lies.
struct PlannedRun {
  const std::vector<PieceOf>* pieces;  // by piece of the run
  const planning::RunPlan* plan;
};

// `persistents` have their places, which take the program's persistent bytes. `planned`: null where everything is in memory; it is packed
// then. Raises the bytes of the program's file to what it needs.
Entry make_entry(const Draft& draft, const std::vector<Persistent>& persistents, const PlannedRun* planned, Program& program);

}  // namespace ort_train
