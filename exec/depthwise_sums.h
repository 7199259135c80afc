// Depthwise convolutions, whose groups have one channel of x and one of y, and their dx: a plane in each lane of a vector, of neighbouring
// channels and samples (exec/channel_lanes.h). What some rows of the result read is copied with its padding; sums of several elements of a
// row are then made together, tap by tap. An element's sum goes over the taps upwards: of y by fused multiply-adds, of dx of products that
// were rounded. With finite weights it has the bits of the products with columns (exec/ops/conv*.cpp); padding above and below isn't
// multiplied.

#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "exec/channel_lanes.h"
#include "exec/convolution_elements.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

inline constexpr int64_t kMostPlane = 512 << 10;  // elements: larger planes are made by columns

inline bool is_depthwise(const Layout& l) {
  return l.in_channels == 1 && l.total == l.groups && l.windows.taps() > 1 && l.windows.taps() <= kDepthBlock && l.windows.in_size() > 0 &&
         l.windows.out_size() > 0 && l.windows.in_size() <= kMostPlane && l.windows.out_size() <= kMostPlane;
}

// Of the rate of large float32 products (measured): each multiply-add reads its operand, each element of x and y becomes one of a vector's.
// planes: that lanes are given to
inline double depthwise_efficiency(const Layout& l, int64_t planes) {
  constexpr double kShare = 0.75, kMoved = 15;
  const Windows& windows = l.windows;
  const auto padded = [](const WindowAxis& a) { return static_cast<double>(a.in + a.begin + a.end); };
  const auto taps = static_cast<double>(windows.taps()),
             moved = padded(windows.h) * padded(windows.w) / static_cast<double>(windows.out_size());
  const double filled = static_cast<double>(planes) / static_cast<double>(divided_up(planes, kLanesOfVector) * kLanesOfVector);
  return filled * taps / (taps / kShare + kMoved * (1 + moved));
}

// n words of some channels from `at` on, as vectors. plane(channel): its Plane, `row` elements behind that of the channel before
template <typename PlaneOf> void vectors_of(const PlaneOf& plane, int64_t row, int64_t channels, int64_t at, int64_t n, float* to) {
  if (const float* const from = plane(0).floats()) return to_lanes(from + at, row, channels, n, to);
  constexpr int64_t kSome = 64;
  for (int64_t i = 0; i < n; i += kSome) {
    float some[kLanesOfVector * kSome];
    const int64_t count = std::min(kSome, n - i);
    for (int64_t channel = 0; channel < channels; ++channel) plane(channel).read(at + i, count, some + channel * kSome);
    to_lanes(some, kSome, channels, count, to + i * kLanesOfVector);
  }
}
// Of the planes of one tensor, one behind the other.
inline void vectors_of(Element element, const std::byte* planes, int64_t row, int64_t channels, int64_t at, int64_t n, float* to) {
  const auto plane = [&](int64_t channel) { return Plane(element, planes + channel * row * bytes_each<float>(element)); };
  vectors_of(plane, row, channels, at, n, to);
}

// Which elements of the source (x, or dy) an element of the result (y, or dx) reads along an axis. Result o = q * phases() + b reads, of
// the source from origin(o - b) on, element offset(b, k) for tap k.
class DepthwiseAxis {
 public:
  DepthwiseAxis() = default;
  DepthwiseAxis(const WindowAxis& a, bool is_gradient)
      : a_(a), is_gradient_(is_gradient), windows_(is_gradient ? Reach(a).windows() : a), phases_(is_gradient ? Reach(a).phases() : 1) {}

  int64_t source() const { return windows_.in; }
  int64_t result() const { return is_gradient_ ? a_.in : a_.out; }
  int64_t taps() const { return a_.kernel; }
  int64_t phases() const { return phases_; }
  int64_t step() const { return windows_.stride; }
  bool reads(int64_t o, int64_t k) const { return !is_gradient_ || a_.reads(o, k); }
  int64_t at(int64_t o, int64_t k) const { return is_gradient_ ? a_.window(o, k) : a_.at(o, k); }
  int64_t origin(int64_t o) const { return windows_.at(o / phases_, 0); }
  int64_t offset(int64_t b, int64_t k) const { return at(b, k) + windows_.begin; }
  int64_t span(int64_t count) const { return windows_.at(divided_up(count, phases_) - 1, windows_.kernel - 1) + windows_.begin + 1; }

 private:
  WindowAxis a_;
  bool is_gradient_ = false;
  WindowAxis windows_;  // of the result over the source: of dx, a phase
  int64_t phases_ = 1;
};

