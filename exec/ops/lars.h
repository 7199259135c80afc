// The numbers of a step that LARS's ops read: positions in their input `scalars`, float32 [kLarsScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum LarsScalar : int64_t {
  kLarsRate,        // the learning rate
  kLarsTrustRatio,  // multiplies it: 1 where a tensor has no trust ratio, else what LarsTrust puts there
  kLarsMomentum,
  kLarsScalars  // how many
};

}  // namespace ort_train
