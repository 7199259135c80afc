// The optimizers, one file each.

#pragma once

#include "passes/optimizer.h"

namespace ort_train {

extern const OptimizerDef kAdamWOptimizer, kSgdOptimizer, kAdafactorOptimizer;

}  // namespace ort_train
