// Runs of elements of weights that are stored in blocks (graph/weight_blocks.h), as float32, for exec/gemm.h.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "exec/kernel.h"
#include "exec/math.h"
#include "graph/dynamic8.h"
#include "graph/weight_blocks.h"

ORT_TRAIN_OPS_BEGIN
namespace weight_blocks {

inline float number_at(const std::byte* at) {
  float number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

// Where a block's codes are, and what they are multiplied by.
struct Block {
  const std::byte* codes;
  float scale;
};
template <DType dtype> Block block_at(const std::byte* data, int64_t block) {
  if constexpr (dtype == DType::nf4_double) {
    const std::byte *const group = data + block / kNf4Group * kNf4GroupBytes, *const scales = group + kNf4Scales;
    const float of = kDynamic8Signed[static_cast<size_t>(scales[block % kNf4Group])];
    return {group + block % kNf4Group * kNf4Codes, __builtin_fmaf(of, number_at(scales + kNf4Group), number_at(scales + kNf4Group + 4))};
  } else {
    constexpr int64_t bytes = dtype == DType::nf4 ? kNf4Bytes : kInt8Bytes;
    const std::byte* const codes = data + block * bytes;
    return {codes, number_at(codes + bytes - 4)};
  }
}

// Elements of a block from `at` on, one by one.
template <DType dtype> void decode_some(const Block& block, int64_t at, int64_t n, float* to) {
  for (int64_t i = at; i < at + n; ++i) {
    if constexpr (dtype == DType::block_int8) {
      *to++ = static_cast<float>(static_cast<int8_t>(block.codes[i])) * block.scale;
    } else {
      const auto pair = static_cast<unsigned>(block.codes[i / 2]);
      *to++ = kNf4[i % 2 == 0 ? pair >> 4 : pair & 15] * block.scale;
    }
  }
}

// Sixteen of them, from an even one on.
template <DType dtype> void decode16(const Block& block, int64_t at, float* to) {
  if constexpr (dtype == DType::block_int8) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.codes + at));
    const __m256 scale = _mm256_set1_ps(block.scale);
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale));
    _mm256_storeu_ps(to + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))), scale));
  } else {
    const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.codes + at / 2)), low = _mm_set1_epi8(15);
    const __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(pairs, 4), low), _mm_and_si128(pairs, low));
#ifdef __AVX512F__
    const __m512 numbers = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), _mm512_loadu_ps(kNf4.data()));
    _mm512_storeu_ps(to, _mm512_mul_ps(numbers, _mm512_set1_ps(block.scale)));
#else
    const __m256 first = _mm256_loadu_ps(kNf4.data()), second = _mm256_loadu_ps(kNf4.data() + 8), scale = _mm256_set1_ps(block.scale);
    const auto eight = [&](__m128i of, float* at_to) {
      const __m256i i = _mm256_cvtepu8_epi32(of);
      const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(i, 28));  // its sign: codes from 8 on
      const __m256 numbers = _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, i), _mm256_permutevar8x32_ps(second, i), upper);
      _mm256_storeu_ps(at_to, _mm256_mul_ps(numbers, scale));
    };
    eight(codes, to);
    eight(_mm_srli_si128(codes, 8), to + 8);
#endif
  }
}

template <DType dtype> void decode_run(const std::byte* data, int64_t first, int64_t n, float* to) {
  while (n > 0) {
    const Block block = block_at<dtype>(data, first / kWeightBlock);
    int64_t at = first % kWeightBlock;
    const int64_t count = std::min(kWeightBlock - at, n), end = at + count;
    if (const int64_t odd = std::min(at % 2, count); odd > 0) {
      decode_some<dtype>(block, at, odd, to);
      ++at, ++to;
    }
    for (; at + 16 <= end; at += 16, to += 16) decode16<dtype>(block, at, to);
    decode_some<dtype>(block, at, end - at, to);
    to += end - at;
    first += count;
    n -= count;
  }
}

// n elements from `first` on of a weight that begins at `data`.
inline void decode(DType dtype, const std::byte* data, int64_t first, int64_t n, float* to) {
  if (dtype == DType::nf4) return decode_run<DType::nf4>(data, first, n, to);
  if (dtype == DType::nf4_double) return decode_run<DType::nf4_double>(data, first, n, to);
  decode_run<DType::block_int8>(data, first, n, to);
}

}  // namespace weight_blocks
ORT_TRAIN_OPS_END
