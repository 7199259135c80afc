// check_options: what can be said of a job's options before any file of it is read.

#pragma once

#include <cstdint>

#include "frontend/ort_train.h"

namespace ort_train {

inline constexpr int64_t kMostSteps = int64_t{1} << 53;  // of a run: they are counted in double, too

// What eval_strategy and save_strategy may be, besides empty.
inline constexpr const char *kEachEpoch = "epoch", *kBySteps = "steps", *kNever = "no";
// Whether a run evaluates.
inline bool evaluates(const Options& options) { return options.eval_steps > 0 || options.eval_strategy == kEachEpoch; }

// Throws Error(usage) or Error(io) that names the first option that is wrong, or doesn't go with another.
void check_options(const Options& options);

}  // namespace ort_train
