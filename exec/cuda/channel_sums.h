// Sums over the channels of a batch, as batch normalisation makes them, in the processor's order (exec/ops/batch_normalization.cpp): a warp
// is the 32 lanes of a block of 1,024 elements, and the blocks of a channel in a piece of the batch, which a block of threads has, are
// added upwards in double. Channels of few elements are summed by a thread each. The pieces, 16 at most, are added by whoever needs the
// sum.

#pragma once

#include "exec/block.h"
#include "exec/cuda/unroll.h"
#include "exec/ops/batch_normalization.h"

ORT_TRAIN_OPS_BEGIN
namespace batch_normalization {

// Numbers of the channels, each as C or of 16 bits.
template <typename C> struct ChannelNumbers {
  void* data;
  DType type;  // of C where it isn't of 16 bits

  HOST_DEVICE C at(int64_t c) const {
    if (type == DType::float16) return static_cast<C>(load(static_cast<const float16*>(data)[c]));
    if (type == DType::bfloat16) return static_cast<C>(load(static_cast<const bfloat16*>(data)[c]));
    return static_cast<const C*>(data)[c];
  }
  HOST_DEVICE void put(int64_t c, double value) const {
    if (type == DType::float16)
      static_cast<float16*>(data)[c] = to_float16(static_cast<float>(value));
    else if (type == DType::bfloat16)
      static_cast<bfloat16*>(data)[c] = to_bfloat16(static_cast<float>(value));
    else
      static_cast<C*>(data)[c] = static_cast<C>(value);
  }
};
// Sums in double, K a channel, of the pieces.
template <int K> struct PieceSums {
  double* data = nullptr;
  int64_t pieces = 0, channels = 0;
  double count = 1;  // elements of a channel

  HOST_DEVICE double total(int64_t c, int k) const {
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += data[(piece * channels + c) * K + k];
    return sum;
  }
};
template <int K> PieceSums<K> piece_sums(const Layout& l, std::byte* at) {
  return {reinterpret_cast<double*>(at), l.pieces(), l.channels, static_cast<double>(std::max<int64_t>(1, l.count()))};
}

// What is summed: the lanes of a channel take in an element each, x and, where kTwo, dy beside it.
template <typename E> struct SumOf {
  using T = E;
  using C = Compute<T>;
  static constexpr int kSums = 1;
  static constexpr bool kTwo = false;
  const T *x, *dy = nullptr;

  HOST_DEVICE C middle(int64_t, bool) const { return C(0); }
  HOST_DEVICE static void add(C* sums, C value, C, C) { sums[0] = sums[0] + value; }
};
template <typename E> struct SquaresOf {
  using T = E;
  using C = Compute<T>;
  static constexpr int kSums = 1;
  static constexpr bool kTwo = false;
  const T *x, *dy = nullptr;
  PieceSums<1> sums;
  C* mean;

  // `writes`: one thread of all that ask for the channel.
  HOST_DEVICE C middle(int64_t c, bool writes) const {
    const C value = static_cast<C>(sums.total(c, 0) / sums.count);
    if (writes) mean[c] = value;
    return value;
  }
  HOST_DEVICE static void add(C* sums, C value, C, C middle) {
    const C d = value - middle;
    sums[0] = math::fma(d, d, sums[0]);
  }
};
template <typename E> struct ProductsOf {  // dy and dy * (x - mean)
  using T = E;
  using C = Compute<T>;
  static constexpr int kSums = 2;
  static constexpr bool kTwo = true;
  const T *x, *dy;
  ChannelNumbers<C> mean;

  HOST_DEVICE C middle(int64_t c, bool) const { return mean.at(c); }
  HOST_DEVICE static void add(C* sums, C value, C slope, C middle) {
    sums[0] += slope;
    sums[1] = math::fma(slope, value - middle, sums[1]);
  }
};

// Neighbours that one lane takes (exec/lanes.h): 16 bytes where they are of 16 bits.
template <typename T> inline constexpr int kRun = sizeof(T) == 2 ? 8 : 1;
template <typename T> struct Run {
  T value;
  HOST_DEVICE Compute<T> at(int) const { return value; }
  // n elements, zeros behind. `whole`: all are there and lie in one line of 16 bytes.
  HOST_DEVICE static Run load(const T* from, int64_t, bool) { return {*from}; }
};
template <typename T>
requires(sizeof(T) == 2) struct alignas(16) Run<T> {
  uint32_t words[4];
  HOST_DEVICE Compute<T> at(int i) const { return ort_train::load(T{static_cast<uint16_t>(words[i / 2] >> i % 2 * 16)}); }
  HOST_DEVICE static Run load(const T* from, int64_t n, bool whole) {
    Run run{};
    if (whole) {
      memcpy(&run, __builtin_assume_aligned(from, sizeof run), sizeof run);
      return run;
    }
    ORT_TRAIN_UNROLL
    for (int i = 0; i < 8; ++i) run.words[i / 2] |= i < n ? uint32_t{from[i].bits} << i % 2 * 16 : 0;
    return run;
  }
};

struct SumLayout {
  int64_t samples, channels, size, piece_samples;

