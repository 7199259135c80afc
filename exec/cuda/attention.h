// The pieces of attention's kernels on a GPU: tiles of scores, and of what weights sum up to.
//
// A block of threads has kRows rows (of queries, or of keys where the gradient sums over queries), kWarpRows of them a warp, and goes
// through the other side in steps of 32 * groups columns. Both kinds of products are chains of multiply-adds in ascending order, as on the
// CPU (exec/gemm.h), and each element's chain is one thread's:
//
//   scores   (rows x columns), summed over the depth: lane l of a row's warp has columns l, l + 32, ..., so it is the lane of exec/lanes.h
//            that sums these up, and a warp's fold is the tree that joins the lanes
//   sums     (rows x width), summed over the columns: weights are broadcast from shared memory, lanes have kVector neighbouring elements
//
// Where causal, a warp's rows share the chain's ends: weights beyond a row's own are zeros, as in a tile of the CPU's products.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "exec/attention_problem.h"
#include "exec/block.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/unroll.h"
#include "exec/depth_block.h"
#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN
namespace attention {

inline constexpr int kWarps = 4, kThreads = 32 * kWarps;

// What a thread loads at once.
template <typename T> struct alignas(16) Pack { T of[16 / sizeof(T)]; };
template <typename T> inline constexpr int kVector = 16 / sizeof(T);

template <typename T> inline constexpr int kWarpRows = 32 / sizeof(T);
template <typename T> inline constexpr int kRows = kWarps* kWarpRows<T>;

// As the CPU's products of T do it (exec/gemm.h).
HOST_DEVICE inline float multiply_add(float a, float b, float sum) { return math::fma(a, b, sum); }
HOST_DEVICE inline double multiply_add(double a, double b, double sum) { return sum + a * b; }
HOST_DEVICE inline float scaled(float alpha, float sum) { return alpha * sum; }
HOST_DEVICE inline double scaled(double alpha, double sum) { return 0.0 + alpha * sum; }

// --- elements -------------------------------------------------------------------------------------------------------------------------

// What a product takes an element as; of double they are always what they are.
template <typename T, Element e> HOST_DEVICE inline T element_at(const std::byte* data, int64_t i) {
  if constexpr (std::is_same_v<T, float>)
    return tiled::value_of<e>(is_half(e) ? reinterpret_cast<const uint16_t*>(data)[i] : reinterpret_cast<const uint32_t*>(data)[i]);
  else
    return reinterpret_cast<const T*>(data)[i];
}
template <typename T> HOST_DEVICE inline T element_at(const std::byte* data, Element element, int64_t i) {
  if constexpr (std::is_same_v<T, float>) {
    float x = 0;
    tiled::with_element(element, [&](auto e) { x = element_at<T, decltype(e)::value>(data, i); });
    return x;
  } else {
    return element_at<T, Element::own>(data, i);
  }
}
template <typename T> HOST_DEVICE inline void set_element(std::byte* data, Element element, int64_t i, T x) {
  if constexpr (std::is_same_v<T, float>)
    tiled::store_element(data, element, i, x);
  else
    reinterpret_cast<T*>(data)[i] = x;
}

// A pack as it is in memory.
template <Element e> struct alignas(is_half(e) ? 8 : 16) Stored {
  uint32_t of[is_half(e) ? 2 : 4];
  HOST_DEVICE void unpack(Pack<float>& pack) const {
    ORT_TRAIN_UNROLL
    for (int x = 0; x < 4; ++x) pack.of[x] = tiled::value_of<e>(is_half(e) ? of[x / 2] >> 16 * (x % 2) & 0xffff : of[x]);
  }
};
struct alignas(16) StoredDoubles {
  double of[2];
  HOST_DEVICE void unpack(Pack<double>& pack) const { pack.of[0] = of[0], pack.of[1] = of[1]; }
};

// A tensor of heads, or one head of it: rows of elements that are read as T, or results that are stored from it.
template <typename T> struct Rows {
  std::byte* data = nullptr;
  Element element = Element::own;
  int64_t rows = 0, width = 0;

  Rows on(const void* place) const { return {static_cast<std::byte*>(const_cast<void*>(place)), element, rows, width}; }
  HOST_DEVICE Rows head(int64_t item) const { return heads(item, 1); }
  // The rows of some heads, one behind the other.
  HOST_DEVICE Rows heads(int64_t first, int64_t count) const {
    return {data + first * rows * width * (is_half(element) ? 2 : int64_t{sizeof(T)}), element, count * rows, width};
  }
  HOST_DEVICE bool whole_packs() const { return width % kVector<T> == 0; }

  HOST_DEVICE T at(int64_t i) const { return element_at<T>(data, element, i); }
  // Zeros outside.
  HOST_DEVICE Pack<T> pack(int64_t row, int64_t column) const {
    Pack<T> pack{};
    if (row >= rows) return pack;
    ORT_TRAIN_UNROLL
    for (int x = 0; x < kVector<T>; ++x) {
      if (column + x < width) pack.of[x] = at(row * width + column + x);
    }
    return pack;
  }
  HOST_DEVICE void set_pack(int64_t row, int64_t column, const Pack<T>& pack) const {
    if (row >= rows || column >= width) return;
    if (whole_packs() && !is_half(element)) {
      reinterpret_cast<Pack<T>*>(data)[(row * width + column) / kVector<T>] = pack;
      return;
    }
    ORT_TRAIN_UNROLL
    for (int x = 0; x < kVector<T>; ++x) {
      if (column + x < width) set_element(data, element, row * width + column + x, pack.of[x]);
    }
  }
};

// Without data: Rows::on().
template <typename T> Rows<T> rows_of(const Shape& shape, Element element) { return {nullptr, element, shape[2], shape[3]}; }

// `count` rows from `row` on, packs from `column` on, as `to` has them, of which `pitch` lie between rows; zeros outside. By all threads,
// some packs each at a time, so that their loads are under way together.
template <class Source, int packs, int pitch, typename T>
HOST_DEVICE inline void copy_packs(int t, Pack<T>* to, const Rows<T>& from, int64_t row, int64_t column, int count) {
  constexpr int kTogether = 4, kStep = kThreads / packs;  // rows
  static_assert(kThreads % packs == 0);
  const int first = t / packs;
  const int64_t c = column + t % packs * kVector<T>, step = kStep * (from.width / kVector<T>);
  const int64_t there = c < from.width ? from.rows - row : 0;
  const Source* at = reinterpret_cast<const Source*>(from.data) + (row + first) * (from.width / kVector<T>)+c / kVector<T>;
  to += first * pitch + t % packs;
  for (int r = first; r < count; r += kTogether * kStep, at += kTogether * step, to += kTogether * kStep * pitch) {
    Source stored[kTogether];
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      stored[k] = {};
      if (r + k * kStep < count && r + k * kStep < there) stored[k] = at[k * step];
    }
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      if (r + k * kStep < count) stored[k].unpack(to[k * kStep * pitch]);
    }
  }
}
template <int packs, int pitch, typename T>
HOST_DEVICE inline void load_rows(int t, Pack<T>* to, const Rows<T>& from, int64_t row, int64_t column, int count) {
  if (!from.whole_packs()) {
    for (int i = t; i < count * packs; i += kThreads)
      to[i / packs * pitch + i % packs] = from.pack(row + i / packs, column + i % packs * kVector<T>);
  } else if constexpr (std::is_same_v<T, float>) {
    tiled::with_element(from.element,
                        [&](auto e) { copy_packs<Stored<decltype(e)::value>, packs, pitch>(t, to, from, row, column, count); });
  } else {
    copy_packs<StoredDoubles, packs, pitch>(t, to, from, row, column, count);
  }
}

