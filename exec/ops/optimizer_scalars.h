// The numbers that an optimizer step needs besides its tensors: computed in double on the host once a step, fed as one float32 graph input.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace ort_train {

// Positions in the input.
enum OptimizerScalar : int64_t {
  kLearningRate,
  kStepSize,         // learning rate / (1 - beta1^t)
  kInverseRootBias,  // 1 / sqrt(1 - beta2^t)
  kOneMinusBeta1,
  kBeta2,
  kOneMinusBeta2,
  kEpsilon,
  kMomentum,
  kOptimizerScalars  // how many
};

// t counts optimizer steps from 1.
inline std::array<float, kOptimizerScalars> optimizer_scalars(int64_t t, double learning_rate, double beta1, double beta2, double epsilon,
                                                              double momentum) {
  const double bias1 = 1 - std::pow(beta1, static_cast<double>(t)), bias2 = 1 - std::pow(beta2, static_cast<double>(t));
  return {static_cast<float>(learning_rate),
          static_cast<float>(learning_rate / bias1),
          static_cast<float>(1 / std::sqrt(bias2)),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(epsilon),
          static_cast<float>(momentum)};
}

}  // namespace ort_train
