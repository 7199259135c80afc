// The steps of pipeline.cpp that turn a forward graph into a job's graph.

#pragma once

#include "passes/pipeline.h"

namespace ort_train {

// Adds labels, loss_sum and count. Throws Error(usage | unsupported) for a loss that the model's outputs can't give.
void build_loss(JobGraph& job, const LossSpec& spec);
// Adds the norm, clipping and one optimizer node for each gradient; job.gradients must be set.
void build_update(JobGraph& job, const OptimizerSpec& spec);

}  // namespace ort_train
