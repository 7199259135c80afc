// The numbers of a step that Adafactor's ops read: positions in their input `scalars`, float32 [kAdafactorScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum AdafactorScalar : int64_t {
  kAdafactorRate,       // the learning rate, before it is scaled by the parameter
  kAdafactorDecayRate,  // that of weight decay, where it isn't scaled
  kAdafactorBeta1,
  kAdafactorOneMinusBeta1,
  kAdafactorBeta2,
  kAdafactorOneMinusBeta2,
  kAdafactorEpsilon,  // added to the gradient's square
  kAdafactorScalars   // how many
};

}  // namespace ort_train
