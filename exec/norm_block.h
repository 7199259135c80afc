// The blocks in which the squares of a tensor's elements are summed. A pure function of the shape, because the bits are: a matrix that is
// divided between blocks of a product's depth (exec/depth_block.h) has the same blocks as the whole.

#pragma once

#include <algorithm>
#include <cstdint>

#include "exec/depth_block.h"
#include "graph/types.h"

namespace ort_train {

// Elements of a block. Of a matrix, or a weight with more axes, whole rows, a power of two that divides kLeastDepthBlock.
inline int64_t norm_block(const Shape& shape) {
  constexpr int64_t kMost = 16384;  // a GPU adds up a block in 32 chains
  if (shape.size() < 2) return kMost;
  const int64_t width = element_count(shape.from(1));
  int64_t rows = kLeastDepthBlock;
  while (rows > 1 && rows * width > kMost) rows /= 2;
  return std::max<int64_t>(1, rows * width);
}
inline int64_t norm_blocks(const Shape& shape) {
  const int64_t block = norm_block(shape);
  return (element_count(shape) + block - 1) / block;
}

}  // namespace ort_train
