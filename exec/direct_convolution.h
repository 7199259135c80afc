// Convolutions and the gradients of their weights without columns: x is copied once with its padding (exec/padded_planes.h), and the
// micro-kernels find each tap's words there by a table (exec/indexed_product.h). The gradient of x: exec/direct_input_gradient.h.
//
// Words are floats, which elements of 16 bits become as they are copied; then the sums are those of the products with columns
// (exec/ops/conv.cpp, exec/ops/conv_weight_gradient.cpp), in the same order, so the bits are, too. Where the processor multiplies pairs of
// bfloat16 in vectors, words are pairs: of neighbouring channels, of which each tap's are a word, and in the gradient of the weight of
// neighbouring samples; an odd last one has zeros beside it. Then bits are others than with columns; which way applies is therefore chosen
// by the whole weight.

#pragma once

#include <vector>

#include "exec/convolution_elements.h"
#include "exec/indexed_product.h"
#include "exec/padded_planes.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// y of some channels, and some rows of windows of a sample, is a task. First w goes to the shared workspace as words, unless it is of
// floats. Of a thread's workspace: x's copy, the sums.
class DirectForward {
 public:
  DirectForward() = default;
  DirectForward(const Layout& l, Element x, Element w, Element y)
      : l_(l), x_{x, gemm::way_of(x, w) == gemm::Way::pairs}, w_(w), y_(y), words_(x_.of(l.in_channels)) {
    constexpr int64_t kColumns = 5 * gemm::kPanel, kMostChannels = 128, kLeastChannels = 32, kSums = 96 << 10;
    const int64_t taps = l.windows.taps();
    Layout of_words = l;
    of_words.in_channels = words_;
    channels_ = tiles_of(of_words).channels;
    row_ = words_ * taps;
    applies_ = !l.windows.plain() && l.windows.out_size() > 0 && channels_ * taps <= kDepthBlock && l.total > l.groups &&
               gemm::way_of(x, w) != gemm::Way::tiles && (!packs() || l.total * row_ <= kSharedBytes / int64_t{sizeof(float)});
    if (!applies_) return;
    planes_ = PaddedPlanes(l.windows);
    outputs_ = std::min(kMostChannels, l.out_channels);
    const int64_t of_whole = std::clamp<int64_t>(l.total / l.groups, 1, kMostChannels);
    const int64_t columns = std::clamp<int64_t>(kSums / of_whole, kColumns, 8 * kColumns);
    rows_ = std::clamp<int64_t>(columns / planes_.width(), 1, l.windows.h.out);
    const auto copied = [&] { return channels_ * planes_.channel(rows_) + kBehind; };
    while (rows_ > 1 && copied() * int64_t{sizeof(float)} > kPlaneBytes) --rows_;
    bands_ = divided_up(l.windows.h.out, rows_);
    rows_ = divided_up(l.windows.h.out, bands_);  // equally many
    while (l.batch * l.groups * bands_ * divided_up(l.out_channels, outputs_) < kFewTasks && outputs_ >= 2 * kLeastChannels)
      outputs_ = divided_up(outputs_, 2);
    down_ = divided_up(l.out_channels, outputs_);
    sums_row_ = divided_up(planes_.windows(rows_), gemm::kWidth) * gemm::kWidth;
    applies_ = copied() * int64_t{sizeof(float)} <= kPlaneBytes && sums_row_ <= 8 * kColumns;
    if (!applies_) return;
    WorkspaceLayout layout;
    layout.take<float>(copied());
    sums_at_ = layout.take(outputs_ * sums_row_ * int64_t{sizeof(float)});
    bytes_ = layout.all();
    for (int64_t channel = 0; channel < channels_; ++channel) {
      for (int64_t t = 0; t < taps; ++t) at_.push_back(static_cast<int32_t>(channel * planes_.channel(rows_) + planes_.tap(t, rows_)));
    }
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t shared_bytes() const { return whole_lines(preparations() * gemm::kRows * row_ * int64_t{sizeof(float)}); }
  int64_t preparations() const { return packs() ? divided_up(l_.groups * l_.out_channels, gemm::kRows) : 0; }
  int64_t tasks() const { return l_.batch * l_.groups * bands_ * down_; }
  // Of the rate of large float32 products. rate: of products of such words
  double efficiency(double rate) const {
    const auto windows = static_cast<double>(rows_ * l_.windows.w.out), outputs = static_cast<double>(outputs_);
    const auto copied = static_cast<double>(planes_.channel(rows_)) / windows / static_cast<double>(l_.windows.taps());
    const double copying = (l_.windows.w.stride > 1 ? kCopyingInSteps : kCopying) * copied;
    const double filled = static_cast<double>(l_.in_channels) / static_cast<double>(words_ * (x_.pairs ? 2 : 1));
    rate *= share_of_depth(std::min(channels_, words_) * l_.windows.taps(), 16) * filled * windows / static_cast<double>(sums_row_);
    return outputs / (outputs / rate + copying);
  }

  // Some channels of y: [channel][word of x's channels][tap].
  void prepare(const Operands& operands, int64_t block, std::byte*) const {
    const int64_t size = bytes_each<float>(w_), taps = l_.windows.taps(), first = block * gemm::kRows;
    for (int64_t o = first; o < std::min(first + gemm::kRows, l_.groups * l_.out_channels); ++o) {
      const std::byte* const from = operands.w + o * l_.depth() * size;
      float* const to = operands.shared + o * row_;
      gemm::for_element(w_, [&]<Element e>() {
        if (!x_.pairs) return gemm::widen<e>(from, l_.depth(), to);
        if constexpr (is_bfloat16(e)) gemm::pair_rows<e>({from, taps * size, size}, l_.in_channels, taps, taps, to);
      });
    }
  }

  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const auto [x, w, y, packed, bias, before] = operands;
    const int64_t down = task % down_, band = task / down_ % bands_, item = task / down_ / bands_, n = item / l_.groups,
                  g = item % l_.groups;
    const int64_t channel_of_y = down * outputs_, outputs = std::min(outputs_, l_.out_channels - channel_of_y);
    const int64_t row = band * rows_, rows = std::min(rows_, l_.windows.h.out - row);
    auto* const copy = reinterpret_cast<float*>(workspace);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const float* const weights = (packs() ? packed : reinterpret_cast<const float*>(w)) + (g * l_.out_channels + channel_of_y) * row_;
    const int64_t across = l_.windows.w.out, first = l_.y_at(n, g, channel_of_y) + row * across;
    const Result<float> to(y + first * bytes_each<float>(y_), l_.windows.out_size(), 1, y_);
    for (int64_t r = 0; bias && r < outputs; ++r)
      std::fill_n(sums + r * sums_row_, sums_row_, bias[l_.first + g * l_.out_channels + channel_of_y + r]);
    for (int64_t channel = 0; channel < words_; channel += channels_) {
      const int64_t channels = std::min(channels_, words_ - channel), each = planes_.channel(rows_);
      const std::byte* const planes = x + l_.x_at(n, g, 0) * bytes_each<float>(x_.element);
      for (int64_t i = 0; i < channels; ++i)
        planes_.fill(x_.plane(planes, channel + i, l_.windows.in_size(), l_.in_channels), row, rows, rows_, copy + i * each);
      std::fill_n(copy + channels * each, kBehind, 0.0f);
      const bool is_last = channel + channels == words_;
      add(weights + channel * l_.windows.taps(), channels * l_.windows.taps(), outputs, planes_.windows(rows), copy, sums,
          bias || channel > 0, is_last ? &to : nullptr);
    }
    for (int64_t r = 0; r < outputs; ++r)
      store_rows<float>(sums + r * sums_row_, planes_.width(), {to.from(r, 0).data, across, 1, y_}, rows, across);
  }

