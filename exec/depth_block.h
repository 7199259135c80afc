// The depth of a product is summed in equal blocks, each a chain of its own (exec/gemm.h). A pure function of shapes, because the bits are:
// a matrix that is divided where blocks end (passes/split_weights.h) gives the same ones.

#pragma once

#include <algorithm>
#include <cstdint>

namespace ort_train {

inline constexpr int64_t kDepthBlock = 384;      // rows at most; a panel of 48 columns then takes 72 KiB of the second-level cache
inline constexpr int64_t kLeastDepthBlock = 64;  // and at least; all are multiples of it. Each block's sum is added to C, which takes time

// Rows of a block. `columns`: of the float32 weight (depth x columns) that may be divided between blocks, which keeps a block within 8 MiB;
// 0: it isn't divided.
constexpr int64_t depth_block(int64_t depth, int64_t columns = 0) {
  constexpr int64_t kElements = int64_t{2} << 20;
  const auto up = [](int64_t rows) { return (rows + kLeastDepthBlock - 1) / kLeastDepthBlock * kLeastDepthBlock; };
  const int64_t most =
      columns == 0 ? kDepthBlock : std::clamp(kElements / columns / kLeastDepthBlock * kLeastDepthBlock, kLeastDepthBlock, kDepthBlock);
  const int64_t blocks = std::max<int64_t>(1, (depth + most - 1) / most);
  return up(std::max<int64_t>(1, (depth + blocks - 1) / blocks));
}

}  // namespace ort_train
