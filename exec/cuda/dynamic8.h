// Numbers of dynamic8 (graph/dynamic8.h) to and from codes, one at a time: the arithmetic of exec/dynamic8.h, which has it in vectors.

#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "exec/dynamic8_lines.h"
#include "exec/math.h"
#include "graph/types.h"

#ifdef __CUDACC__
#define ORT_TRAIN_DEVICE_TABLE __device__ constexpr
#else
#define ORT_TRAIN_DEVICE_TABLE constexpr
#endif

ORT_TRAIN_OPS_BEGIN
namespace dynamic8 {

struct Tables {
  Decoding decoding;
  Encoding encoding;
  std::array<float, 256> numbers;
  std::array<float, 257> bounds;
};
template <bool is_signed> constexpr Tables make_tables() {
  using From = Map<is_signed>;
  return {.decoding = From::decoding, .encoding = From::encoding, .numbers = From::numbers, .bounds = From::bounds};
}
ORT_TRAIN_DEVICE_TABLE Tables kSignedTables = make_tables<true>();
ORT_TRAIN_DEVICE_TABLE Tables kUnsignedTables = make_tables<false>();
template <bool is_signed> HOST_DEVICE inline const Tables& tables() {
  if constexpr (is_signed)
    return kSignedTables;
  else
    return kUnsignedTables;
}

template <bool is_signed> HOST_DEVICE inline float number_of(uint8_t code, float scale) {
  const Decoding& d = tables<is_signed>().decoding;
  const int of_zero = is_signed ? code - 127 : code;
  const float f = is_signed ? static_cast<float>(of_zero < 0 ? -of_zero : of_zero) + 0.5f : static_cast<float>(of_zero + 1);
  const uint32_t line = float_bits::of(f) >> 23 & 7;
  const float x = math::fma(f, d.slope[line] * scale, d.start[line] * scale);
  return of_zero < 0 ? float_bits::as_float(float_bits::of(x) ^ 0x80000000u) : x;
}

// Towards zero; what an int32 can't hold, as x86 has it: the least of all.
HOST_DEVICE inline int32_t truncated_to_int(float x) {
  return x >= -0x1p31f && x < 0x1p31f ? static_cast<int32_t>(x) : std::numeric_limits<int32_t>::min();
}

// What numbers are multiplied by to be codes.
HOST_DEVICE inline float inverse_of(float scale) { return scale >= std::numeric_limits<float>::min() ? 1 / scale : 0.0f; }

// `inverse`: of the block's scale. NaN has the code that x86's own NaN, which is negative, gets.
template <bool is_signed> HOST_DEVICE inline uint8_t code_of(float x, float inverse) {
  const Encoding& e = tables<is_signed>().encoding;
  const float y = math::abs(x) * inverse;
  const uint32_t bits = float_bits::of(y), leading = bits >> 16;
  const uint32_t below = leading > kGuessBase ? (leading - kGuessBase) * kGuessScale >> 16 : 0;
  const uint32_t decade = below + (static_cast<int32_t>(bits) > static_cast<int32_t>(float_bits::of(e.next[below & 7])));
  const uint32_t power = decade << 23;
  const float start = float_bits::as_float(float_bits::of(is_signed ? kStart : 2 * kStart) + power);
  const float most = float_bits::as_float(float_bits::of(is_signed ? kMost : 2 * kMost) + power);
  const float on_line = math::fma(y, e.slope[decade & 7], start);
  const int32_t k = truncated_to_int(on_line < most ? on_line : most);
  int32_t code = 0;
  if constexpr (is_signed) {
    const uint32_t magnitude = static_cast<uint32_t>(k);
    code = static_cast<int32_t>((float_bits::of(x) >> 31 ? 0u - magnitude : magnitude) + 127u);
  } else {
    code = x > 0 ? (k > 2 ? k : 2) - 1 : 0;
  }
  return static_cast<uint8_t>(code < 0 ? 0 : code > 255 ? 255 : code);
}

template <bool is_signed> HOST_DEVICE inline uint8_t code_as_bitsandbytes(float x, float scale, float inverse) {
  const Tables& t = tables<is_signed>();
  int code = code_of<is_signed>(x, inverse);
  const float y = scale > 0 ? x / scale : 0.0f;
  code += static_cast<int>(y > t.bounds[static_cast<size_t>(code) + 1]) - static_cast<int>(y <= t.bounds[static_cast<size_t>(code)]);
  if (is_signed && (float_bits::of(t.numbers[static_cast<size_t>(code)]) ^ float_bits::of(x)) >> 31) code += x > 0 ? 1 : -1;
  return static_cast<uint8_t>(code);
}

// How a state is stored: as the numbers that it is, or in one of the maps.
struct Coding {
  bool is_quantized = false, is_signed = false, as_bitsandbytes = false;

  HOST_DEVICE float number(uint8_t code, float scale) const {
    if (as_bitsandbytes) return (is_signed ? tables<true>() : tables<false>()).numbers[code] * scale;
    return is_signed ? number_of<true>(code, scale) : number_of<false>(code, scale);
  }
  HOST_DEVICE uint8_t code(float x, float scale, float inverse) const {
    if (as_bitsandbytes) return is_signed ? code_as_bitsandbytes<true>(x, scale, inverse) : code_as_bitsandbytes<false>(x, scale, inverse);
    return is_signed ? code_of<true>(x, inverse) : code_of<false>(x, inverse);
  }
};

// Element i of a state of blocks.
HOST_DEVICE inline float scale_at(const uint8_t* state, int64_t i) {
  return *reinterpret_cast<const float*>(state + i / kDynamic8Block * kDynamic8BlockBytes + kDynamic8Block);
}
HOST_DEVICE inline int64_t code_at(int64_t i) { return i / kDynamic8Block * kDynamic8BlockBytes + i % kDynamic8Block; }

}  // namespace dynamic8
ORT_TRAIN_OPS_END
