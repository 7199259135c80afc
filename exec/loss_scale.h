// Gradients of a loss that was multiplied by a number: what the true ones are.

#pragma once

#include <limits>

#include "graph/half.h"

namespace ort_train {

// What scaled gradients are multiplied by: 1 / scale in double, then float32, as torch.amp.GradScaler does it.
HOST_DEVICE inline float inverse_loss_scale(float scale) { return static_cast<float>(1.0 / static_cast<double>(scale)); }

// The norm of the true gradients. Where it isn't finite, the step is skipped.
HOST_DEVICE inline float unscaled_norm(float norm, float scale) { return norm * inverse_loss_scale(scale); }

// What updates multiply scaled gradients by, of which `norm` is the norm: see UpdateFactor, exec/ops/optimizer.cpp. `decides`: the norm
// that, where it isn't finite, skips the step as well.
HOST_DEVICE inline float update_factor(float max_norm, float norm, float decides, float scale) {
  const auto is_finite = [](float x) { return x - x == 0; };
  norm = unscaled_norm(norm, scale);
  const float most = max_norm > 0 ? max_norm / (norm + 1e-6f) : 1.0f, clip = most < 1.0f ? most : 1.0f;
  return is_finite(norm) && is_finite(unscaled_norm(decides, scale)) ? inverse_loss_scale(scale) * clip
                                                                     : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace ort_train
