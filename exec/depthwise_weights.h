// dw of depthwise convolutions (exec/depthwise_sums.h): a channel in each lane of a vector. Where the processor multiplies pairs of
// bfloat16, they are made of two samples. Of floats the order of the sums is that of the products with columns
// (exec/ops/conv_weight_gradient.cpp), so the bits are, too.

#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "exec/depthwise_sums.h"
#include "exec/padded_planes.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// dw of one piece of the batch and so many channels as a vector has lanes is a task. Of a thread's workspace: x's copy and dy's, with
// channels side by side; the sums; where a tile's windows are in x's copy.
class DepthwiseWeights {
 public:
  DepthwiseWeights() = default;
  DepthwiseWeights(const Layout& l, Element dy, Element x, Element dw)
      : l_(l), x_(words_of_samples(dy, x)), dy_{dy, x_.pairs}, dw_(dw), tiles_(tiles_of_samples(l, x_)) {
    const WeightTiles& tiles = tiles_;
    applies_ = is_depthwise(l);
    if (!applies_) return;
    plane_ = TilePlane(l.windows, tiles.columns);
    const int64_t wide = tiles.samples * tiles.columns;
    applies_ = plane_.size() <= kMostBytes / kVectorBytes / tiles.samples;
    if (!applies_) return;
    WorkspaceLayout layout;
    layout.take(tiles.samples * plane_.size() * kVectorBytes);
    dy_at_ = layout.take(wide * kVectorBytes);
    sums_at_ = layout.take(l.windows.taps() * kVectorBytes);
    table_at_ = layout.take(wide * int64_t{sizeof(int32_t)});
    bytes_ = layout.all();
    for (int64_t t = 0; t < l.windows.taps(); ++t) taps_.push_back(plane_.tap(t) * gemm::kWidth);
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return tiles_.pieces * divided_up(l_.groups, gemm::kWidth); }
  const WeightTiles& tiles() const { return tiles_; }
  double efficiency(double) const { return depthwise_efficiency(l_, l_.groups); }

  // dw: of the whole; or of all pieces, one behind the other, in float32
  void run(const std::byte* dy, const std::byte* x, std::byte* dw, int64_t task, std::byte* workspace) const {
    const int64_t some = divided_up(l_.groups, gemm::kWidth), piece = task / some, g = task % some * gemm::kWidth;
    const int64_t channels = std::min<int64_t>(gemm::kWidth, l_.groups - g), all = l_.windows.out_size();
    auto* const dy_copy = reinterpret_cast<float*>(workspace + dy_at_);
    const int64_t begin = piece * tiles_.piece_samples, end = std::min(x_.of(l_.batch), begin + tiles_.piece_samples);
    bool has_start = false;
    for (int64_t n = begin; n < end; n += tiles_.samples) {
      const int64_t samples = std::min(tiles_.samples, end - n);
      for (int64_t column = 0; column < all; column += tiles_.columns) {
        const int64_t count = std::min(tiles_.columns, all - column), wide = samples * count;
        for (int64_t i = 0; i < samples; ++i) {
          const auto plane = [&](int64_t channel) {
            return dy_.plane(dy + l_.y_at(0, g, 0) * bytes_each<float>(dy_.element) + channel * all * bytes_each<float>(dy_.element), n + i,
                             l_.result(), l_.batch);
          };
          vectors_of(plane, all, channels, column, count, dy_copy + i * count * gemm::kWidth);
        }
        copy_x(x, n, samples, g, channels, column, count, workspace);
        const int64_t block = depth_block(wide);
        for (int64_t first = 0; first < wide; first += block, has_start = true)
          add(first, std::min(block, wide - first), workspace, has_start);
      }
    }
    store(reinterpret_cast<const float*>(workspace + sums_at_), channels, dw, piece, g);
  }

 private:
  static constexpr int64_t kMostBytes = 1 << 20;
  static constexpr int kTogether = 9;  // taps

