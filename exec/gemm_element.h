// Conversions of rows of a product's elements (exec/element.h), for exec/gemm_pack.h and exec/gemm.h.

#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "exec/element.h"

ORT_TRAIN_OPS_BEGIN

namespace gemm {

// Calls body.operator()<element>() for one that isn't Element::own.
template <typename Body> void for_element(Element element, Body&& body) {
  switch (element) {
    case Element::float16:
      return body.template operator()<Element::float16>();
    case Element::bfloat16:
      return body.template operator()<Element::bfloat16>();
    case Element::to_float16:
      return body.template operator()<Element::to_float16>();
    default:
      return body.template operator()<Element::to_bfloat16>();
  }
}

// The bits of bfloat16 in the lower halves of the lanes: to_bfloat16 of each.
inline __m256i rounded8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline __m128i load_halves(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline __m256i load_sixteen(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline __m256 load_floats(const std::byte* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }

// Eight elements as floats.
template <Element e> __m256 widened8(const std::byte* from) {
  if constexpr (e == Element::float16) return _mm256_cvtph_ps(load_halves(from));
  if constexpr (e == Element::to_float16) return _mm256_cvtph_ps(_mm256_cvtps_ph(load_floats(from), _MM_FROUND_TO_NEAREST_INT));
  if constexpr (e == Element::bfloat16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16));
  if constexpr (e == Element::to_bfloat16) {
    const __m256 x = load_floats(from);
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 upper = _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    return _mm256_blendv_ps(upper, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));  // NaN stays NaN
  }
}
// Pairs of bfloat16 are made for products that take denormal numbers as zero (exec/gemm_micro.h). Here, floats that are denormal become
// zero before they are rounded, as the processor's own instructions have it.
constexpr uint32_t kLeastNormal = 0x00800000;

#ifdef __AVX512F__
// Whether the processor has AVX512-BF16: converts floats, and multiplies pairs.
inline bool has_pairs() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}

// The bits of bfloat16 of sixteen floats: to_bfloat16 of each.
inline __m256i rounded16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i all = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));  // NaN
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}

inline __m512 load16(const std::byte* from) { return _mm512_loadu_ps(reinterpret_cast<const float*>(from)); }

// The same of 2 x 16, the lower ones first, where denormal numbers become zero. converts: has_pairs()
inline __m512i rounded32(__m512 lower, __m512 upper, bool converts) {
  __m512i result;
  if (converts) {  // as text: the rest of the file is compiled for processors that may lack it
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(result) : "v"(upper), "v"(lower));
    return result;
  }
  const auto halves = [](__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 is_denormal = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(kLeastNormal));
    return rounded16(_mm512_castsi512_ps(_mm512_mask_xor_epi32(bits, is_denormal, bits, size)));  // its sign is left
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(halves(lower)), halves(upper), 1);
}

// Of sixteen halves and sixteen more, one behind the other, the pairs.
inline __m512i paired(__m512i halves) {
  alignas(64) static constexpr uint16_t kOrder[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves);
}
inline __m512i paired(__m256i first, __m256i second) { return paired(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1)); }

// Sixteen pairs, of elements of one row and of the next; null: zeros.
template <Element e> __m512i pairs16(const std::byte* first, const std::byte* second, bool converts) {
  if constexpr (e == Element::bfloat16)
    return paired(load_sixteen(first), second ? load_sixteen(second) : _mm256_setzero_si256());
  else
    return paired(rounded32(load16(first), second ? load16(second) : _mm512_setzero_ps(), converts));
}
// The same of eight.
template <Element e> __m256i pairs_of8(const std::byte* first, const std::byte* second, bool converts) {
  __m512i pairs;
  if constexpr (e == Element::bfloat16) {
    const auto load = [](const std::byte* from) { return _mm256_castsi128_si256(load_halves(from)); };
    pairs = paired(load(first), second ? load(second) : _mm256_setzero_si256());
  } else {
    const auto load = [](const std::byte* from) { return _mm512_castps256_ps512(load_floats(from)); };
    pairs = paired(rounded32(load(first), second ? load(second) : _mm512_setzero_ps(), converts));
  }
  return _mm512_castsi512_si256(pairs);
}
// The same of the elements of a mask; nothing else is read.
template <Element e> __m512i some_pairs16(__mmask16 some, const std::byte* first, const std::byte* second, bool converts) {
  const __mmask16 of_second = second ? some : 0;
  if constexpr (e == Element::bfloat16)
    return paired(_mm256_maskz_loadu_epi16(some, first), _mm256_maskz_loadu_epi16(of_second, second));
  else
    return paired(rounded32(_mm512_maskz_loadu_ps(some, first), _mm512_maskz_loadu_ps(of_second, second), converts));
}
// Of the first n of sixteen.
inline __mmask16 first_of16(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
#else
inline bool has_pairs() { return false; }
#endif

// Eight elements as the bits of bfloat16, each in the lower half of a lane.
template <Element e> __m256i bits8(const std::byte* from) {
  if constexpr (e == Element::bfloat16) return _mm256_cvtepu16_epi32(load_halves(from));
  const __m256 x = load_floats(from);
  const __m256i size = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
  const __m256i is_normal = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(kLeastNormal - 1));
  return _mm256_and_si256(rounded8(x), _mm256_or_si256(is_normal, _mm256_set1_epi32(0x8000)));
}
// Sixteen elements as eight pairs of bfloat16.
template <Element e> __m256 pairs8(const std::byte* from, [[maybe_unused]] bool converts) {
  if constexpr (e == Element::bfloat16) return load_floats(from);
#ifdef __AVX512F__
  return _mm256_castsi256_ps(_mm512_castsi512_si256(rounded32(load16(from), _mm512_setzero_ps(), converts)));
#else
  const __m256i halves = _mm256_packus_epi32(bits8<e>(from), bits8<e>(from + 32));
  return _mm256_castsi256_ps(_mm256_permute4x64_epi64(halves, 0xd8));
#endif
}