// What the taps of one row of a window read, and their weights: vectors.
struct DepthwiseRow {
  const float *from, *weights;
};
struct DepthwiseTap {
  int64_t tap, offset;  // in floats
};

// Sums of `count` neighbours, whose elements are `step` floats apart, or one vector: stored `to_step` apart. bias: a vector, or null
template <bool fused, bool is_dense, int count>
void add_taps(std::span<const DepthwiseRow> rows, std::span<const DepthwiseTap> taps, int64_t from, int64_t step, const float* bias,
              float* to, int64_t to_step) {
  gemm::Vector sum[count];
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) sum[i] = gemm::zero();
  for (const DepthwiseRow& row : rows) {
    for (const DepthwiseTap& tap : taps) {
      const gemm::Vector weight = gemm::load(row.weights + tap.tap);
      const float* const at = row.from + from + tap.offset;
#pragma GCC unroll 16
      for (int i = 0; i < count; ++i) {
        const gemm::Vector x = gemm::load(at + i * (is_dense ? kLanesOfVector : step));
        sum[i] = fused ? gemm::multiply_add(weight, x, sum[i]) : sum[i] + gemm::multiply(weight, x);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) gemm::store(to + i * to_step, bias ? sum[i] + gemm::load(bias) : sum[i]);
}

inline constexpr int kMostNeighbours = 14;
using AddTaps = void (*)(std::span<const DepthwiseRow>, std::span<const DepthwiseTap>, int64_t, int64_t, const float*, float*, int64_t);
template <bool fused, bool is_dense> AddTaps add_taps_of(int64_t count) {
  return []<int... i>(std::integer_sequence<int, i...>, int64_t n) {
    static constexpr AddTaps table[] = {add_taps<fused, is_dense, i + 1>...};
    return table[n - 1];
  }
  (std::make_integer_sequence<int, kMostNeighbours>{}, count);
}

// Some rows and columns of as many planes of the result as a vector has lanes are a task. Of a thread's workspace: the source's copy,
// the weights, sums, what becomes 16 bits.
class DepthwiseSums {
 public:
  DepthwiseSums() = default;
  static DepthwiseSums of_output(const Layout& l, Element x, Element w, Element y) { return {l, false, x, w, y}; }
  static DepthwiseSums of_input(const Layout& l, Element dy, Element w, Element dx) { return {l, true, dy, w, dx}; }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t shared_bytes() const { return 0; }
  int64_t preparations() const { return 0; }
  int64_t tasks() const { return divided_up(planes(), kLanesOfVector) * bands_ * strips_; }
  double efficiency(double) const { return depthwise_efficiency(l_, planes()); }

  void prepare(const Operands&, int64_t, std::byte*) const {}
  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const int64_t strip = task % strips_, band = task / strips_ % bands_, plane = task / strips_ / bands_ * kLanesOfVector;
    const Part part{.plane = plane,
                    .planes = std::min(kLanesOfVector, planes() - plane),
                    .row = band * rows_,
                    .rows = std::min(rows_, h_.result() - band * rows_),
                    .column = strip * columns_,
                    .columns = std::min(columns_, w_.result() - strip * columns_)};
    run_part(operands.from, operands.w, operands.bias, operands.to, part, workspace);
  }

 private:
  static constexpr int64_t kCopyBytes = 256 << 10, kMostCopyBytes = 1 << 20, kMostColumns = 1024, kTogether = 256, kFewTasks = 64,
                           kLeastRows = 8;

  struct Part {
    int64_t plane, planes, row, rows, column, columns;  // of the result
  };

  DepthwiseSums(const Layout& l, bool is_gradient, Element source, Element w, Element result)
      : l_(l), is_gradient_(is_gradient), source_(source), weight_(w), result_(result) {
    constexpr int64_t kMostPhases = kLanesOfVector;  // so a row is no longer than its copy
    applies_ = is_depthwise(l) && (!is_gradient || std::max(l.windows.h.stride, l.windows.w.stride) <= kMostPhases);
    if (!applies_) return;
    h_ = DepthwiseAxis(l.windows.h, is_gradient);
    w_ = DepthwiseAxis(l.windows.w, is_gradient);
    strips_ = divided_up(w_.result(), kMostColumns);
    columns_ = equal_part(w_.result(), strips_, w_.phases());
    strips_ = divided_up(w_.result(), columns_);
    width_ = w_.span(columns_);
    const auto divide = [&](int64_t bands) {
      rows_ = equal_part(h_.result(), bands, h_.phases());
      bands_ = divided_up(h_.result(), rows_);
    };
    for (int64_t bands = 1; bands == 1 || (h_.span(rows_) * width_ * kVectorBytes > kCopyBytes && rows_ > h_.phases()); ++bands)
      divide(bands);
    while (tasks() < kFewTasks && rows_ >= 2 * kLeastRows * h_.phases()) divide(2 * bands_);
    applies_ = h_.span(rows_) * width_ * kVectorBytes <= kMostCopyBytes;
    together_ = std::clamp<int64_t>(kTogether / columns_, 1, rows_);
    for (int64_t b = 0; b < w_.phases(); ++b) {
      taps_.emplace_back();
      for (int64_t k = 0; k < w_.taps(); ++k) {
        if (w_.reads(b, k)) taps_.back().push_back({k * kLanesOfVector, w_.offset(b, k) * kLanesOfVector});
      }
    }
    WorkspaceLayout layout;
    layout.take(h_.span(rows_) * width_ * kVectorBytes);
    weights_at_ = layout.take(l.windows.taps() * kVectorBytes);
    sums_at_ = layout.take(together_ * columns_ * kVectorBytes);
    some_at_ = layout.take(std::max(kSome, result == Element::own ? 0 : together_ * columns_) * kVectorBytes);
    bytes_ = layout.all();
  }

  void run_part(const std::byte* source, const std::byte* w, const float* bias, std::byte* result, const Part& part,
                std::byte* workspace) const {
    const auto* const copy = reinterpret_cast<const float*>(workspace);
    auto* const weights = reinterpret_cast<float*>(workspace + weights_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    const int64_t taps = l_.windows.taps();
    find_weights(w, part, weights);
    if (is_gradient_ && has_infinity(weights, taps * kLanesOfVector, false)) return run_by_definition(source, w, result, part, workspace);
    const int64_t first = copy_source(source, part, workspace);
    float added[kLanesOfVector] = {};
    for (int64_t lane = 0; bias && lane < part.planes; ++lane) added[lane] = bias[channel_of(part.plane + lane)];

    std::array<DepthwiseRow, kDepthBlock> rows;
    for (int64_t i = 0; i < part.rows; i += together_) {
      const int64_t count = std::min(together_, part.rows - i);
      for (int64_t r = 0; r < count; ++r) {
        size_t read = 0;
        for (int64_t k = 0; k < h_.taps(); ++k) {
          const int64_t at = h_.at(part.row + i + r, k);
          if (!h_.reads(part.row + i + r, k) || at < 0 || at >= h_.source()) continue;
          rows[read++] = {copy + (at - first) * width_ * kLanesOfVector, weights + k * w_.taps() * kLanesOfVector};
        }
        add_row({rows.data(), read}, part.columns, bias ? added : nullptr, sums + r * part.columns * kLanesOfVector);
      }
      store(sums, part, part.row + i, count, result, workspace);
    }
  }

  int64_t planes() const { return l_.batch * l_.groups; }
  int64_t channel_of(int64_t plane) const { return plane % l_.groups; }

  // A vector a tap.
  void find_weights(const std::byte* w, const Part& part, float* to) const {
    const int64_t taps = l_.windows.taps(), first = channel_of(part.plane);
    if (first + part.planes <= l_.groups)
      return vectors_of(weight_, w + first * taps * bytes_each<float>(weight_), taps, part.planes, 0, taps, to);
    float some[kLanesOfVector * kDepthBlock];
    for (int64_t lane = 0; lane < part.planes; ++lane)
      Plane(weight_, w).read(channel_of(part.plane + lane) * taps, taps, some + lane * taps);
    to_lanes(some, taps, part.planes, taps, to);
  }

  // A row of the result, of which the part has some columns.
  void add_row(std::span<const DepthwiseRow> rows, int64_t columns, const float* bias, float* to) const {
    const int64_t phases = w_.phases();
    for (int64_t b = 0; b < std::min(phases, columns); ++b) {
      const int64_t n = divided_up(columns - b, phases);
      for (int64_t first = 0, count; first < n; first += count) {
        const int64_t left = n - first;
        count = left <= kMostNeighbours ? left : std::min<int64_t>(kMostNeighbours, (left + 1) / 2);
        const AddTaps add = is_gradient_     ? add_taps_of<false, true>(count)
                            : w_.step() == 1 ? add_taps_of<true, true>(count)
                                             : add_taps_of<true, false>(count);
        add(rows, taps_[static_cast<size_t>(b)], first * w_.step() * kLanesOfVector, w_.step() * kLanesOfVector, bias,
            to + (b + first * phases) * kLanesOfVector, phases * kLanesOfVector);
      }
    }
  }

  // Returns which row of the source is the copy's first.
  int64_t copy_source(const std::byte* source, const Part& part, std::byte* workspace) const {
    const int64_t size = h_.source() * w_.source(), across = w_.source(), origin = w_.origin(part.column);
    const int64_t first = std::max<int64_t>(0, h_.origin(part.row)), end = std::min(h_.source(), h_.origin(part.row) + h_.span(part.rows));
    const int64_t begin = std::max<int64_t>(0, origin), n = std::max<int64_t>(0, std::min(across, origin + width_) - begin);
    const int64_t left = std::min(begin - origin, width_), right = width_ - left - n;
    const std::byte* const planes = source + part.plane * size * bytes_each<float>(source_);
    auto* to = reinterpret_cast<float*>(workspace);
    auto* const some = reinterpret_cast<float*>(workspace + some_at_);
    const auto pad = [&](float* row) {
      std::fill_n(row, left * kLanesOfVector, 0.0f);
      std::fill_n(row + (left + n) * kLanesOfVector, right * kLanesOfVector, 0.0f);
    };
    if (n < across || n >= kLanesOfVector) {
      for (int64_t row = first; row < end; ++row, to += width_ * kLanesOfVector) {
        vectors_of(source_, planes, size, part.planes, row * across + begin, n, to + left * kLanesOfVector);
        pad(to);
      }
      return first;
    }
    const int64_t together = kSome / n;  // narrow rows, which become vectors together
    for (int64_t row = first; row < end; row += together) {
      const int64_t count = std::min(together, end - row);
      vectors_of(source_, planes, size, part.planes, row * across, count * n, some);
      for (int64_t r = 0; r < count; ++r, to += width_ * kLanesOfVector) {
        std::copy_n(some + r * n * kLanesOfVector, n * kLanesOfVector, to + left * kLanesOfVector);
        pad(to);
      }
    }
    return first;
  }

  // Rows [row, row + count) of the part.
  void store(const float* sums, const Part& part, int64_t row, int64_t count, std::byte* result, std::byte* workspace) const {
    const int64_t size = h_.result() * w_.result(), across = w_.result();
    const bool is_whole = part.columns == across;
    const int64_t lines = is_whole ? 1 : count, n = is_whole ? count * across : part.columns;
    for (int64_t line = 0; line < lines; ++line, sums += n * kLanesOfVector) {
      const Result<float> to(result + (part.plane * size + (row + line) * across + part.column) * bytes_each<float>(result_), size, 1,
                             result_);
      if (result_ == Element::own) {
        from_lanes(sums, part.planes, n, to.own(), size);
        continue;
      }
      auto* const some = reinterpret_cast<float*>(workspace + some_at_);
      from_lanes(sums, part.planes, n, some, n);
      store_rows(some, n, to, part.planes, n);
    }
  }

  // dx where a weight is infinite: what has no window isn't multiplied.
  void run_by_definition(const std::byte* dy, const std::byte* w, std::byte* dx, const Part& part, std::byte* workspace) const {
    const int64_t size = h_.result() * w_.result(), taps = l_.windows.taps();
    auto* const line = reinterpret_cast<float*>(workspace);
    float weights[kDepthBlock];
    for (int64_t plane = part.plane; plane < part.plane + part.planes; ++plane) {
      Plane(weight_, w).read(channel_of(plane) * taps, taps, weights);
      const std::byte* const from = dy + plane * l_.windows.out_size() * bytes_each<float>(source_);
      for (int64_t i = part.row; i < part.row + part.rows; ++i) {
        for (int64_t j = 0; j < part.columns; ++j)
          line[j] = input_gradient_at(l_, 1, {source_}, from, i, part.column + j, [&](int64_t, int64_t t) { return weights[t]; });
        const int64_t at = plane * size + i * w_.result() + part.column;
        store_rows<float>(line, part.columns, {dx + at * bytes_each<float>(result_), size, 1, result_}, 1, part.columns);
      }
    }
  }

  static constexpr int64_t kSome = 128;  // vectors of narrow rows

  Layout l_;
  bool is_gradient_ = false, applies_ = false;
  Element source_ = Element::own, weight_ = Element::own, result_ = Element::own;
  DepthwiseAxis h_, w_;
  int64_t rows_ = 0, bands_ = 0, columns_ = 0, strips_ = 0;  // of a task, and how many of them
  int64_t width_ = 0;                                        // of the copy
  int64_t together_ = 0;                                     // rows that are stored together
  int64_t weights_at_ = 0, sums_at_ = 0, some_at_ = 0, bytes_ = 0;
  std::vector<std::vector<DepthwiseTap>> taps_;  // of each phase of the columns
};

}  // namespace convolution
ORT_TRAIN_OPS_END
