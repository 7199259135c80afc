// The numbers of a step that Lion reads: positions in its input `scalars`, float32 [kLionScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum LionScalar : int64_t {
  kLionRate,  // the learning rate
  kLionBeta1,
  kLionOneMinusBeta1,
  kLionBeta2,
  kLionOneMinusBeta2,
  kLionScalars  // how many
};

}  // namespace ort_train
