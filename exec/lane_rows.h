// Sums over rows in the order of exec/lanes.h, of values that come from some rows in memory. Where these are of 16 bits, neighbours in
// memory are one lane's; so 256 elements at a time are moved to where the lanes lie beside each other, as floats.

#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "exec/gemm_element.h"
#include "exec/lanes.h"
#include "exec/math.h"
#include "exec/transpose8.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kNeighboursInLane = 8, kLaneBlock = kNeighboursInLane * kLanes;  // of 16-bit rows; lanes are at most kLanes

namespace lane_rows {

// The first n elements of kTogether lanes, zeros behind them: to[i * kLanes + l] = from[8 * l + i].
#ifdef __AVX512F__
inline constexpr int64_t kTogether = 16;
template <Element e> __attribute__((always_inline)) inline void move(const uint16_t* from, int64_t n, float* to) {
  const auto four = [&](int64_t first) __attribute__((always_inline)) {  // lanes, in words of two neighbours
    if (first + 32 <= n) return _mm512_loadu_si512(from + first);
    return _mm512_maskz_loadu_epi16(n <= first ? 0 : ~uint32_t{0} >> (32 - (n - first)), from + first);
  };
  const __m512i a = four(0), b = four(32), c = four(64), d = four(96);
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);  // words 0 of eight lanes, words 1
  const __m512i third = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  const __m512i lower01 = _mm512_permutex2var_epi32(a, first, b), lower23 = _mm512_permutex2var_epi32(a, third, b),
                upper01 = _mm512_permutex2var_epi32(c, first, d), upper23 = _mm512_permutex2var_epi32(c, third, d);
  const __m512i words[4] = {_mm512_shuffle_i32x4(lower01, upper01, 0x44), _mm512_shuffle_i32x4(lower01, upper01, 0xee),
                            _mm512_shuffle_i32x4(lower23, upper23, 0x44), _mm512_shuffle_i32x4(lower23, upper23, 0xee)};
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    float* const at = to + 2 * k * kLanes;
    if constexpr (e == Element::bfloat16) {
      _mm512_storeu_ps(at, _mm512_castsi512_ps(_mm512_slli_epi32(words[k], 16)));
      _mm512_storeu_ps(at + kLanes, _mm512_castsi512_ps(_mm512_and_si512(words[k], _mm512_set1_epi32(-65536))));
    } else {
      _mm512_storeu_ps(at, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words[k])));
      _mm512_storeu_ps(at + kLanes, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words[k], 16))));
    }
  }
}
#else
inline constexpr int64_t kTogether = 8;
template <Element e> void move(const uint16_t* from, int64_t n, float* to) {
  constexpr int64_t kAll = kTogether * kNeighboursInLane;
  uint16_t some[kAll];
  if (n < kAll) {
    std::fill(std::copy_n(from, n, some), some + kAll, uint16_t{0});
    from = some;
  }
  __m256 r[8];
#pragma GCC unroll 8
  for (int64_t l = 0; l < 8; ++l) r[l] = gemm::widened8<e>(reinterpret_cast<const std::byte*>(from + 8 * l));
  transpose8(r, to, kLanes);
}
#endif
template <Element e> void move(const float* from, int64_t n, float* to) {
  constexpr int64_t kAll = kTogether * kNeighboursInLane;
  float some[kAll];
  if (n < kAll) {
    std::fill(std::copy_n(from, n, some), some + kAll, 0.0f);
    from = some;
  }
  for (int64_t l = 0; l < kTogether; l += 8) transpose8(from + 8 * l, kNeighboursInLane, to + l, kLanes);
}

template <Element e, typename Word> __attribute__((noinline)) void move_last(const Word* from, int64_t n, float* to) {
  move<e>(from, n, to);
}

// Of at most kLaneBlock elements, in whole groups of kTogether lanes.
template <typename T> __attribute__((always_inline)) inline void to_lanes(const T* from, int64_t n, float* to) {
  constexpr Element e = element_of(dtype_of<T>());
  constexpr int64_t kAll = kTogether * kNeighboursInLane;
  const auto* const words = reinterpret_cast<const std::conditional_t<is_half(e), uint16_t, float>*>(from);
  int64_t at = 0;
#pragma GCC unroll 4
  for (; at + kAll <= n; at += kAll) move<e>(words + at, kAll, to + at / kNeighboursInLane);
  if (at < n) move_last<e>(words + at, n - at, to + at / kNeighboursInLane);
}

}  // namespace lane_rows

