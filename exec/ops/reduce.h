// What the reductions' kernels share (exec/ops/reduce.cpp, exec/cuda/reduce.h).

#pragma once

#include <algorithm>
#include <vector>

#include "exec/element_types.h"
#include "exec/reduce_plan.h"

ORT_TRAIN_OPS_BEGIN

inline std::vector<int64_t> reduced_axes(const Attributes& attributes, const Shape& shape) {
  std::vector<int64_t> axes = attributes.get("axes", std::vector<int64_t>{});
  for (int64_t& axis : axes) axis = normalize_axis(axis, static_cast<int64_t>(shape.size()), "axis");
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end())
    throw error(ErrorCode::unsupported, "an axis of {} is named twice", to_string(axes));
  return axes;
}

// The loops over what stays and what is reduced to one element of it.
struct ReducedLoops {
  StridedLoop<1> kept, reduced;
};
inline ReducedLoops reduced_loops(const Shape& shape, const std::vector<int64_t>& axes) {
  const std::vector<int64_t> strides = strides_of(shape);
  Shape kept_dims, reduced_dims;
  std::vector<int64_t> kept_strides, reduced_strides;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool drops = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(axis));
    (drops ? reduced_dims : kept_dims).push_back(shape[axis]);
    (drops ? reduced_strides : kept_strides).push_back(strides[axis]);
  }
  return {.kept = StridedLoop<1>(kept_dims, {kept_strides}), .reduced = StridedLoop<1>(reduced_dims, {reduced_strides})};
}

inline ReducePlan reduction_plan(const KernelSpec& spec) {
  return ReducePlan(spec.inputs[0].shape, reduced_axes(spec.attributes, spec.inputs[0].shape));
}

inline Workspace reduction_workspace(const KernelSpec& spec) {
  const ReducePlan plan = reduction_plan(spec);
  return {.shared = plan.pieces == 1 ? 0 : plan.pieces * plan.outputs() * static_cast<int64_t>(sizeof(double))};  // no total is larger
}

inline Cost reduction_cost(const KernelSpec& spec) {
  Cost cost = movement_cost(spec);
  cost.flops = static_cast<double>(element_count(spec.inputs[0].shape));
  return cost;
}

using ReducedNumbers = Types<float, double, float16, bfloat16, int64_t, int32_t>;
using ReducedOrdered = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;

ORT_TRAIN_OPS_END
