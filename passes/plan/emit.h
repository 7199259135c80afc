// emit: from what was planned of an entry to its part of a Program: instructions, copies among them, with addresses and what they wait for.

#pragma once

#include <vector>

#include "exec/program.h"
#include "passes/plan/assign.h"
#include "passes/plan/lifetimes.h"

namespace ort_train {

// A run as it is planned, in one memory or in several: the nearest first, which is kMemory, behind it kHost.
struct PlannedRun {
  struct Layer {
    const planning::Run* run = nullptr;
    const planning::RunPlan* plan = nullptr;
  };
  const RunDraft* draft = nullptr;
  std::vector<Layer> layers{};
};

// `persistents` have their places, which take the persistent bytes of the program's spaces. `planned`: null where everything is in one
// memory; it is packed then. Raises the bytes of the program's file to what it needs.
Entry make_entry(const Draft& draft, const std::vector<Persistent>& persistents, const PlannedRun* planned, Program& program);

}  // namespace ort_train
