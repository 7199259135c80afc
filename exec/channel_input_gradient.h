// The gradient of a convolution's x with the channels of x in vectors, as exec/channel_vectors.h has those of y. Phases, and where taps
// find their words in dy: exec/direct_input_gradient.h.

#pragma once

#include <vector>

#include "exec/channel_vectors.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// dx of a ChannelTask, whose rows are those of a phase. Of a thread's workspace: dy's copy, unless tasks share it, where windows are in it,
// the sums of a panel.
class ChannelInput {
 public:
  ChannelInput() = default;
  // block: of the chains, elements
  ChannelInput(const Layout& l, int64_t block, Element dy, Element weight, Element dx)
      : l_(l),
        dy_{dy, gemm::way_of(dy, weight) == gemm::Way::pairs},
        w_(weight),
        dx_(dx),
        words_(dy_.of(l.out_channels)),
        block_(dy_.of(block)) {
    constexpr int64_t kElements = 112, kSmall = 16 * 16;
    const auto& [h, w] = l.windows;
    const int64_t taps = l.windows.taps();
    const bool is_faster = taps == 1 || dy_.pairs || !is_undivided(l);  // than planes in vectors, or columns (measured)
    applies_ = is_faster && fills_channels(l.windows, l.batch, l.out_channels, l.in_channels, kSmall) && taps <= kDepthBlock &&
               l.windows.in_size() > 0 && h.stride <= kMostStride && w.stride <= kMostStride && l.first == 0 && l.is_last() &&
               gemm::way_of(dy, weight) != gemm::Way::tiles &&
               l.groups * (l.in_channels + gemm::kPanel) * words_ * taps <= kSharedBytes / int64_t{sizeof(float)};
    if (!applies_) return;
    const Reach down(h), across(w);
    const Windows windows{down.windows(), across.windows()};
    steps_ = h.stride * w.stride > 1;
    windows_ = ChannelWindows(windows, dy_, l.out_channels, l.batch, l.result(), kElements, l.windows.plain());
    const int64_t sums = windows_.samples() * rows_of_dx() * row_of_dx() * gemm::kPanel;
    applies_ = windows_.fits() && sums * int64_t{sizeof(float)} <= kPlaneBytes;
    if (!applies_) return;
    tasks_ = ChannelTasks(windows_, l.batch, l.groups, l.in_channels, depth());
    for (int64_t word = 0; word < std::min(block_, words_); ++word) at_.push_back(static_cast<int32_t>(word * windows_.word()));
    for (int64_t a = 0; a < down.phases(); ++a) {
      for (int64_t b = 0; b < across.phases(); ++b) {
        Phase phase{a, b, {}};
        for (const auto& [t, place] : taps_of_phase(l.windows, a, b)) phase.taps.push_back({t, windows_.tap(place)});
        phases_.push_back(std::move(phase));
      }
    }
    WorkspaceLayout layout;
    layout.take<float>(tasks_.copied_by_each());
    table_at_ = layout.take<int32_t>(windows_.count());
    sums_at_ = layout.take<float>(sums);
    bytes_ = layout.all();
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t shared_bytes() const { return whole_lines((copies_at() + tasks_.copied()) * int64_t{sizeof(float)}); }
  int64_t preparations() const { return tasks_.blocks() + tasks_.copies(); }
  int64_t tasks() const { return tasks_.size(); }
  // As ChannelForward's: of the products that an element of dx takes.
  double efficiency(double rate) const {
    const auto windows = static_cast<double>(windows_.count()), outputs = static_cast<double>(tasks_.outputs());
    const double copying = static_cast<double>(windows_.copied()) / windows / static_cast<double>(words_);
    const double taps = static_cast<double>(l_.windows.taps()) / static_cast<double>(phases_.size());
    const double products = static_cast<double>(l_.out_channels) * taps;
    rate *= share_of_depth(std::min(block_, words_), 8);
    return products / (products / rate + kStoring + products * (packing_panels(l_) + windows_.copying() * copying / taps / outputs));
  }

  // A panel: [tap][word of y's channels][channel of x]; behind all, whether it has an infinity or what is no number. Behind that, what
  // tasks share of dy.
  void prepare(const Operands& operands, int64_t block, std::byte*) const {
    if (block >= tasks_.blocks()) return tasks_.copy(operands.from, block - tasks_.blocks(), operands.shared + copies_at());
    const ChannelPanels& panels = tasks_.panels();
    const int64_t g = block / panels.size(), taps = l_.windows.taps(), size = bytes_each<float>(w_);
    const auto& [first, columns, width] = panels[block % panels.size()];
    float& is_infinite = operands.shared[tasks_.packed() + block];
    is_infinite = 0;
    float* const to = operands.shared + tasks_.packed_at(g, panels[block % panels.size()]);
    const Words words{w_, dy_.pairs};
    const std::byte* const from = operands.w + (g * l_.out_channels * l_.depth() + first * taps) * size;
    for (int64_t o = 0; o < words_; ++o) {
      const Plane row = words.plane(from, o, l_.depth(), l_.out_channels);
      float* const panel = to + o * width;
      if (taps == 1) {
        row.read(0, columns, panel);
        std::fill(panel + columns, panel + width, 0.0f);
      } else {
        float some[gemm::kPanel * kDepthBlock + 8];
        row.read(0, columns * taps, some);
        if (has_infinity(some, columns * taps, dy_.pairs)) is_infinite = 1;
        std::fill(some + columns * taps, some + width * taps, 0.0f);
        int64_t t = 0;
        for (; t + 8 <= taps; t += 8) {
          for (int64_t c = 0; c < width; c += 8) transpose8(some + c * taps + t, taps, panel + t * words_ * width + c, words_ * width);
        }
        for (; t < taps; ++t) {
          for (int64_t c = 0; c < width; ++c) panel[t * words_ * width + c] = some[c * taps + t];
        }
      }
    }
  }

  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const auto [dy, w, dx, packed, bias, before] = operands;
    const auto& [g, n, samples, row, rows, begin, end] = tasks_[task];
    Tile tile{.samples = samples, .row = row, .rows = rows};
    tile.first = tile.row * stride_down();
    tile.lines = std::min((tile.row + tile.rows) * stride_down(), lines()) - tile.first;
    tile.table = reinterpret_cast<int32_t*>(workspace + table_at_);
    tile.sums = reinterpret_cast<float*>(workspace + sums_at_);
    const std::byte* const from = dy + l_.y_at(n, g, 0) * bytes_each<float>(dy_.element);
    tile.words = tasks_.words(dy, task, packed + copies_at(), reinterpret_cast<float*>(workspace));
    windows_.find(samples, tile.row, tile.rows, reinterpret_cast<int32_t*>(workspace + table_at_));
    const int64_t count = tile.lines * row_of_dx();
    for (int64_t p = begin; p < end; ++p) {
      const auto& panel = tasks_.panels()[p];
      const auto part = [&](int64_t i) {  // of dx
        const int64_t at = l_.x_at(n + i, g, panel.first) + tile.first * row_of_dx();
        return Result<float>(dx + at * bytes_each<float>(dx_), l_.windows.in_size(), 1, dx_);
      };
      for (int64_t i = 0; i < samples; ++i) fetch_planes(count, 0, panel.columns, part(i));
      const float* const weights = packed + tasks_.packed_at(g, panel);
      add(tile, weights, panel.width);
      if (packed[tasks_.packed() + g * tasks_.panels().size() + p] != 0) make_by_definition(tile, weights, panel, from);
      for (int64_t i = 0; i < samples; ++i) store_channels(tile.sums + i * count * gemm::kPanel, count, panel.columns, part(i));
    }
  }

