// Sums in one order: a chain of additions, which one thread makes.

#pragma once

#include "exec/block.h"

ORT_TRAIN_OPS_BEGIN

// start + of(0) + … + of(n - 1), in double, added in this order by one thread, while the others read what comes next. The total is thread
// 0's.
struct OrderedTiles {
  static constexpr int kThreads = 256, kReaders = kThreads - 32, kEach = 4, kTile = kReaders * kEach;
  double tile[2][kTile];

  template <class Block, class Own, class Of>
  static HOST_DEVICE void sum(Block& block, OrderedTiles& tiles, Own& total, int64_t n, const Of& of, double start = 0) {
    const auto fetch = [&](int t, int64_t begin, double* tile) {
      double v[kEach];
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = begin + t - 32 + kReaders * k;
        v[k] = i < n ? of(i) : 0;
      }
      for (int k = 0; k < kEach; ++k) tile[t - 32 + kReaders * k] = v[k];
    };
    block.each([&](int t) {
      total[t] = start;
      if (t >= 32) fetch(t, 0, tiles.tile[0]);
    });
    for (int64_t begin = 0; begin < n; begin += kTile) {
      const int64_t now = begin / kTile % 2;
      block.each([&](int t) {
        if (t >= 32) {
          if (begin + kTile < n) fetch(t, begin + kTile, tiles.tile[1 - now]);
        } else if (t == 0) {
          const int count = n - begin < kTile ? static_cast<int>(n - begin) : kTile;
          const double* const from = tiles.tile[now];
          int k = 0;
          for (; k + 8 <= count; k += 8) {
            double v[8];
            for (int j = 0; j < 8; ++j) v[j] = from[k + j];
            for (int j = 0; j < 8; ++j) total[t] += v[j];
          }
          for (; k < count; ++k) total[t] += from[k];
        }
      });
    }
  }
};

// A block of threads sums one unit. Source is a functor, HOST_DEVICE:
//
//   int64_t count(int64_t unit) const;
//   double start(int64_t unit) const;                 that the sum goes on from
//   double operator()(int64_t unit, int64_t i) const;
//   void put(int64_t unit, double sum) const;
template <class Source> struct OrderedSum {
  static constexpr int kThreads = OrderedTiles::kThreads;
  using Shared = OrderedTiles;
  Source source;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> total;
    const int64_t unit = block.index;
    OrderedTiles::sum(
        block, block.shared, total, source.count(unit), [&](int64_t i) { return source(unit, i); }, source.start(unit));
    block.each([&](int t) {
      if (t == 0) source.put(unit, total[t]);
    });
  }
};

// A Source of one unit: *result = of(0) + of(1) + … + of(n - 1).
template <class Of, typename R> struct SumOf {
  Of of;
  int64_t n;
  R* result;
  HOST_DEVICE int64_t count(int64_t) const { return n; }
  HOST_DEVICE double start(int64_t) const { return 0; }
  HOST_DEVICE double operator()(int64_t, int64_t i) const { return of(i); }
  HOST_DEVICE void put(int64_t, double sum) const { *result = static_cast<R>(sum); }
};

struct NumberAt {
  const double* values;
  HOST_DEVICE double operator()(int64_t i) const { return values[i]; }
};

ORT_TRAIN_OPS_END
