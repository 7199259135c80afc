// The numbers of a step that AdamW reads: positions in its input `scalars`, float32 [kAdamWScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum AdamWScalar : int64_t {
  kAdamWRate,             // the learning rate
  kAdamWStep,             // learning rate / (1 - beta1^t)
  kAdamWInverseRootBias,  // 1 / sqrt(1 - beta2^t)
  kAdamWOneMinusBeta1,
  kAdamWBeta2,
  kAdamWOneMinusBeta2,
  kAdamWEpsilon,
  kAdamWScalars  // how many
};

}  // namespace ort_train