 private:
  struct Tap {
    int64_t weight, offset;  // which tap; where it finds its words
  };
  struct Phase {
    int64_t down, across;
    std::vector<Tap> taps;
  };
  // Rows of windows of a phase, in some samples; `lines` of dx from `first` on. Sums: [sample][line][element][panel].
  struct Tile {
    int64_t samples, row, rows, first, lines;
    const float* words;
    const int32_t* table;
    float* sums;
  };

  int64_t depth() const { return words_ * l_.windows.taps(); }
  int64_t copies_at() const { return divided_up(tasks_.packed() + tasks_.blocks(), 16) * 16; }  // whole lines
  // dx, whose planes are one line where each window is one element.
  bool plain() const { return l_.windows.plain(); }
  int64_t row_of_dx() const { return plain() ? l_.windows.in_size() : l_.windows.w.in; }
  int64_t lines() const { return plain() ? 1 : l_.windows.h.in; }
  int64_t stride_down() const { return l_.windows.h.stride; }
  int64_t rows_of_dx() const { return windows_.rows() * stride_down(); }

  void add(const Tile& tile, const float* weights, int64_t width) const {
    const int64_t across = windows_.across(), line = row_of_dx(), step = l_.windows.w.stride;
    if (!plain()) std::fill_n(tile.sums, tile.samples * tile.lines * line * gemm::kPanel, 0.0f);
    for (const Phase& phase : phases_) {
      for (const Tap& tap : phase.taps) {
        const float* const of_tap = weights + tap.weight * words_ * width;
        if (!steps_) {
          add_row(tile, of_tap, width, tap.offset, 0, tile.samples * tile.rows * across, 0, 1);
          continue;
        }
        for (int64_t i = 0; i < tile.samples; ++i) {
          for (int64_t r = 0; r < tile.rows; ++r) {
            const int64_t to = r * stride_down() + phase.down, columns = divided_up(line - phase.across, step);
            if (to >= tile.lines) continue;
            add_row(tile, of_tap, width, tap.offset, (i * tile.rows + r) * across, columns, (i * tile.lines + to) * line + phase.across,
                    step);
          }
        }
      }
    }
  }