// visit(lane, is there, values) with the i-th element of each row, in the order in which each lane takes them; also with some that aren't
// there, so that vectors are whole. T: of which type the sum is.
template <typename T, int lanes = kLanes, typename Visit, typename... Rows>
__attribute__((always_inline)) inline void visit_rows(int64_t n, const Visit& visit, const Rows*... rows) {
  if constexpr (sizeof(T) > 2) {
    each_in_lanes<T, lanes>(
        n, [&](int l, int64_t i) __attribute__((always_inline)) { visit(l, true, load(rows[i])...); });
  } else {
    alignas(64) std::array<std::array<float, kLaneBlock>, sizeof...(Rows)> some;
    const auto at = [&]<size_t... row>(std::index_sequence<row...>, int l, bool is_there, int64_t i) __attribute__((always_inline)) {
      visit(l, is_there, some[row][static_cast<size_t>(i + l)]...);
    };
    constexpr std::index_sequence_for<Rows...> kRows{};
    constexpr int64_t kBlock = kNeighboursInLane * lanes;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      size_t row = 0;
      if (count == kBlock) {
        (lane_rows::to_lanes(rows + begin, kBlock, some[row++].data()), ...);
        for (int64_t i = 0; i < kNeighboursInLane; ++i) {
          for (int l = 0; l < lanes; ++l) at(kRows, l, true, i * kLanes);
        }
      } else {
        (lane_rows::to_lanes(rows + begin, count, some[row++].data()), ...);
        // Groups of lanes that have something, each by a loop of its own: so their vectors stay in registers.
        const auto group = [&]<int first>(std::integral_constant<int, first>) __attribute__((always_inline)) {
          constexpr int end = std::min(lanes, first + static_cast<int>(lane_rows::kTogether));
          if (count <= first * kNeighboursInLane) return;
          for (int64_t i = 0; i < kNeighboursInLane; ++i) {
            const auto there = static_cast<int>(count / kNeighboursInLane + (i < count % kNeighboursInLane));
#pragma GCC unroll 1
            for (int l = first; l < end; ++l) at(kRows, l, l < there, i * kLanes);
          }
        };
        [&]<int... g>(std::integer_sequence<int, g...>) __attribute__((always_inline)) {
          (group(std::integral_constant<int, g* static_cast<int>(lane_rows::kTogether)>{}), ...);
        }
        (std::make_integer_sequence<int, (lanes + static_cast<int>(lane_rows::kTogether) - 1) / static_cast<int>(lane_rows::kTogether)>{});
      }
    }
  }
}

// step(sum, values) returns the sum with an element of each row taken in.
template <typename T, int lanes = kLanes, typename Step, typename... Rows>
__attribute__((always_inline)) inline Compute<T> sum_rows(int64_t n, const Step& step, const Rows*... rows) {
  using C = Compute<T>;
  C sums[lanes] = {};
  const auto visit = [&](int l, bool is_there, auto... values) __attribute__((always_inline)) {
    const C with = step(sums[l], values...);
    sums[l] = is_there ? with : sums[l];
  };
  visit_rows<T, lanes>(n, visit, rows...);
  return join_lanes(sums, [](C a, C b) { return a + b; });
}
template <typename T> struct TwoSums { T first, second; };
// Two sums in one reading: step(first, second, values) adds to both.
template <typename T, typename Step, typename... Rows>
__attribute__((always_inline)) inline TwoSums<Compute<T>> sum_rows_twice(int64_t n, const Step& step, const Rows*... rows) {
  using C = Compute<T>;
  C first[kLanes] = {}, second[kLanes] = {};
  const auto visit = [&](int l, bool is_there, auto... values) __attribute__((always_inline)) {
    C with_first = first[l], with_second = second[l];
    step(with_first, with_second, values...);
    first[l] = is_there ? with_first : first[l];
    second[l] = is_there ? with_second : second[l];
  };
  visit_rows<T>(n, visit, rows...);
  const auto add = [](C a, C b) { return a + b; };
  return {join_lanes(first, add), join_lanes(second, add)};
}

ORT_TRAIN_OPS_END
