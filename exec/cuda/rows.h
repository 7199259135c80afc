// Rows on a device: sums over a row in the lanes of exec/lanes.h, so in the processor's order. A row has 32 lanes, and a warp of 32 threads
// keeps one in each: an element of 4 bytes and more goes to lane i mod 32, one of 16 bits to lane (i / 8) mod 32.
//
//   WarpRows   a warp a row, 2 rows a block
//   LongRows   a block a row: one warp adds, in the same lanes, while eight others read and work out the elements that come next
//
// A kernel is written once over either (RowsFor chooses). Both have
//   rows.sum<T>(block, read, step, sums...)   read(spot, Width<w>{}) makes Neighbours<V, w> of w elements from `spot` on; step(v, sum...)
//                                             adds one V to the lane's sums; all threads of the row get the sums
//   rows.largest(block, x, result)            the largest element; which one of several equal ones, or beside NaN, is left open
//   rows.each(block, body)                    body(spot, Width<w>{}) for w neighbours at a time, w = 4 or 1: all elements once
//   rows.lead(block, f)                       f(thread, row), once a row
// with T the type in which the row is stored. In sum() and each() a thread reads and writes only at its spot: rows may be in place.

#pragma once

#include <limits>
#include <type_traits>

#include "exec/block.h"

ORT_TRAIN_OPS_BEGIN

template <int width> using Width = std::integral_constant<int, width>;

// Neighbouring elements, which are read and written at once: where there are several, their address is a multiple of 16 bytes, or of their
// size if that is less.
template <typename T, int width> struct alignas(width == 1 ? alignof(T) : sizeof(T) * width < 16 ? sizeof(T) * width : 16) Neighbours {
  T at[width];
};
template <typename V> struct alignas(2 * sizeof(V)) Two { V first, second; };

template <int width, typename T> HOST_DEVICE inline Neighbours<Compute<T>, width> loaded(const T* x) {
  const auto from = *reinterpret_cast<const Neighbours<T, width>*>(x);
  Neighbours<Compute<T>, width> values;
  for (int k = 0; k < width; ++k) values.at[k] = load(from.at[k]);
  return values;
}
template <int width, typename T> HOST_DEVICE inline void store_all(T* y, const Neighbours<Compute<T>, width>& values) {
  Neighbours<T, width> to;
  for (int k = 0; k < width; ++k) to.at[k] = store<T>(values.at[k]);
  *reinterpret_cast<Neighbours<T, width>*>(y) = to;
}

template <typename T> inline constexpr bool kLanesOfEight = sizeof(T) == 2;  // float16 and bfloat16: a lane takes 8 neighbours

// step() of what read(i, Width<w>{}) makes of the elements i of a row that `lane` takes, in ascending order. `aligned`: the row begins at a
// multiple of 16 bytes. Elements are read some at a time, so that the reads don't wait for the sums.
template <typename T, int lanes, class Read, class Step>
HOST_DEVICE inline void walk_lane(int64_t n, int lane, bool aligned, const Read& read, const Step& step) {
  constexpr int kBatch = 8;
  constexpr int64_t kApart = kLanesOfEight<T> ? 1 : lanes, kNext = kBatch * lanes;
  int64_t i = kLanesOfEight<T> ? kBatch * lane : lane;
  if constexpr (kLanesOfEight<T>) {
    for (; aligned && i + kBatch <= n; i += kNext) {
      const auto v = read(i, Width<kBatch>{});
      for (int k = 0; k < kBatch; ++k) step(v.at[k]);
    }
  }
  for (; i + (kBatch - 1) * kApart < n; i += kNext) {
    decltype(read(i, Width<1>{})) v[kBatch];
    for (int k = 0; k < kBatch; ++k) v[k] = read(i + k * kApart, Width<1>{});
    for (int k = 0; k < kBatch; ++k) step(v[k].at[0]);
  }
  for (; i < n; i += kApart) step(read(i, Width<1>{}).at[0]);
}

// An element of a row, and the thread that asks for it.
struct Spot {
  int thread;
  int64_t row, i, at;  // at: in the tensor
};