  // A tap's products of `count` windows from one on, whose sums lie `step` elements apart.
  void add_row(const Tile& tile, const float* weights, int64_t width, int64_t offset, int64_t window, int64_t count, int64_t to,
               int64_t step) const {
    const int64_t each = divided_up(count, divided_up(count, gemm::kRows));  // equally many
    for (int64_t r = 0; r < count; r += each) {
      const int64_t rows = std::min(each, count - r);
      const float* a[gemm::kRows];
      float products[gemm::kRows * gemm::kPanel];  // of several chains
      float* const sums = tile.sums + (to + r * step) * gemm::kPanel;
      const bool is_one = words_ <= block_ || plain();
      for (int64_t word = 0; word < words_; word += block_) {
        for (int64_t i = 0; i < rows; ++i) a[i] = tile.words + word * windows_.word() + tile.table[window + r + i] + offset;
        float* const made = is_one ? sums : products;
        const int64_t row = (is_one ? step : 1) * gemm::kPanel;
        gemm::indexed_kernel<true>(rows, width, dy_.pairs)({.depth = std::min(block_, words_ - word),
                                                            .a = a,
                                                            .at = at_.data(),
                                                            .step = width,
                                                            .b = weights + word * width,
                                                            .c = made,
                                                            .c_row = row,
                                                            .start = word > 0 || (is_one && !plain()) ? made : nullptr,
                                                            .start_row = row});
      }
      for (int64_t i = 0; !is_one && i < rows; ++i) {
        for (int64_t c = 0; c < width; ++c) sums[i * step * gemm::kPanel + c] += products[i * gemm::kPanel + c];
      }
    }
  }

  // dy: of the first sample and the group
  void make_by_definition(const Tile& tile, const float* weights, const ChannelPanels::Panel& panel, const std::byte* dy) const {
    const int64_t line = row_of_dx();
    for (int64_t i = 0; i < tile.samples * tile.lines * line; ++i) {
      const std::byte* const from = dy + i / (tile.lines * line) * l_.result() * bytes_each<float>(dy_.element);
      for (int64_t c = 0; c < panel.columns; ++c) {
        const auto weight = [&](int64_t o, int64_t t) { return weights[(t * words_ + o) * panel.width + c]; };
        tile.sums[i * gemm::kPanel + c] = input_gradient_at(l_, block_, dy_, from, tile.first + i / line % tile.lines, i % line, weight);
      }
    }
  }

  Layout l_;
  Words dy_;
  Element w_ = Element::own, dx_ = Element::own;
  int64_t words_ = 0, block_ = 0;  // of y's channels; of them in a chain
  bool steps_ = false;             // of more than one
  ChannelWindows windows_;         // of a phase of dx, over dy
  ChannelTasks tasks_;
  int64_t table_at_ = 0, sums_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<int32_t> at_;  // where a chain's words are
  std::vector<Phase> phases_;
};

}  // namespace convolution
ORT_TRAIN_OPS_END
