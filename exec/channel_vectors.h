// Convolutions whose windows don't fill vectors: in steps of more than one, or in small planes. Channels of the result lie side by side in
// a panel instead, and what windows read is broadcast, wherever it is: nothing is computed between or behind the windows, and a row of x is
// copied as it is. The weight goes to the shared workspace as panels; the sums are transposed when they are stored.
//
// The bits are those of exec/direct_convolution.h, exec/direct_input_gradient.h and the products with columns: the same chains.

#pragma once

#include <limits>
#include <vector>

#include "exec/convolution_elements.h"
#include "exec/indexed_product.h"
#include "exec/padded_planes.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// Whether it is made so, rather than with windows in vectors (measured). Chosen by the whole weight; channels: in a group, of what is read
// and of the result; small: windows of a plane, at most, in steps of one.
inline bool fills_channels(const Windows& windows, int64_t batch, int64_t read, int64_t made, int64_t small) {
  constexpr int64_t kFewWindows = 64;  // with fewer, panels of the weight take longer than what they save
  return read >= 16 && made >= 2 * gemm::kWidth && batch * windows.out_size() >= kFewWindows &&
         (windows.w.stride > 1 || windows.h.stride > 1 || windows.out_size() <= small);
}

// What takes time beside the products, as so many multiply-adds (measured): to transpose and store an element of the result; to pack the
// weight, of each multiply-add.
inline constexpr double kStoring = 20;
inline double packing_panels(const Layout& l) { return 30 / static_cast<double>(std::max<int64_t>(1, l.batch * l.windows.out_size())); }

// The result's channels, of a group, divided into panels.
class ChannelPanels {
 public:
  struct Panel {
    int64_t first, columns, width;  // channels; with what fills the last vector
  };

  ChannelPanels() = default;
  explicit ChannelPanels(int64_t channels) {
    for (int64_t first = 0; first < channels; first += panels_.back().width) {
      const int64_t width = gemm::Fused::panel(channels - first);
      panels_.push_back({first, std::min(width, channels - first), width});
      all_ = first + width;
    }
  }
  int64_t size() const { return static_cast<int64_t>(panels_.size()); }
  const Panel& operator[](int64_t i) const { return panels_[static_cast<size_t>(i)]; }
  int64_t all() const { return all_; }  // with what fills the last vector

 private:
  std::vector<Panel> panels_;
  int64_t all_ = 0;
};

// Sums [element][panel] as elements of some channels' planes; to.row: from one plane to the next.
inline void store_channels(const float* sums, int64_t count, int64_t channels, const Result<float>& to) {
  constexpr int64_t kEach = 8, kSome = 64;
  float some[kEach * kSome];
  const bool is_own = to.element == Element::own;
  for (int64_t o = 0; o < channels; o += kEach) {
    const int64_t rows = std::min(kEach, channels - o);
    for (int64_t begin = 0; begin < count; begin += kSome) {
      const int64_t n = std::min(kSome, count - begin), row = is_own ? to.row : kSome;
      const Result<float> there = to.from(o, begin);
      float* const made = is_own ? there.own() : some;
      const float* const from = sums + begin * gemm::kPanel + o;
      int64_t i = 0;
      for (; rows == kEach && i + kEach <= n; i += kEach) transpose8(from + i * gemm::kPanel, gemm::kPanel, made + i, row);
      for (; i < n; ++i) {
        for (int64_t r = 0; r < rows; ++r) made[r * row + i] = from[i * gemm::kPanel + r];
      }
      if (!is_own) store_rows<float>(some, kSome, there, rows, n);
    }
  }
}

