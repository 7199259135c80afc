// Convolutions of bfloat16, and the gradients of their x, in tile registers (exec/gemm_tiles.h), on processors with AMX-BF16.
//
// What is read, x or dy, is copied once as pairs of neighbouring channels with its padding (exec/padded_planes.h): a row of a tile is 16
// windows' pairs, which lie side by side, and its 16 rows are pairs of neighbouring channels. The weight goes to the shared workspace as
// tiles: 16 channels of the result by 16 pairs. So a tile of the result is a channel's windows in each row, as the result has them.
//
// With few channels most rows would be empty. Then a second copy, of what each tap of each pair reads, makes tiles of any 16 of these
// (columns, as the ops' own have them, but in the cache and of pairs).
//
// A sum is one chain over tiles: of 32 channels each the taps upwards, or, from columns, 16 pairs of taps and channels at a time. dx's
// phases of the strides have chains of their own taps (exec/direct_input_gradient.h).

#pragma once

#include <vector>

#include "exec/convolution_elements.h"
#include "exec/gemm_tiles.h"
#include "exec/padded_planes.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// Sixteen words, every `step`th.
inline void gather_words(const float* from, int64_t step, float* to) {
#ifdef __AVX512F__
  const __m512i at =
      _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(static_cast<int>(step)));
  _mm512_storeu_ps(to, _mm512_i32gather_ps(at, from, 4));
#else
  for (int64_t i = 0; i < gemm::kTileStep; ++i) to[i] = from[i * step];
#endif
}

