// What Where reads where and what Cast makes of a number, for the kernels of every device.

#pragma once

#include <type_traits>

#include "exec/strided.h"
#include "graph/types.h"

ORT_TRAIN_OPS_BEGIN

// Over the condition and both sides.
inline StridedLoop<3> where_loops(const KernelSpec& spec) {
  const Shape& to = spec.outputs[0].shape;
  return StridedLoop<3>(to, {broadcast_strides(spec.inputs[0].shape, to), broadcast_strides(spec.inputs[1].shape, to),
                             broadcast_strides(spec.inputs[2].shape, to)});
}

using Castable = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;

template <typename To, typename From> HOST_DEVICE inline To converted(From value) {
  const Compute<From> number = load(value);
  if constexpr (std::is_same_v<To, bool>)
    return number != Compute<From>(0);
  else if constexpr (std::is_floating_point_v<Compute<From>> && std::is_integral_v<To>)
    return to_integer<To>(number);
  else
    return store<To>(static_cast<Compute<To>>(number));
}

ORT_TRAIN_OPS_END
