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

template <Element e> __m256 eight(const std::byte* from) {
  if constexpr (e == Element::own)
    return gemm::load_floats(from);
  else
    return gemm::widened8<e>(from);
}

#ifdef __AVX512F__
inline constexpr int64_t kTogether = 16;  // lanes
// The first kTogether lanes: to[i * kLanes + l] = from[8 * l + i].
template <Element e> void move(const std::byte* from, float* to) {
  constexpr int64_t bytes = 8 * bytes_each<float>(e);
  __m512 r[8], t[8];
#pragma GCC unroll 8
  for (int64_t l = 0; l < 8; ++l) {
    const std::byte *const one = from + l * bytes, *const other = one + 8 * bytes;
    if constexpr (e == Element::bfloat16) {
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(gemm::load_halves(one)), gemm::load_halves(other), 1);
      r[l] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
    } else {
      r[l] = _mm512_insertf32x8(_mm512_castps256_ps512(eight<e>(one)), eight<e>(other), 1);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // elements i and i + 4 of four lanes, and of the four that are eight lanes on
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), upper = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  const auto joined = [&](int i, __m512i order) {
    return _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(r[i]), order, _mm512_castps_pd(r[i + 4])));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(to + i * kLanes, joined(i, lower));
    _mm512_storeu_ps(to + (i + 4) * kLanes, joined(i, upper));
  }
}
#else
inline constexpr int64_t kTogether = 8;
template <Element e> void move(const std::byte* from, float* to) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int64_t l = 0; l < 8; ++l) r[l] = eight<e>(from + l * 8 * bytes_each<float>(e));
  transpose8(r, to, kLanes);
}
#endif

// Of at most kLaneBlock elements; lanes that have none become zeros.
template <typename T> void to_lanes(const T* from, int64_t n, float* to) {
  constexpr Element e = element_of(dtype_of<T>());
  constexpr int64_t kSome = kTogether * kNeighboursInLane;
  int64_t at = 0;
  for (; at + kSome <= n; at += kSome) move<e>(reinterpret_cast<const std::byte*>(from + at), to + at / kNeighboursInLane);
  if (at == n) return;
  T last[kSome] = {};
  std::copy_n(from + at, n - at, last);
  move<e>(reinterpret_cast<const std::byte*>(last), to + at / kNeighboursInLane);
  const int64_t end = at / kNeighboursInLane + kTogether;
  for (int64_t i = 0; i < kNeighboursInLane && end < kLanes; ++i) std::fill(to + i * kLanes + end, to + (i + 1) * kLanes, 0.0f);
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
      (lane_rows::to_lanes(rows + begin, count, some[row++].data()), ...);
      if (count == kBlock) {
        for (int64_t i = 0; i < kNeighboursInLane; ++i) {
          for (int l = 0; l < lanes; ++l) at(kRows, l, true, i * kLanes);
        }
      } else {
        for (int64_t i = 0; i < kNeighboursInLane; ++i) {
          const auto there = static_cast<int>(count / kNeighboursInLane + (i < count % kNeighboursInLane));
          for (int l = 0; l < lanes; ++l) at(kRows, l, l < there, i * kLanes);
        }
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
