// Micro-kernels of matrix products: some rows by one panel of columns, in vector registers, along one block of the depth (exec/gemm.h).
//
// Operands come as words of 32 bits: a float, or a pair of bfloat16 that are neighbours along the depth, the first one in the lower half.
// A Unit says what a word is, how large the blocks of C are, and which micro-kernel computes one:
//
//   Fused      floats: one fused multiply-add
//   DotPairs   pairs, on processors with AVX512-BF16: vdpbf16ps. Of a pair the second product is added first, then the first, each as a
//              fused multiply-add that takes denormal numbers as zero and rounds to nearest even
//   Tiles      pairs, on processors with AMX-BF16 (exec/gemm_tiles.h)

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "exec/gemm_element.h"

ORT_TRAIN_OPS_BEGIN
namespace gemm {

#ifdef __AVX512F__
using Vector = __m512;
inline constexpr int kWidth = 16, kRows = 8, kVectors = 3;
inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
inline Vector broadcast(float x) { return _mm512_set1_ps(x); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
#else
using Vector = __m256;
inline constexpr int kWidth = 8, kRows = 6, kVectors = 2;
inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
inline Vector broadcast(float x) { return _mm256_set1_ps(x); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
#endif
inline constexpr int kPanel = kVectors * kWidth;  // columns

// Operands of a micro-kernel. Its numbers of rows and columns are fixed by which kernel is chosen. Steps are in words.
struct Micro {
  int64_t depth;
  int64_t skipped;  // the first words of the depth that count as zeros; where a Unit aligns them
  int64_t rows;
  const float* a;
  int64_t a_row, a_depth;
  bool a_is_padded;  // behind its last row are others, up to a whole block
  const void* b;     // a packed panel, or B itself
  int64_t b_depth;   // in its elements, from a word to the next
  float* panel;      // where a packing kernel leaves the panel
  // L2 prefetch, one line per iteration, in groups of four: `prefetch_within` bytes between the lines of a group, `prefetch_step` from one
  // group's first line to the next group's. Repeating a line costs nothing; a bad address doesn't fault.
  const std::byte* prefetch;
  int64_t prefetch_within = 0, prefetch_step = 0;
  float* c;
  int64_t c_row;
  const std::byte* result;  // where the elements of C end up, which come into the first-level cache
  int64_t result_row;       // bytes
  const float* start;       // null: zero; where a Unit goes on, a whole block of it
  int64_t start_row;
  float alpha;
};

// How a micro-kernel reads vector `v` of a row of words of B: from a packed panel, or from B itself, of elements of this kind, whose words
// become the panel on the way. That hides the copy behind the arithmetic.
struct Packed {
  static constexpr bool packing = false;
  using Number = float;
  __attribute__((always_inline)) static Vector load(const float* b, int64_t, int v) { return gemm::load(b + v * kWidth); }
};
template <Element e> struct Packing {
  static constexpr bool packing = true;
  using Number = std::conditional_t<is_half(e), uint16_t, float>;
  __attribute__((always_inline)) static Vector load(const Number* b, int64_t, int v) {
    b += v * kWidth;
    if constexpr (e == Element::own) {
      return gemm::load(b);
    } else {
      const auto eight = [](const Number* from) { return widened8<e>(reinterpret_cast<const std::byte*>(from)); };
#ifdef __AVX512F__
      return _mm512_insertf32x8(_mm512_castps256_ps512(eight(b)), eight(b + 8), 1);
#else
      return eight(b);
#endif
    }
  }
  __attribute__((always_inline)) static void fetch(const Number* b, int64_t depth, int v) {
    __builtin_prefetch(b + 8 * depth + v * kWidth, 0, 3);
  }
};
// Of pairs: two rows of B. On processors with AVX512-BF16, or where the products of pairs are modelled.
template <Element e> struct PackingPairs {
  static constexpr bool packing = true;
  using Number = std::conditional_t<is_half(e), uint16_t, float>;
  __attribute__((always_inline)) static Vector load(const Number* b, int64_t depth, int v) {
    const auto* const first = reinterpret_cast<const std::byte*>(b + v * kWidth);
    const std::byte* const second = first + depth / 2 * int64_t{sizeof(Number)};
#ifdef __AVX512F__
    return _mm512_castsi512_ps(pairs16<e>(first, second, true));
#else
    return _mm256_castsi256_ps(_mm256_or_si256(bits8<e>(first), _mm256_slli_epi32(bits8<e>(second), 16)));
#endif
  }
  __attribute__((always_inline)) static void fetch(const Number* b, int64_t depth, int v) {
    __builtin_prefetch(b + 4 * depth + v * kWidth, 0, 3);
    __builtin_prefetch(b + 4 * depth + depth / 2 + v * kWidth, 0, 3);
  }
};

// As an instruction: without -mprfchw the compiler takes the one for reading. Processors that lack it do nothing.
__attribute__((always_inline)) inline void fetch_to_write(const std::byte* p) { asm volatile("prefetchw %0" : : "m"(*p)); }

template <typename Add, int rows, int vectors, typename Source> __attribute__((noinline)) void micro(const Micro& m) {
  Vector sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) fetch_to_write(m.result + r * m.result_row + v * kWidth * 4);
  }
  const auto* b = static_cast<const typename Source::Number*>(m.b);
  const std::byte* prefetch = m.prefetch;
  const int64_t a_depth = m.a_depth, b_depth = m.b_depth;
  float* panel = m.panel;
  const float* a[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) a[r] = m.a + r * m.a_row;
  int64_t at = 0;
  const auto add_products = [&]() __attribute__((always_inline)) {
    Vector row[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      row[v] = Source::load(b, b_depth, v);
      if constexpr (Source::packing) {
        store(panel + v * kWidth, row[v]);
        Source::fetch(b, b_depth, v);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector x = broadcast(a[r][at]);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = Add::add_product(x, row[v], sum[r][v]);
    }
    b += b_depth;
    at += a_depth;
    if (Source::packing) panel += vectors * kWidth;
  };
  int64_t k = m.depth;
  for (const int64_t within = m.prefetch_within, step = m.prefetch_step - 3 * within; k >= 4; k -= 4, prefetch += step) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __builtin_prefetch(prefetch, 0, 2);
      if (i < 3) prefetch += within;
      add_products();
    }
  }
  for (; k > 0; --k) add_products();
  const Vector alpha = broadcast(m.alpha);
  float* c = m.c;
  const int64_t c_row = m.c_row;
  if (const float* start = m.start) {
    const int64_t start_row = m.start_row;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += c_row, start += start_row) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) store(c + v * kWidth, multiply_add(alpha, sum[r][v], load(start + v * kWidth)));
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += c_row) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) store(c + v * kWidth, multiply(alpha, sum[r][v]));
    }
  }
}
using MicroKernel = void (*)(const Micro&);

