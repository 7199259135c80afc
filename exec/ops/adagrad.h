// The numbers of a step that Adagrad reads: positions in its input `scalars`, float32 [kAdagradScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum AdagradScalar : int64_t {
  kAdagradRate,  // the learning rate, decayed
  kAdagradEpsilon,
  kAdagradScalars  // how many
};

}  // namespace ort_train
