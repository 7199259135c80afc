// The numbers of a step that RMSprop reads: positions in its input `scalars`, float32 [kRmspropScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum RmspropScalar : int64_t {
  kRmspropRate,  // the learning rate
  kRmspropAlpha,
  kRmspropOneMinusAlpha,
  kRmspropMomentum,
  kRmspropEpsilon,
  kRmspropScalars  // how many
};

}  // namespace ort_train
