// Depthwise convolutions, whose groups have one channel of x and one of y: each plane is copied once with its padding, as floats, and the
// taps are multiplied there, some windows to a vector. dw has a channel in each lane of a vector, and is made of pairs of samples where the
// processor multiplies these. But for pairs of bfloat16, the order of the sums is that of the products with columns (exec/ops/conv*.cpp),
// so the bits are, too.

#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "exec/convolution_elements.h"
#include "exec/gemm_micro.h"
#include "exec/padded_planes.h"
#include "exec/phases.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

inline constexpr int kPlaneVectors = 4;  // that are computed together
inline constexpr int64_t kPlaneRun = kPlaneVectors * gemm::kWidth;
inline constexpr int64_t kBehindPlane = 16 + kPlaneRun;  // elements behind it: padding that rows share, and what the last run may reach

inline constexpr int64_t kMostPlaneBytes = 512 << 10;  // of a plane's copy: what is larger is made by columns

inline bool is_depthwise(const Layout& l) {
  return l.in_channels == 1 && l.total == l.groups && l.windows.taps() > 1 && l.windows.taps() <= kDepthBlock && l.windows.in_size() > 0 &&
         l.windows.out_size() > 0 && l.windows.in_size() <= kMostPlaneBytes && l.windows.out_size() <= kMostPlaneBytes;
}

