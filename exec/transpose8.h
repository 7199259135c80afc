// Blocks of 8 x 8 or 16 x 16 elements of 4 bytes, transposed in registers. It moves bits: the elements need not be numbers.

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

#ifdef __AVX512F__
// to[j * to_row + i] = r[i][j]
inline void transpose16(__m512 (&r)[16], float* to, int64_t to_row) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  // Lane q of r[i + x] now holds column 4 q + x of the rows i to i + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int x = 0; x < 4; ++x) {
    const __m512 upper[] = {_mm512_shuffle_f32x4(r[x], r[x + 4], 0x44), _mm512_shuffle_f32x4(r[x + 8], r[x + 12], 0x44)};
    const __m512 lower[] = {_mm512_shuffle_f32x4(r[x], r[x + 4], 0xee), _mm512_shuffle_f32x4(r[x + 8], r[x + 12], 0xee)};
    _mm512_storeu_ps(to + x * to_row, _mm512_shuffle_f32x4(upper[0], upper[1], 0x88));
    _mm512_storeu_ps(to + (x + 4) * to_row, _mm512_shuffle_f32x4(upper[0], upper[1], 0xdd));
    _mm512_storeu_ps(to + (x + 8) * to_row, _mm512_shuffle_f32x4(lower[0], lower[1], 0x88));
    _mm512_storeu_ps(to + (x + 12) * to_row, _mm512_shuffle_f32x4(lower[0], lower[1], 0xdd));
  }
}
#endif

// to[j * to_row + i] = from[i * from_row + j]
inline void transpose8(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_row);
  transpose8(r, to, to_row);
}

// Of as many vectors as one has elements of 4 bytes.
inline void transpose_square(__m256 (&r)[8], float* to, int64_t to_row) { transpose8(r, to, to_row); }
#ifdef __AVX512F__
inline void transpose_square(__m512 (&r)[16], float* to, int64_t to_row) { transpose16(r, to, to_row); }
#endif

ORT_TRAIN_OPS_END
