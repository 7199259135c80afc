// Products of strided matrices on one thread: C = start + alpha * A B. What MatMul and Attention are made of.
//
// float: register-blocked micro-kernels in vectors (AVX-512: 8 x 48, AVX2: 6 x 16 elements of C), fused multiply-adds along the depth. A is
// read in place; B goes panel by panel through a packed copy in the workspace, made while the first rows are multiplied. double: plain
// loops.
//
// The bits of an element depend on the depth and its blocks alone (exec/depth_block.h): each is one chain of fused multiply-adds in
// ascending order, the blocks in ascending order. How C is divided among tiles, tasks and threads, where it lies and which vectors
// the processor has never shows. Nothing is allocated: the workspace is the caller's, one for each thread.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "exec/depth_block.h"
#include "exec/kernel.h"
#include "exec/transpose8.h"

ORT_TRAIN_OPS_BEGIN

// Which part of a product is wanted, for causal attention; i, j, k count rows, columns and depth of the product at hand.
enum class Triangle : uint8_t {
  none,
  result,   // C only where j <= i + diagonal; what lies beyond is left as it is or filled, as the tiles fall
  a_lower,  // A is taken as 0 where k > i + diagonal, as far as the tiles allow: it must hold zeros next to the diagonal
  a_upper,  // the same where k < i + diagonal
};

// A matrix somewhere in memory: element (i, j) at data[i * row + j * column].
template <typename T> struct Matrix {
  T* data = nullptr;
  int64_t row = 0, column = 1;
  Matrix from(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};

template <typename T> struct Product {
  int64_t rows = 0, columns = 0, depth = 0;
  Matrix<const T> a{};  // rows x depth
  Matrix<const T> b{};  // depth x columns; one of its strides is 1
  Matrix<T> c{};        // rows x columns, columns dense
  int64_t block = 0;    // of the depth, at most kDepthBlock; 0: depth_block(depth)
  T alpha = 1;
  Matrix<const T> start{};  // what the product is added to, columns dense: none: zero; c itself: accumulates; a bias has row 0
  Triangle triangle = Triangle::none;
  int64_t diagonal = 0;
};

namespace gemm {

#ifdef __AVX512F__
using Vector = __m512;
inline constexpr int kWidth = 16, kRows = 8, kVectors = 3;
inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
inline Vector broadcast(float x) { return _mm512_set1_ps(x); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
#else
using Vector = __m256;
inline constexpr int kWidth = 8, kRows = 6, kVectors = 2;
inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
inline Vector broadcast(float x) { return _mm256_set1_ps(x); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
#endif
inline constexpr int kPanel = kVectors * kWidth;  // columns

// What a micro-kernel computes: `rows` (its template argument) x (vectors * kWidth) elements of C.
struct Micro {
  int64_t depth;
  const float* a;
  int64_t a_row, a_depth;
  const float* b;  // a packed panel, or B itself
  int64_t b_depth;
  float* panel;           // where the packing kernel leaves the panel
  const float* prefetch;  // one line an iteration, far ahead; never faults
  int64_t prefetch_step;
  float* c;
  int64_t c_row;
  const float* start;  // null: zero
  int64_t start_row;
  float alpha;
};

// `packing`: b is B itself and is copied to the panel on the way, which hides the copy behind the arithmetic.
template <int rows, int vectors, bool packing> __attribute__((noinline)) void micro(const Micro& m) {
  Vector sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) __builtin_prefetch(m.c + r * m.c_row + v * kWidth, 1, 3);
  }
  const float *b = m.b, *prefetch = m.prefetch;
  const int64_t a_depth = m.a_depth, b_depth = m.b_depth, prefetch_step = m.prefetch_step;
  float* panel = m.panel;
  const float* a[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) a[r] = m.a + r * m.a_row;
  for (int64_t k = m.depth, at = 0; k > 0; --k, at += a_depth) {
    Vector row[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      row[v] = load(b + v * kWidth);
      if (packing) {
        store(panel + v * kWidth, row[v]);
        __builtin_prefetch(b + 8 * b_depth + v * kWidth, 0, 3);
      }
    }
    __builtin_prefetch(prefetch, 0, 2);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector x = broadcast(a[r][at]);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add(x, row[v], sum[r][v]);
    }
    b += b_depth;
    prefetch += prefetch_step;
    if (packing) panel += vectors * kWidth;
  }
  const Vector alpha = broadcast(m.alpha);
  float* c = m.c;
  const int64_t c_row = m.c_row;
  if (const float* start = m.start) {
    const int64_t start_row = m.start_row;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += c_row, start += start_row) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) store(c + v * kWidth, multiply_add(alpha, sum[r][v], load(start + v * kWidth)));
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += c_row) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) store(c + v * kWidth, multiply(alpha, sum[r][v]));
    }
  }
}
using MicroKernel = void (*)(const Micro&);

