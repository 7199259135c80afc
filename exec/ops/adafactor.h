// The numbers of a step that Adafactor's ops read: positions in their input `scalars`, float32 [kAdafactorScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum AdafactorScalar : int64_t {
  kAdafactorRate,  // the learning rate
  kAdafactorBeta2,
  kAdafactorOneMinusBeta2,
  kAdafactorEpsilon,
  kAdafactorScalars  // how many
};

}  // namespace ort_train
