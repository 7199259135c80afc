// Codes and their scales, for Dequantize on every device.

#pragma once

#include <algorithm>

#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kScaledBlock = 32768;  // elements, where one scale is for all

using Codes = Types<int8_t, uint8_t, int16_t, int32_t>;

inline int64_t bits_of(const Attributes& attributes) { return attributes.get("bits", int64_t{8}); }

// Where the scale of an element is found: y as (outer, axis, inner), the axis in blocks.
struct Scaling {
  int64_t outer = 1, size = 1, inner = 1, block = 1, blocks = 1;
  int64_t per_outer = 0, per_block = 0, per_inner = 0;  // steps in the scales

  Scaling(const Shape& y, const Shape& scales, const Attributes& attributes) {
    const auto rank = static_cast<int64_t>(y.size());
    if (element_count(scales) == 1) {  // of all: blocks are only tasks
      size = element_count(y);
      block = kScaledBlock;
      blocks = (size + block - 1) / block;
      return;
    }
    const int64_t axis = normalize_axis(attributes.get("axis", int64_t{1}), rank, "axis");
    size = y[static_cast<size_t>(axis)];
    for (int64_t i = 0; i < rank; ++i) (i < axis ? outer : i > axis ? inner : blocks) *= i == axis ? 1 : y[static_cast<size_t>(i)];
    per_block = 1;
    if (scales.size() == 1 && attributes.get("block_size", int64_t{0}) == 0) {
      blocks = size;
      return;
    }
    block = std::max<int64_t>(attributes.get("block_size", int64_t{0}), 1);
    blocks = (size + block - 1) / block;
    per_inner = 1;
    per_block = inner;
    per_outer = blocks * inner;
  }
};

template <typename Code, typename T> HOST_DEVICE inline T dequantized(Code code, T zero, T scale) {
  return (static_cast<T>(code) - zero) * scale;
}

// Code i of those that lie in bytes, the lowest bits first.
template <typename Code> HOST_DEVICE inline int64_t packed_code(const Code* codes, int64_t i, int64_t bits) {
  const int64_t each = 8 / bits, mask = (int64_t{1} << bits) - 1;
  return (static_cast<int64_t>(codes[i / each]) >> (i % each * bits)) & mask;
}

inline Cost dequantize_cost(const KernelSpec& spec) {
  const auto n = static_cast<double>(element_count(spec.outputs[0].shape));
  double bytes = static_cast<double>(spec.outputs[0].bytes());
  for (const TensorType& input : spec.inputs) bytes += static_cast<double>(input.bytes());
  return {.flops = 2 * n, .bytes = bytes};
}

ORT_TRAIN_OPS_END