 private:
  bool packs() const { return w_ != Element::own; }

  // The products of one chunk of channels. y: where the last one's sums end up, else null
  void add(const float* weights, int64_t depth, int64_t outputs, int64_t columns, const float* copy, float* sums, bool has_start,
           const Result<float>* y) const {
    const int64_t across = l_.windows.w.out;
    for (int64_t r = 0; r < outputs; r += gemm::kRows) {
      const int64_t rows = std::min<int64_t>(gemm::kRows, outputs - r);
      const float* a[gemm::kRows];
      for (int64_t i = 0; i < rows; ++i) a[i] = weights + (r + i) * row_;
      for (int64_t j = 0, width; j < columns; j += width) {
        width = gemm::Fused::panel(columns - j);
        float* const to = sums + r * sums_row_ + j;
        if (y) fetch_planes(width, r, r + rows, y->from(0, j / planes_.width() * across + std::min(j % planes_.width(), across)));
        gemm::indexed_kernel<false>(rows, width, x_.pairs)({.depth = depth,
                                                            .a = a,
                                                            .at = at_.data(),
                                                            .step = 1,
                                                            .b = copy + j,
                                                            .c = to,
                                                            .c_row = sums_row_,
                                                            .start = has_start ? to : nullptr,
                                                            .start_row = sums_row_});
      }
    }
  }

