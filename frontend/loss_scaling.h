// Loss scaling: the loss is multiplied by a number before the backward pass, so that small gradients don't vanish in float16, and a step
// whose gradients aren't finite is skipped. The number changes as torch.amp.GradScaler changes it.

#pragma once

#include <cstdint>
#include <string>

#include "frontend/ort_train.h"

namespace ort_train {

// What of it lives across steps.
struct LossScaleState {
  float scale = 0;             // 0: none yet
  int64_t finite_steps = 0;    // since the scale changed last
  int64_t skipped = 0;         // steps of the run that changed nothing
  int64_t skipped_in_row = 0;  // of these the last ones
};

class LossScaling {
 public:
  LossScaling() = default;  // none
  // `in_float16`: some gradients are, so that they need it. Throws Error(usage) for options that don't fit.
  explicit LossScaling(const Options& options, bool in_float16 = false);

  bool is_on() const { return mode_ != Mode::none; }
  // At the beginning of a run, or where one goes on, perhaps with other options.
  void begin(LossScaleState& state) const;
  // After a step. Returns why no later one can be expected to be finite, where that is so.
  std::string update(LossScaleState& state, bool is_finite) const;

 private:
  enum class Mode : uint8_t { none, fixed, dynamic };
  Mode mode_ = Mode::none;
  float initial_ = 0;
  double growth_ = 0, backoff_ = 0;
  int64_t window_ = 0;
};

}  // namespace ort_train