// What some rows of windows read, of some samples: a copy, [word of channels][sample][row]; or x itself, of floats, where each window is
// one element. And where each window's first tap is.
class ChannelWindows {
 public:
  ChannelWindows() = default;
  // image: elements of a sample; most: windows, about; one_row: all of a plane are taken as one
  ChannelWindows(Windows windows, const Words& words, int64_t channels, int64_t batch, int64_t image, int64_t most, bool one_row)
      : words_(words), batch_(batch), image_(image), channels_(channels), in_size_(windows.in_size()) {
    in_place_ = windows.plain() && words.element == Element::own && !words.pairs;
    if (one_row) windows = {{}, {.in = in_size_, .out = in_size_}};
    in_row_ = windows.w.in;
    read_ = {read_elements(windows.h, rows_step_), read_elements(windows.w, columns_step_)};
    const int64_t all = windows.out_size();
    samples_ = std::clamp<int64_t>(most / all, 1, std::max<int64_t>(1, batch));
    rows_ = 2 * most >= all ? windows.h.out : std::clamp<int64_t>(most / windows.w.out, 1, windows.h.out);
    for (;; samples_ > 1 ? --samples_ : rows_ = divided_up(rows_, 2)) {
      bands_ = divided_up(windows.h.out, rows_);
      rows_ = divided_up(windows.h.out, bands_);                   // equally many
      plane_ = TilePlane(read_, (rows_ - 1) * windows.w.out + 1);  // they begin with a row
      if (fits() || (samples_ == 1 && rows_ == 1)) break;
    }
    samples_ = divided_up(std::max<int64_t>(1, batch), groups_of_samples());
  }

  int64_t samples() const { return samples_; }
  int64_t rows() const { return rows_; }  // of windows
  int64_t bands() const { return bands_; }
  int64_t across() const { return read_.w.out; }
  int64_t down() const { return read_.h.out; }
  int64_t groups_of_samples() const { return divided_up(batch_, samples_); }
  int64_t count() const { return samples_ * rows_ * across(); }
  int64_t word() const { return in_place_ ? in_size_ : samples_ * plane_.size(); }  // from one to the next
  int64_t copied() const { return in_place_ ? 0 : words_.of(channels_) * word(); }  // elements
  int64_t tap(int64_t t) const { return plane_.tap(t); }
  double copying() const { return columns_step_ > 1 ? 70 : 24; }  // takes as long as so many multiply-adds with each word (measured)
  bool fits() const {
    return copied() * int64_t{sizeof(float)} <= kPlaneBytes && words_.of(channels_) * word() <= std::numeric_limits<int32_t>::max();
  }

  int64_t words() const { return words_.of(channels_); }  // of channels
  // A group's first word, of a sample.
  const std::byte* group(const std::byte* x, int64_t n, int64_t g) const {
    return x + (n * image_ + g * channels_ * in_size_) * bytes_each<float>(words_.element);
  }

  // Copies words [begin, end) of channels. x: of the first of these samples, the group's
  void copy(const std::byte* x, int64_t samples, int64_t row, int64_t rows, int64_t begin, int64_t end, float* to) const {
    const int64_t size = bytes_each<float>(words_.element), line = rows_step_ * in_row_;
    for (int64_t word = begin; word < end; ++word) {
      for (int64_t i = 0; i < samples; ++i) {
        const Plane from = words_.plane(x + i * image_ * size, word, in_size_, channels_);
        plane_.fill(row * across(), rows * across(), 1, to + word * this->word() + i * plane_.size(),
                    [&](int64_t r, float* there) { from.read(r * line, columns_step_, read_.w.in, there); });
      }
    }
  }
  // Where the first tap of each window is, from the first word of x or of the copy on.
  void find(int64_t samples, int64_t row, int64_t rows, int32_t* table) const {
    if (!in_place_) return plane_.find_windows(samples, row * across(), rows * across(), 1, table);
    for (int64_t i = 0; i < samples; ++i) {
      for (int64_t k = 0; k < rows * across(); ++k) *table++ = static_cast<int32_t>(i * image_ + row * across() + k);
    }
  }

 private:
  Words words_;
  int64_t batch_ = 0, image_ = 0, channels_ = 0, in_row_ = 0, in_size_ = 0;
  bool in_place_ = false;
  Windows read_;  // over those elements that windows read
  int64_t rows_step_ = 1, columns_step_ = 1;
  int64_t samples_ = 1, rows_ = 1, bands_ = 1;
  TilePlane plane_;
};

