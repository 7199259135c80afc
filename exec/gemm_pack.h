// Blocks of a product's operands, copied to where micro-kernels read them: as words (exec/gemm_micro.h), floats or pairs of bfloat16.
//
//   panel   of B: [words of the depth][width], one vector beside another
//   rows    of A: like a panel where A lies transposed, else [rows][words of the depth]; a word is broadcast, so either will do

#pragma once

#include <algorithm>
#include <cstring>

#include "exec/gemm_element.h"
#include "exec/transpose8.h"

ORT_TRAIN_OPS_BEGIN
namespace gemm {

// Elements somewhere in memory, (i, j) at i * row + j * column bytes; one of the two is an element's size.
struct Source {
  const std::byte* data = nullptr;
  int64_t row = 0, column = 0;
};

// Copies depth x columns of B to a panel of `width` columns, padded with zeros.
inline void pack(const float* b, int64_t b_depth, int64_t b_column, int64_t depth, int64_t columns, int64_t width, float* panel) {
  if (b_column == 1) {
    for (int64_t k = 0; k < depth; ++k, b += b_depth, panel += width) {
      std::copy_n(b, columns, panel);
      std::fill(panel + columns, panel + width, 0.0f);
    }
    return;
  }
  // Blocks of 16 x 16: a line of each column is read, a line of each row of the panel written, in one go and once.
  for (int64_t j = 0; j < width; j += 16) {
    const int64_t block = std::min<int64_t>(16, width - j);
    for (int64_t k = 0; k < depth; k += 16) {
      const int64_t n = std::min<int64_t>(16, depth - k);
      float* to = panel + k * width + j;
      const float* from = b + j * b_column + k * b_depth;
      if (n == 16 && j + block <= columns && b_depth == 1) {
        for (int64_t y = 0; y < block; y += 8) {
          transpose8(from + y * b_column, b_column, to + y, width);
          transpose8(from + y * b_column + 8, b_column, to + y + 8 * width, width);
        }
        continue;
      }
      for (int64_t x = 0; x < n; ++x) {
        for (int64_t y = 0; y < block; ++y) to[x * width + y] = j + y < columns ? from[x * b_depth + y * b_column] : 0.0f;
      }
    }
  }
}

inline float as_word(uint32_t bits) { return float_bits::as_float(bits); }

// Rows of n elements, each as a row of floats, zeros behind them up to `width`.
template <Element e> void widen_rows(const Source& from, int64_t rows, int64_t n, int64_t width, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r, to += to_row) {
    widen<e>(from.data + r * from.row, n, to);
    std::fill(to + n, to + width, 0.0f);
  }
}

// Pairs of n elements of two rows; of one row (second: null) and zeros.
template <Element e> void pair_row(const std::byte* first, const std::byte* second, int64_t n, float* to, [[maybe_unused]] bool converts) {
  constexpr int64_t size = bytes_each<float>(e);
  int64_t i = 0;
#ifdef __AVX512F__
  const auto sixteen = [&](int64_t at) {
    _mm512_storeu_si512(to + at, pairs16<e>(first + at * size, second ? second + at * size : nullptr, converts));
  };
  const auto eight = [&](int64_t at) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                        pairs_of8<e>(first + at * size, second ? second + at * size : nullptr, converts));
  };
  for (; i + 16 <= n; i += 16) sixteen(i);
  if (i == n) return;
  // Some of them once more: see copy_every_second().
  if (n >= 16) return sixteen(n - 16);
  if (n >= 8) {
    eight(0);
    return eight(n - 8);
  }
  const __mmask16 some = first_of16(n);
  _mm512_mask_storeu_epi32(to, some, some_pairs16<e>(some, first, second, converts));
#else
  for (; i + 8 <= n; i += 8) {
    const __m256i upper = second ? _mm256_slli_epi32(bits8<e>(second + i * size), 16) : _mm256_setzero_si256();
    _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_or_si256(bits8<e>(first + i * size), upper)));
  }
  for (; i < n; ++i) to[i] = as_word(bits<e>(first, i) | (second ? bits<e>(second, i) << 16 : 0));
#endif
}

