// check_options: what can be said of a job's options before any file of it is read.

#pragma once

#include <cstdint>

#include "frontend/ort_train.h"

namespace ort_train {

inline constexpr int64_t kMostSteps = int64_t{1} << 53;  // of a run: they are counted in double, too

// Throws Error(usage) or Error(io) that names the first option that is wrong, or doesn't go with another.
void check_options(const Options& options);

}  // namespace ort_train
