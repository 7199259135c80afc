// schedule: in which order the nodes of one entry run, so that the peak of live bytes is low.
//
// Any order that obeys the model's edges computes the same bits; this one is a fixed function of the graph.

#pragma once

#include "passes/memory_model.h"

namespace ort_train {

// The graph's own order, or a better one: never one with a higher peak.
StepOrder schedule(const MemoryModel& model);

}  // namespace ort_train