// One element, at a number of elements from there.
template <Element e> float widened(const std::byte* from, int64_t at) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, from + at * int64_t{sizeof(T)}, sizeof value);
    return value;
  };
  if constexpr (e == Element::float16) return to_float(read(ort_train::float16{}));
  if constexpr (e == Element::bfloat16) return to_float(read(ort_train::bfloat16{}));
  if constexpr (e == Element::to_float16) return to_float(ort_train::to_float16(read(float{})));
  if constexpr (e == Element::to_bfloat16) return to_float(ort_train::to_bfloat16(read(float{})));
}
// Of one that is bfloat16, stored so or rounded, its bits as one of a pair.
template <Element e> uint32_t bits(const std::byte* from, int64_t at) {
  uint32_t of = float_bits::of(widened<e>(from, at));
  if constexpr (e == Element::to_bfloat16) {
    uint32_t stored;
    std::memcpy(&stored, from + at * int64_t{sizeof stored}, sizeof stored);
    if ((stored & 0x7fffffff) < kLeastNormal) of = stored & 0x80000000;
  }
  return of >> 16;
}

// Eight floats as elements of sixteen bits. `e`: float16 or bfloat16.
template <Element e> void narrow8(const float* from, std::byte* to) {
  const __m256 x = _mm256_loadu_ps(from);
  __m128i halves;
  if constexpr (e == Element::float16) {
    halves = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  } else {
    const __m256i bits = rounded8(x);
    halves = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}
#ifdef __AVX512F__
// Sixteen floats as bfloat16.
inline void narrow16(const float* from, std::byte* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded16(_mm512_loadu_ps(from)));
}
// Thirty-two. converts: has_pairs(), whose instruction is right but for denormal numbers
inline void narrow32(const float* from, std::byte* to, bool converts) {
  constexpr int kDenormal = 0x20;
  const __m512 lower = _mm512_loadu_ps(from), upper = _mm512_loadu_ps(from + 16);
  if (converts && (_mm512_fpclass_ps_mask(lower, kDenormal) | _mm512_fpclass_ps_mask(upper, kDenormal)) == 0) {
    _mm512_storeu_si512(to, rounded32(lower, upper, true));
  } else {
    narrow16(from, to);
    narrow16(from + 16, to + 32);
  }
}
#endif
// The same of n floats.
template <Element e> void narrow(const float* from, int64_t n, std::byte* to) {
  int64_t i = 0;
#ifdef __AVX512F__
  if constexpr (e == Element::bfloat16) {
    const bool converts = has_pairs();
    for (; i + 32 <= n; i += 32) narrow32(from + i, to + 2 * i, converts);
    for (; i + 16 <= n; i += 16) narrow16(from + i, to + 2 * i);
    if (i < n) {
      const __mmask16 some = first_of16(n - i);
      _mm256_mask_storeu_epi16(to + 2 * i, some, rounded16(_mm512_maskz_loadu_ps(some, from + i)));
    }
    return;
  }
#endif
  for (; i + 8 <= n; i += 8) narrow8<e>(from + i, to + 2 * i);
  for (; i < n; ++i) {
    const uint16_t bits = e == Element::float16 ? to_float16(from[i]).bits : to_bfloat16(from[i]).bits;
    std::memcpy(to + 2 * i, &bits, sizeof bits);
  }
}
inline void narrow(Element e, const float* from, int64_t n, std::byte* to) {
  e == Element::float16 ? narrow<Element::float16>(from, n, to) : narrow<Element::bfloat16>(from, n, to);
}

// Of n elements the floats. `e` isn't own.
template <Element e> void widen(const std::byte* from, int64_t n, float* to) {
  int64_t i = 0;
#ifdef __AVX512F__
  if constexpr (is_half(e)) {
    for (; i + 16 <= n; i += 16) {
      const __m256i halves = load_sixteen(from + 2 * i);
      const __m512 floats =
          e == Element::float16 ? _mm512_cvtph_ps(halves) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
      _mm512_storeu_ps(to + i, floats);
    }
  }
#endif
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, widened8<e>(from + i * bytes_each<float>(e)));
  for (; i < n; ++i) to[i] = widened<e>(from, i);
}

}  // namespace gemm

// n elements of a vector that is added to a product, from `at` on, as T: where they are, or at `room`.
template <typename T> const T* vector_of(const std::byte* vector, Element element, int64_t at, int64_t n, std::byte* room) {
  const std::byte* const from = vector + at * bytes_each<T>(element);
  if constexpr (std::is_same_v<T, float>) {
    if (element != Element::own) {
      gemm::for_element(element, [&]<Element e>() { gemm::widen<e>(from, n, reinterpret_cast<float*>(room)); });
      return reinterpret_cast<const float*>(room);
    }
  }
  return reinterpret_cast<const T*>(from);
}
template <typename T> T number_of(const std::byte* vector, Element element, int64_t at) {
  T room{};
  return *vector_of<T>(vector, element, at, 1, reinterpret_cast<std::byte*>(&room));
}

ORT_TRAIN_OPS_END
