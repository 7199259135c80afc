// What the kernels of Softmax, LogSoftmax and their gradients share on all devices.

#pragma once

#include "exec/elementwise.h"

ORT_TRAIN_OPS_BEGIN

// x seen as (outer, n, inner), n the axis.
struct SoftmaxLayout {
  int64_t outer = 1, n = 1, inner = 1;
};

inline SoftmaxLayout softmax_layout(const KernelSpec& spec) {
  const Shape& shape = spec.outputs[0].shape;
  const int64_t axis = normalize_axis(spec.attributes.get("axis", -1), static_cast<int64_t>(shape.size()), "axis");
  SoftmaxLayout layout;
  for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i)
    (i < axis ? layout.outer : i == axis ? layout.n : layout.inner) *= shape[i];
  return layout;
}

inline constexpr auto kSoftmaxCost = elementwise_cost<24>, kSoftmaxGradientCost = elementwise_cost<4>,
                      kLogSoftmaxGradientCost = elementwise_cost<22>;

ORT_TRAIN_OPS_END