  Layout l_;
  Words x_;
  Element w_ = Element::own, y_ = Element::own;
  PaddedPlanes planes_;
  int64_t words_ = 0, row_ = 0;                            // of x's channels; of w for a channel of y
  int64_t channels_ = 0;                                   // words of a chunk
  int64_t rows_ = 0, bands_ = 0, outputs_ = 0, down_ = 0;  // of a task: rows of windows, channels of y
  int64_t sums_row_ = 0, sums_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<int32_t> at_;  // where a chunk's taps are
};

// dw of one piece of the batch, of some channels of y and some of x, is a task. It is made transposed: what x's taps read is broadcast, and
// dy's channels lie side by side in a panel. Of a thread's workspace: x's copy, a panel and what it is made of, the sums, and where a
// tile's windows are in x's copy.
class DirectWeights {
 public:
  DirectWeights() = default;
  DirectWeights(const Layout& l, Element dy, Element x, Element dw)
      : l_(l), x_(words_of_samples(dy, x)), dy_{dy, x_.pairs}, dw_(dw), tiles_(tiles_of_samples(l, x_)) {
    const WeightTiles& tiles = tiles_;
    constexpr int64_t kCopied = 48 << 10, kSums = 48 << 10, kMostOutputs = 4 * gemm::kPanel, kLeastOutputs = 32;  // in elements
    constexpr int64_t kSmall = 14 * 14;
    read_ = {read_elements(l.windows.h, rows_step_), read_elements(l.windows.w, columns_step_)};
    plane_ = TilePlane(read_, tiles.columns);
    const int64_t taps = l.windows.taps(), wide = tiles.samples * tiles.columns;
    const int64_t of_whole = l.total / l.groups;
    outputs_ = std::min(taps == 1 ? kMostOutputs * 3 : kMostOutputs, of_whole);
    channels_ =
        outputs_ > 0 ? std::min(kCopied / (tiles.samples * plane_.size()), kSums / (taps * std::min(outputs_, kLeastOutputs * 4))) : 0;
    const bool by_columns = taps == 1 && l.windows.out_size() > kSmall;  // (measured)
    applies_ = !l.windows.plain() && !by_columns && l.windows.out_size() > 0 && channels_ > 0 && of_whole >= gemm::kWidth &&
               gemm::way_of(dy, x) != gemm::Way::tiles;
    if (!applies_) return;
    outputs_ = std::min(outputs_, l.out_channels);
    channels_ = std::clamp<int64_t>(channels_, 1, l.in_channels);
    const auto tasks = [&] {
      return tiles.pieces * l.groups * divided_up(l.in_channels, channels_) * divided_up(l.out_channels, outputs_);
    };
    while (tasks() < kFewTasks && channels_ * taps >= 128 && channels_ > 1) channels_ = divided_up(channels_, 2);
    while (tasks() < kFewTasks && outputs_ >= 2 * kLeastOutputs) outputs_ = divided_up(outputs_, 2);
    channels_ = divided_up(l.in_channels, divided_up(l.in_channels, channels_));  // equally many
    across_ = divided_up(l.in_channels, channels_);
    down_ = divided_up(l.out_channels, outputs_);
    sums_row_ = divided_up(outputs_, gemm::kWidth) * gemm::kWidth;
    WorkspaceLayout layout;
    const auto take = [&](int64_t elements) { return layout.take(elements * int64_t{sizeof(float)}); };
    take(channels_ * tiles.samples * plane_.size());
    panel_at_ = take(std::min(wide, kDepthBlock) * gemm::kPanel);
    sums_at_ = take(channels_ * taps * sums_row_);
    dy_at_ = take(copies_dy() ? gemm::kPanel * kCopyRow : 0);
    table_at_ = take(wide);
    bytes_ = layout.all();
    for (int64_t channel = 0; channel < channels_; ++channel) {
      for (int64_t tap = 0; tap < taps; ++tap) taps_.push_back(channel * tiles.samples * plane_.size() + plane_.tap(tap));
    }
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return tiles_.pieces * l_.groups * across_ * down_; }

