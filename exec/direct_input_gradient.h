// The gradient of a convolution's x without columns: dy is copied once with its padding, as x is for the convolution itself
// (exec/direct_convolution.h), and the taps that read an element of x find their words there, from the last tap's place to the first one's.
// In steps of more than one, the elements of x are divided by the phases of the strides: those of one phase are read by the same taps, each
// at the same distance among the windows.
//
// The sum goes over the taps upwards, of each over channels of y. Of floats, each tap has a chain of its own, and the bits are those of the
// products with columns (exec/ops/conv_input_gradient.cpp); of pairs, as many taps as a block of the depth holds are one chain.

#pragma once

#include <vector>

#include "exec/convolution_elements.h"
#include "exec/indexed_product.h"
#include "exec/padded_planes.h"
#include "exec/phases.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// First w goes to the shared workspace, for each block of rows of dx as the micro-kernels read it: [block][tap][word of y's channels][row].
// Then dx of some channels, and some rows of a sample, is a task. Of a thread's workspace: dy's copy; the sums, of each channel those of a
// phase after those of another; a row of dx.
//
// Not where w may be divided (rows_of_input_parts): then products of several nodes have to be added tap by tap.
class DirectInput {
 public:
  DirectInput() = default;
  // block: of the chains, elements
  DirectInput(const Layout& l, int64_t block, Element dy, Element weight, Element dx)
      : l_(l),
        dy_{dy, gemm::way_of(dy, weight) == gemm::Way::pairs},
        w_(weight),
        dx_(dx),
        words_(dy_.of(l.out_channels)),
        block_(dy_.of(block)),
        together_(dy_.pairs ? std::max<int64_t>(1, kDepthBlock / std::max<int64_t>(1, words_)) : 1) {
    constexpr int64_t kColumns = 5 * gemm::kPanel, kMostChannels = 128, kLeastChannels = 32;
    constexpr int64_t kCopied = kPlaneBytes / int64_t{sizeof(float)} - kBehind, kSums = 96 << 10;  // elements of a thread's, about
    const auto& [h, w] = l.windows;
    const int64_t taps = l.windows.taps();
    applies_ = !l.windows.plain() && taps <= kDepthBlock && l.windows.in_size() > 0 && h.stride <= kMostStride && w.stride <= kMostStride &&
               l.in_channels > 1 && l.windows.out_size() > 0 && is_undivided(l) && gemm::way_of(dy, weight) != gemm::Way::tiles;
    if (!applies_) return;
    const Reach down(h), across(w);
    windows_ = {down.windows(), across.windows()};
    planes_ = PaddedPlanes(windows_);
    phases_h_ = down.phases();
    phases_w_ = across.phases();
    channels_ = std::min(kMostChannels / (phases() > 1 ? 2 : 1), l.in_channels);
    const int64_t more = planes_.channel(1) - planes_.width();  // rows of taps
    const int64_t columns = std::clamp<int64_t>(kSums / (channels_ * phases()), kColumns / 2, 8 * kColumns);
    rows_ = std::clamp<int64_t>((kCopied / words_ - more) / planes_.width(), 1, std::max<int64_t>(1, columns / planes_.width()));
    bands_ = divided_up(windows_.h.out, std::min(rows_, windows_.h.out));
    rows_ = divided_up(windows_.h.out, bands_);
    while (l.batch * l.groups * bands_ * divided_up(l.in_channels, channels_) < kFewTasks && channels_ >= 2 * kLeastChannels)
      channels_ = divided_up(channels_, 2);
    channels_ = divided_up(channels_, gemm::kRows) * gemm::kRows;
    across_ = divided_up(l.in_channels, channels_);
    sums_row_ = divided_up(planes_.windows(rows_), gemm::kWidth) * gemm::kWidth;
    result_ = {{h.in, h.stride}, {w.in, w.stride}, sums_row_, planes_.width()};
    const int64_t copied = words_ * planes_.channel(rows_) + kBehind;
    applies_ = useful() >= kLeastUseful && copied * int64_t{sizeof(float)} <= kPlaneBytes && sums_row_ <= 8 * kColumns &&
               shared_bytes() <= kSharedBytes;
    if (!applies_) return;
    WorkspaceLayout layout;
    layout.take<float>(copied);
    sums_at_ = layout.take<float>(channels_ * phases() * sums_row_);
    row_at_ = layout.take<float>(w.in);
    bytes_ = layout.all();
    for (int64_t a = 0; a < phases_h_; ++a) {
      for (int64_t b = 0; b < phases_w_; ++b) {
        Phase phase;
        for (const auto& [t, place] : taps_of_phase(l.windows, a, b)) {
          phase.weights.push_back(static_cast<int32_t>(t * words_ * gemm::kRows));
          phase.windows.push_back(static_cast<int32_t>(planes_.tap(place, rows_)));
        }
        phases_.push_back(std::move(phase));
      }
    }
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t shared_bytes() const { return whole_lines(preparations() * (block_weights() + 1) * int64_t{sizeof(float)}); }
  // As DirectForward's: of the products that an element of dx takes.
  double efficiency(double rate) const {
    constexpr double kJoining = 25;  // of phases
    const auto windows = static_cast<double>(planes_.windows(rows_)), taps = static_cast<double>(l_.windows.taps());
    const double products = static_cast<double>(l_.out_channels) * taps / static_cast<double>(phases());
    const double copied = static_cast<double>(planes_.channel(rows_)) / windows / taps;
    rate *= share_of_depth(words_ * std::min(together_, divided_up(l_.windows.taps(), phases())), 5) * useful();
    return products / (products / rate + products * kCopying * copied / static_cast<double>(channels_) + (phases() > 1 ? kJoining : 0));
  }
  int64_t preparations() const { return l_.groups * divided_up(l_.in_channels, gemm::kRows); }
  int64_t tasks() const { return l_.batch * l_.groups * bands_ * across_; }

  void prepare(const Operands& operands, int64_t block, std::byte*) const {
    const int64_t each = divided_up(l_.in_channels, gemm::kRows), g = block / each, channel = block % each * gemm::kRows;
    const int64_t rows = std::min<int64_t>(gemm::kRows, l_.in_channels - channel), taps = l_.windows.taps();
    float& is_infinite = operands.shared[preparations() * block_weights() + block];
    is_infinite = 0;
    float* const to = operands.shared + block * block_weights();
    const Words words{w_, dy_.pairs};
    const std::byte* const weights = operands.w + (g * l_.out_channels * l_.depth() + channel * taps) * bytes_each<float>(w_);
    for (int64_t o = 0; o < words_; ++o) {
      float from[gemm::kRows * kDepthBlock];
      words.plane(weights, o, l_.depth(), l_.out_channels).read(0, rows * taps, from);
      if (has_infinity(from, rows * taps, dy_.pairs)) is_infinite = 1;
      for (int64_t t = 0; t < taps; ++t) {
        float* const row = to + (t * words_ + o) * gemm::kRows;
        for (int64_t r = 0; r < gemm::kRows; ++r) row[r] = r < rows ? from[r * taps + t] : 0.0f;
      }
    }
  }

  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const auto [dy, w, dx, packed, bias, before] = operands;
    const int64_t across = task % across_, band = task / across_ % bands_, item = task / across_ / bands_, n = item / l_.groups,
                  g = item % l_.groups;
    const int64_t channel = across * channels_, channels = std::min(channels_, l_.in_channels - channel), row = band * rows_;
    const int64_t rows = std::min(rows_, windows_.h.out - row), each = planes_.channel(rows_), columns = planes_.windows(rows);
    auto* const copy = reinterpret_cast<float*>(workspace);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const std::byte* const planes = dy + l_.y_at(n, g, 0) * bytes_each<float>(dy_.element);
    for (int64_t o = 0; o < words_; ++o)
      planes_.fill(dy_.plane(planes, o, l_.windows.out_size(), l_.out_channels), row, rows, rows_, copy + o * each);
    std::fill_n(copy + words_ * each, kBehind, 0.0f);
    const int64_t first = g * divided_up(l_.in_channels, gemm::kRows) + channel / gemm::kRows, channel_sums = phases() * sums_row_;
    const Result<float> to(dx + l_.x_at(n, g, channel) * bytes_each<float>(dx_), l_.windows.in_size(), 1, dx_);
    const int64_t begin = row * l_.windows.h.stride * l_.windows.w.in, end = result_.end(row, rows) * l_.windows.w.in;
    for (int64_t r = 0; r < channels; r += gemm::kRows) {
      fetch_planes(end - begin, r, std::min(r + gemm::kRows, channels), to.from(0, begin));
      for (int64_t j = 0, width; j < columns; j += width) {
        width = gemm::Fused::panel(columns - j);
        for (size_t p = 0; p < phases_.size(); ++p) {
          gemm::taps_kernel(width, dy_.pairs)({.taps = static_cast<int64_t>(phases_[p].weights.size()),
                                               .depth = words_,
                                               .block = block_,
                                               .together = together_,
                                               .a = packed + (first + r / gemm::kRows) * block_weights(),
                                               .a_at = phases_[p].weights.data(),
                                               .b = copy + j,
                                               .b_at = phases_[p].windows.data(),
                                               .b_depth = each,
                                               .c = sums + r * channel_sums + static_cast<int64_t>(p) * sums_row_ + j,
                                               .c_row = channel_sums});
        }
      }
    }
    for (int64_t r = 0; r < channels; ++r) {
      const int64_t block = first + r / gemm::kRows;
      float* const made = sums + r * channel_sums;
      if (packed[preparations() * block_weights() + block] != 0)
        make_by_definition(planes, packed + block * block_weights() + r % gemm::kRows, row, rows, made);
      result_.store(made, row, rows, to.from(r, 0), reinterpret_cast<float*>(workspace + row_at_));
    }
  }