// How products in vector registers are made. Add: how a product of words is added.
template <typename Add> struct Vectors {
  static constexpr bool pairs = Add::pairs;
  static constexpr bool a_in_rows = false;                // A's words have to lie in rows
  static constexpr bool packs = true;                     // its first kernel can, of packing_rows
  static constexpr bool goes_on = false;                  // sums begin with what they are added to
  static constexpr int64_t rows = kRows, width = kPanel;  // of a block of C
  static constexpr int64_t packing_rows = kRows;
  struct Session {};  // nothing to prepare

  // How wide the next panel is: three vectors, but four that remain are two and two.
  static int64_t panel(int64_t columns_left) {
    const int64_t left = (columns_left + kWidth - 1) / kWidth;
    return kWidth * (left == kVectors + 1 && kVectors > 2 ? 2 : std::min<int64_t>(left, kVectors));
  }
  static int64_t aligned(int64_t word) { return word; }  // where a chain of the depth may begin
  static MicroKernel kernel(int64_t rows, int64_t columns, bool = true) {
    using Rows = std::make_integer_sequence<int, kRows>;
    if (columns == kWidth) return of_rows<1>(Rows{})[rows - 1];
    if (columns == 2 * kWidth) return of_rows<2>(Rows{})[rows - 1];
    return of_rows<kVectors>(Rows{})[rows - 1];
  }
  // That of the first rows, which leaves the packed panel.
  static MicroKernel packing_kernel(Element element, int64_t columns) {
    MicroKernel kernel = nullptr;
    if constexpr (!pairs) kernel = packing<Element::own>(columns);
    if (element == Element::own) return kernel;
    for_element(element, [&]<Element e>() {
      if constexpr (!pairs || is_bfloat16(e)) kernel = packing<e>(columns);
    });
    return kernel;
  }

 private:
  template <Element e> static MicroKernel packing(int64_t columns) {
    using Source = std::conditional_t<pairs, PackingPairs<e>, Packing<e>>;
    if (columns == kWidth) return micro<Add, kRows, 1, Source>;
    if (columns == 2 * kWidth) return micro<Add, kRows, 2, Source>;
    return micro<Add, kRows, kVectors, Source>;
  }
  template <int vectors, int... r> static const MicroKernel* of_rows(std::integer_sequence<int, r...>) {
    static constexpr MicroKernel table[] = {micro<Add, r + 1, vectors, Packed>...};
    return table;
  }
};

struct AddFused {
  static constexpr bool pairs = false;
  __attribute__((always_inline)) static Vector add_product(Vector a, Vector b, Vector sum) { return multiply_add(a, b, sum); }
};
using Fused = Vectors<AddFused>;

