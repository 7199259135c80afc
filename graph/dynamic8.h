// dynamic8: numbers in 8 bits, block by block (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861).
//
// A block of 256 elements is 256 codes and, behind them, the largest absolute value among the elements as float32. An element is that
// times the number of its code. The numbers of codes, ascending:
//
//   signed     -0.993 … -5.5e-7  0  5.5e-7 … 0.993  1        decade i = 0 … 6, from 10^(i-7) to 10^(i-6), has 2^i of each sign
//   unsigned    0  3.25e-7 … 0.996  1                        decade i has 2^(i+1)
//
// each in the middle of one of the equal ranges that a decade is divided into. So small numbers are as exact, relative to their size, as
// the few codes left for them allow, and 7 decades have codes. A last block that is short has all of a block's bytes.

#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ort_train {

enum class DType : uint8_t;

inline constexpr int64_t kDynamic8Block = 256;       // elements
inline constexpr int64_t kDynamic8BlockBytes = 260;  // 256 codes, the scale
inline constexpr int kDynamic8Decades = 7;
inline constexpr double kDynamic8Powers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};  // where decade i ends

// The numbers of the codes, rounded as bitsandbytes' create_dynamic_map() does: the ends of the ranges by torch.linspace(0.1, 1), which
// counts from the nearer end with fused multiply-adds, in float32.
constexpr std::array<float, 256> make_dynamic8_map(bool is_signed) {
  std::array<float, 256> map{};
  size_t zero = is_signed ? 127 : 0, code = zero + 1;
  for (int decade = 0; decade < kDynamic8Decades; ++decade) {
    const int ranges = 1 << (is_signed ? decade : decade + 1);
    const float step = (1.0f - 0.1f) / static_cast<float>(ranges);
    const auto end_of = [&](int i) {
      return i < (ranges + 1) / 2 ? static_cast<float>(double{0.1f} + double{step} * i)
                                  : static_cast<float>(1 - double{step} * (ranges - i));
    };
    for (int i = 0; i < ranges; ++i, ++code) {
      map[code] = (end_of(i) + end_of(i + 1)) / 2 * static_cast<float>(kDynamic8Powers[decade]);
      if (is_signed) map[2 * zero - code] = -map[code];
    }
  }
  map[255] = 1;
  return map;
}
inline constexpr std::array<float, 256> kDynamic8Signed = make_dynamic8_map(true), kDynamic8Unsigned = make_dynamic8_map(false);
const std::array<float, 256>& dynamic8_map(DType dtype);

// The numbers of so many elements, of whole blocks.
void dequantize(DType dtype, std::span<const std::byte> blocks, std::span<float> elements);

}  // namespace ort_train
