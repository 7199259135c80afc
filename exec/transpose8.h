// An 8 x 8 block of 4-byte elements, transposed in registers. It moves bits: the elements need not be numbers.

#pragma once

#include <immintrin.h>

#include <cstdint>

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

// to[j * to_row + i] = r[i][j]
inline void transpose8(__m256 (&r)[8], float* to, int64_t to_row) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// to[j * to_row + i] = from[i * from_row + j]
inline void transpose8(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_row);
  transpose8(r, to, to_row);
}

ORT_TRAIN_OPS_END
