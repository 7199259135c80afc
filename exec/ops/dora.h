// What a row's scale of DoRA is made of, for the kernels of every device.

#pragma once

#include "exec/kernel.h"
#include "exec/math.h"
#include "graph/types.h"

namespace ort_train {

inline constexpr double kLeastSquares = 1e-30;  // what a row's squares count as at least: a row of zeros stays one

}

ORT_TRAIN_OPS_BEGIN

// One row: in double, from the first to the last of the adapter's rank.
template <typename T> struct DoraRow {
  const T *magnitude, *squares, *wa, *ba, *b;
  T *scale, *inverse;
  int64_t rows, rank;
  double s;

  HOST_DEVICE void operator()(int64_t row) const {
    double sum = static_cast<double>(squares[row]);
    for (int64_t k = 0; k < rank; ++k) {
      const double both = 2 * s * static_cast<double>(wa[k * rows + row]) + s * s * static_cast<double>(ba[row * rank + k]);
      sum += static_cast<double>(b[row * rank + k]) * both;
    }
    const double norm = math::sqrt(sum > kLeastSquares ? sum : double{kLeastSquares});
    inverse[row] = static_cast<T>(1 / norm);
    scale[row] = static_cast<T>(static_cast<double>(magnitude[row]) / norm);
  }
};

template <typename T> DoraRow<T> dora_rows(const KernelSpec& spec, const KernelArgs& args) {
  return {.magnitude = args.in<T>(0),
          .squares = args.in<T>(1),
          .wa = args.in<T>(2),
          .ba = args.in<T>(3),
          .b = args.in<T>(4),
          .scale = args.out<T>(0),
          .inverse = args.out<T>(1),
          .rows = spec.inputs[0].shape[0],
          .rank = spec.inputs[2].shape[0],
          .s = double{spec.attributes.get("scale", 1.0f)}};
}

inline Cost dora_cost(const KernelSpec& spec) {
  Cost cost;
  for (const TensorType& input : spec.inputs) cost.bytes += static_cast<double>(input.bytes());
  cost.flops = 6 * static_cast<double>(element_count(spec.inputs[2].shape));
  return cost;
}

ORT_TRAIN_OPS_END