// --- scores ---------------------------------------------------------------------------------------------------------------------------

// Of a thread: of kWarpRows rows, columns lane + 32 * group.
template <typename T, int groups> struct Scores { T of[kWarpRows<T>][groups]; };
// Groups of which something is wanted.
struct Groups {
  int begin, end;
};

// A thread's place in a block.
struct Lane {
  int warp, lane;
  HOST_DEVICE explicit Lane(int t) : warp(t / 32), lane(t % 32) {}
};

// Products of kRows rows by 32 * groups columns, which come `packs` of the depth at a time. deep: for depths of several blocks
// (exec/depth_block.h), whose sums need registers of their own.
template <typename T, int groups, int packs, bool deep> struct ScoreProduct {
  static constexpr int kPitch = packs + 1;  // odd: 8 lanes' packs lie in banks of their own
  static_assert(kPitch % 2 == 1);
  struct Stage {
    Pack<T> left[kRows<T> * kPitch], right[32 * groups * kPitch];
  };

  const Rows<T>& left;
  const Rows<T>& right;
  int64_t row, column;  // where it begins
  int count;            // of columns
  T alpha;
  int64_t depth_rows;  // of a block of the depth

  // wanted(t): a warp's groups.
  template <class Block, class Own, class Wanted>
  HOST_DEVICE void run(Block& block, Stage& stage, Own& scores, const Wanted& wanted) const {
    typename Block::template Own<Scores<T, deep ? groups : 1>> total;
    block.each([&](int t) { clear(scores[t]); });
    for (int64_t begin = 0; begin < left.width; begin += packs * kVector<T>) {
      block.each([&](int t) {
        load_rows<packs, kPitch>(t, stage.left, left, row, begin, kRows<T>);
        load_rows<packs, kPitch>(t, stage.right, right, column, begin, (count + 31) / 32 * 32);
      });
      const int64_t rest = left.width - begin;
      const int depth = static_cast<int>(rest < packs * kVector<T> ? rest : packs * kVector<T>);
      block.each([&](int t) { add(stage, Lane(t), depth, wanted(t), scores[t]); });
      if constexpr (deep) {
        if ((begin + depth) % depth_rows == 0 && begin + depth < left.width)
          block.each([&](int t) { next_block(scores[t], total[t], begin + depth == depth_rows); });
      }
    }
    block.each([&](int t) {
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        ORT_TRAIN_UNROLL
        for (int m = 0; m < groups; ++m) {
          T& score = scores[t].of[r][m];
          if constexpr (deep) {
            if (left.width > depth_rows) {
              score = multiply_add(alpha, score, total[t].of[r][m]);
              continue;
            }
          }
          score = scaled(alpha, score);
        }
      }
    });
  }

 private:
  HOST_DEVICE static void clear(Scores<T, groups>& scores) {
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kWarpRows<T>; ++r) {
      ORT_TRAIN_UNROLL
      for (int m = 0; m < groups; ++m) scores.of[r][m] = T(0);
    }
  }
  HOST_DEVICE void next_block(Scores<T, groups>& scores, Scores<T, deep ? groups : 1>& total, bool first) const {
    if constexpr (deep) {
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        ORT_TRAIN_UNROLL
        for (int m = 0; m < groups; ++m)
          total.of[r][m] = first ? scaled(alpha, scores.of[r][m]) : multiply_add(alpha, scores.of[r][m], total.of[r][m]);
      }
    }
    clear(scores);
  }

  HOST_DEVICE static void add(const Stage& stage, Lane at, int depth, Groups wanted, Scores<T, groups>& scores) {
    const Pack<T>* const a = stage.left + at.warp * kWarpRows<T> * kPitch;
    const Pack<T>* const b = stage.right + at.lane * kPitch;
    int d = 0;
    if (wanted.begin == 0 && wanted.end == groups) {  // without branches
      for (; d + kVector<T> <= depth; d += kVector<T>) add_packs<true>(a + d / kVector<T>, b + d / kVector<T>, wanted, scores);
    } else {
      for (; d + kVector<T> <= depth; d += kVector<T>) add_packs<false>(a + d / kVector<T>, b + d / kVector<T>, wanted, scores);
    }
    for (; d < depth; ++d) {
      ORT_TRAIN_UNROLL
      for (int m = 0; m < groups; ++m) {
        const T y = b[m * 32 * kPitch + d / kVector<T>].of[d % kVector<T>];
        ORT_TRAIN_UNROLL
        for (int r = 0; r < kWarpRows<T>; ++r)
          scores.of[r][m] = multiply_add(a[r * kPitch + d / kVector<T>].of[d % kVector<T>], y, scores.of[r][m]);
      }
    }
  }
  template <bool all> HOST_DEVICE static void add_packs(const Pack<T>* a, const Pack<T>* b, Groups wanted, Scores<T, groups>& scores) {
    Pack<T> x[kWarpRows<T>];
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kWarpRows<T>; ++r) x[r] = a[r * kPitch];
    ORT_TRAIN_UNROLL
    for (int m = 0; m < groups; ++m) {
      if (!all && (m < wanted.begin || m >= wanted.end)) continue;
      const Pack<T> y = b[m * 32 * kPitch];
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kVector<T>; ++k) {
        ORT_TRAIN_UNROLL
        for (int r = 0; r < kWarpRows<T>; ++r) scores.of[r][m] = multiply_add(x[r].of[k], y.of[k], scores.of[r][m]);
      }
    }
  }
};