// Some samples, or some rows of windows of one, and some panels of the result's channels.
struct ChannelTask {
  int64_t group, n, samples, row, rows, begin, end;  // end: behind the last panel
};

// Where several have the same windows, what these read is copied once, to the shared workspace, in `copies` pieces.
class ChannelTasks {
 public:
  ChannelTasks() = default;
  // channels: of the result, in a group; depth: words of the weight for each
  ChannelTasks(const ChannelWindows& windows, int64_t batch, int64_t groups, int64_t channels, int64_t depth)
      : windows_(windows),
        panels_(channels),
        batch_(batch),
        groups_(groups),
        channels_(channels),
        depth_(depth),
        each_(std::max<int64_t>(1, panels_.size())) {
    while (size() < kFewTasks && each_ > 1) each_ = divided_up(each_, 2);
    shares_ = down() > 1 && (packed() + shared()) * int64_t{sizeof(float)} <= kSharedBytes;
  }

  int64_t size() const { return windows_.groups_of_samples() * windows_.bands() * groups_ * down(); }
  ChannelTask operator[](int64_t task) const {
    const int64_t begin = task % down() * each_, band = task / down() % windows_.bands(), item = task / down() / windows_.bands();
    const int64_t n = item / groups_ * windows_.samples(), row = band * windows_.rows();
    return {.group = item % groups_,
            .n = n,
            .samples = std::min(windows_.samples(), batch_ - n),
            .row = row,
            .rows = std::min(windows_.rows(), windows_.down() - row),
            .begin = begin,
            .end = std::min(begin + each_, panels_.size())};
  }
  const ChannelPanels& panels() const { return panels_; }
  int64_t outputs() const { return shares_ ? channels_ : each_ * gemm::kPanel; }  // that read a copy of windows, about
  // The weight's panels, of all groups one behind the other: how many, where one begins, and all of them end.
  int64_t blocks() const { return groups_ * panels_.size(); }
  int64_t packed_at(int64_t group, const ChannelPanels::Panel& panel) const { return (group * panels_.all() + panel.first) * depth_; }
  int64_t packed() const { return groups_ * panels_.all() * depth_; }

  int64_t copied() const { return shares_ ? shared() : 0; }                   // words, for all tasks
  int64_t copied_by_each() const { return shares_ ? 0 : windows_.copied(); }  // and in the room of each thread
  int64_t copies() const { return copied() > 0 ? size() / down() * kPieces : 0; }
  void copy(const std::byte* x, int64_t number, float* to) const {
    const int64_t item = number / kPieces, piece = number % kPieces, count = windows_.words();
    const ChannelTask task = (*this)[item * down()];
    windows_.copy(windows_.group(x, task.n, task.group), task.samples, task.row, task.rows, piece * count / kPieces,
                  (piece + 1) * count / kPieces, to + item * windows_.copied());
  }
  // The first word that a task reads: of x, of what is shared, or of its own copy.
  const float* words(const std::byte* x, int64_t task, const float* shared, float* own) const {
    const ChannelTask t = (*this)[task];
    const std::byte* const from = windows_.group(x, t.n, t.group);
    if (windows_.copied() == 0) return reinterpret_cast<const float*>(from);
    if (shares_) return shared + task / down() * windows_.copied();
    windows_.copy(from, t.samples, t.row, t.rows, 0, windows_.words(), own);
    return own;
  }

 private:
  static constexpr int64_t kPieces = 4;

  int64_t down() const { return divided_up(panels_.size(), each_); }
  int64_t shared() const { return size() / down() * windows_.copied(); }

  ChannelWindows windows_;
  ChannelPanels panels_;
  int64_t batch_ = 0, groups_ = 1, channels_ = 0, depth_ = 0, each_ = 1;  // each: panels of a task
  bool shares_ = false;
};

