// The gradient of a convolution's weight of bfloat16 in tile registers (exec/gemm_tiles.h), on processors with AMX-BF16.
//
// It sums over windows, whose words are pairs of neighbouring samples; an odd last one has zeros beside it. x is copied with its padding
// (exec/padded_planes.h) and transposed, [16 channels][place][channel], so that a tile is 16 neighbouring places, wherever a tap begins. dy
// is copied as tiles, 16 channels by 16 windows, with zeros at the places between two rows of windows: there x is multiplied by zero, and
// an infinity in x makes all taps of its channel no numbers.
//
// A sum is one chain over tiles: over samples, bands of windows and windows upwards, within a piece of the batch. A band's tiles begin with
// its first window.

#pragma once

#include <vector>

#include "exec/convolution_elements.h"
#include "exec/gemm_tiles.h"
#include "exec/padded_planes.h"
#include "exec/transpose8.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// dw of one piece of the batch, of some channels of y and some of x, is a task. Of a thread's workspace: x's copy, before it that of 16
// channels in planes; dy's copy, and a row of it; the sums, [tap][channel of y][channel of x]. Registers: gemm::TileRegisters
template <typename Registers> class TileWeights {
 public:
  TileWeights() = default;
  TileWeights(const Layout& l, Element dy, Element x, Element dw)
      : l_(l), x_{x, true}, dy_{dy, true}, dw_(dw), tiles_(weight_tiles(of_pairs(l), sizeof(float))), is_pointwise_(l.windows.plain()) {
    constexpr int64_t kCopied = 128 << 10, kSums = 160 << 10, kTasks = 8, kMost = 128, kMostTaps = 64;  // in elements
    const int64_t taps = l.windows.taps(), whole = l.total / l.groups;
    applies_ = Registers::can_multiply(dy, x) && taps <= kMostTaps && l.windows.out_size() > 0 && l.in_channels > 1 && whole > 1 &&
               l.out_channels > 0 && l.windows.h.stride <= kMostStride && l.windows.w.stride <= kMostStride;
    if (!applies_) return;
    windows_ = l.windows;
    if (is_pointwise_)
      windows_ = {{.in = l.windows.in_size(), .out = l.windows.in_size()}, {}};  // as rows of one window: any number of them is a band
    else
      planes_ = PaddedPlanes(windows_);
    // Whether it applies doesn't depend on which part of the weight this is, as sums would.
    constexpr int64_t kMostCopied = 2 * kPlaneBytes / int64_t{sizeof(float)};
    const int64_t least = is_pointwise_ ? kSide : 1;  // rows
    applies_ = place_of(least) * kSide <= kMostCopied && steps(least) * kTile <= kMostCopied;
    if (!applies_) return;
    // Channels of a task, at most.
    const auto whole_blocks = [](int64_t channels) { return std::max<int64_t>(1, channels / kSide) * kSide; };
    const int64_t most_channels = std::min({kMost, divided_up(l.in_channels, kSide) * kSide, whole_blocks(kMostCopied / place_of(least)),
                                            whole_blocks(kSums / (taps * kMost))});
    const int64_t most_outputs =
        std::min({kMost, divided_up(whole, kSide) * kSide, whole_blocks(kMostCopied / (steps(least) * kTile) * kSide)});
    // A band's windows are divided into tiles from its first one on: bands, too, are those of the whole.
    const int64_t all = windows_.h.out;
    rows_ = std::clamp<int64_t>(kCopied / (most_channels + most_outputs) / row_of_windows(), 1, all);
    for (;; rows_ = divided_up(rows_, 2)) {
      rows_ = std::min(all, equal_part(all, divided_up(all, rows_), least));
      const bool fits = place_of(rows_) * most_channels <= kMostCopied && steps(rows_) * kTile * most_outputs / kSide <= kMostCopied;
      if (rows_ <= least || fits) break;
    }
    // Equal ranges of channels, of whole blocks, as few as the tasks allow.
    across_ = divided_up(l.in_channels, most_channels);
    down_ = divided_up(l.out_channels, most_outputs);
    while (tiles_.pieces * l.groups * across_ * down_ < kTasks) {
      const int64_t x_each = equal_part(l.in_channels, across_, kSide), y_each = equal_part(l.out_channels, down_, kSide);
      if (std::max(x_each, y_each) <= 2 * kSide) break;
      y_each >= x_each ? ++down_ : ++across_;
    }
    channels_ = equal_part(l.in_channels, across_, kSide);
    outputs_ = equal_part(l.out_channels, down_, kSide);
    across_ = divided_up(l.in_channels, channels_);
    down_ = divided_up(l.out_channels, outputs_);
    bands_ = divided_up(all, rows_);
    steps_ = steps(rows_);
    plane_ = place_of(rows_);
    sums_row_ = channels_ + kSide;  // no power of two
    for (int64_t t = 0; t < taps; ++t) taps_.push_back(is_pointwise_ ? 0 : planes_.tap(t, rows_));
    for (int64_t step = 0; step < kStepsTogether; ++step) at_.push_back(static_cast<int32_t>(step * kTile));
    WorkspaceLayout layout;
    layout.take<float>(plane_ * channels_);
    planes_at_ = layout.take<float>(plane_ * kSide);
    dy_at_ = layout.take<float>(steps_ * kTile * outputs_ / kSide);
    row_at_ = layout.take<float>(steps_ * kSide);
    sums_at_ = layout.take<float>(taps * outputs_ * sums_row_);
    bytes_ = layout.all();
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return tiles_.pieces * l_.groups * across_ * down_; }
  const WeightTiles& tiles() const { return tiles_; }
  // Of the rate of large float32 products.
  double efficiency(double rate) const {
    constexpr double kCopiesX = 18, kCopiesDy = 9;  // as so many multiply-adds (measured)
    const double useful = static_cast<double>(windows_.h.out * windows_.w.out) / static_cast<double>(bands_ * steps_ * kSide);
    const auto x = static_cast<double>(channels_), y = static_cast<double>(outputs_), taps = static_cast<double>(l_.windows.taps());
    const double copies = kCopiesX * x * static_cast<double>(plane_) / static_cast<double>(steps_ * kSide) + kCopiesDy * y;
    const double products =
        static_cast<double>(std::min(channels_, l_.in_channels)) * static_cast<double>(std::min(outputs_, l_.out_channels)) * taps * useful;
    return products / (x * y * taps / (1.5 * rate) + copies);
  }

  // dw: of the whole; or of all pieces, one behind the other, in float32
  void run(const std::byte* dy, const std::byte* x, std::byte* dw, int64_t task, std::byte* workspace) const {
    [[maybe_unused]] const typename Registers::Session session;
    const int64_t down = task % down_, across = task / down_ % across_, item = task / down_ / across_;
    const int64_t piece = item / l_.groups, g = item % l_.groups;
    const int64_t o = down * outputs_, outputs = std::min(outputs_, l_.out_channels - o);
    const int64_t channel = across * channels_, channels = std::min(channels_, l_.in_channels - channel);
    const std::byte* const from_x = x + l_.x_at(0, g, channel) * bytes_each<float>(x_.element);
    const std::byte* const from_dy = dy + l_.y_at(0, g, o) * bytes_each<float>(dy_.element);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const int64_t begin = piece * tiles_.piece_samples, end = std::min(x_.of(l_.batch), begin + tiles_.piece_samples);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t row = 0; row < windows_.h.out; row += rows_) {
        const int64_t rows = std::min(rows_, windows_.h.out - row);
        copy_x(from_x, n, channels, row, rows, workspace);
        copy_dy(from_dy, n, outputs, row, rows, workspace);
        add(outputs, channels, steps(rows), n > begin || row > 0, workspace);
      }
    }
    const int64_t to = (g * l_.out_channels + o) * l_.depth() + channel * l_.windows.taps();
    if (tiles_.pieces > 1)
      store(sums, outputs, channels, Result<float>(reinterpret_cast<float*>(dw) + piece * l_.weights() + to, l_.depth()));
    else
      store(sums, outputs, channels, {dw + to * bytes_each<float>(dw_), l_.depth(), 1, dw_});
  }

 private:
  static constexpr int64_t kSide = gemm::kTileSide, kTile = kSide * gemm::kTileStep;
  static constexpr int64_t kStepsTogether = 12;  // of a kernel: its tiles then stay in the first-level cache for all taps

  static Layout of_pairs(Layout l) {
    l.batch = divided_up(l.batch, 2);
    return l;
  }
  // Elements of a channel's copy, and some behind it.
  int64_t place_of(int64_t rows) const { return divided_up((is_pointwise_ ? rows : planes_.channel(rows)) + 2 * kSide, kSide) * kSide; }
  int64_t row_of_windows() const { return is_pointwise_ ? 1 : planes_.width(); }
  int64_t steps(int64_t rows) const { return divided_up(is_pointwise_ ? rows : planes_.windows(rows), kSide); }

  void copy_x(const std::byte* x, int64_t n, int64_t channels, int64_t row, int64_t rows, std::byte* workspace) const {
    auto* const copy = reinterpret_cast<float*>(workspace);
    auto* const planes = reinterpret_cast<float*>(workspace + planes_at_);
    const int64_t size = l_.windows.in_size(), used = is_pointwise_ ? rows : rows < rows_ ? 0 : planes_.channel(rows_);
    for (int64_t channel = 0; channel < channels; channel += kSide) {
      for (int64_t c = 0; c < kSide; ++c) {
        float* const to = planes + c * plane_;
        if (channel + c >= channels) {
          std::fill_n(to, plane_, 0.0f);
          continue;
        }
        std::fill(to + used, to + plane_, 0.0f);
        const Plane plane = x_.plane(x + (channel + c) * size * bytes_each<float>(x_.element), n, l_.image(), l_.batch);
        if (is_pointwise_)
          plane.read(row, rows, to);
        else
          planes_.fill(plane, row, rows, rows_, to);
      }
      for (int64_t i = 0; i < plane_; i += kSide) transpose(planes + i, copy + (channel * plane_ + i * kSide));
    }
  }
  void transpose(const float* from, float* to) const {
#ifdef __AVX512F__
    __m512 rows[kSide];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSide; ++i) rows[i] = _mm512_loadu_ps(from + i * plane_);
    transpose16(rows, to, kSide);
