// emit: from the draft of an entry and its plan to its part of a Program: instructions, copies among them, with addresses and what they
// wait for.

#pragma once

#include <vector>

#include "exec/program.h"
#include "passes/plan/drafts.h"
#include "passes/plan/timing.h"

namespace ort_train {

// The plan of an entry, in one memory or in several: the nearest first, which is kMemory, then kHost.
struct EntryPlan {
  const RunDraft* run_draft = nullptr;
  std::vector<planning::LevelPlan> levels{};
};

// `persistents` have their places, which take the persistent bytes of the program's spaces. Raises the bytes of the program's file to what
// it needs.
Entry make_entry(const Draft& draft, const std::vector<Persistent>& persistents, const EntryPlan& plan, Program& program);

}  // namespace ort_train