struct WarpRows {
  static constexpr int kThreads = 64, kRows = kThreads / 32;
  template <typename V, typename C> using Shared = NoShared;
  int64_t rows, n;
  int64_t first = 0;  // the block of the first rows
  int64_t blocks() const { return (rows + kRows - 1) / kRows; }

  template <class Block> HOST_DEVICE int64_t row(const Block& block, int t) const { return (block.index - first) * kRows + t / 32; }

  template <typename T, class Block, class Read, class Step, class... Sums>
  HOST_DEVICE void sum(Block& block, const Read& read, const Step& step, Sums&... sums) const {
    block.each([&](int t) {
      ((sums[t] = 0), ...);
      const int64_t r = row(block, t);
      if (r >= rows) return;
      walk_lane<T, 32>(
          n, t % 32, n % 8 == 0,
          [&](int64_t i, auto width) {
            return read(Spot{t, r, i, r * n + i}, width);
          },
          [&](const auto& v) { step(v, sums[t]...); });
    });
    (block.template fold<32>(sums, Plus{}), ...);
  }

  template <class Block, typename T, class Own> HOST_DEVICE void largest(Block& block, const T* x, Own& result) const {
    block.each([&](int t) {
      result[t] = -std::numeric_limits<Compute<T>>::infinity();
      const int64_t r = row(block, t);
      if (r >= rows) return;
      walk_lane<T, 32>(
          n, t % 32, n % 8 == 0, [&](int64_t i, auto width) { return loaded<width.value>(x + r * n + i); },
          [&](Compute<T> v) { result[t] = Larger{}(result[t], v); });
    });
    block.template fold<32>(result, Larger{});
  }

  template <class Block, class Body> HOST_DEVICE void each(Block& block, const Body& body) const {
    block.each([&](int t) {
      const int64_t r = row(block, t);
      if (r >= rows) return;
      if (n % 4 == 0) {
        for (int64_t i = t % 32 * 4; i < n; i += 128) body(Spot{t, r, i, r * n + i}, Width<4>{});
      } else {
        for (int64_t i = t % 32; i < n; i += 32) body(Spot{t, r, i, r * n + i}, Width<1>{});
      }
    });
  }

  template <class Block, class F> HOST_DEVICE void lead(Block& block, const F& f) const {
    block.each([&](int t) {
      if (t % 32 == 0 && row(block, t) < rows) f(t, row(block, t));
    });
  }
};

// The last row may be shorter.
struct LongRows {
  static constexpr int kReaders = 256, kThreads = 32 + kReaders;
  template <typename V> static constexpr int kEach = sizeof(V) > 8 ? 4 : 8;  // elements of a tile that a thread reads
  template <typename V, typename C> struct Shared {
    V tile[2][kReaders * kEach<V>];
    C sums[2], largest[kThreads / 32];
  };
  int64_t rows, n, elements = rows * n;
  int64_t first = 0;
  int64_t blocks() const { return rows; }

  template <class Block> HOST_DEVICE int64_t row(const Block& block, int) const { return block.index - first; }
  HOST_DEVICE int64_t length(int64_t row) const { return elements - row * n < n ? elements - row * n : n; }

  template <typename T, class Block, class Read, class Step, class... Sums>
  HOST_DEVICE void sum(Block& block, const Read& read, const Step& step, Sums&... sums) const {
    constexpr int64_t kTile = sizeof block.shared.tile[0] / sizeof block.shared.tile[0][0];
    const int64_t r = row(block, 0), tiles = (length(r) + kTile - 1) / kTile;
    block.each([&](int t) {
      ((sums[t] = 0), ...);
      if (t >= 32) fetch<T>(block.shared.tile[0], t, r, 0, read);
    });
    for (int64_t tile = 0; tile < tiles; ++tile) {
      block.each([&](int t) {
        if (t < 32)
          add<T>(block.shared.tile[tile % 2], t, length(r) - tile * kTile, [&](const auto& v) { step(v, sums[t]...); });
        else if (tile + 1 < tiles)
          fetch<T>(block.shared.tile[(tile + 1) % 2], t, r, (tile + 1) * kTile, read);
      });
    }
    (block.template fold<32>(sums, Plus{}), ...);
    block.each([&](int t) {
      int k = 0;
      if (t == 0) ((block.shared.sums[k++] = sums[t]), ...);
    });
    block.each([&](int t) {
      int k = 0;
      ((sums[t] = block.shared.sums[k++]), ...);
    });
  }