// Some rows of windows, of some samples, for some channels of the result, are a task. Of a thread's workspace: the copy; what is gathered
// from it; the sums of 32 channels; a row of the result. Registers: gemm::TileRegisters
template <typename Registers> class TileSums {
 public:
  TileSums() = default;
  static TileSums of_output(const Layout& l, Element x, Element w, Element y) { return {l, x, w, y, false}; }
  // Not where w may be divided (rows_of_input_parts), unless each window is one element: then products of several nodes have to be added
  // tap by tap.
  static TileSums of_input(const Layout& l, Element dy, Element w, Element dx) {
    if (!l.windows.plain() && !is_undivided(l)) return {};
    return {l, dy, w, dx, true};
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t shared_bytes() const { return whole_lines((preparations() * block_ + preparations()) * int64_t{sizeof(float)}); }
  int64_t preparations() const { return l_.groups * blocks_; }
  int64_t tasks() const { return groups_of_samples_ * l_.groups * bands_ * down_; }
  // Of the rate of large float32 products.
  double efficiency(double rate) const {
    constexpr double kCopies = 10, kGathers = 10, kStores = 22, kPacks = 25;  // as so many multiply-adds (measured)
    double steps = 0, words = 0;
    for (const Phase& phase : phases_)
      steps += static_cast<double>(phase.steps), words += static_cast<double>(words_ * static_cast<int64_t>(phase.taps.size()));
    const double windows = static_cast<double>(rows_ * windows_.w.out), useful = windows / static_cast<double>(sums_row_);
    const auto made = static_cast<double>(made_), all = static_cast<double>(l_.batch * windows_.out_size());
    const double products = static_cast<double>(read_ * l_.windows.taps());  // of a window and a channel of the result
    const double time = steps * 2 * gemm::kTileStep / (1.5 * rate * useful) +
                        kCopies * static_cast<double>(words_ * plane_ * down_) / windows / made +
                        (gathers_ ? kGathers * words * static_cast<double>(down_) / made : 0) +
                        kStores * static_cast<double>(phases_.size()) + kPacks * products / all;
    return products / time;
  }

  // Some of the result's channels, a group's: [phase][step][two tiles]; behind all blocks, whether each has an infinity or what is no
  // number.
  void prepare(const Operands& operands, int64_t block, std::byte*) const {
    const int64_t g = block / blocks_, first = block % blocks_ * kRows, rows = std::min(kRows, made_ - first), taps = l_.windows.taps();
    float& is_infinite = operands.shared[preparations() * block_ + block];
    is_infinite = 0;
    float* const to = operands.shared + block * block_;
    std::fill_n(to, block_, 0.0f);
    const int64_t size = bytes_each<float>(w_), channel = backwards_ ? first : 0, o = backwards_ ? 0 : first;
    const std::byte* const from = operands.w + ((g * l_.out_channels + o) * l_.depth() + channel * taps) * size;
    for (int64_t word = 0; word < words_; word += kStep) {
      float some[kStep * kStep * kMostTaps];
      const int64_t count = std::min(kStep, words_ - word);
      if (backwards_) {
        const Words words{w_, true};
        for (int64_t r = 0; r < rows; r += kSide) {  // [word][row][tap]
          const int64_t n = std::min(kSide, rows - r) * taps;
          for (int64_t i = 0; i < kStep; ++i) {
            if (i >= count)
              std::fill_n(some + i * n, n, 0.0f);
            else
              words.plane(from + r * taps * size, word + i, l_.depth(), read_).read(0, n, some + i * n);
          }
          if (has_infinity(some, kStep * n, true)) is_infinite = 1;
          for (int64_t i = 0; i < n; ++i) put(some + i, n, r + i / taps, i % taps, word, to);
        }
      } else {
        for (int64_t r = 0; r < rows; ++r) {  // [word][tap]
          const std::byte* const row = from + (r * l_.depth() + 2 * word * taps) * size;
          const int64_t elements = std::min(2 * kStep, read_ - 2 * word);
          gemm::for_element(w_, [&]<Element e>() {
            if constexpr (is_bfloat16(e)) {
              if (taps == 1)
                gemm::pair_along_rows<e>({row, 0, size}, 1, elements, some, kStep);
              else
                gemm::pair_rows<e>({row, taps * size, size}, elements, taps, taps, some);
            }
          });
          std::fill(some + count * taps, some + kStep * taps, 0.0f);
          for (int64_t t = 0; t < taps; ++t) put(some + t, taps, r, t, word, to);
        }
      }
    }
  }

  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const auto [read, w, made, packed, bias, before] = operands;
    [[maybe_unused]] const typename Registers::Session session;
    const int64_t down = task % down_, band = task / down_ % bands_, item = task / down_ / bands_, g = item % l_.groups;
    const int64_t n = item / l_.groups * samples_, samples = std::min(samples_, l_.batch - n);
    const int64_t row = band * rows_, rows = std::min(rows_, windows_.h.out - row);
    auto* const copy = reinterpret_cast<float*>(workspace);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t at = backwards_ ? l_.y_at(n + i, g, 0) : l_.x_at(n + i, g, 0);
      make_copy(read + at * bytes_each<float>(element_), row, rows, copy + i * sample_);
    }
    if (gathers_) gather(copy, rows, reinterpret_cast<float*>(workspace + gathered_at_));
    const float* const words = gathers_ ? reinterpret_cast<const float*>(workspace + gathered_at_) : copy;
    const int64_t count = rows * windows_.w.out, all = backwards_ ? l_.windows.in_size() : l_.windows.out_size();
    const int64_t begin = rows_of_result_.begin(row) * rows_of_result_.width(),
                  size = rows_of_result_.end(row, rows) * rows_of_result_.width() - begin;  // of a channel of the result
    const int64_t each = divided_up(blocks_, down_);
    for (int64_t block = each * down; block < std::min(each * (down + 1), blocks_); ++block) {
      const float* const weights = packed + (g * blocks_ + block) * block_;
      const int64_t channel = block * kRows, channels = std::min(kRows, made_ - channel);
      for (int64_t i = 0; i < samples; ++i) {
        const int64_t at = backwards_ ? l_.x_at(n + i, g, channel) : l_.y_at(n + i, g, channel);
        const Result<float> to(made + at * bytes_each<float>(result_), all, 1, result_);
        for (int64_t r = 0; bias && r < channels; ++r)
          std::fill_n(sums + r * channel_sums(), channel_sums(), bias[l_.first + g * l_.out_channels + channel + r]);
        for (int64_t r = 0; before && r < channels; ++r) std::copy_n(before + at + r * all + row, count, sums + r * channel_sums());
        const auto fetch = [&](int64_t part, int64_t parts) {  // lines of the result, which another core may have
          fetch_planes(divided_up(size, parts), 0, channels, to.from(0, begin + size * part / parts));
        };
        add(weights, words + i * sample_, channels, rows, bias || before, sums, fetch);
        if (backwards_ && !is_pointwise_ && packed[preparations() * block_ + g * blocks_ + block] != 0)
          make_by_definition(read + l_.y_at(n + i, g, 0) * bytes_each<float>(element_), weights, channels, row, rows, sums);
        for (int64_t r = 0; r < channels; ++r) {
          if (is_pointwise_)
            store_rows(sums + r * channel_sums(), count, to.from(r, row), 1, count);
          else
            rows_of_result_.store(sums + r * channel_sums(), row, rows, to.from(r, 0), reinterpret_cast<float*>(workspace + row_at_));
        }
      }
    }
  }

 private:
  static constexpr int64_t kSide = gemm::kTileSide, kStep = gemm::kTileStep, kRows = 2 * kSide, kMostTaps = 64;

  struct Phase {
    std::vector<int64_t> taps;                   // which ones
    std::vector<int64_t> reads;                  // where they read in the copy, beside the first window
    std::vector<int32_t> at;                     // where the rows of each step begin
    int64_t first = 0, steps = 0, gathered = 0;  // where its steps begin in a block of weights; rows of what is gathered before its own
  };

  TileSums(const Layout& l, Element element, Element w, Element result, bool backwards)
      : l_(l), element_(element), w_(w), result_(result), backwards_(backwards), is_pointwise_(l.windows.plain()) {
    const auto& [h, v] = l.windows;
    const int64_t taps = l.windows.taps(), whole = l.total / l.groups;  // not of a part
    read_ = backwards ? l.out_channels : l.in_channels;
    made_ = backwards ? l.in_channels : l.out_channels;
    words_ = divided_up(read_, 2);
    applies_ = Registers::can_multiply(element, w) && taps <= kMostTaps && l.windows.out_size() > 0 && l.windows.in_size() > 0 &&
               h.stride <= kMostStride && v.stride <= kMostStride && l.in_channels > 1 && whole > 1 &&
               (is_pointwise_ || !backwards || (l.first == 0 && l.is_last()));
    if (!applies_) return;
    if (is_pointwise_)
      windows_ = {{.in = h.in * v.in, .out = h.in * v.in}, {}};  // as rows of one window: any number of them is a band
    else if (backwards)
      windows_ = {Reach(h).windows(), Reach(v).windows()};
    else
      windows_ = l.windows;
    if (!is_pointwise_) planes_ = PaddedPlanes(windows_);
    find_phases();
    divide();
    if (applies_) lay_out();
  }

  // Chosen by the whole weight, as sums depend on it.
  void find_phases() {
    const auto& [h, v] = l_.windows;
    for (int64_t a = 0; a < (backwards_ ? Reach(h).phases() : 1); ++a) {
      for (int64_t b = 0; b < (backwards_ ? Reach(v).phases() : 1); ++b) {
        Phase phase;
        if (backwards_) {
          for (const auto& [tap, place] : taps_of_phase(l_.windows, a, b)) {
            phase.taps.push_back(tap);
            phase.reads.push_back(place);
          }
        } else {
          for (int64_t t = 0; t < l_.windows.taps(); ++t) {
            phase.taps.push_back(t);
            phase.reads.push_back(t);
          }
        }
        phases_.push_back(std::move(phase));
      }
    }
    const int64_t taps = l_.windows.taps();
    const auto whole = backwards_ ? divided_up(l_.total / l_.groups, 2) : words_;
    gathers_ = !is_pointwise_ && 4 * divided_up(whole, kStep) * taps > 5 * divided_up(whole * taps, kStep);
    phase_of_.assign(static_cast<size_t>(taps), -1);
    index_of_.assign(static_cast<size_t>(taps), -1);
    int64_t steps = 0, gathered = 0;
    for (size_t p = 0; p < phases_.size(); ++p) {
      Phase& phase = phases_[p];
      const auto count = static_cast<int64_t>(phase.taps.size());
      phase.first = steps;
      phase.gathered = gathered;
      phase.steps = gathers_ ? divided_up(words_ * count, kStep) : divided_up(words_, kStep) * count;
      steps += phase.steps;
      gathered += phase.steps * kStep;
      for (int64_t i = 0; i < count; ++i) {
        phase_of_[static_cast<size_t>(phase.taps[static_cast<size_t>(i)])] = static_cast<int64_t>(p);
        index_of_[static_cast<size_t>(phase.taps[static_cast<size_t>(i)])] = i;
      }
    }
    gathered_rows_ = gathered;
    block_ = steps * kRows * kStep;
  }

  // Whether it applies doesn't depend on which part of the weight this is, as sums would.
  void divide() {
    constexpr int64_t kColumns = 1024, kFewColumns = 96, kCopied = 160 << 10, kSums = 4 << 10, kLeastRows = 8;  // in elements
    const int64_t width = is_pointwise_ ? 1 : planes_.width(), deep = divided_up(words_, kStep) * kStep;
    const auto phases = static_cast<int64_t>(phases_.size());
    const auto odd_lines = [](int64_t elements) { return divided_up(elements, 2 * kSide) * 2 * kSide + kSide; };  // no power of two
    const auto set_rows = [&](int64_t rows) {
      const int64_t all = windows_.h.out;
      rows_ = std::min(all, equal_part(all, divided_up(all, rows), is_pointwise_ ? kSide : 1));
      bands_ = divided_up(all, rows_);
      sums_row_ = divided_up(columns(rows_), kSide) * kSide;
      plane_ = odd_lines((is_pointwise_ ? rows_ : planes_.channel(rows_)) + kBehind);
      gathered_row_ = odd_lines(sums_row_);
      sample_ = (gathers_ ? words_ : deep) * plane_;
    };
    constexpr int64_t kMostCopied = 2 * kPlaneBytes / int64_t{sizeof(float)}, kMostSums = kPlaneBytes / int64_t{sizeof(float)} / kRows;
    const auto fits = [&] {
      return sample_ <= kMostCopied && channel_sums() <= kMostSums && (!gathers_ || gathered_rows_ * gathered_row_ <= kMostCopied);
    };
    const int64_t columns = std::min({kColumns, kSums / phases, kCopied / (gathers_ ? std::max<int64_t>(1, gathered_rows_) : deep)});
    set_rows(std::clamp<int64_t>(columns / width, 1, windows_.h.out));
    while (!fits() && rows_ > (is_pointwise_ ? kSide : 1)) set_rows(divided_up(rows_, 2));
    const int64_t whole = l_.total / l_.groups, read = backwards_ ? whole : l_.in_channels, made = backwards_ ? l_.in_channels : whole;
    const int64_t words = divided_up(read, 2 * kStep) * kStep;  // of the whole weight, where that may be in parts
    const int64_t weights = l_.groups * divided_up(made, kRows) * kRows * (is_pointwise_ ? words : block_ / kRows);
    applies_ =
        fits() && (!is_pointwise_ || words * odd_lines(kSide + kBehind) <= kMostCopied) && weights <= kSharedBytes / int64_t{sizeof(float)};
    if (!applies_) return;
    blocks_ = divided_up(made_, kRows);
    if (bands_ == 1 && !gathers_)
      samples_ = std::clamp<int64_t>(kFewColumns / (rows_ * width), 1, std::max<int64_t>(1, std::min(l_.batch, kCopied / sample_)));
    groups_of_samples_ = divided_up(l_.batch, samples_);
    while (tasks() < kFewTasks) {
      if (rows_ * width >= 192 && rows_ >= kLeastRows)
        set_rows(divided_up(rows_, 2));
      else if (down_ < blocks_)
        down_ = std::min(down_ * 2, blocks_);
      else
        break;
    }
    down_ = divided_up(blocks_, divided_up(blocks_, down_));
    const auto& [h, v] = l_.windows;
    const int64_t row = gathers_ || is_pointwise_ ? windows_.w.out : planes_.width();
    if (backwards_ && !is_pointwise_)
      rows_of_result_ = {{h.in, h.stride}, {v.in, v.stride}, sums_row_, row};
    else
      rows_of_result_ = {{windows_.h.out, 1}, {windows_.w.out, 1}, sums_row_, row};
  }

  void lay_out() {
    for (Phase& phase : phases_) {
      if (!is_pointwise_) {
        for (int64_t& read : phase.reads) read = planes_.tap(read, rows_);
      }
      const auto count = static_cast<int64_t>(phase.taps.size());
      for (int64_t step = 0; step < phase.steps; ++step) {
        const int64_t row = step * kStep;
        const int64_t at = gathers_ ? (phase.gathered + row) * gathered_row_
                                    : step / count * kStep * plane_ + phase.reads[static_cast<size_t>(step % count)];
        phase.at.push_back(static_cast<int32_t>(at));
      }
    }
    WorkspaceLayout layout;
    layout.take<float>(samples_ * sample_ + kBehind);
    gathered_at_ = layout.take<float>(gathers_ ? gathered_rows_ * gathered_row_ : 0);
    sums_at_ = layout.take<float>(kRows * channel_sums());
    row_at_ = layout.take<float>(is_pointwise_ ? 0 : l_.windows.w.in);
    bytes_ = layout.all();
  }

  // Of the sums of so many rows of windows: with what lies between rows, where the copy has padding there.
  int64_t columns(int64_t rows) const { return gathers_ || is_pointwise_ ? rows * windows_.w.out : planes_.windows(rows); }
  int64_t channel_sums() const { return static_cast<int64_t>(phases_.size()) * sums_row_; }

  // Where a pair's weight of a row of a block lies.
  int64_t weight_at(int64_t row, int64_t tap, int64_t word) const {
    const Phase& phase = phases_[static_cast<size_t>(phase_of_[static_cast<size_t>(tap)])];
    const int64_t index = index_of_[static_cast<size_t>(tap)], count = static_cast<int64_t>(phase.taps.size());
    const int64_t k = gathers_ ? index * words_ + word : (word / kStep * count + index) * kStep + word % kStep;
    return ((phase.first + k / kStep) * 2 + row / kSide) * kSide * kStep + row % kSide * kStep + k % kStep;
  }
  // Sixteen words of a row from one on, every `step`th at `from`; those behind the last one are zeros.
  void put(const float* from, int64_t step, int64_t row, int64_t tap, int64_t word, float* to) const {
    if (phase_of_[static_cast<size_t>(tap)] < 0) return;  // reads nothing
    if (!gathers_) return gather_words(from, step, to + weight_at(row, tap, word));
    for (int64_t i = 0; i < std::min(kStep, words_ - word); ++i) to[weight_at(row, tap, word + i)] = from[i * step];
  }

  // Of a sample and group.
  void make_copy(const std::byte* planes, int64_t row, int64_t rows, float* copy) const {
    const Words words{element_, true};
    constexpr int64_t kAhead = 2;
    const int64_t size = backwards_ ? l_.windows.out_size() : l_.windows.in_size(), used = is_pointwise_ ? rows : planes_.channel(rows_);
    const int64_t line = windows_.w.in, first = std::max<int64_t>(0, row * windows_.h.stride - windows_.h.begin);
    const int64_t begin = is_pointwise_ ? row : first * line;
    const int64_t count = is_pointwise_ ? rows : std::max<int64_t>(0, std::min(rows * windows_.h.stride, windows_.h.in - first)) * line;
    for (int64_t word = 0; word < words_; ++word) {
      const Plane plane = words.plane(planes, word, size, read_);
      float* const to = copy + word * plane_;
      if (word + kAhead < words_) words.plane(planes, word + kAhead, size, read_).fetch(begin, count);
      if (is_pointwise_)
        plane.read(row, rows, to);
      else
        planes_.fill(plane, row, rows, rows_, to);
      std::fill(to + used, to + plane_, 0.0f);
    }
    std::fill(copy + words_ * plane_, copy + sample_, 0.0f);
  }

  void gather(const float* copy, int64_t rows, float* to) const {
    for (const Phase& phase : phases_) {
      float* row = to + phase.gathered * gathered_row_;
      for (const int64_t read : phase.reads) {
        for (int64_t word = 0; word < words_; ++word, row += gathered_row_) {
          for (int64_t i = 0; i < rows; ++i)
            std::memcpy(row + i * windows_.w.out, copy + word * plane_ + read + i * planes_.width(),
                        static_cast<size_t>(windows_.w.out) * sizeof(float));
        }
      }
      std::fill(row, to + (phase.gathered + phase.steps * kStep) * gathered_row_, 0.0f);
    }
  }

  // The sums of a block of channels, of a sample. fetch(part, parts): what comes into the cache meanwhile
  template <typename Fetch>
  void add(const float* weights, const float* words, int64_t channels, int64_t rows, bool starts, float* sums, const Fetch& fetch) const {
    const int64_t all = columns(rows), blocks = divided_up(all, 2 * kSide);
    for (size_t p = 0; p < phases_.size(); ++p) {
      const Phase& phase = phases_[p];
      for (int64_t j = 0; j < all; j += 2 * kSide) {
        if (p == 0) fetch(j / (2 * kSide), blocks);
        gemm::tile_kernel<Registers>(channels, all - j)({.steps = phase.steps,
                                                         .a = weights + phase.first * kRows * kStep,
                                                         .a_step = kRows * kStep,
                                                         .a_second = kSide * kStep,
                                                         .b = words + j,
                                                         .at = phase.at.data(),
                                                         .b_row = gathers_ ? gathered_row_ : plane_,
                                                         .b_second = kSide,
                                                         .c = sums + static_cast<int64_t>(p) * sums_row_ + j,
                                                         .c_row = channel_sums(),
                                                         .starts = starts});
      }
    }
  }

  // dx's, where a weight is infinite or no number: what has no window isn't multiplied.
  void make_by_definition(const std::byte* dy, const float* weights, int64_t channels, int64_t row, int64_t rows, float* sums) const {
    const auto& [h, w] = l_.windows;
    for (int64_t r = 0; r < channels; ++r) {
      const auto weight = [&](int64_t o, int64_t t) { return weights[weight_at(r, t, o)]; };
      for (int64_t i = row * h.stride; i < rows_of_result_.end(row, rows); ++i) {
        for (int64_t j = 0; j < w.in; ++j)
          sums[r * channel_sums() + rows_of_result_.line(i, j % w.stride, row) + j / w.stride] =
              input_gradient_at(l_, words_, {element_, true}, dy, i, j, weight);
      }
    }
  }

  Layout l_;
  Element element_ = Element::own, w_ = Element::own, result_ = Element::own;
  bool backwards_ = false, is_pointwise_ = false, gathers_ = false, applies_ = false;  // pointwise: each window is one element
  int64_t read_ = 0, made_ = 0, words_ = 0;                                            // channels of a group; pairs of those that are read
  Windows windows_;                                                                    // of a phase of the result
  PaddedPlanes planes_;
  PhasedRows rows_of_result_;
  std::vector<Phase> phases_;
  std::vector<int64_t> phase_of_, index_of_;  // of each tap
  int64_t blocks_ = 0, block_ = 0;            // of 32 channels of the result; words of a block's weights
  int64_t rows_ = 0, bands_ = 1, samples_ = 1, groups_of_samples_ = 0, down_ = 1;  // of a task; down: tasks by channels
  int64_t sums_row_ = 0, plane_ = 0, sample_ = 0, gathered_rows_ = 0, gathered_row_ = 0;
  int64_t gathered_at_ = 0, sums_at_ = 0, row_at_ = 0, bytes_ = 0;
};

}  // namespace convolution
ORT_TRAIN_OPS_END
