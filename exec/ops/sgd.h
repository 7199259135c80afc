// The numbers of a step that SGD reads: positions in its input `scalars`, float32 [kSgdScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum SgdScalar : int64_t {
  kSgdRate,  // the learning rate
  kSgdMomentum,
  kSgdGain,    // of the gradient in the buffer: 1 - dampening, 1 in the first step
  kSgdScalars  // how many
};

}  // namespace ort_train