  explicit SumLayout(const Layout& l) : samples(l.samples), channels(l.channels), size(l.size), piece_samples(l.piece_samples()) {}
  HOST_DEVICE int64_t samples_of(int64_t piece) const {
    const int64_t left = samples - piece * piece_samples;
    return left < piece_samples ? left : piece_samples;
  }
};

// A block of threads for a piece of a channel: in each round a warp has kEach blocks of elements.
template <class Of> struct ChannelSums {
  using T = typename Of::T;
  using C = Compute<T>;
  static constexpr int K = Of::kSums;
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kEach = 4, kRound = kWarps * kEach;
  struct Shared {
    C of[K][kRound];
  };
  struct Sums {
    C of[K];
  };
  SumLayout l;
  Of of;
  double* sums;

  // What one lane takes of n elements.
  HOST_DEVICE Sums lane_sums(int64_t at, int64_t n, int lane, C middle) const {
    Sums sum{};
    const bool lines = l.size % kRun<T> == 0;
    for (int64_t i = lane * kRun<T>; i < n; i += 32 * kRun<T>) {
      const bool whole = lines && i + kRun<T> <= n;
      const Run<T> x = Run<T>::load(of.x + at + i, n - i, whole);
      Run<T> dy{};
      if constexpr (Of::kTwo) dy = Run<T>::load(of.dy + at + i, n - i, whole);
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kRun<T>; ++k) {
        if (kRun<T> == 1 || i + k < n) of.add(sum.of, x.at(k), dy.at(k), middle);
      }
    }
    return sum;
  }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int64_t piece = block.index / l.channels, c = block.index % l.channels, first = piece * l.piece_samples;
    const int64_t per_sample = (l.size + kSumBlock - 1) / kSumBlock, count = l.samples_of(piece) * per_sample;
    typename Block::template Own<C> lane[K][kEach];
    typename Block::template Own<double> total;
    block.each([&](int t) { total[t] = 0; });
    for (int64_t round = 0; round < count; round += kRound) {
      block.each([&](int t) {
        const C middle = of.middle(c, piece == 0 && round == 0 && t == 0);
        for (int e = 0; e < kEach; ++e) {
          const int64_t which = round + e * kWarps + t / 32, begin = which % per_sample * kSumBlock;
          const int64_t at = ((first + which / per_sample) * l.channels + c) * l.size + begin, left = l.size - begin;
          const Sums sum = which < count ? lane_sums(at, left < kSumBlock ? left : kSumBlock, t % 32, middle) : Sums{};
          for (int k = 0; k < K; ++k) lane[k][e][t] = sum.of[k];
        }
      });
      for (int k = 0; k < K; ++k) {
        for (int e = 0; e < kEach; ++e) block.template fold<32>(lane[k][e], Plus{});
      }
      block.each([&](int t) {
        for (int k = 0; k < K; ++k) {
          for (int e = 0; e < kEach; ++e) {
            if (t % 32 == 0) block.shared.of[k][e * kWarps + t / 32] = lane[k][e][t];
          }
        }
      });
      block.each([&](int t) {
        if (t >= K) return;
        const int64_t n = count - round < kRound ? count - round : kRound;
        for (int64_t i = 0; i < n; ++i) total[t] += static_cast<double>(block.shared.of[t][i]);
      });
    }
    block.each([&](int t) {
      if (t < K) sums[(piece * l.channels + c) * K + t] = total[t];
    });
  }
};