  const WeightTiles& tiles() const { return tiles_; }
  // As DirectForward's. Each task packs dy for its channels of x, and copies x for those of y.
  double efficiency(double rate) const {
    constexpr double kPacking = 22, kCopyingX = 8, kCopyingXInSteps = 20;
    const auto taps = static_cast<double>(l_.windows.taps()), stride = static_cast<double>(read_.h.stride * read_.w.stride);
    const double copying = (stride > 1 ? kCopyingXInSteps : kCopyingX) * stride;
    return taps /
           (taps / (rate * (x_.pairs ? 0.85 : 0.93)) + kPacking / static_cast<double>(channels_) + copying / static_cast<double>(outputs_));
  }

  // dw: of the whole; or of all pieces, one behind the other, in float32
  void run(const std::byte* dy, const std::byte* x, std::byte* dw, int64_t task, std::byte* workspace) const {
    const int64_t down = task % down_, across = task / down_ % across_, item = task / down_ / across_;
    const int64_t piece = item / l_.groups, g = item % l_.groups, all = l_.windows.out_size();
    const int64_t row = down * outputs_, outputs = std::min(outputs_, l_.out_channels - row);
    const int64_t channel = across * channels_, channels = std::min(channels_, l_.in_channels - channel);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const int64_t begin = piece * tiles_.piece_samples, end = std::min(x_.of(l_.batch), begin + tiles_.piece_samples);
    for (int64_t n = begin; n < end; n += tiles_.samples) {
      const int64_t samples = std::min(tiles_.samples, end - n);
      for (int64_t column = 0; column < all; column += tiles_.columns) {
        const int64_t count = std::min(tiles_.columns, all - column);
        copy_x(x + l_.x_at(0, g, channel) * bytes_each<float>(x_.element), n, samples, channels, column, count, workspace);
        const Tile tile{dy + (l_.y_at(0, g, row) + column) * bytes_each<float>(dy_.element), n, count, samples * count, outputs};
        add(tile, channels, workspace, n > begin || column > 0);
      }
    }
    const int64_t depth = l_.depth(), taps = l_.windows.taps(), to = (g * l_.out_channels + row) * depth + channel * taps;
    if (tiles_.pieces > 1)
      store(sums, channels * taps, outputs, reinterpret_cast<float*>(dw) + piece * l_.weights() + to, depth);
    else if (dw_ == Element::own)
      store(sums, channels * taps, outputs, reinterpret_cast<float*>(dw) + to, depth);
    else
      store_rounded(sums, channels * taps, outputs, {dw + to * bytes_each<float>(dw_), depth, 1, dw_});
  }

 private:
  static constexpr int64_t kCopyRow = kDepthBlock + 16;  // no power of two: rows lie in the first-level cache together

  // Windows of samples from the n-th on, `count` of each, in all `wide`; dy: of the first sample and of `outputs` channels.
  struct Tile {
    const std::byte* dy;
    int64_t n, count, wide, outputs;
  };

  bool copies_dy() const { return tiles_.samples > 1 || dy_.element != Element::own; }
  Plane plane_of(const Words& words, const std::byte* from, int64_t n, int64_t step) const { return words.plane(from, n, step, l_.batch); }