  template <class Block, typename T, class Own> HOST_DEVICE void largest(Block& block, const T* x, Own& result) const {
    using C = Compute<T>;
    block.each([&](int t) {
      result[t] = -std::numeric_limits<C>::infinity();
      const int64_t r = row(block, t);
      walk_lane<C, kThreads>(
          length(r), t, false, [&](int64_t i, auto width) { return loaded<width.value>(x + r * n + i); },
          [&](C v) { result[t] = Larger{}(result[t], v); });
    });
    block.template fold<32>(result, Larger{});
    block.each([&](int t) {
      if (t % 32 == 0) block.shared.largest[t / 32] = result[t];
    });
    block.each([&](int t) {
      for (int k = 0; k < kThreads / 32; ++k) result[t] = Larger{}(result[t], block.shared.largest[k]);
    });
  }

  template <class Block, class Body> HOST_DEVICE void each(Block& block, const Body& body) const {
    block.each([&](int t) {
      const int64_t r = row(block, t);
      int64_t i = 0;
      if (n % 4 == 0) {
        for (i = t * 4; i + 4 <= length(r); i += kThreads * 4) body(Spot{t, r, i, r * n + i}, Width<4>{});
        i = length(r) / 4 * 4;
      }
      for (i += t; i < length(r); i += kThreads) body(Spot{t, r, i, r * n + i}, Width<1>{});
    });
  }

  template <class Block, class F> HOST_DEVICE void lead(Block& block, const F& f) const {
    block.each([&](int t) {
      if (t == 0) f(t, row(block, t));
    });
  }

 private:
  // A tile has what lane l adds at l, l + 32, l + 64, …, in this order.
  template <typename T, typename V, class Read> HOST_DEVICE void fetch(V* tile, int t, int64_t r, int64_t begin, const Read& read) const {
    const int u = t - 32;
    const int64_t end = length(r);
    const auto spot = [&](int64_t i) { return Spot{t, r, i, r * n + i}; };
    if constexpr (kLanesOfEight<T>) {
      static_assert(kEach<V> == 8);
      const int64_t i = begin + 8 * u;
      V* const to = tile + u / 32 * 256 + u % 32;
      if (n % 8 == 0 && i + 8 <= end) {
        const auto v = read(spot(i), Width<8>{});
        for (int k = 0; k < 8; ++k) to[32 * k] = v.at[k];
      } else {
        for (int k = 0; k < 8; ++k) {
          if (i + k < end) to[32 * k] = read(spot(i + k), Width<1>{}).at[0];
        }
      }
    } else {
      Neighbours<V, 1> v[kEach<V>] = {};
      for (int k = 0; k < kEach<V>; ++k) {
        if (begin + u + kReaders * k < end) v[k] = read(spot(begin + u + kReaders * k), Width<1>{});
      }
      for (int k = 0; k < kEach<V>; ++k) tile[u + kReaders * k] = v[k].at[0];
    }
  }

  // `left`: elements of the row from the tile's first one on.
  template <typename T, typename V, class Step> HOST_DEVICE void add(const V* tile, int lane, int64_t left, const Step& step) const {
    constexpr int kBatch = 8, kSteps = kReaders * kEach<V> / 32;
    for (int m = 0; m < kSteps; m += kBatch) {
      V v[kBatch];
      for (int k = 0; k < kBatch; ++k) v[k] = tile[lane + 32 * (m + k)];
      for (int k = 0; k < kBatch; ++k) {
        const int element = kLanesOfEight<T> ? 32 * m + 8 * lane + k : lane + 32 * (m + k);
        if (element < left) step(v[k]);
      }
    }
  }
};

// run(rows) with the kind that suits rows of n elements.
template <class Run> void with_rows(int64_t rows, int64_t n, const Run& run) {
  constexpr int64_t kLong = 4096;
  if (n < kLong)
    run(WarpRows{rows, n});
  else
    run(LongRows{rows, n});
}

ORT_TRAIN_OPS_END