// What the bias adds to a thread's scores; of rows and columns that are there. first: where the scores' first one has it.
template <typename T> struct BiasTile {
  const std::byte* data;  // null: none
  Element element;
  int64_t first, row_step, column_step;

  template <int groups> HOST_DEVICE void add(Lane at, int64_t rows, int columns, Scores<T, groups>& scores) const {
    if (!data) return;
    if constexpr (std::is_same_v<T, float>) {
      tiled::with_element(element, [&](auto e) {
        constexpr Element kElement = decltype(e)::value;
        if constexpr (kElement == Element::own || is_half(kElement)) add_each<kElement>(at, rows, columns, scores);
      });
    } else {
      add_each<Element::own>(at, rows, columns, scores);
    }
  }

 private:
  template <Element e, int groups> HOST_DEVICE void add_each(Lane at, int64_t rows, int columns, Scores<T, groups>& scores) const {
    ORT_TRAIN_UNROLL
    for (int m = 0; m < groups; ++m) {
      if (32 * m >= columns) continue;
      const int column = at.lane + 32 * m;
      T numbers[kWarpRows<T>];
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        const int row = at.warp * kWarpRows<T> + r;
        numbers[r] = T(0);
        if (row_step == 0 && r > 0)
          numbers[r] = numbers[0];
        else if (column < columns && (row < rows || row_step == 0))
          numbers[r] = element_at<T, e>(data, first + row * row_step + column * column_step);
      }
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) scores.of[r][m] += numbers[r];
    }
  }
};