#else
    for (int64_t i = 0; i < kSide; i += 8) {
      for (int64_t j = 0; j < kSide; j += 8) transpose8(from + i * plane_ + j, plane_, to + j * kSide + i, kSide);
    }
#endif
  }

  void copy_dy(const std::byte* dy, int64_t n, int64_t outputs, int64_t row, int64_t rows, std::byte* workspace) const {
    auto* const copy = reinterpret_cast<float*>(workspace + dy_at_);
    auto* const line = reinterpret_cast<float*>(workspace + row_at_);
    const int64_t size = l_.windows.out_size(), across = windows_.w.out, width = row_of_windows(), all = steps(rows);
    std::fill_n(line, all * kSide, 0.0f);
    for (int64_t o = 0; o < outputs; ++o) {
      const Plane plane = dy_.plane(dy + o * size * bytes_each<float>(dy_.element), n, l_.result(), l_.batch);
      if (is_pointwise_) {
        plane.read(row, rows, line);
      } else {
        for (int64_t r = 0; r < rows; ++r) plane.read((row + r) * across, across, line + r * width);
      }
      float* const to = copy + o / kSide * steps_ * kTile + o % kSide * kSide;
      for (int64_t step = 0; step < all; ++step) std::memcpy(to + step * kTile, line + step * kSide, kSide * sizeof(float));
    }
  }

  // The products of one band.
  void add(int64_t outputs, int64_t channels, int64_t steps, bool starts, std::byte* workspace) const {
    const auto* const x = reinterpret_cast<const float*>(workspace);
    const auto* const dy = reinterpret_cast<const float*>(workspace + dy_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const auto taps = static_cast<int64_t>(taps_.size());
    for (int64_t o = 0; o < outputs; o += 2 * kSide) {
      for (int64_t channel = 0; channel < channels; channel += 2 * kSide) {
        for (int64_t step = 0; step < steps; step += kStepsTogether) {
          for (int64_t t = 0; t < taps; ++t) {
            gemm::tile_kernel<Registers>(
                outputs - o, channels - channel)({.steps = std::min(kStepsTogether, steps - step),
                                                  .a = dy + o / kSide * steps_ * kTile + step * kTile,
                                                  .a_step = kTile,
                                                  .a_second = steps_ * kTile,
                                                  .b = x + channel * plane_ + (step * kSide + taps_[static_cast<size_t>(t)]) * kSide,
                                                  .at = at_.data(),
                                                  .b_row = kSide,
                                                  .b_second = kSide * plane_,
                                                  .c = sums + (t * outputs_ + o) * sums_row_ + channel,
                                                  .c_row = sums_row_,
                                                  .starts = starts || step > 0});
          }
        }
      }
    }
  }

  void store(const float* sums, int64_t outputs, int64_t channels, const Result<float>& to) const {
    constexpr int64_t kSome = 16;
    const auto taps = static_cast<int64_t>(taps_.size());
    std::array<float, static_cast<size_t>(kSome * 64)> some;
    for (int64_t o = 0; o < outputs; ++o) {
      const float* const row = sums + o * sums_row_;
      if (taps == 1) {
        store_rows(row, 0, to.from(o, 0), 1, channels);
        continue;
      }
      for (int64_t channel = 0; channel < channels; channel += kSome) {
        const int64_t n = std::min(kSome, channels - channel);
        for (int64_t t = 0; t < taps; ++t) {
          const float* const from = row + t * outputs_ * sums_row_ + channel;
          for (int64_t c = 0; c < n; ++c) some[static_cast<size_t>(c * taps + t)] = from[c];
        }
        store_rows(some.data(), 0, to.from(o, channel * taps), 1, n * taps);
      }
    }
  }

  Layout l_;
  Words x_, dy_;  // of samples
  Element dw_ = Element::own;
  WeightTiles tiles_;
  bool is_pointwise_ = false, applies_ = false;  // pointwise: each window is one element
  Windows windows_;
  PaddedPlanes planes_;
  int64_t channels_ = 0, across_ = 1, outputs_ = 0, down_ = 1;  // of a task: channels of x and of y
  int64_t rows_ = 0, bands_ = 0, steps_ = 0, plane_ = 0;        // of a band: rows of windows; tiles of these; places of x
  int64_t sums_row_ = 0, planes_at_ = 0, dy_at_ = 0, row_at_ = 0, sums_at_ = 0, bytes_ = 0;
  std::vector<int64_t> taps_;  // where they read in the copy, beside the first window
  std::vector<int32_t> at_;
};

}  // namespace convolution
ORT_TRAIN_OPS_END