  void store(const float* sums, int64_t channels, std::byte* dw, int64_t piece, int64_t g) const {
    const int64_t taps = l_.windows.taps();
    const bool has_pieces = tiles_.pieces > 1;
    const Element element = has_pieces ? Element::own : dw_;
    std::byte* const to = dw + ((has_pieces ? piece * l_.weights() : 0) + g * taps) * bytes_each<float>(element);
    for (int64_t channel = 0; channel < channels; ++channel) {
      float some[kDepthBlock];
      for (int64_t t = 0; t < taps; ++t) some[t] = sums[t * gemm::kWidth + channel];
      store_rows<float>(some, taps, {to + channel * taps * bytes_each<float>(element), taps, 1, element}, 1, taps);
    }
  }

  // What the windows [column, column + count) of some samples read, and where each window's first tap does.
  void copy_x(const std::byte* x, int64_t n, int64_t samples, int64_t g, int64_t channels, int64_t column, int64_t count,
              std::byte* workspace) const {
    const int64_t size = l_.windows.in_size(), across = l_.windows.w.in, bytes = bytes_each<float>(x_.element);
    for (int64_t i = 0; i < samples; ++i) {
      const auto plane = [&](int64_t channel) { return x_.plane(x + (g + channel) * size * bytes, n + i, l_.image(), l_.batch); };
      plane_.fill(column, count, gemm::kWidth, reinterpret_cast<float*>(workspace) + i * plane_.size() * gemm::kWidth,
                  [&](int64_t row, float* to) { vectors_of(plane, size, channels, row * across, across, to); });
    }
    plane_.find_windows(samples, column, count, gemm::kWidth, reinterpret_cast<int32_t*>(workspace + table_at_));
  }

  // One block of a tile's windows, all taps.
  void add(int64_t first, int64_t depth, std::byte* workspace, bool has_start) const {
    const auto* const x = reinterpret_cast<const float*>(workspace);
    const auto* const dy = reinterpret_cast<const float*>(workspace + dy_at_) + first * gemm::kWidth;
    const auto* const table = reinterpret_cast<const int32_t*>(workspace + table_at_) + first;
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const int64_t taps = l_.windows.taps();
    for (int64_t t = 0; t < taps; t += kTogether)
      chains(std::min<int64_t>(kTogether, taps - t))(depth, dy, x, table, taps_.data() + t, sums + t * gemm::kWidth, has_start);
  }

  using Chains = void (*)(int64_t, const float*, const float*, const int32_t*, const int64_t*, float*, bool);
  Chains chains(int64_t count) const {
    using Counts = std::make_integer_sequence<int, kTogether>;
#ifdef __AVX512F__
    if (x_.pairs) return chains<gemm::AddPairs>(Counts{}, count);
#endif
    return chains<gemm::AddFused>(Counts{}, count);
  }
  template <typename Add, int... i> static Chains chains(std::integer_sequence<int, i...>, int64_t count) {
    static constexpr Chains table[] = {add_chains<Add, i + 1>...};
    return table[count - 1];
  }
  template <typename Add, int count>
  static void add_chains(int64_t depth, const float* dy, const float* x, const int32_t* table, const int64_t* taps, float* sums,
                         bool has_start) {
    gemm::Vector sum[count];
    const float* at[count];
#pragma GCC unroll 16
    for (int t = 0; t < count; ++t) {
      sum[t] = gemm::zero();
      at[t] = x + taps[t];
    }
    for (int64_t k = 0; k < depth; ++k) {
      const gemm::Vector y = gemm::load(dy + k * gemm::kWidth);
      const int64_t window = table[k];
#pragma GCC unroll 16
      for (int t = 0; t < count; ++t) sum[t] = Add::add_product(y, gemm::load(at[t] + window), sum[t]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < count; ++t) {
      float* const to = sums + t * gemm::kWidth;
      gemm::store(to, has_start ? sum[t] + gemm::load(to) : sum[t]);
    }
  }

  Layout l_;
  Words x_, dy_;  // of samples
  Element dw_ = Element::own;
  WeightTiles tiles_;
  TilePlane plane_;  // of x's copy, a sample's part
  int64_t dy_at_ = 0, sums_at_ = 0, table_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<int64_t> taps_;  // where the first window's are in x's copy
};

}  // namespace convolution
ORT_TRAIN_OPS_END