// --- sums -----------------------------------------------------------------------------------------------------------------------------

// Weights of kRows rows by 32 * groups columns.
template <typename T, int groups> struct Weights {
  static constexpr int kPitch = 32 * groups / kVector<T> + 1;
  Pack<T> of[kRows<T> * kPitch];
  HOST_DEVICE T& at(int row, int column) { return of[row * kPitch + column / kVector<T>].of[column % kVector<T>]; }
};

// Sums of kRows rows by `width` elements, from some element of the rows on: which of them are a thread's.
template <typename T, int width> struct SumTile {
  static constexpr int kAcross = width / kVector<T>;  // lanes
  static constexpr int kOwnRows = kWarpRows<T> * kAcross / 32;
  static_assert(kAcross <= 32 && kOwnRows >= 1);
  struct Sums {
    Pack<T> of[kOwnRows];
  };

  HOST_DEVICE static int row(Lane at, int r) { return at.warp * kWarpRows<T> + at.lane / kAcross * kOwnRows + r; }
  HOST_DEVICE static int column(Lane at) { return at.lane % kAcross * kVector<T>; }

  HOST_DEVICE static void clear(Sums& sums) {
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kOwnRows; ++r) sums.of[r] = Pack<T>{};
  }
  // f(row, of) for each of a thread's packs.
  template <class F> HOST_DEVICE static void each(int t, Sums& sums, const F& f) {
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kOwnRows; ++r) f(row(Lane(t), r), sums.of[r].of);
  }
};

// A warp's columns.
struct Range {
  int begin, end;
};