 private:
  static constexpr double kLeastUseful = 0.75;  // else columns are faster (measured)

  struct Phase {
    std::vector<int32_t> weights, windows;  // where its taps are
  };

  int64_t phases() const { return phases_h_ * phases_w_; }
  // What vectors compute that are elements of dx.
  double useful() const { return static_cast<double>(l_.windows.in_size()) / static_cast<double>(bands_ * phases() * sums_row_); }
  int64_t block_weights() const { return gemm::kRows * words_ * l_.windows.taps(); }

  // A channel's sums. dy: of the sample and group
  void make_by_definition(const std::byte* dy, const float* weights, int64_t row, int64_t rows, float* made) const {
    const auto& [h, w] = l_.windows;
    const auto weight = [&](int64_t o, int64_t t) { return weights[(t * words_ + o) * gemm::kRows]; };
    for (int64_t i = row * h.stride; i < result_.end(row, rows); ++i) {
      for (int64_t j = 0; j < w.in; ++j)
        made[result_.line(i, j % w.stride, row) + j / w.stride] = input_gradient_at(l_, block_, dy_, dy, i, j, weight, together_);
    }
  }

  Layout l_;
  Windows windows_;  // of dx, a phase, over dy
  PaddedPlanes planes_;
  PhasedRows result_;
  Words dy_;
  Element w_ = Element::own, dx_ = Element::own;
  int64_t words_ = 0, block_ = 0;                             // of y's channels; of them in a chain
  int64_t together_ = 1;                                      // taps of a chain
  int64_t phases_h_ = 0, phases_w_ = 0;                       // of the elements of dx
  int64_t rows_ = 0, bands_ = 0, channels_ = 0, across_ = 0;  // of a task: rows of a phase, channels of x
  int64_t sums_row_ = 0, sums_at_ = 0, row_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<Phase> phases_;
};

}  // namespace convolution
ORT_TRAIN_OPS_END
