// Rows of floats divided into their even and odd elements, in vectors, whatever their length: what steps of two read.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "exec/gemm_micro.h"

ORT_TRAIN_OPS_BEGIN
namespace gemm {

// The even elements of two vectors, and the odd ones.
#ifdef __AVX512F__
struct EvenOdd {
  Vector even, odd;
  EvenOdd(Vector a, Vector b) {
    const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_ps(a, first, b);
    odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(1)), b);
  }
};
// Both as one row again: its first vector, and the second one.
struct Joined {
  Vector first, second;
  Joined(Vector even, Vector odd) {
    const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    first = _mm512_permutex2var_ps(even, lower, odd);
    second = _mm512_permutex2var_ps(even, _mm512_add_epi32(lower, _mm512_set1_epi32(8)), odd);
  }
};
// Eight of sixteen elements, every second one.
inline __m256 halved(const float* p, int first) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps256(_mm512_permutexvar_ps(_mm512_add_epi32(even, _mm512_set1_epi32(first)), _mm512_loadu_ps(p)));
}
// Those elements of p whose bit is set: zeros for others, which aren't read; nothing else is written.
inline Vector load_some(const float* p, uint64_t bits) { return _mm512_maskz_loadu_ps(static_cast<__mmask16>(bits), p); }
inline void store_some(float* p, uint64_t bits, Vector v) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>(bits), v); }
#else
struct EvenOdd {
  Vector even, odd;
  EvenOdd(Vector a, Vector b) {
    const auto in_order = [](__m256 v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); };
    even = in_order(_mm256_shuffle_ps(a, b, 0x88));
    odd = in_order(_mm256_shuffle_ps(a, b, 0xdd));
  }
};
struct Joined {
  Vector first, second;
  Joined(Vector even, Vector odd) {
    const __m256 lower = _mm256_unpacklo_ps(even, odd), upper = _mm256_unpackhi_ps(even, odd);
    first = _mm256_permute2f128_ps(lower, upper, 0x20);
    second = _mm256_permute2f128_ps(lower, upper, 0x31);
  }
};
inline __m256i lanes_of(uint64_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits & 0xff)), lane), lane);
}
inline Vector load_some(const float* p, uint64_t bits) { return _mm256_maskload_ps(p, lanes_of(bits)); }
inline void store_some(float* p, uint64_t bits, Vector v) { _mm256_maskstore_ps(p, lanes_of(bits), v); }
#endif

// The lowest n bits of 64.
inline uint64_t lowest(int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Of those elements of two vectors whose bit is set.
inline EvenOdd even_odd_of(const float* p, uint64_t bits) {
  constexpr uint64_t kAll = (uint64_t{1} << (2 * kWidth)) - 1;
  if ((bits & kAll) == kAll) return {load(p), load(p + kWidth)};
  return {load_some(p, bits), load_some(p + kWidth, bits >> kWidth)};
}

// Of n elements those whose number is even, and the others; each half is written as far as it goes.
inline void divide_even_odd(const float* from, int64_t n, float* even, float* odd) {
  constexpr int64_t kTwo = 2 * kWidth;
  int64_t i = 0;
  for (; i + kTwo <= n; i += kTwo) {
    const EvenOdd both(load(from + i), load(from + i + kWidth));
    store(even + i / 2, both.even);
    store(odd + i / 2, both.odd);
  }
  if (i == n) return;
  const EvenOdd both = even_odd_of(from + i, lowest(n - i));
  store_some(even + i / 2, lowest((n - i + 1) / 2), both.even);
  store_some(odd + i / 2, lowest((n - i) / 2), both.odd);
}

// The reverse: a row of n elements.
inline void join_even_odd(const float* even, const float* odd, int64_t n, float* to) {
  constexpr int64_t kTwo = 2 * kWidth;
  int64_t i = 0;
  for (; i + kTwo <= n; i += kTwo) {
    const Joined row(load(even + i / 2), load(odd + i / 2));
    store(to + i, row.first);
    store(to + i + kWidth, row.second);
  }
  if (i == n) return;
  const Joined row(load_some(even + i / 2, lowest((n - i + 1) / 2)), load_some(odd + i / 2, lowest((n - i) / 2)));
  store_some(to + i, lowest(n - i), row.first);
  store_some(to + i + kWidth, lowest(n - i - kWidth), row.second);
}

// n elements, every second one of `from`, of which the first 2n - 1 are read. What would end in a part of a vector ends with a whole one,
// some of which has been copied before: with masked loads, copies of planes that aren't in the cache took four times as long (on Zen 5).
inline void copy_every_second(const float* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kWidth < n; i += kWidth) store(to + i, EvenOdd(load(from + 2 * i), load(from + 2 * i + kWidth)).even);
  if (n > kWidth) {
    const int64_t last = n - kWidth, before = 2 * last - 1;  // nothing behind the last element is read
    store(to + last, EvenOdd(load(from + before), load(from + before + kWidth)).odd);
    return;
  }
#ifdef __AVX512F__
  if (n > 8) {
    _mm256_storeu_ps(to, halved(from, 0));
    _mm256_storeu_ps(to + n - 8, halved(from + 2 * (n - 8) - 1, 1));
    return;
  }
#endif
  if (n > 0) store_some(to, lowest(n), even_odd_of(from, lowest(2 * n - 1)).even);
}

// n elements, every `step`th of `from`.
template <typename T> void copy_in_steps(const T* from, int64_t step, int64_t n, T* to) {
  if (step == 1) {
    std::copy_n(from, n, to);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (step == 2) return copy_every_second(from, n, to);
  }
  for (int64_t i = 0; i < n; ++i) to[i] = from[i * step];
}

}  // namespace gemm
ORT_TRAIN_OPS_END
