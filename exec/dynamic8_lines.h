// The lines by which numbers of dynamic8 (graph/dynamic8.h) become codes and back (exec/dynamic8.h): their slopes and ends, and where codes
// end for rounding as bitsandbytes.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "exec/kernel.h"
#include "graph/dynamic8.h"

ORT_TRAIN_OPS_BEGIN
namespace dynamic8 {

inline constexpr int kOne = kDynamic8Decades;  // behind the decades: the code of 1

struct Decoding {
  float slope[8], start[8];  // by the three lowest bits of f's exponent
};
constexpr Decoding make_decoding(bool is_signed) {
  Decoding d{};
  for (int decade = 0; decade < kDynamic8Decades; ++decade) {
    const double ranges = 1 << (is_signed ? decade : decade + 1), end = kDynamic8Powers[decade];
    const int index = (is_signed ? decade + 7 : decade) % 8;
    // The first code of the decade has f = ranges, signed + 1/2.
    d.slope[index] = static_cast<float>(end * 0.9 / ranges);
    d.start[index] = static_cast<float>(end * (0.1 + 0.9 * ((is_signed ? 0 : 0.5) - ranges) / ranges));
  }
  // 0 and 1 share the index that is left: a line through both.
  d.slope[is_signed ? 6 : 7] = is_signed ? 1.0f / 128 : 1.0f / 255;
  d.start[is_signed ? 6 : 7] = is_signed ? -0.5f / 128 : -1.0f / 255;
  return d;
}

// The guess: 150 / 2^16 of a decade for each step of the 16 leading bits of y from a base on, 7 bits of which are the mantissa's.
inline constexpr int kGuessBase = 0x34a0, kGuessScale = 150;

// In decade i the line is k = y * slope + 2^e * 8/9 for 2^e ranges, where k = |code - 127|, unsigned code + 1, is in [2^e, 2^(e + 1)).
struct Encoding {
  float next[8];  // beyond: the next decade
  float slope[8];
};
inline constexpr float kStart = 8.0f / 9, kMost = 0x1.fffffep0f;  // of k, times 2^e

constexpr Encoding make_encoding(bool is_signed) {
  const std::array<float, 256>& map = is_signed ? kDynamic8Signed : kDynamic8Unsigned;
  const auto middle = [&](int code) { return (map[static_cast<size_t>(code)] + map[static_cast<size_t>(code) + 1]) / 2; };  // to the next
  const int zero = is_signed ? 127 : 0;
  Encoding e{};
  for (int decade = 0; decade < kDynamic8Decades; ++decade) {
    const int ranges = 1 << (is_signed ? decade : decade + 1);
    e.next[decade] = middle(zero + 2 * ranges - (is_signed ? 1 : 2));
    e.slope[decade] = static_cast<float>(ranges / 0.9 / kDynamic8Powers[decade]);
  }
  // In the first decade k becomes 1, which is signed below the first code; unsigned 3, as 2 is the least.
  e.slope[0] = is_signed ? (1 - kStart) / middle(zero) : (3 - 2 * kStart) / middle(zero + 1);
  e.next[kOne] = std::numeric_limits<float>::infinity();
  const float one = is_signed ? 128 : 256;
  e.slope[kOne] = one * (1 - kStart) + 0.3f;  // y is nearly 1
  return e;
}
constexpr int guessed_decade(float y) { return (static_cast<int>(std::bit_cast<uint32_t>(y) >> 16) - kGuessBase) * kGuessScale >> 16; }
// At the threshold to the next decade the guess is the decade below, so that it is one too low at most anywhere.
constexpr bool guesses_well(const Encoding& e) {
  for (int decade = 0; decade < kDynamic8Decades; ++decade) {
    if (guessed_decade(e.next[decade]) != decade) return false;
  }
  return guessed_decade(1.0f) <= kOne;
}

// Where each code ends, for rounding as bitsandbytes: code c is of numbers in (bounds[c], bounds[c + 1]].
constexpr std::array<float, 257> make_bounds(const std::array<float, 256>& map) {
  std::array<float, 257> bounds{};
  bounds.front() = -std::numeric_limits<float>::infinity();
  bounds.back() = std::numeric_limits<float>::infinity();
  for (size_t code = 0; code < 255; ++code) {
    const float middle = (map[code] + map[code + 1]) * 0.5f;
    const auto word = std::bit_cast<uint32_t>(middle);
    const float before = std::bit_cast<float>(middle > 0 ? word - 1 : word + 1);
    bounds[code + 1] = code % 2 == 0 ? middle : before;
  }
  return bounds;
}

template <bool is_signed> struct Map {
  static constexpr std::array<float, 256> numbers = is_signed ? kDynamic8Signed : kDynamic8Unsigned;
  static constexpr Decoding decoding = make_decoding(is_signed);
  static constexpr Encoding encoding = make_encoding(is_signed);
  static constexpr std::array<float, 257> bounds = make_bounds(numbers);
  static_assert(guesses_well(encoding));
};

}  // namespace dynamic8
ORT_TRAIN_OPS_END