// chain = sums over `count` columns, whose elements are the rows of `right` from `row` on, from `first` on; a number of rows at a time.
template <typename T, int groups, int width, int rows> struct SumProduct {
  using Tile = SumTile<T, width>;
  using Sums = typename Tile::Sums;
  static constexpr int kPacks = width / kVector<T>;
  struct Stage {
    Pack<T> of[rows * kPacks];
  };

  const Rows<T>& right;
  int64_t row, first;
  int count;

  // wanted(t): a warp's columns, which begin at whole packs.
  template <class Block, class Own, class Wanted>
  HOST_DEVICE void run(Block& block, const Weights<T, groups>& weights, Stage& stage, Own& chain, const Wanted& wanted) const {
    block.each([&](int t) { Tile::clear(chain[t]); });
    for (int begin = 0; begin < count; begin += rows) {
      const int n = count - begin < rows ? count - begin : rows;
      block.each([&](int t) { load_rows<kPacks, kPacks>(t, stage.of, right, row + begin, first, n); });
      block.each([&](int t) {
        const Range range = wanted(t);
        const int from = range.begin > begin ? range.begin : begin, to = range.end < begin + n ? range.end : begin + n;
        add(weights, stage, begin, Lane(t), {from, to}, chain[t]);
      });
    }
  }

 private:
  HOST_DEVICE static void add(const Weights<T, groups>& weights, const Stage& stage, int begin, Lane at, Range range, Sums& chain) {
    const Pack<T>* const a = weights.of + Tile::row(at, 0) * Weights<T, groups>::kPitch;
    const Pack<T>* const b = stage.of + Tile::column(at) / kVector<T>;
    int j = range.begin;
    for (; j + kVector<T> <= range.end; j += kVector<T>) {
      Pack<T> x[Tile::kOwnRows];
      ORT_TRAIN_UNROLL
      for (int r = 0; r < Tile::kOwnRows; ++r) x[r] = a[r * Weights<T, groups>::kPitch + j / kVector<T>];
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kVector<T>; ++k) {
        const Pack<T> y = b[(j + k - begin) * kPacks];
        ORT_TRAIN_UNROLL
        for (int r = 0; r < Tile::kOwnRows; ++r) add_pack(x[r].of[k], y, chain.of[r]);
      }
    }
    for (; j < range.end; ++j) {
      const Pack<T> y = b[(j - begin) * kPacks];
      ORT_TRAIN_UNROLL
      for (int r = 0; r < Tile::kOwnRows; ++r)
        add_pack(a[r * Weights<T, groups>::kPitch + j / kVector<T>].of[j % kVector<T>], y, chain.of[r]);
    }
  }
  HOST_DEVICE static void add_pack(T x, const Pack<T>& y, Pack<T>& sums) {
    ORT_TRAIN_UNROLL
    for (int e = 0; e < kVector<T>; ++e) sums.of[e] = multiply_add(x, y.of[e], sums.of[e]);
  }
};

// --- what the kernels share
// ---------------------------------------------------------------------------------------------------------------

template <typename T> HOST_DEVICE inline T infinity() {
  if constexpr (std::is_same_v<T, float>)
    return float_bits::as_float(0x7f800000u);
  else
    return static_cast<double>(float_bits::as_float(0x7f800000u));
}

// A block's task. Tiles of rows come in the order of `tile`; those of a row's elements lie next to each other.
struct Task {
  int64_t tile, item, part;
  HOST_DEVICE Task(int64_t index, int64_t items, int64_t parts) {
    part = index % parts;
    item = index / parts % items;
    tile = index / parts / items;
  }
};

inline int64_t parts_of(int64_t width, int64_t tile) { return std::max<int64_t>(1, (width + tile - 1) / tile); }

// Calls body.operator()<T, width, deep>() for a problem's sizes; `width`: of what is summed up at once.
template <typename Body> void for_sizes(DType type, int64_t depth, int64_t width, Body&& body) {
  const bool deep = depth > depth_block(depth) || width > depth_block(width);
  if (type == DType::float64) return body.template operator()<double, 64, true>();
  if (deep) return body.template operator()<float, 128, true>();
  if (std::max(depth, width) > 64) return body.template operator()<float, 128, false>();
  return body.template operator()<float, 64, false>();
}

}  // namespace attention
ORT_TRAIN_OPS_END