// Of n windows, in whole runs, the sums over taps: to[j] = sum of weights[t] * from[j + taps[t]], upwards. fused: multiply and add at once.
template <bool fused> void add_taps(const float* weights, const int64_t* taps, int64_t count, int64_t n, const float* from, float* to) {
  for (int64_t j = 0; j < n; j += kPlaneRun) {
    gemm::Vector sum[kPlaneVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kPlaneVectors; ++v) sum[v] = gemm::zero();
    for (int64_t t = 0; t < count; ++t) {
      const gemm::Vector weight = gemm::broadcast(weights[t]);
      const float* const at = from + j + taps[t];
#pragma GCC unroll 4
      for (int v = 0; v < kPlaneVectors; ++v) {
        const gemm::Vector x = gemm::load(at + v * gemm::kWidth);
        if constexpr (fused)
          sum[v] = gemm::multiply_add(weight, x, sum[v]);
        else
          sum[v] = sum[v] + gemm::multiply(weight, x);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kPlaneVectors; ++v) gemm::store(to + j + v * gemm::kWidth, sum[v]);
  }
}

constexpr int64_t whole_runs(int64_t n) { return (n + kPlaneRun - 1) / kPlaneRun * kPlaneRun; }

// Of the rate of large float32 products (measured): each multiply-add reads its operand, and each element of x is copied.
inline double depthwise_efficiency(const Windows& windows) {
  constexpr double kShare = 0.3, kCopied = 48;
  const auto padded = [](const WindowAxis& a) { return static_cast<double>(a.in + a.begin + a.end); };
  const auto taps = static_cast<double>(windows.taps());
  return taps / (taps / kShare + kCopied * padded(windows.h) * padded(windows.w) / static_cast<double>(windows.out_size()));
}

inline constexpr int64_t kTaskWork = int64_t{1} << 18;  // multiply-adds of a task, about

// Some rows of windows of a plane are a part; some parts are a task. Of a thread's workspace: x's copy, the sums, the taps.
class DepthwiseForward {
 public:
  DepthwiseForward() = default;
  DepthwiseForward(const Layout& l, Element x, Element w, Element y) : l_(l), x_{x}, w_{w}, y_(y) {
    constexpr int64_t kWindows = 4096;
    applies_ = is_depthwise(l);
    if (!applies_) return;
    planes_ = PaddedPlanes(l.windows);
    rows_ = std::clamp<int64_t>(kWindows / planes_.width(), 1, l.windows.h.out);
    bands_ = divided_up(l.windows.h.out, rows_);
    each_ = std::max<int64_t>(1, kTaskWork / (rows_ * planes_.width() * l.windows.taps()));
    const int64_t copied = planes_.channel(rows_) + kBehindPlane;
    applies_ = copied * int64_t{sizeof(float)} <= kMostPlaneBytes;
    Places places;
    places.take(copied * int64_t{sizeof(float)});
    sums_at_ = places.take(whole_runs(planes_.windows(rows_)) * int64_t{sizeof(float)});
    weights_at_ = places.take(l.windows.taps() * int64_t{sizeof(float)});
    bytes_ = places.all();
    for (int64_t t = 0; t < l.windows.taps(); ++t) taps_.push_back(planes_.tap(t, rows_));
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return divided_up(parts(), each_); }

  // bias: of y's channels, or null
  void run(const std::byte* x, const std::byte* w, const float* bias, std::byte* y, int64_t task, std::byte* place) const {
    for (int64_t part = task * each_; part < std::min((task + 1) * each_, parts()); ++part) run_part(x, w, bias, y, part, place);
  }

 private:
  int64_t parts() const { return l_.batch * l_.groups * bands_; }

  void run_part(const std::byte* x, const std::byte* w, const float* bias, std::byte* y, int64_t part, std::byte* place) const {
    const int64_t band = part % bands_, plane = part / bands_, n = plane / l_.groups, g = plane % l_.groups, taps = l_.windows.taps();
    const int64_t row = band * rows_, rows = std::min(rows_, l_.windows.h.out - row), across = l_.windows.w.out, width = planes_.width();
    auto* const copy = reinterpret_cast<float*>(place);
    auto* const sums = reinterpret_cast<float*>(place + sums_at_);
    auto* const weights = reinterpret_cast<float*>(place + weights_at_);
    planes_.fill(x_.plane(x, n * l_.groups + g, l_.windows.in_size(), l_.batch * l_.groups), row, rows, rows_, copy);
    std::fill_n(copy + planes_.channel(rows_), kBehindPlane, 0.0f);
    w_.plane(w, g, taps, l_.groups).read(0, taps, weights);
    add_taps<true>(weights, taps_.data(), taps, planes_.windows(rows), copy, sums);
    for (int64_t i = 0; bias && i < rows * width; ++i) sums[i] += bias[l_.first + g];
    const int64_t to = l_.y_at(n, g, 0) + row * across;
    store_rows<float>(sums, width, {y + to * bytes_each<float>(y_), across, 1, y_}, rows, across);
  }

  Layout l_;
  Words x_, w_;
  Element y_ = Element::own;
  PaddedPlanes planes_;
  int64_t rows_ = 0, bands_ = 0, each_ = 0, sums_at_ = 0, weights_at_ = 0, bytes_ = 0;
  bool applies_ = false;
  std::vector<int64_t> taps_;
};

// dx. The elements of x are divided by the phases of the strides: those of one phase are read by the same taps, each at the same distance
// among the windows. A plane is a part. Of a thread's workspace: dy's copy, the sums of the phases of a row, a phase's taps and all taps, a
// plane of dx that is of 16 bits.
class DepthwiseInput {
 public:
  DepthwiseInput() = default;
  DepthwiseInput(const Layout& l, Element dy, Element weight, Element dx) : l_(l), dy_{dy}, w_{weight}, dx_(dx) {
    const auto& [h, w] = l.windows;
    applies_ = is_depthwise(l) && h.stride <= kMostStride && w.stride <= kMostStride;
    if (!applies_) return;
    const Reach down(h), across(w);
    const auto behind = [](const Reach& reach) { return std::max<int64_t>(0, reach.windows().end); };
    before_h_ = -down.first;
    before_w_ = -across.first;
    rows_ = before_h_ + h.out + behind(down);
    width_ = before_w_ + w.out + behind(across);
    each_ = std::max<int64_t>(1, kTaskWork / (l.windows.in_size() * l.windows.taps()));
    for (int64_t a = 0; a < down.phases(); ++a) {
      for (int64_t b = 0; b < across.phases(); ++b) {
        Phase phase{.h = a, .rows = divided_up(h.in - a, h.stride), .columns = divided_up(w.in - b, w.stride)};
        for (int64_t t = 0; t < l.windows.taps(); ++t) {
          const int64_t kh = t / w.kernel, kw = t % w.kernel;
          if (!down.reads(a, kh) || !across.reads(b, kw)) continue;
          phase.taps.push_back((down.distance(a, kh) + before_h_) * width_ + across.distance(b, kw) + before_w_);
          phase.numbers.push_back(t);
        }
        phases_.push_back(std::move(phase));
      }
    }
    Places places;
    copied_ = rows_ * width_ + kPlaneRun;
    applies_ = copied_ * int64_t{sizeof(float)} <= kMostPlaneBytes;
    places.take(copied_ * int64_t{sizeof(float)});
    sums_at_ = places.take(std::min(w.stride, w.in) * sums_each() * int64_t{sizeof(float)});
    weights_at_ = places.take(2 * l.windows.taps() * int64_t{sizeof(float)});
    dx_at_ = places.take(dx == Element::own ? 0 : l.windows.in_size() * int64_t{sizeof(float)});
    bytes_ = places.all();
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return divided_up(parts(), each_); }

  void run(const std::byte* dy, const std::byte* w, std::byte* dx, int64_t task, std::byte* place) const {
    for (int64_t part = task * each_; part < std::min((task + 1) * each_, parts()); ++part) {
      const int64_t n = part / l_.groups, g = part % l_.groups, size = l_.windows.in_size();
      std::byte* const to = dx + l_.x_at(n, g, 0) * bytes_each<float>(dx_);
      auto* const plane = reinterpret_cast<float*>(dx_ == Element::own ? to : place + dx_at_);
      run_part(dy + l_.y_at(n, g, 0) * bytes_each<float>(dy_.element), w, g, plane, place);
      if (dx_ != Element::own) store_rows<float>(plane, size, {to, size, 1, dx_}, 1, size);
    }
  }

 private:
  int64_t parts() const { return l_.batch * l_.groups; }

  // dy, dx: of the plane
  void run_part(const std::byte* dy, const std::byte* w, int64_t g, float* dx, std::byte* place) const {
    const int64_t across = l_.windows.w.out, taps = l_.windows.taps();
    auto* const copy = reinterpret_cast<float*>(place);
    auto* const sums = reinterpret_cast<float*>(place + sums_at_);
    auto* const weights = reinterpret_cast<float*>(place + weights_at_);
    float* const all_weights = weights + taps;
    const Plane from = dy_.plane(dy, 0, l_.windows.out_size(), 1);
    std::fill_n(copy, before_h_ * width_, 0.0f);
    float* row = copy + before_h_ * width_;
    for (int64_t i = 0; i < l_.windows.h.out; ++i, row += width_) {
      std::fill_n(row, before_w_, 0.0f);
      from.read(i * across, across, row + before_w_);
      std::fill_n(row + before_w_ + across, width_ - before_w_ - across, 0.0f);
    }
    std::fill(row, copy + copied_, 0.0f);
    const auto& [h, v] = l_.windows;
    w_.plane(w, g, taps, l_.groups).read(0, taps, all_weights);
    if (has_infinity(all_weights, taps, false)) {
      for (int64_t i = 0; i < l_.windows.in_size(); ++i)
        dx[i] = input_gradient_at(l_, 1, dy_, dy, i / v.in, i % v.in, [&](int64_t, int64_t t) { return all_weights[t]; });
      return;
    }
    const int64_t each = sums_each(), beside = std::min(v.stride, v.in);
    for (size_t first = 0; first < phases_.size(); first += static_cast<size_t>(beside)) {  // those of the same rows
      for (int64_t b = 0; b < beside; ++b) {
        const Phase& phase = phases_[first + static_cast<size_t>(b)];
        for (size_t t = 0; t < phase.taps.size(); ++t) weights[t] = all_weights[phase.numbers[t]];
        add_taps<false>(weights, phase.taps.data(), static_cast<int64_t>(phase.taps.size()), (phase.rows - 1) * width_ + phase.columns,
                        copy, sums + b * each);
      }
      for (int64_t i = 0; i < phases_[first].rows; ++i)
        join_phases(sums + i * width_, each, v.stride, v.in, dx + (i * h.stride + phases_[first].h) * v.in);
    }
  }

  int64_t sums_each() const { return whole_runs(rows_ * width_); }  // of a phase

  struct Phase {
    int64_t h, rows, columns;
    std::vector<int64_t> taps = {}, numbers = {};  // where they are in the copy; their numbers
  };

  Layout l_;
  Words dy_, w_;
  Element dx_ = Element::own;
  int64_t before_h_ = 0, before_w_ = 0, rows_ = 0, width_ = 0, copied_ = 0, each_ = 0, sums_at_ = 0, weights_at_ = 0, dx_at_ = 0,
          bytes_ = 0;
  bool applies_ = false;
  std::vector<Phase> phases_;
};

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
    applies_ = plane_.size() <= kMostBytes / kLane / tiles.samples;
    if (!applies_) return;
    Places places;
    places.take(tiles.samples * plane_.size() * kLane);
    dy_at_ = places.take(wide * kLane);
    sums_at_ = places.take(l.windows.taps() * kLane);
    table_at_ = places.take(wide * int64_t{sizeof(int32_t)});
    bytes_ = places.all();
    for (int64_t t = 0; t < l.windows.taps(); ++t) taps_.push_back(plane_.tap(t) * gemm::kWidth);
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return tiles_.pieces * divided_up(l_.groups, gemm::kWidth); }
  const WeightTiles& tiles() const { return tiles_; }

  // dw: of the whole; or of all pieces, one behind the other, in float32
  void run(const std::byte* dy, const std::byte* x, std::byte* dw, int64_t task, std::byte* place) const {
    const int64_t some = divided_up(l_.groups, gemm::kWidth), piece = task / some, g = task % some * gemm::kWidth;
    const int64_t channels = std::min<int64_t>(gemm::kWidth, l_.groups - g), all = l_.windows.out_size();
    auto* const dy_copy = reinterpret_cast<float*>(place + dy_at_);
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
          beside(plane, column, all, channels, count, dy_copy + i * count * gemm::kWidth);
        }
        copy_x(x, n, samples, g, channels, column, count, place);
        const int64_t block = depth_block(wide);
        for (int64_t first = 0; first < wide; first += block, has_start = true) add(first, std::min(block, wide - first), place, has_start);
      }
    }
    store(reinterpret_cast<const float*>(place + sums_at_), channels, dw, piece, g);
  }

 private:
  static constexpr int64_t kLane = gemm::kWidth * int64_t{sizeof(float)}, kMostBytes = 1 << 20;
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

  // n words of some channels' planes from `at` on, as n vectors; lanes without a channel are zero. row: elements from plane to plane
  template <typename PlaneOf> static void beside(const PlaneOf& plane, int64_t at, int64_t row, int64_t channels, int64_t n, float* to) {
    if (const float* const from = plane(0).floats()) return beside(from + at, row, channels, n, to);
    constexpr int64_t kSome = 64;
    for (int64_t i = 0; i < n; i += kSome) {
      float some[gemm::kWidth * kSome];
      const int64_t count = std::min(kSome, n - i);
      for (int64_t channel = 0; channel < channels; ++channel) plane(channel).read(at + i, count, some + channel * kSome);
      beside(some, kSome, channels, count, to + i * gemm::kWidth);
    }
  }
  static void beside(const float* from, int64_t row, int64_t rows, int64_t n, float* to) {
    for (int64_t r = 0; r < gemm::kWidth; r += 8) {
      int64_t i = 0;
      if (r + 8 <= rows) {
        for (; i + 8 <= n; i += 8) transpose8(from + r * row + i, row, to + i * gemm::kWidth + r, gemm::kWidth);
      }
      for (; i < n; ++i) {
        for (int64_t lane = r; lane < r + 8; ++lane) to[i * gemm::kWidth + lane] = lane < rows ? from[lane * row + i] : 0.0f;
      }
    }
  }

  // What the windows [column, column + count) of some samples read, and where each window's first tap does.
  void copy_x(const std::byte* x, int64_t n, int64_t samples, int64_t g, int64_t channels, int64_t column, int64_t count,
              std::byte* place) const {
    const int64_t size = l_.windows.in_size(), across = l_.windows.w.in, bytes = bytes_each<float>(x_.element);
    for (int64_t i = 0; i < samples; ++i) {
      const auto plane = [&](int64_t channel) { return x_.plane(x + (g + channel) * size * bytes, n + i, l_.image(), l_.batch); };
      plane_.fill(column, count, gemm::kWidth, reinterpret_cast<float*>(place) + i * plane_.size() * gemm::kWidth,
                  [&](int64_t row, float* to) { beside(plane, row * across, size, channels, across, to); });
    }
    plane_.find_windows(samples, column, count, gemm::kWidth, reinterpret_cast<int32_t*>(place + table_at_));
  }

  // One block of a tile's windows, all taps.
  void add(int64_t first, int64_t depth, std::byte* place, bool has_start) const {
    const auto* const x = reinterpret_cast<const float*>(place);
    const auto* const dy = reinterpret_cast<const float*>(place + dy_at_) + first * gemm::kWidth;
    const auto* const table = reinterpret_cast<const int32_t*>(place + table_at_) + first;
    auto* const sums = reinterpret_cast<float*>(place + sums_at_);
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