// y of a ChannelTask. Of a thread's workspace: x's copy, unless tasks share it, where windows are in it, the sums of a panel.
class ChannelForward {
 public:
  ChannelForward() = default;
  ChannelForward(const Layout& l, Element x, Element w, Element y)
      : l_(l), x_{x, gemm::way_of(x, w) == gemm::Way::pairs}, w_(w), y_(y), words_(x_.of(l.in_channels)) {
    constexpr int64_t kWindows = 112, kSmall = 32 * 32, kPlainSmall = 14 * 14;
    const int64_t taps = l.windows.taps(), of_whole = l.total / l.groups;
    applies_ = fills_channels(l.windows, l.batch, l.in_channels, of_whole, l.windows.plain() ? kPlainSmall : kSmall) &&
               taps <= kDepthBlock && gemm::way_of(x, w) != gemm::Way::tiles &&
               l.groups * (of_whole + gemm::kPanel) * words_ * taps <= kSharedBytes / int64_t{sizeof(float)};
    if (!applies_) return;
    windows_ = ChannelWindows(l.windows, x_, l.in_channels, l.batch, l.image(), kWindows, l.windows.plain());
    const int64_t sums = windows_.count() * gemm::kPanel;
    applies_ = windows_.fits() && sums * int64_t{sizeof(float)} <= kPlaneBytes;
    if (!applies_) return;
    tasks_ = ChannelTasks(windows_, l.batch, l.groups, l.out_channels, depth());
    chain_ = words_of_chain();
    for (int64_t word = 0; word < std::min(chain_, words_); ++word) {
      for (int64_t t = 0; t < taps; ++t) at_.push_back(static_cast<int32_t>(word * windows_.word() + windows_.tap(t)));
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
  // Of the rate of large float32 products. rate: of products of such words
  double efficiency(double rate) const {
    const auto windows = static_cast<double>(windows_.count()), outputs = static_cast<double>(tasks_.outputs());
    const double copying = static_cast<double>(windows_.copied()) / windows / static_cast<double>(depth());
    const double products = static_cast<double>(l_.in_channels * l_.windows.taps());
    rate *= share_of_depth(std::min(chain_, words_) * l_.windows.taps(), 16);
    return products / (products / rate + kStoring + products * (packing_panels(l_) + windows_.copying() * copying / outputs));
  }

  // A panel: [word of x's channels][tap][channel of y]. Behind the panels, what tasks share of x.
  void prepare(const Operands& operands, int64_t block, std::byte*) const {
    if (block >= tasks_.blocks()) return tasks_.copy(operands.from, block - tasks_.blocks(), operands.shared + copies_at());
    const ChannelPanels& panels = tasks_.panels();
    const int64_t g = block / panels.size(), taps = l_.windows.taps(), size = bytes_each<float>(w_);
    const auto& [first, columns, width] = panels[block % panels.size()];
    float* const to = operands.shared + tasks_.packed_at(g, panels[block % panels.size()]);
    const std::byte* const w = operands.w + (g * l_.out_channels + first) * l_.depth() * size;
    if (w_ == Element::own && !x_.pairs) return gemm::pack(reinterpret_cast<const float*>(w), 1, l_.depth(), depth(), columns, width, to);
    if (taps == 1 || !x_.pairs) {
      const gemm::Source source{w, size, l_.depth() * size};
      return x_.pairs ? gemm::pack_elements<true>(w_, source, l_.depth(), columns, width, to)
                      : gemm::pack_elements<false>(w_, source, l_.depth(), columns, width, to);
    }
    float some[gemm::kPanel * kDepthBlock];  // of each channel of y some words of x's
    const int64_t channels = 2 * std::max<int64_t>(1, 128 / taps);
    for (int64_t channel = 0; channel < l_.in_channels; channel += channels) {
      const int64_t count = std::min(channels, l_.in_channels - channel), row = divided_up(count, 2) * taps;
      for (int64_t o = 0; o < columns; ++o) {
        gemm::for_element(w_, [&]<Element e>() {
          if constexpr (is_bfloat16(e))
            gemm::pair_rows<e>({w + (o * l_.depth() + channel * taps) * size, taps * size, size}, count, taps, taps, some + o * row);
        });
      }
      gemm::pack(some, 1, row, row, columns, width, to + channel / 2 * taps * width);
    }
  }

  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const auto [x, w, y, packed, bias, before] = operands;
    const auto& [g, n, samples, row, rows, begin, end] = tasks_[task];
    const int64_t across = windows_.across(), count = rows * across;
    auto* const table = reinterpret_cast<int32_t*>(workspace + table_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const float* const words = tasks_.words(x, task, packed + copies_at(), reinterpret_cast<float*>(workspace));
    windows_.find(samples, row, rows, table);
    for (int64_t p = begin; p < end; ++p) {
      const auto& panel = tasks_.panels()[p];
      for (int64_t i = 0; bias && i < samples * count; ++i)
        std::copy_n(bias + l_.first + g * l_.out_channels + panel.first, panel.columns, sums + i * gemm::kPanel);
      const auto part = [&](int64_t i) {  // of y
        const int64_t at = l_.y_at(n + i, g, panel.first) + row * across;
        return Result<float>(y + at * bytes_each<float>(y_), l_.windows.out_size(), 1, y_);
      };
      add(packed + tasks_.packed_at(g, panel), panel, words, table, samples, count, sums, bias != nullptr, part);
      for (int64_t i = 0; i < samples; ++i) store_channels(sums + i * count * gemm::kPanel, count, panel.columns, part(i));
    }
  }

 private:
  int64_t depth() const { return words_ * l_.windows.taps(); }
  int64_t copies_at() const { return divided_up(tasks_.packed(), 16) * 16; }  // whole lines

  // Words of x's channels whose products are one chain: as those with columns have it.
  int64_t words_of_chain() const {
    Layout l = l_;
    if (!l.windows.plain()) {
      l.in_channels = words_;
      return tiles_of(l).channels;
    }
    const int64_t channels = depth_block(tiles_of(l).channels);
    return x_.pairs ? channels / 2 : channels;
  }

  // A panel's sums over `count` windows of each sample. part(i): of y, sample i
  template <typename Part>
  void add(const float* weights, const ChannelPanels::Panel& panel, const float* words, const int32_t* table, int64_t samples,
           int64_t count, float* sums, bool has_start, const Part& part) const {
    const int64_t taps = l_.windows.taps(), all = samples * count;
    for (int64_t word = 0; word < words_; word += chain_) {
      const int64_t deep = std::min(chain_, words_ - word) * taps;
      for (int64_t r = 0; r < all; r += gemm::kRows) {
        const int64_t rows = std::min<int64_t>(gemm::kRows, all - r);
        const float* a[gemm::kRows];
        for (int64_t i = 0; i < rows; ++i) a[i] = words + word * windows_.word() + table[r + i];
        float* const to = sums + r * gemm::kPanel;
        if (word + chain_ >= words_) {
          for (int64_t i = 0; i < samples; ++i)
            fetch_planes(count, panel.columns * r / all, panel.columns * std::min(r + gemm::kRows, all) / all, part(i));
        }
        gemm::indexed_kernel<true>(rows, panel.width, x_.pairs)({.depth = deep,
                                                                 .a = a,
                                                                 .at = at_.data(),
                                                                 .step = panel.width,
                                                                 .b = weights + word * taps * panel.width,
                                                                 .c = to,
                                                                 .c_row = gemm::kPanel,
                                                                 .start = has_start || word > 0 ? to : nullptr,
                                                                 .start_row = gemm::kPanel});
      }
    }
  }

  Layout l_;
  Words x_;
  Element w_ = Element::own, y_ = Element::own;
  int64_t words_ = 0, chain_ = 0;  // of x's channels
  ChannelWindows windows_;
  ChannelTasks tasks_;
  int64_t table_at_ = 0, sums_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<int32_t> at_;  // where a chain's words are
};

}  // namespace convolution
ORT_TRAIN_OPS_END
