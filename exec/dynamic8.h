// Blocks of dynamic8 (graph/dynamic8.h) to and from float32, in vectors without branches or tables in memory.
//
//   to numbers   f = |code - 127| + 1/2, unsigned code + 1: the exponent of f says the decade, in which numbers lie on a line in f. Within
//                1e-6 of the map's number.
//   to codes     y = |x| / scale: a line through its leading bits guesses the decade, at most one too low, and the threshold to the next
//                one decides; the code is a line in y, rounded to the nearest
//
// Two ways to round. By default a number that is not 0 has no code that is 0 in the unsigned map: what divides by its root would be divided
// by nothing. As bitsandbytes: the nearest in its map, of two that are as near the even code; where the sign would change, the next code.
//
// The bits are the same with either width of vectors.

#pragma once

#include <immintrin.h>

#include <cstring>
#include <limits>

#include "exec/dynamic8_lines.h"
#include "exec/kernel.h"
#include "graph/dynamic8.h"

ORT_TRAIN_OPS_BEGIN
namespace dynamic8 {

// --- vectors --------------------------------------------------------------------------------------------------------------------------

#ifdef __AVX512F__
using Floats = __m512;
using Ints = __m512i;
inline constexpr int kWidth = 16;
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Ints all(int x) { return _mm512_set1_epi32(x); }
inline Ints bits(Floats x) { return _mm512_castps_si512(x); }
inline Floats eight(const float* p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
inline Floats at(Floats eight, Ints i) { return _mm512_permutexvar_ps(i, eight); }  // by the three lowest bits
inline Floats absolute(Floats x) { return _mm512_abs_ps(x); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline float largest_lane(Floats x) { return _mm512_reduce_max_ps(x); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats line(Floats x, Floats slope, Floats start) { return _mm512_fmadd_ps(x, slope, start); }
inline Floats with_sign(Floats x, Ints of) {
  return _mm512_castsi512_ps(_mm512_xor_si512(bits(x), _mm512_and_si512(of, all(std::numeric_limits<int>::min()))));
}
inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Ints absolute(Ints x) { return _mm512_abs_epi32(x); }
inline Ints negated_where_negative(Ints x, Ints of) {
  return _mm512_mask_sub_epi32(x, _mm512_movepi32_mask(of), _mm512_setzero_si512(), x);
}
inline Ints one_more_where(Ints x, Ints a, Ints is_above) {
  return _mm512_mask_add_epi32(x, _mm512_cmpgt_epi32_mask(a, is_above), x, all(1));
}
inline Ints zero_unless_positive(Ints x, Ints of) { return _mm512_maskz_mov_epi32(_mm512_cmpgt_epi32_mask(of, _mm512_setzero_si512()), x); }
inline Ints exponent_of(Ints x) { return _mm512_slli_epi32(x, 23); }
inline Floats floats(Ints x) { return _mm512_castsi512_ps(x); }
inline Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline Ints exponent(Floats x) { return _mm512_srli_epi32(bits(x), 23); }
inline Ints guess(Ints leading, Ints base, Ints scale) { return _mm512_mulhi_epu16(_mm512_subs_epu16(leading, base), scale); }
inline Ints leading_bits(Floats x) { return _mm512_srli_epi32(bits(x), 16); }
inline Ints truncated(Floats x) { return _mm512_cvttps_epi32(x); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints load_codes(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// 32 codes, those below 0 as 0.
inline void store_codes(uint8_t* p, const Ints (&codes)[2]) {
  for (int i = 0; i < 2; ++i) {
    const __m512i positive = _mm512_max_epi32(codes[i], _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * i), _mm512_cvtusepi32_epi8(positive));
  }
}
#else
using Floats = __m256;
using Ints = __m256i;
inline constexpr int kWidth = 8;
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Ints all(int x) { return _mm256_set1_epi32(x); }
inline Ints bits(Floats x) { return _mm256_castps_si256(x); }
inline Floats eight(const float* p) { return _mm256_loadu_ps(p); }
inline Floats at(Floats eight, Ints i) { return _mm256_permutevar8x32_ps(eight, i); }
inline Floats absolute(Floats x) { return _mm256_andnot_ps(all(-0.0f), x); }
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline float largest_lane(Floats x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)), two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats line(Floats x, Floats slope, Floats start) { return _mm256_fmadd_ps(x, slope, start); }
inline Floats with_sign(Floats x, Ints of) { return _mm256_xor_ps(x, _mm256_and_ps(_mm256_castsi256_ps(of), all(-0.0f))); }
inline Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Ints absolute(Ints x) { return _mm256_abs_epi32(x); }
inline Ints negated_where_negative(Ints x, Ints of) { return _mm256_sign_epi32(x, _mm256_or_si256(of, all(1))); }
inline Ints one_more_where(Ints x, Ints a, Ints is_above) { return _mm256_sub_epi32(x, _mm256_cmpgt_epi32(a, is_above)); }
inline Ints zero_unless_positive(Ints x, Ints of) { return _mm256_and_si256(x, _mm256_cmpgt_epi32(of, _mm256_setzero_si256())); }
inline Ints exponent_of(Ints x) { return _mm256_slli_epi32(x, 23); }
inline Floats floats(Ints x) { return _mm256_castsi256_ps(x); }
inline Ints larger(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline Ints exponent(Floats x) { return _mm256_srli_epi32(bits(x), 23); }
inline Ints guess(Ints leading, Ints base, Ints scale) { return _mm256_mulhi_epu16(_mm256_subs_epu16(leading, base), scale); }
inline Ints leading_bits(Floats x) { return _mm256_srli_epi32(bits(x), 16); }
inline Ints truncated(Floats x) { return _mm256_cvttps_epi32(x); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints load_codes(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
inline void store_codes(uint8_t* p, const Ints (&codes)[4]) {
  const Ints lanes = _mm256_packus_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
  const Ints packed = _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
#endif

// --- a block --------------------------------------------------------------------------------------------------------------------------

inline float scale_of(const uint8_t* block) {
  float scale;
  std::memcpy(&scale, block + kDynamic8Block, sizeof(scale));
  return scale;
}

template <bool is_signed> inline void decode(const uint8_t* block, float* x) {
  constexpr const Decoding& d = Map<is_signed>::decoding;
  const Floats scale = all(scale_of(block)), slope = multiply(eight(d.slope), scale), start = multiply(eight(d.start), scale);
  for (int64_t i = 0; i < kDynamic8Block; i += kWidth) {
    const Ints code = load_codes(block + i);
    if constexpr (is_signed) {
      const Ints of_zero = subtract(code, all(127));
      const Floats f = add(to_floats(absolute(of_zero)), all(0.5f));
      store(x + i, with_sign(line(f, at(slope, exponent(f)), at(start, exponent(f))), of_zero));
    } else {
      const Floats f = to_floats(add(code, all(1)));
      store(x + i, line(f, at(slope, exponent(f)), at(start, exponent(f))));
    }
  }
}

inline float largest_of(const float* x) {
  Floats most = all(0.0f);
  for (int64_t i = 0; i < kDynamic8Block; i += kWidth) most = larger(absolute(load(x + i)), most);
  return largest_lane(most);
}

template <bool is_signed> inline void encode(const float* x, uint8_t* block) {
  constexpr const Encoding& e = Map<is_signed>::encoding;
  const float largest = largest_of(x);
  std::memcpy(block + kDynamic8Block, &largest, sizeof(largest));
  const Floats inverse = all(largest >= std::numeric_limits<float>::min() ? 1 / largest : 0.0f);
  const Floats next = eight(e.next), slope = eight(e.slope);
  const Ints start = bits(all(is_signed ? kStart : 2 * kStart)), most = bits(all(is_signed ? kMost : 2 * kMost));
  const Ints base = all(kGuessBase), scale = all(kGuessScale);
  constexpr int kStored = 32 / kWidth;  // vectors
  for (int64_t i = 0; i < kDynamic8Block; i += 32) {
    Ints codes[kStored];
    for (int v = 0; v < kStored; ++v) {
      const Floats number = load(x + i + v * kWidth), y = multiply(absolute(number), inverse);
      const Ints below = guess(leading_bits(y), base, scale);
      const Ints decade = one_more_where(below, bits(y), bits(at(next, below)));
      const Ints power = exponent_of(decade);
      const Ints k = truncated(smaller(line(y, at(slope, decade), floats(add(start, power))), floats(add(most, power))));
      if constexpr (is_signed)
        codes[v] = add(negated_where_negative(k, bits(number)), all(127));  // there is no -1: 0 is the nearest
      else
        codes[v] = zero_unless_positive(subtract(larger(k, all(2)), all(1)), bits(number));
    }
    store_codes(block + i, codes);
  }
}

template <bool is_signed> inline void decode_by_map(const uint8_t* block, float* x) {
  const float scale = scale_of(block);
  for (int64_t i = 0; i < kDynamic8Block; ++i) x[i] = Map<is_signed>::numbers[block[i]] * scale;
}

template <bool is_signed> inline void encode_as_bitsandbytes(const float* x, uint8_t* block) {
  const auto& numbers = Map<is_signed>::numbers;
  const auto& bounds = Map<is_signed>::bounds;
  encode<is_signed>(x, block);  // at most one off
  const float largest = scale_of(block);
  for (int64_t i = 0; i < kDynamic8Block; ++i) {
    const float y = largest > 0 ? x[i] / largest : 0.0f;
    int code = block[i];
    code += static_cast<int>(y > bounds[static_cast<size_t>(code) + 1]) - static_cast<int>(y <= bounds[static_cast<size_t>(code)]);
    if (is_signed && std::signbit(numbers[static_cast<size_t>(code)]) != std::signbit(x[i])) code += x[i] > 0 ? 1 : -1;
    block[i] = static_cast<uint8_t>(code);
  }
}

// A block that an update reads and writes, of signed or unsigned numbers.
struct Codec {
  void (*decode)(const uint8_t* block, float* x) = nullptr;
  void (*encode)(const float* x, uint8_t* block) = nullptr;
};
inline Codec codec(DType dtype, bool as_bitsandbytes) {
  const bool is_signed = dtype == DType::dynamic8;
  if (as_bitsandbytes) {
    return is_signed ? Codec{decode_by_map<true>, encode_as_bitsandbytes<true>}
                     : Codec{decode_by_map<false>, encode_as_bitsandbytes<false>};
  }
  return is_signed ? Codec{decode<true>, encode<true>} : Codec{decode<false>, encode<false>};
}

}  // namespace dynamic8
ORT_TRAIN_OPS_END