// Blocks of C as Intel's processors compute them fastest, 14 rows by 2 vectors: their best rate with AVX-512, of which those of 8 by 3
// vectors have 0.8 (measured; AMD's have it with these). B is a packed panel; the compiler has the registers for it where A lies in rows or
// in columns, and which is known.
#ifdef __AVX512F__
template <int rows, int vectors, bool in_rows> __attribute__((noinline)) void tall_micro(const Micro& m) {
  constexpr int kStep = 4;
  Vector sum[rows][vectors];
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
  }
  const auto* b = static_cast<const float*>(m.b);
  // In rows four are reached from one pointer.
  const float* a[(rows + 3) / 4];
  const int64_t row = m.a_row, three = 3 * row;
#pragma GCC unroll 4
  for (int i = 0; i < (in_rows ? (rows + 3) / 4 : 1); ++i) a[i] = m.a + 4 * i * row;
  const auto add_products = [&](int at) __attribute__((always_inline)) {
    Vector right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = load(b + (at * vectors + v) * kWidth);
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r) {
      const float* const from = in_rows ? a[r / 4] + at : a[0] + r;
      const Vector x = broadcast(!in_rows || r % 4 == 0 ? from[0] : r % 4 == 1 ? from[row] : r % 4 == 2 ? from[2 * row] : from[three]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add(x, right[v], sum[r][v]);
    }
  };
  const auto advance = [&](int by) __attribute__((always_inline)) {
    b += by * vectors * kWidth;
    if constexpr (in_rows) {
#pragma GCC unroll 4
      for (const float*& at : a) at += by;
    }
  };
  const std::byte* prefetch = m.prefetch;
  const int64_t a_depth = m.a_depth, within = m.prefetch_within, step = m.prefetch_step - 3 * within;
  const auto add_step = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int i = 0; i < kStep; ++i) {
      __builtin_prefetch(prefetch, 0, 2);
      if (i < kStep - 1) prefetch += within;
      add_products(i);
      if constexpr (!in_rows) a[0] += a_depth;
    }
    advance(kStep);
    prefetch += step;
  };
  int64_t k = m.depth;
  // C's lines come one row at a time: all at once, they would hold up the reads of A and B.
  const std::byte* result = m.result;
  for (int r = 0; r < rows && k >= kStep; ++r, k -= kStep, result += m.result_row) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) fetch_to_write(result + v * kWidth * 4);
    add_step();
  }
  for (; k >= kStep; k -= kStep) add_step();
  for (; k > 0; --k) {
    add_products(0);
    if constexpr (!in_rows) a[0] += a_depth;
    advance(1);
  }
  const Vector alpha = broadcast(m.alpha);
  float* c = m.c;
  const float* start = m.start;
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r, c += m.c_row) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      store(c + v * kWidth, start ? multiply_add(alpha, sum[r][v], load(start + v * kWidth)) : multiply(alpha, sum[r][v]));
    if (start) start += m.start_row;
  }
}

struct TallFused {
  static constexpr bool pairs = false, a_in_rows = false, packs = true, goes_on = false;
  static constexpr int64_t rows = 14, width = 2 * kWidth, packing_rows = Fused::packing_rows;
  using Session = Fused::Session;

  static int64_t panel(int64_t columns_left) { return columns_left > kWidth ? width : kWidth; }
  static int64_t aligned(int64_t word) { return word; }
  static MicroKernel kernel(int64_t rows, int64_t columns, bool in_rows) {
    using Rows = std::make_integer_sequence<int, int{TallFused::rows}>;
    if (columns == kWidth) return (in_rows ? of_rows<1, true>(Rows{}) : of_rows<1, false>(Rows{}))[rows - 1];
    return (in_rows ? of_rows<2, true>(Rows{}) : of_rows<2, false>(Rows{}))[rows - 1];
  }
  static MicroKernel packing_kernel(Element element, int64_t columns) { return Fused::packing_kernel(element, columns); }

 private:
  template <int vectors, bool in_rows, int... r> static const MicroKernel* of_rows(std::integer_sequence<int, r...>) {
    static constexpr MicroKernel table[] = {tall_micro<r + 1, vectors, in_rows>...};
    return table;
  }
};
inline bool prefers_tall() {
  static const bool prefers = __builtin_cpu_is("intel");
  return prefers;
}

struct AddPairs {
  static constexpr bool pairs = true;
  // The instruction as it is: the rest of the file is compiled for processors that may lack it.
  __attribute__((always_inline)) static Vector add_product(Vector a, Vector b, Vector sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
using DotPairs = Vectors<AddPairs>;
#endif

}  // namespace gemm
ORT_TRAIN_OPS_END
