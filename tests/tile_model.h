// Tile registers in plain arithmetic, in the place of gemm::TileRegisters, on any processor. ORT_TRAIN_ISA is that of the file.

#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "exec/gemm_tiles.h"

namespace ort_train {
inline namespace ORT_TRAIN_ISA {
namespace {

float without_denormals(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

float half(uint32_t word, int shift) { return without_denormals(float_bits::as_float(word >> shift << 16)); }

// What tdpbf16ps does to one element (volume 2, TDPBF16PS), with `pairs` words a(k) and b(k).
template <typename A, typename B> float add_pairs_of_tiles(size_t pairs, A a, B b, float sum) {
  float first = 0, second = 0;
  for (size_t k = 0; k < pairs; ++k) {
    first = without_denormals(std::fma(half(a(k), 0), half(b(k), 0), first));
    second = without_denormals(std::fma(half(a(k), 16), half(b(k), 16), second));
  }
  return without_denormals(without_denormals(sum) + without_denormals(first + second));
}

struct ModelOfTiles {
  static bool can_multiply(Element a, Element b) { return is_bfloat16(a) && is_bfloat16(b); }
  static inline bool ready = false;
  static inline float registers[8][16][16];
  struct Session {
    Session() { ready = true; }
    ~Session() { ready = false; }
  };
  template <int t> static void zero() {
    EXPECT_TRUE(ready);
    for (auto& row : registers[t]) std::fill(std::begin(row), std::end(row), 0.0f);
  }
  template <int t> static void load(const float* from, int64_t row) {
    for (int64_t r = 0; r < 16; ++r) std::copy_n(from + r * row, 16, registers[t][r]);
  }
  template <int t> static void store(float* to, int64_t row) {
    for (int64_t r = 0; r < 16; ++r) std::copy_n(registers[t][r], 16, to + r * row);
  }
  template <int c, int a, int b> static void add_products() {
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t j = 0; j < 16; ++j) {
        registers[c][i][j] = add_pairs_of_tiles(
            16, [&](size_t k) { return float_bits::of(registers[a][i][k]); }, [&](size_t k) { return float_bits::of(registers[b][k][j]); },
            registers[c][i][j]);
      }
    }
  }
};

}  // namespace
}  // namespace ORT_TRAIN_ISA
}  // namespace ort_train
