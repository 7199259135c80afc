// What the kernels of SquaredError share on all devices.

#pragma once

#include "exec/elementwise.h"

ORT_TRAIN_OPS_BEGIN

// Squares are summed in fixed blocks, each in lanes, in double; the blocks in ascending order.
inline constexpr int64_t kSquaresBlock = 65536;

inline int64_t squares_blocks(const KernelSpec& spec) { return (element_count(spec.inputs[0].shape) + kSquaresBlock - 1) / kSquaresBlock; }
inline Workspace squared_error_workspace(const KernelSpec& spec) { return {.shared = squares_blocks(spec) * int64_t{sizeof(double)}}; }

template <typename T> HOST_DEVICE inline double squared_difference(T a, T b) {
  const double d = static_cast<double>(a) - static_cast<double>(b);
  return d * d;
}

ORT_TRAIN_OPS_END
