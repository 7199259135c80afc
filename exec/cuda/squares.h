// Sums of squares in 32 lanes of double (exec/lanes.h), and of each lane by itself.
//
// A lane is a chain of additions that can't be divided, so a block of threads takes one unit, which has 32 lanes: 256 threads load a chunk
// into shared memory while a warp adds up the chunk before it, each of its threads a lane.

#pragma once

#include <algorithm>
#include <type_traits>

#include "exec/block.h"
#include "exec/cuda/unroll.h"
#include "exec/lanes.h"
#include "exec/norm_block.h"

ORT_TRAIN_OPS_BEGIN

enum class LanesJoin {
  none,      // each lane is a result
  tree,      // of exec/lanes.h
  of_a_row,  // a tree; a row of fewer than 32 elements is added up in order
};

// Sums of the squares of what of(unit, i) gives as its k-th value, of every i of the unit. Of is a functor, HOST_DEVICE:
//
//   using Stored = float;                         what the tensor's elements are: says which lane takes which
//   static constexpr int kSums = 1;
//   static constexpr LanesJoin kJoin;
//   struct Values { Compute<Stored> of[kSums]; };
//   bool skips() const;                           where it is true, nothing is read or written
//   int64_t length(int64_t unit) const;
//   Values operator()(int64_t unit, int64_t i) const;
//   double start(int64_t unit, int lane) const;   that the sum goes on from
//   void put(int64_t unit, int k, int lane, double sum) const;   of lanes that are joined, of lane 0
template <class Of> struct LaneSquares {
  using Value = Compute<typename Of::Stored>;
  static constexpr int kSums = Of::kSums, kLoaders = 256, kThreads = kLoaders + 32 * kSums;
  static constexpr bool kIsHalf = !std::is_same_v<typename Of::Stored, Value>;
  // Elements of a chunk; those of each lane are kRow apart. With 36, the elements of 16 bits that a warp loads go to different banks.
  static constexpr int kChunk = 16384 / (sizeof(Value) * kSums), kRow = kIsHalf ? 36 : 32;
  struct Shared {
    Value values[2][kSums][kChunk / 32 * kRow];
    double lanes[kSums][32];
  };

  Of of;

  static HOST_DEVICE int place(int i) { return kIsHalf ? (i / 256 * 8 + i % 8) * kRow + i / 8 % 32 : i / 32 * kRow + i % 32; }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> sum;
    const bool skips = of.skips();
    block.each([&](int t) { sum[t] = skips || t < kLoaders ? 0 : of.start(block.index, t % 32); });
    const int64_t n = skips ? 0 : of.length(block.index), chunks = (n + kChunk - 1) / kChunk;
    for (int64_t chunk = 0; chunk <= chunks; ++chunk) {
      block.each([&](int t) {
        if (t < kLoaders) {
          if (chunk < chunks) load_chunk(block.shared.values[chunk % 2], block.index, chunk * kChunk, n, t);
        } else if (chunk > 0) {
          add_chunk(block.shared.values[(chunk - 1) % 2][(t - kLoaders) / 32], n - (chunk - 1) * kChunk, t % 32, sum[t]);
        }
      });
    }
    if constexpr (Of::kJoin == LanesJoin::of_a_row) {
      block.each([&](int t) {
        if (t >= kLoaders) block.shared.lanes[(t - kLoaders) / 32][t % 32] = sum[t];
      });
    }
    if constexpr (Of::kJoin != LanesJoin::none) block.template fold<32>(sum, Plus{});
    block.each([&](int t) {
      if (skips || t < kLoaders || (Of::kJoin != LanesJoin::none && t % 32 != 0)) return;
      const int k = (t - kLoaders) / 32;
      if constexpr (Of::kJoin == LanesJoin::of_a_row) {
        if (n < 32) sum[t] = 0;
        for (int64_t i = 0; i < n && n < 32; ++i) sum[t] += block.shared.lanes[k][i];
      }
      of.put(block.index, k, t % 32, sum[t]);
    });
  }

  // Of a whole chunk every load comes before the first store, so that they are under way together.
  HOST_DEVICE void load_chunk(Value (*values)[kChunk / 32 * kRow], int64_t unit, int64_t first, int64_t n, int t) const {
    constexpr int kEach = kChunk / kLoaders;
    if (first + kChunk <= n) {
      typename Of::Values here[kEach];
      ORT_TRAIN_UNROLL
      for (int j = 0; j < kEach; ++j) here[j] = of(unit, first + j * kLoaders + t);
      ORT_TRAIN_UNROLL
      for (int j = 0; j < kEach; ++j) put_values(values, j * kLoaders + t, here[j]);
    } else {
      for (int i = t; first + i - t < n; i += kLoaders) put_values(values, i, first + i < n ? of(unit, first + i) : typename Of::Values{});
    }
  }
  static HOST_DEVICE void put_values(Value (*values)[kChunk / 32 * kRow], int i, const typename Of::Values& here) {
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kSums; ++k) values[k][place(i)] = here.of[k];
  }
  // What is behind the end, to the next multiple of kLoaders, is 0, which adds nothing.
  static HOST_DEVICE void add_chunk(const Value* values, int64_t n, int lane, double& sum) {
    const auto add = [&](int row) {
      const auto value = static_cast<double>(values[row * kRow + lane]);
      sum = sum + value * value;
    };
    if (n >= kChunk) {
      for (int row = 0; row < kChunk / 32; ++row) add(row);
    } else {
      const int rows = static_cast<int>((n + kLoaders - 1) / kLoaders * (kLoaders / 32));
      for (int row = 0; row < rows; ++row) add(row);
    }
  }
};

template <class Of> void launch_lane_squares(const Of& of, int64_t units, const KernelArgs& args) {
  launch(LaneSquares<Of>{of}, units, args);
}

// --- over the blocks of exec/norm_block.h -----------------------------------------------------------------------------------------------

// Of has kSums, Stored, Values and skips() as above; of(i) is of element i of the tensor.
template <class Of, LanesJoin join> struct NormBlocks {
  using Stored = typename Of::Stored;
  using Values = typename Of::Values;
  static constexpr int kSums = Of::kSums;
  static constexpr LanesJoin kJoin = join;
  Of of;
  double* sums[kSums];
  int64_t n, block;  // elements, and those of a block
  HOST_DEVICE bool skips() const { return of.skips(); }
  HOST_DEVICE int64_t length(int64_t unit) const { return n - unit * block < block ? n - unit * block : block; }
  HOST_DEVICE Values operator()(int64_t unit, int64_t i) const { return of(unit * block + i); }
  HOST_DEVICE double start(int64_t, int) const { return 0; }
  HOST_DEVICE void put(int64_t unit, int k, int, double sum) const { sums[k][unit] = sum; }
};

template <LanesJoin join = LanesJoin::tree, class Of, typename... Sums>
void launch_norm_squares(const Of& of, const Shape& shape, const KernelArgs& args, Sums*... sums) {
  launch_lane_squares(NormBlocks<Of, join>{of, {sums...}, element_count(shape), norm_block(shape)}, norm_blocks(shape), args);
}

ORT_TRAIN_OPS_END
