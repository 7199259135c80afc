// The numbers of a step that LAMB's ops read: positions in their input `scalars`, float32 [kLambScalars].

#pragma once

#include <cstdint>

namespace ort_train {

enum LambScalar : int64_t {
  kLambRate,        // the learning rate
  kLambTrustRatio,  // multiplies it: 1 where a tensor has no trust ratio, else what LambTrust puts there
  kLambBeta1,
  kLambGain1,  // of the gradient in the mean: 1 - beta1, or 1
  kLambBeta2,
  kLambOneMinusBeta2,
  kLambInverseBias1,      // 1 / (1 - beta1^t), or 1
  kLambInverseRootBias2,  // 1 / sqrt(1 - beta2^t), or 1
  kLambEpsilon,
  kLambScalars  // how many
};

}  // namespace ort_train