  // What the windows [column, column + count) of some samples read, and where each window's first tap does.
  void copy_x(const std::byte* x, int64_t n, int64_t samples, int64_t channels, int64_t column, int64_t count, std::byte* workspace) const {
    const int64_t line = rows_step_ * l_.windows.w.in, bytes = l_.windows.in_size() * bytes_each<float>(x_.element);
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t i = 0; i < samples; ++i) {
        const Plane from = plane_of(x_, x + channel * bytes, n + i, l_.image());
        plane_.fill(column, count, 1, reinterpret_cast<float*>(workspace) + (channel * tiles_.samples + i) * plane_.size(),
                    [&](int64_t row, float* to) { from.read(row * line, columns_step_, read_.w.in, to); });
      }
    }
    plane_.find_windows(samples, column, count, 1, reinterpret_cast<int32_t*>(workspace + table_at_));
  }

  // A panel of dy: channels from j on, windows [begin, begin + depth).
  void pack_dy(const Tile& tile, int64_t begin, int64_t depth, int64_t j, int64_t width, std::byte* workspace) const {
    const int64_t all = l_.windows.out_size(), columns = std::min(width, tile.outputs - j);
    const std::byte* const dy = tile.dy + j * all * bytes_each<float>(dy_.element);
    auto* const panel = reinterpret_cast<float*>(workspace + panel_at_);
    if (!copies_dy()) {
      const float* const from = plane_of(dy_, dy, tile.n, l_.result()).floats();
      return gemm::pack(from + begin, 1, all, depth, columns, width, panel);
    }
    auto* const copy = reinterpret_cast<float*>(workspace + dy_at_);
    for (int64_t r = 0; r < columns; ++r) {
      const std::byte* const from = dy + r * all * bytes_each<float>(dy_.element);
      for (int64_t k = begin, run; k < begin + depth; k += run) {
        const int64_t at = k % tile.count;
        run = std::min(tile.count - at, begin + depth - k);
        plane_of(dy_, from, tile.n + k / tile.count, l_.result()).read(at, run, copy + r * kCopyRow + k - begin);
      }
    }
    gemm::pack(copy, 1, kCopyRow, depth, columns, width, panel);
  }

  // The products of one tile.
  void add(const Tile& tile, int64_t channels, std::byte* workspace, bool has_start) const {
    const auto* const copy = reinterpret_cast<const float*>(workspace);
    const auto* const table = reinterpret_cast<const int32_t*>(workspace + table_at_);
    const auto* const panel = reinterpret_cast<const float*>(workspace + panel_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const int64_t block = depth_block(tile.wide), rows_of_sums = channels * l_.windows.taps();
    for (int64_t begin = 0; begin < tile.wide; begin += block) {
      const int64_t depth = std::min(block, tile.wide - begin);
      for (int64_t j = 0, width; j < tile.outputs; j += width) {
        width = gemm::Fused::panel(tile.outputs - j);
        pack_dy(tile, begin, depth, j, width, workspace);
        for (int64_t r = 0; r < rows_of_sums; r += gemm::kRows) {
          const int64_t rows = std::min<int64_t>(gemm::kRows, rows_of_sums - r);
          const float* a[gemm::kRows];
          for (int64_t i = 0; i < rows; ++i) a[i] = copy + taps_[static_cast<size_t>(r + i)];
          float* const to = sums + r * sums_row_ + j;
          gemm::indexed_kernel<true>(rows, width, x_.pairs)({.depth = depth,
                                                             .a = a,
                                                             .at = table + begin,
                                                             .step = width,
                                                             .b = panel,
                                                             .c = to,
                                                             .c_row = sums_row_,
                                                             .start = has_start || begin > 0 ? to : nullptr,
                                                             .start_row = sums_row_});
        }
      }
    }
  }

  // Transposed: rows x outputs of the sums.
  void store(const float* sums, int64_t rows, int64_t outputs, float* to, int64_t to_row) const {
    for (int64_t j = 0; j < outputs; j += 8) {
      int64_t r = 0;
      for (; r + 8 <= rows && j + 8 <= outputs; r += 8) transpose8(sums + r * sums_row_ + j, sums_row_, to + j * to_row + r, to_row);
      for (; r < rows; ++r) {
        for (int64_t i = j; i < std::min(j + 8, outputs); ++i) to[i * to_row + r] = sums[r * sums_row_ + i];
      }
    }
  }
  // The same to a result of 16 bits.
  void store_rounded(const float* sums, int64_t rows, int64_t outputs, const Result<float>& to) const {
    constexpr int64_t kSome = 64;
    float some[kSome * kSome];
    for (int64_t j = 0; j < outputs; j += kSome) {
      for (int64_t r = 0; r < rows; r += kSome) {
        const int64_t n = std::min(kSome, outputs - j), width = std::min(kSome, rows - r);
        store(sums + r * sums_row_ + j, width, n, some, kSome);
        store_rows(some, kSome, to.from(j, r), n, width);
      }
    }
  }

  Layout l_;
  Words x_, dy_;  // of samples
  Element dw_ = Element::own;
  WeightTiles tiles_;
  Windows read_;                                                // over those elements of x that windows read
  int64_t rows_step_ = 1, columns_step_ = 1;                    // from one of these to the next
  TilePlane plane_;                                             // of x's copy, a sample's part of a channel
  int64_t channels_ = 0, across_ = 0, outputs_ = 0, down_ = 0;  // of a task: channels of x and of y
  int64_t sums_row_ = 0, panel_at_ = 0, sums_at_ = 0, dy_at_ = 0, table_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<int64_t> taps_;  // where the first window's are in x's copy
};

}  // namespace convolution
ORT_TRAIN_OPS_END