// Two neighbouring rows of n elements each as a row of pairs; behind an odd last one comes a row of zeros.
template <Element e> void pair_rows(const Source& from, int64_t rows, int64_t n, int64_t width, float* to) {
  constexpr int64_t size = bytes_each<float>(e), kAhead = 8;
  const bool converts = has_pairs();
  for (int64_t r = 0; r < rows; r += 2, to += width) {
    const std::byte *const first = from.data + r * from.row, *const second = r + 1 < rows ? first + from.row : nullptr;
    for (int64_t line = 0; line < n * size; line += 64) {  // of rows to come, from the second-level cache
      __builtin_prefetch(first + kAhead * from.row + line, 0, 3);
      __builtin_prefetch(first + (kAhead + 1) * from.row + line, 0, 3);
    }
    pair_row<e>(first, second, n, to, converts);
    std::fill(to + n, to + width, 0.0f);
  }
}

// Rows of `depth` elements, each as a row of pairs, with a zero behind an odd last one.
template <Element e> void pair_along_rows(const Source& from, int64_t rows, int64_t depth, float* to, int64_t to_row) {
  constexpr int64_t size = bytes_each<float>(e);
  const bool converts = has_pairs();
  for (int64_t r = 0; r < rows; ++r, to += to_row) {
    const std::byte* const row = from.data + r * from.row;
    int64_t k = 0;
    for (; k + 16 <= depth; k += 16) _mm256_storeu_ps(to + k / 2, pairs8<e>(row + k * size, converts));
    for (; k < depth; k += 2) to[k / 2] = as_word(bits<e>(row, k) | (k + 1 < depth ? bits<e>(row, k + 1) << 16 : 0));
  }
}

#ifdef __AVX512F__
// Columns that lie one behind the other, 16 of them, as a panel's rows of pairs: whole blocks of 32 elements. Returns how far it came.
template <Element e>
int64_t transpose_pairs16(const std::byte* from, int64_t column, int64_t depth, int64_t width, float* to, bool converts) {
  constexpr int64_t size = bytes_each<float>(e), kStep = 32;
  int64_t k = 0;
  for (; k + kStep <= depth; k += kStep, from += kStep * size, to += kStep / 2 * width) {
    __m512 words[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const std::byte* const at = from + i * column;
      if constexpr (e == Element::bfloat16)
        words[i] = load16(at);
      else
        words[i] = _mm512_castsi512_ps(rounded32(load16(at), load16(at + kStep / 2 * size), converts));
    }
    transpose16(words, to, width);
  }
  return k;
}
#endif

// Columns that lie one behind the other as a panel of `width`, in blocks of 8 columns: of each, so many elements as a line holds in one go.
template <Element e, bool pairs> void transpose_columns(const Source& from, int64_t depth, int64_t columns, int64_t width, float* panel) {
  constexpr int64_t size = bytes_each<float>(e), step = pairs ? 16 : 8, line = 64 / size;  // step: elements of 8 words
  [[maybe_unused]] const bool converts = has_pairs();
  const auto word = [&](const std::byte* column, int64_t k) {
    if constexpr (pairs) return as_word(bits<e>(column, k) | (k + 1 < depth ? bits<e>(column, k + 1) << 16 : 0));
    return widened<e>(column, k);
  };
  int64_t done = 0;  // of the depth, of sixteen columns
  for (int64_t j = 0; j < width; j += 8) {
#ifdef __AVX512F__
    if constexpr (pairs) {
      if (j % 16 == 0)
        done = j + 16 <= columns ? transpose_pairs16<e>(from.data + j * from.column, from.column, depth, width, panel + j, converts) : 0;
    }
#endif
    for (int64_t begin = done; begin < depth; begin += line) {
      const int64_t end = std::min(begin + line, depth);
      for (int64_t k = begin; k < end; k += step) {
        float* const to = panel + (pairs ? k / 2 : k) * width + j;
        const std::byte* const first = from.data + j * from.column;
        if (k + step <= end && j + 8 <= columns) {
          __m256 r[8];
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) {
            const std::byte* const at = first + i * from.column + k * size;
            if constexpr (pairs)
              r[i] = pairs8<e>(at, converts);
            else
              r[i] = widened8<e>(at);
          }
          transpose8(r, to, width);
          continue;
        }
        for (int64_t x = k; x < std::min(k + step, end); x += pairs ? 2 : 1) {
          for (int64_t y = 0; y < 8; ++y)
            to[(x - k) / (pairs ? 2 : 1) * width + y] = j + y < columns ? word(first + y * from.column, x) : 0.0f;
        }
      }
    }
  }
}

