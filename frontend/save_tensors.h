// Tensors of a run as safetensors files for other programs, under the names that they have in the model.

#pragma once

#include <string>

#include "frontend/job.h"
#include "frontend/plan_job.h"
#include "frontend/runtime.h"

namespace ort_train {

// Options::save_gradients: the gradients that entry `index`, which ran last, has made or added up, without the loss scale.
void write_gradients(const Job& job, const PlannedJob& planned, Runtime& runtime, size_t index, float loss_scale);

// Options::save_optimizer_state, after that step: in the shapes of the model's weights, whatever parts or packs they were trained in.
//   WEIGHT.exp_avg                             a state in the numbers that it is stored in
//   WEIGHT.exp_avg.codes, WEIGHT.exp_avg.absmax   one in 8 bits (graph/dynamic8.h): uint8 by element, float32 by block of 256
void write_optimizer_state(const Job& job, const PlannedJob& planned, const CheckpointContent& content, int64_t step);

}  // namespace ort_train