template <int vectors, int... rows> const MicroKernel* micro_row(std::integer_sequence<int, rows...>) {
  static constexpr MicroKernel table[] = {micro<rows + 1, vectors, false>...};
  return table;
}
// The kernel for a number of rows (1 .. kRows) and vectors (1 .. kVectors).
inline MicroKernel micro_kernel(int64_t rows, int64_t vectors) {
  using Rows = std::make_integer_sequence<int, kRows>;
  if (vectors == 1) return micro_row<1>(Rows{})[rows - 1];
  if (vectors == 2) return micro_row<2>(Rows{})[rows - 1];
  return micro_row<kVectors>(Rows{})[rows - 1];
}
inline MicroKernel packing_kernel(int64_t vectors) {
  if (vectors == 1) return micro<kRows, 1, true>;
  if (vectors == 2) return micro<kRows, 2, true>;
  return micro<kRows, kVectors, true>;
}

// Copies depth x columns of B to a panel of `width` columns, padded with zeros.
inline void pack(const float* b, int64_t b_depth, int64_t b_column, int64_t depth, int64_t columns, int64_t width, float* panel) {
  if (b_column == 1) {
    for (int64_t k = 0; k < depth; ++k, b += b_depth, panel += width) {
      std::copy_n(b, columns, panel);
      std::fill(panel + columns, panel + width, 0.0f);
    }
    return;
  }
  // Blocks of 16 x 16: a line of each column is read, a line of each row of the panel written, in one go and once.
  for (int64_t j = 0; j < width; j += 16) {
    const int64_t block = std::min<int64_t>(16, width - j);
    for (int64_t k = 0; k < depth; k += 16) {
      const int64_t n = std::min<int64_t>(16, depth - k);
      float* to = panel + k * width + j;
      const float* from = b + j * b_column + k * b_depth;
      if (n == 16 && j + block <= columns && b_depth == 1) {
        for (int64_t y = 0; y < block; y += 8) {
          transpose8(from + y * b_column, b_column, to + y, width);
          transpose8(from + y * b_column + 8, b_column, to + y + 8 * width, width);
        }
        continue;
      }
      for (int64_t x = 0; x < n; ++x) {
        for (int64_t y = 0; y < block; ++y) to[x * width + y] = j + y < columns ? from[x * b_depth + y * b_column] : 0.0f;
      }
    }
  }
}

// How many vectors the next panel has: three, but four that remain are two and two.
inline int64_t panel_vectors(int64_t columns_left) {
  const int64_t left = (columns_left + kWidth - 1) / kWidth;
  return left == kVectors + 1 && kVectors > 2 ? 2 : std::min<int64_t>(left, kVectors);
}

// One panel of one depth block, all rows.
inline void multiply_panel(const Product<float>& p, int64_t depth0, int64_t depth, int64_t j, int64_t columns, int64_t vectors,
                           float* panel) {
  const int64_t width = vectors * kWidth;
  const float* b = p.b.data + depth0 * p.b.row + j * p.b.column;
  const bool direct = p.b.column == 1 && columns == width;
  const bool few = direct && p.rows <= kRows;                           // B is read once: no copy
  const bool packing = direct && !few && p.triangle == Triangle::none;  // the first rows copy
  if (!few && !packing) pack(b, p.b.row, p.b.column, depth, columns, width, panel);
  float edge[kRows * kPanel];
  // The next panel of a transposed B: its lines come into the second-level cache, a share of them before each kernel.
  const int64_t kernels = (p.rows + kRows - 1) / kRows, lines = p.b.column == 1 ? 0 : (depth + 15) / 16;
  const int64_t share = (width * lines + kernels - 1) / kernels;
  const float* ahead = b + width * p.b.column;
  int64_t line = 0;
  for (int64_t i = 0; i < p.rows; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, p.rows - i);
    int64_t begin = 0, end = depth;
    if (p.triangle == Triangle::result && j > i + rows - 1 + p.diagonal) continue;
    if (p.triangle == Triangle::a_lower) end = std::clamp<int64_t>(i + rows + p.diagonal - depth0, 0, depth);
    if (p.triangle == Triangle::a_upper) begin = std::clamp<int64_t>(i + p.diagonal - depth0, 0, depth);
    if (begin >= end && depth0 > 0) continue;
    const bool copying = packing && i == 0;
    for (int64_t x = 0; lines > 0 && x < share; ++x) {
      __builtin_prefetch(ahead + line * 16, 0, 2);
      if (++line == lines) {
        line = 0;
        ahead += p.b.column;
      }
    }
    const bool source = few || copying;
    Micro m{.depth = std::max<int64_t>(0, end - begin),
            .a = p.a.data + i * p.a.row + (depth0 + begin) * p.a.column,
            .a_row = p.a.row,
            .a_depth = p.a.column,
            .b = source ? b + begin * p.b.row : panel + begin * width,
            .b_depth = source ? p.b.row : width,
            .panel = panel,
            .prefetch = p.a.data,
            .prefetch_step = 0,
            .c = p.c.data + i * p.c.row + j,
            .c_row = p.c.row,
            .start = depth0 > 0     ? p.c.data + i * p.c.row + j
                     : p.start.data ? p.start.data + i * p.start.row + j
                                    : nullptr,
            .start_row = depth0 > 0 ? p.c.row : p.start.row,
            .alpha = p.alpha};
    // The next panel's lines into the second-level cache, a quarter of them in each of the first four kernels; or the next rows of a
    // transposed A.
    if (direct && i < 4 * kRows) {
      m.prefetch = b + width + i / kRows * 16;
      m.prefetch_step = p.b.row;
    } else if (p.a.row == 1 && j == 0) {
      m.prefetch = m.a + 2 * kRows;
      m.prefetch_step = p.a.column;
    }
    const MicroKernel kernel = copying ? packing_kernel(vectors) : micro_kernel(rows, vectors);
    if (columns == width) {
      kernel(m);
      continue;
    }
    float *c = std::exchange(m.c, edge), *to = c;
    const float* start = std::exchange(m.start, nullptr);
    m.c_row = kPanel;
    const float alpha = std::exchange(m.alpha, 1.0f);
    kernel(m);
    for (int64_t r = 0; r < rows; ++r, to += p.c.row) {
      for (int64_t x = 0; x < columns; ++x) {
        const float sum = edge[r * kPanel + x];
        to[x] = start ? std::fma(alpha, sum, start[r * m.start_row + x]) : alpha * sum;
      }
    }
  }
}

