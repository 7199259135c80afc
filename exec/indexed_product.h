// A micro-kernel of products whose operands lie where a table says: some rows by one panel of columns, in vector registers. It is that of
// exec/gemm_micro.h, with its words and its sums, but an operand isn't copied to where its words lie side by side: a convolution reads the
// same element of x for each tap.

#pragma once

#include <algorithm>
#include <cmath>

#include "exec/gemm_micro.h"

ORT_TRAIN_OPS_BEGIN
namespace gemm {

// Either A or B has a table.
struct IndexedMicro {
  int64_t depth = 0;
  const float* const* a = nullptr;  // its rows
  const int32_t* at = nullptr;      // where A's elements lie in their rows, or B's rows begin
  int64_t step = 0;                 // from one to the next in the other one
  const float* b = nullptr;         // whole vectors
  float* c = nullptr;               // likewise
  int64_t c_row = 0;
  const float* start = nullptr;  // what the product is added to; null: zero
  int64_t start_row = 0;
};
using IndexedMicroKernel = void (*)(const IndexedMicro&);

template <typename Add, bool table_of_a, int rows, int vectors> __attribute__((noinline)) void indexed_micro(const IndexedMicro& m) {
  Vector sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
  }
  const float* a[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) a[r] = m.a[r];
  const int64_t depth = m.depth, step = m.step;
  const int32_t* const at = m.at;
  const float* const b = m.b;
  for (int64_t k = 0, other = 0; k < depth; ++k, other += step) {
    const int64_t in_a = table_of_a ? at[k] : other;
    const float* const from = b + (table_of_a ? other : at[k]);
    Vector row[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) row[v] = load(from + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector x = broadcast(a[r][in_a]);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = Add::add_product(x, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      Vector total = sum[r][v];
      if (m.start) total = multiply_add(broadcast(1), total, load(m.start + r * m.start_row + v * kWidth));
      store(m.c + r * m.c_row + v * kWidth, total);
    }
  }
}

template <typename Add, bool table_of_a, int vectors, int... r>
IndexedMicroKernel indexed_kernel(int64_t rows, std::integer_sequence<int, r...>) {
  static constexpr IndexedMicroKernel table[] = {indexed_micro<Add, table_of_a, r + 1, vectors>...};
  return table[rows - 1];
}
template <typename Add, bool table_of_a> IndexedMicroKernel indexed_kernel(int64_t rows, int64_t columns) {
  using Rows = std::make_integer_sequence<int, kRows>;
  if (columns == kWidth) return indexed_kernel<Add, table_of_a, 1>(rows, Rows{});
  if (columns == 2 * kWidth) return indexed_kernel<Add, table_of_a, 2>(rows, Rows{});
  return indexed_kernel<Add, table_of_a, kVectors>(rows, Rows{});
}
// Of at most kRows rows; columns: one, two or kVectors vectors. pairs: what words are (has_pairs())
template <bool table_of_a> IndexedMicroKernel indexed_kernel(int64_t rows, int64_t columns, [[maybe_unused]] bool pairs) {
#ifdef __AVX512F__
  if (pairs) return indexed_kernel<AddPairs, table_of_a>(rows, columns);
#endif
  return indexed_kernel<AddFused, table_of_a>(rows, columns);
}
// The gradient of a convolution's x: of kRows rows by one panel the sum over taps, upwards. So many taps that follow one another are one
// chain along the depth. Where that is one tap, its product is that of exec/gemm.h: chains of a block of the depth each.
struct TapsMicro {
  int64_t taps = 0, depth = 0, block = 0;
  int64_t together = 1;           // taps of a chain; more than one where a block holds the depth
  const float* a = nullptr;       // [word][kRows]
  const int32_t* a_at = nullptr;  // where each tap's lies
  const float* b = nullptr;       // [word][panel]
  const int32_t* b_at = nullptr;  // likewise
  int64_t b_depth = 0;
  float* c = nullptr;  // whole vectors
  int64_t c_row = 0;
};
using TapsMicroKernel = void (*)(const TapsMicro&);

template <typename Add, int vectors> __attribute__((noinline)) void taps_micro(const TapsMicro& m) {
  const int64_t depth = m.depth, block = m.block, b_depth = m.b_depth, c_row = m.c_row;
  float* const c = m.c;
  if (m.taps == 0) {
    for (int r = 0; r < kRows; ++r) std::fill_n(c + r * c_row, vectors * kWidth, 0.0f);
    return;
  }
  for (int64_t t = 0; t < m.taps;) {
    const bool is_first = t == 0;
    const float *a = nullptr, *b = nullptr;
    Vector sum[kRows][vectors];
    const auto begin_chain = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
      }
    };
    const auto add_words = [&](int64_t k) __attribute__((always_inline)) {
      for (; k > 0; --k, a += kRows, b += b_depth) {
        Vector row[vectors];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) row[v] = load(b + v * kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const Vector x = broadcast(a[r]);
#pragma GCC unroll 3
          for (int v = 0; v < vectors; ++v) sum[r][v] = Add::add_product(x, row[v], sum[r][v]);
        }
      }
    };
    begin_chain();
    for (const int64_t end = std::min(t + m.together, m.taps); t < end; ++t) {
      a = m.a + m.a_at[t];
      b = m.b + m.b_at[t];
      add_words(std::min(block, depth));
    }
    for (int64_t left = depth - block; left > 0; left -= block) {
      Vector product[kRows][vectors];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) product[r][v] = sum[r][v];
      }
      begin_chain();
      add_words(std::min(block, left));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sum[r][v] = product[r][v] + sum[r][v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        float* const to = c + r * c_row + v * kWidth;
        store(to, (is_first ? zero() : load(to)) + sum[r][v]);
      }
    }
  }
}
template <typename Add> TapsMicroKernel taps_kernel(int64_t columns) {
  return columns == kWidth ? taps_micro<Add, 1> : columns == 2 * kWidth ? taps_micro<Add, 2> : taps_micro<Add, kVectors>;
}
inline TapsMicroKernel taps_kernel(int64_t columns, [[maybe_unused]] bool pairs) {
#ifdef __AVX512F__
  if (pairs) return taps_kernel<AddPairs>(columns);
#endif
  return taps_kernel<AddFused>(columns);
}
// A product of two words, added to a sum.
inline float add_product(float a, float b, float sum, bool pairs) {
#ifdef __AVX512F__
  if (pairs && has_pairs()) return AddPairs::add_product(broadcast(a), broadcast(b), broadcast(sum))[0];
#endif
  if (!pairs) return std::fma(a, b, sum);
  const auto upper = [](float word) { return float_bits::as_float(float_bits::of(word) & 0xffff0000); };
  const auto lower = [](float word) { return float_bits::as_float(float_bits::of(word) << 16); };
  return std::fma(lower(a), lower(b), std::fma(upper(a), upper(b), sum));
}

}  // namespace gemm
ORT_TRAIN_OPS_END
