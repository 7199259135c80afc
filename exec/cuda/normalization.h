// What the gradients of LayerNormalization and RMSNormalization share: those of scale and bias, which are sums over rows. As
// exec/normalization.h has them: a block of rows is added in ascending order, by a thread a column; blocks are added in ascending order in
// double. The rows must still be what they were: the launch comes before that of dx, which may overwrite them.

#pragma once

#include "exec/block.h"
#include "exec/math.h"
#include "exec/normalization.h"

ORT_TRAIN_OPS_BEGIN

// Partial sums of dy * h and, where `centred`, of dy: h = (x - mean) * inverse, else x * inverse.
template <bool centred, typename X, typename Y> struct ScalePartials {
  using C = Compute<X>;
  static constexpr int kThreads = 128, kSums = centred ? 2 : 1;
  using Shared = NoShared;
  int64_t rows, n, block_rows, columns;  // columns of all blocks of rows
  const Y* dy;
  const X* x;
  const C *mean, *inverse;
  C* partial;

  static ScalePartials of(const RowLayout& layout, const Y* dy, const X* x, const C* mean, const C* inverse, C* partial) {
    return {layout.rows, layout.n, layout.block_rows(), layout.blocks() * layout.n, dy, x, mean, inverse, partial};
  }
  int64_t blocks() const { return (columns + kThreads - 1) / kThreads; }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t column = block.index * kThreads + t;
      if (column < columns) add_column(column / n, column % n);
    });
  }

 private:
  HOST_DEVICE void add_column(int64_t of_block, int64_t j) const {
    constexpr int kBatch = 8;
    const int64_t begin = of_block * block_rows, end = begin + block_rows < rows ? begin + block_rows : rows;
    C dscale = 0, dbias = 0;
    int64_t r = begin;
    for (; r + kBatch <= end; r += kBatch) {
      C d[kBatch], h[kBatch];
      for (int k = 0; k < kBatch; ++k) d[k] = load(dy[(r + k) * n + j]), h[k] = normal(r + k, j);
      for (int k = 0; k < kBatch; ++k) dscale = math::fma(d[k], h[k], dscale), dbias += d[k];
    }
    for (; r < end; ++r) {
      const C d = load(dy[r * n + j]);
      dscale = math::fma(d, normal(r, j), dscale);
      dbias += d;
    }
    partial[of_block * kSums * n + j] = dscale;
    if (centred) partial[(of_block * kSums + 1) * n + j] = dbias;
  }
  HOST_DEVICE C normal(int64_t r, int64_t j) const {
    const C v = load(x[r * n + j]);
    return (centred ? v - mean[r] : v) * inverse[r];
  }
};

// The blocks' partial sums added to outputs, in the first blocks() blocks of a launch. Null outputs are left out.
template <typename S, int sums> struct ScaleSums {
  using C = Compute<S>;
  int64_t n, of_blocks;
  const C* partial;
  S* outputs[2];

  template <int threads> int64_t blocks() const { return (sums * n + threads - 1) / threads; }

  HOST_DEVICE void add(int64_t column) const {
    if (column >= sums * n) return;
    const int64_t s = column / n, j = column % n;
    if (outputs[s] == nullptr) return;
    const C* const from = partial + s * n + j;
    constexpr int kBatch = 8;
    double total = 0;
    int64_t b = 0;
    for (; b + kBatch <= of_blocks; b += kBatch) {
      C v[kBatch];
      for (int k = 0; k < kBatch; ++k) v[k] = from[(b + k) * sums * n];
      for (int k = 0; k < kBatch; ++k) total += v[k];
    }
    for (; b < of_blocks; ++b) total += from[b * sums * n];
    outputs[s][j] = store<S>(static_cast<C>(total));
  }
};

ORT_TRAIN_OPS_END
