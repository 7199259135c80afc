// What Expand and Tile copy where, for the kernels of every device.

#pragma once

#include <vector>

#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

inline CopyLayout expand_layout(const KernelSpec& spec) {
  const Shape &from = spec.inputs[0].shape, &to = spec.outputs[0].shape;
  return {.element_bytes = size_of(spec.outputs[0].dtype),
          .dims = to,
          .out_strides = strides_of(to),
          .in_strides = broadcast_strides(from, to)};
}

// Each axis as two: the copies, and the elements of one.
inline Shape interleaved(const Shape& shape, const std::vector<int64_t>& repeats) {
  Shape result;
  for (size_t i = 0; i < shape.size(); ++i) {
    result.push_back(repeats[i]);
    result.push_back(shape[i]);
  }
  return result;
}

inline CopyLayout tile_layout(const KernelSpec& spec) {
  const Shape& from = spec.inputs[0].shape;
  const Shape dims = interleaved(from, spec.attributes.get("repeats", std::vector<int64_t>{}));
  std::vector<int64_t> in_strides;
  for (int64_t stride : strides_of(from)) {
    in_strides.push_back(0);
    in_strides.push_back(stride);
  }
  return {.element_bytes = size_of(spec.outputs[0].dtype), .dims = dims, .out_strides = strides_of(dims), .in_strides = in_strides};
}

ORT_TRAIN_OPS_END