// The same as pack() for elements that aren't floats; to pairs or to floats.
template <bool pairs> void pack_elements(Element element, const Source& b, int64_t depth, int64_t columns, int64_t width, float* panel) {
  for_element(element, [&]<Element e>() {
    if constexpr (pairs && (e == Element::float16 || e == Element::to_float16))
      return;  // there are no such pairs
    else if (b.column != bytes_each<float>(e))
      transpose_columns<e, pairs>(b, depth, columns, width, panel);
    else if constexpr (pairs)
      pair_rows<e>(b, depth, columns, width, panel);
    else
      widen_rows<e>(b, depth, columns, width, panel, width);
  });
}

// Of A a block of rows x depth that lies in rows, each `to_row` words from the next.
template <bool pairs> void pack_rows(Element element, const Source& a, int64_t rows, int64_t depth, float* to, int64_t to_row) {
  for_element(element, [&]<Element e>() {
    if constexpr (!pairs)
      widen_rows<e>(a, rows, depth, depth, to, to_row);
    else if constexpr (is_bfloat16(e))
      pair_along_rows<e>(a, rows, depth, to, to_row);
  });
}

// The same where A's columns lie one behind the other: words of two neighbouring columns, 8 of them by 8 rows in one go.
template <Element e> void pair_across_columns(const Source& from, int64_t rows, int64_t depth, float* to, int64_t to_row) {
  constexpr int64_t size = bytes_each<float>(e);
  const auto pairs_at = [&](int64_t i, int64_t k) {  // of 8 rows
    const std::byte* const first = from.data + k * from.column + i * size;
    const __m256i second = k + 1 < depth ? bits8<e>(first + from.column) : _mm256_setzero_si256();
    return _mm256_castsi256_ps(_mm256_or_si256(bits8<e>(first), _mm256_slli_epi32(second, 16)));
  };
  int64_t i = 0;
#ifdef __AVX512F__
  const bool converts = has_pairs();
  for (; i + 16 <= rows; i += 16) {
    for (int64_t k = 0; k < depth; k += 32) {
      __m512 words[16];
#pragma GCC unroll 16
      for (int64_t w = 0; w < 16; ++w) {
        const std::byte* const first = from.data + (k + 2 * w) * from.column + i * size;
        words[w] = k + 2 * w >= depth
                       ? _mm512_setzero_ps()
                       : _mm512_castsi512_ps(pairs16<e>(first, k + 2 * w + 1 < depth ? first + from.column : nullptr, converts));
      }
      transpose16(words, to + i * to_row + k / 2, to_row);
    }
  }
#endif
  for (; i + 8 <= rows; i += 8) {
    for (int64_t k = 0; k < depth; k += 16) {
      __m256 words[8];
#pragma GCC unroll 8
      for (int64_t w = 0; w < 8; ++w) words[w] = k + 2 * w < depth ? pairs_at(i, k + 2 * w) : _mm256_setzero_ps();
      transpose8(words, to + i * to_row + k / 2, to_row);
    }
  }
  for (; i < rows; ++i) {
    for (int64_t k = 0; k < depth; k += 2) {
      const std::byte* const first = from.data + k * from.column;
      to[i * to_row + k / 2] = as_word(bits<e>(first, i) | (k + 1 < depth ? bits<e>(first + from.column, i) << 16 : 0));
    }
  }
}

// Of A a block of rows x depth, whatever its layout, as rows of pairs. `to_row`: a multiple of 16, and room for whole sixteens of words.
inline void pair_rows_of_a(Element element, const Source& a, int64_t rows, int64_t depth, float* to, int64_t to_row) {
  for_element(element, [&]<Element e>() {
    if constexpr (is_bfloat16(e)) {
      if (a.column == bytes_each<float>(e))
        pair_along_rows<e>(a, rows, depth, to, to_row);
      else
        pair_across_columns<e>(a, rows, depth, to, to_row);
    }
  });
}

}  // namespace gemm
ORT_TRAIN_OPS_END