inline void multiply(const Product<float>& p, float* panel) {
  const int64_t block = p.block > 0 ? p.block : depth_block(p.depth);
  int64_t depth0 = 0;
  do {
    const int64_t depth = std::min(block, p.depth - depth0);
    for (int64_t j = 0, vectors; j < p.columns; j += vectors * kWidth) {
      vectors = panel_vectors(p.columns - j);
      multiply_panel(p, depth0, depth, j, std::min(vectors * kWidth, p.columns - j), vectors, panel);
    }
    depth0 += block;
  } while (depth0 < p.depth);
}

// For other element types: columns side by side.
template <typename T> void multiply_plainly(const Product<T>& p) {
  constexpr int64_t kColumns = 64;
  const int64_t block = p.block > 0 ? p.block : depth_block(p.depth);
  for (int64_t i = 0; i < p.rows; ++i) {
    const int64_t begin = p.triangle == Triangle::a_upper ? std::max<int64_t>(0, i + p.diagonal) : 0;
    const int64_t end = p.triangle == Triangle::a_lower ? std::min(p.depth, i + p.diagonal + 1) : p.depth;
    T* c = p.c.data + i * p.c.row;
    const T* start = p.start.data ? p.start.data + i * p.start.row : nullptr;
    for (int64_t j = 0; j < p.columns; j += kColumns) {
      const int64_t n = std::min(kColumns, p.columns - j);
      for (int64_t y = 0; y < n; ++y) c[j + y] = start ? start[j + y] : T(0);
      for (int64_t first = begin / block * block; first < end; first += block) {
        T sum[kColumns] = {};
        for (int64_t k = std::max(begin, first); k < std::min(end, first + block); ++k) {
          const T x = p.a.data[i * p.a.row + k * p.a.column];
          const T* b = p.b.data + k * p.b.row + j * p.b.column;
          for (int64_t y = 0; y < n; ++y) sum[y] += x * b[y * p.b.column];
        }
        for (int64_t y = 0; y < n; ++y) c[j + y] += p.alpha * sum[y];
      }
    }
  }
}

}  // namespace gemm

// Bytes of the workspace of one thread for products of this depth and all smaller ones, whose blocks may be longer; a multiple of 64.
template <typename T> int64_t product_workspace(int64_t depth) {
  if constexpr (std::is_same_v<T, float>)
    return (std::clamp<int64_t>(depth, 1, kDepthBlock) * gemm::kPanel * int64_t{sizeof(float)} + 63) / 64 * 64;
  return 0;
}

template <typename T> void multiply(const Product<T>& product, std::byte* workspace) {
  if constexpr (std::is_same_v<T, float>)
    gemm::multiply(product, reinterpret_cast<float*>(workspace));
  else
    gemm::multiply_plainly(product);
}

ORT_TRAIN_OPS_END
