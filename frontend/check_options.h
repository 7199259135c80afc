// check_options: what can be said of a job's options before any file of it is read.

#pragma once

#include "frontend/ort_train.h"

namespace ort_train {

// Throws Error(usage) or Error(io) that names the first option that is wrong, or doesn't go with another.
void check_options(const Options& options);

}  // namespace ort_train