// Of channels of fewer than 16 elements: 32 channels a block, of each 8 samples at a time, by a thread each.
template <class Of> struct ShortSums {
  using T = typename Of::T;
  using C = Compute<T>;
  static constexpr int K = Of::kSums, kMost = Layout::kShort;
  static constexpr int kThreads = 256, kEach = 4, kRound = kThreads / 32 * kEach;
  struct Shared {
    C of[K][kRound][33];
  };
  SumLayout l;
  Of of;
  double* sums;

  // The lanes that have something, added as the tree of all 32: what stands 16 on is zero.
  HOST_DEVICE void add_sample(int64_t at, C middle, C* results) const {
    constexpr int kFilled = kMost / kRun<T>;
    C lane[kFilled][K] = {};
    for (int i = 0; i < kMost; ++i) {
      if (i < l.size) of.add(lane[i / kRun<T>], load(of.x[at + i]), Of::kTwo ? load(of.dy[at + i]) : C(0), middle);
    }
    for (int k = 0; k < K; ++k) {
      for (int i = 0; i < kFilled; ++i) lane[i][k] = lane[i][k] + C(0);
      for (int half = kFilled / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lane[i][k] = lane[i][k] + lane[i + half][k];
      }
      results[k] = lane[0][k];
    }
  }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int64_t bands = (l.channels + 31) / 32, piece = block.index / bands, band = block.index % bands * 32;
    const int64_t first = piece * l.piece_samples, count = l.samples_of(piece);
    typename Block::template Own<double> total;
    block.each([&](int t) { total[t] = 0; });
    for (int64_t round = 0; round < count; round += kRound) {
      block.each([&](int t) {
        const int64_t c = band + t % 32;
        if (c >= l.channels) return;
        const C middle = of.middle(c, piece == 0 && round == 0 && t < 32);
        for (int e = 0; e < kEach; ++e) {
          const int row = t / 32 * kEach + e;
          C results[K];
          if (round + row >= count) continue;
          add_sample(((first + round + row) * l.channels + c) * l.size, middle, results);
          for (int k = 0; k < K; ++k) block.shared.of[k][row][t % 32] = results[k];
        }
      });
      block.each([&](int t) {
        if (t >= 32 * K || band + t % 32 >= l.channels) return;
        const int64_t n = count - round < kRound ? count - round : kRound;
        for (int64_t i = 0; i < n; ++i) total[t] += static_cast<double>(block.shared.of[t / 32][i][t % 32]);
      });
    }
    block.each([&](int t) {
      if (t < 32 * K && band + t % 32 < l.channels) sums[(piece * l.channels + band + t % 32) * K + t / 32] = total[t];
    });
  }
};

template <class Of> void sum_channels(const Layout& l, const Of& of, double* sums, const KernelArgs& args) {
  if (l.size < Layout::kShort)
    launch(ShortSums<Of>{SumLayout(l), of, sums}, l.pieces() * ((l.channels + 31) / 32), args);
  else
    launch(ChannelSums<Of>{SumLayout(l), of, sums}, l.pieces() * l.channels, args);
}

}  // namespace batch_normalization
ORT_TRAIN_OPS_END
