// Gradients of a loss that was multiplied by a number: what the true ones are.

#pragma once

#include "graph/types.h"

namespace ort_train {

// What scaled gradients are multiplied by: 1 / scale in double, then float32, as torch.amp.GradScaler does it.
inline float inverse_loss_scale(float scale) { return static_cast<float>(1.0 / static_cast<double>(scale)); }

// The norm of the true gradients. Where it isn't finite, the step is skipped.
inline float unscaled_norm(float norm, float scale) { return norm * inverse_loss_scale(scale); }

}  // namespace ort_train
