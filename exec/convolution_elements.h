// Tensors of a convolution as the processor's kernels read and write them: columns, rows of 16 bits.

#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "exec/columns.h"
#include "exec/convolution.h"
#include "exec/even_odd.h"
#include "exec/gemm.h"
#include "exec/indexed_product.h"
#include "exec/phases.h"
#include "exec/workspace.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// A tensor whose elements are moved, not computed with: body.operator()<Word>() for the type that is as large as they are.
template <typename T, typename Body> void as_words(Element element, Body&& body) {
  if (is_half(element))
    body.template operator()<uint16_t>();
  else
    body.template operator()<T>();
}

// The columns of some channels of x, from which elements lie at `x`, as elements of the same kind.
template <typename T>
void gather_elements(const Windows& windows, Element element, const std::byte* x, int64_t channels, int64_t first, int64_t count,
                     std::byte* columns, int64_t stride) {
  as_words<T>(element, [&]<typename Word>() {
    gather_columns(windows, reinterpret_cast<const Word*>(x), channels, first, count, reinterpret_cast<Word*>(columns), stride);
  });
}
template <typename T>
void copy_elements(Element element, const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t rows,
                   int64_t size) {
  as_words<T>(element, [&]<typename Word>() {
    copy_planes(reinterpret_cast<const Word*>(from), from_stride, reinterpret_cast<Word*>(to), to_stride, rows, size);
  });
}

// Rows of T as elements of a result.
template <typename T> void store_rows(const T* from, int64_t from_stride, const Result<T>& to, int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride) {
    const Result<T> row = to.from(r, 0);
    if constexpr (std::is_same_v<T, float>) {
      if (is_half(to.element)) {
        gemm::narrow(to.element, from, size, row.data);
        continue;
      }
    }
    std::copy_n(from, size, row.own());
  }
}

// Gathering and spreading columns takes as long as `more` multiply-adds with each element of them, of which the product itself makes
// `useful` (measured). Pairs of bfloat16 are multiplied faster, which leaves the other work as it is.
inline double share_of(const KernelSpec& spec, int64_t useful, double more) {
  const double rate = gemm::rate_of(operand_element(spec, 0), operand_element(spec, 1));
  return static_cast<double>(useful) / (static_cast<double>(useful) / rate + more);
}

// Where elements of some planes will be stored, of planes [begin, end): lines come into the cache meanwhile, since another core may have
// them.
inline void fetch_planes(int64_t count, int64_t begin, int64_t end, const Result<float>& to) {
  for (int64_t plane = begin; plane < end; ++plane) {
    const std::byte* const from = to.from(plane, 0).data;
    for (int64_t line = 0; line < count * to.size(); line += 64) gemm::fetch_to_write(from + line);
  }
}

// What y, or dx, is made of without columns (exec/convolution_algorithms.h).
struct Operands {
  const std::byte *from = nullptr, *w = nullptr;  // x or dy; the weight
  std::byte* to = nullptr;
  float* shared = nullptr;        // room for what the tasks share
  const float* bias = nullptr;    // of all channels of y, or null
  const float* before = nullptr;  // what dx's sums go on from, of each sample and channel, or null
};

// --- without columns ------------------------------------------------------------------------------------------------------------------

inline constexpr int64_t kPlaneBytes = 768 << 10;  // of x's copy at most: planes that are larger are made by columns
inline constexpr int64_t kSharedBytes = 16 << 20;  // of copies of a weight (ResNets': 9 MiB) and of x. More shows in the smallest budgets
inline constexpr int64_t kBehind = 16 + gemm::kPanel;  // elements behind it: padding that rows share, and what the last vectors may reach

// What takes time beside the products, as so many multiply-adds (measured): to copy an element that windows read one after another, or in
// steps; to begin and end a micro-kernel, along its depth.
inline constexpr double kCopying = 38, kCopyingInSteps = 88;
inline double share_of_depth(int64_t words, double ends) { return 0.97 * static_cast<double>(words) / (static_cast<double>(words) + ends); }

// A plane as words of micro-kernels (exec/gemm_micro.h): of its elements floats, or of its elements and those of a second one pairs.
class Plane {
 public:
  Plane(Element element, const std::byte* plane) : element_(element), first_(plane) {}
  // second: null: zeros
  Plane(Element element, const std::byte* first, const std::byte* second)
      : element_(element), pairs_(true), first_(first), second_(second) {}

  const float* floats() const { return element_ == Element::own ? reinterpret_cast<const float*>(first_) : nullptr; }  // if it has them

  // Brings n elements from `at` on into the first-level cache.
  void fetch(int64_t at, int64_t n) const {
    const int64_t size = bytes_each<float>(element_);
    for (int64_t line = 0; line < n * size; line += 64) __builtin_prefetch(first_ + at * size + line, 0, 3);
    for (int64_t line = 0; second_ && line < n * size; line += 64) __builtin_prefetch(second_ + at * size + line, 0, 3);
  }
  // n words from `at` on.
  void read(int64_t at, int64_t n, float* to) const {
    if (const float* const from = floats()) {
      std::memcpy(to, from + at, static_cast<size_t>(n) * sizeof(float));
      return;
    }
    gemm::for_element(element_, [&]<Element e>() {
      const int64_t bytes = at * bytes_each<float>(e);
      if (!pairs_) return gemm::widen<e>(first_ + bytes, n, to);
      if constexpr (is_bfloat16(e)) gemm::pair_row<e>(first_ + bytes, second_ ? second_ + bytes : nullptr, n, to, gemm::has_pairs());
    });
  }
  // The same of every `step`th.
  void read(int64_t at, int64_t step, int64_t n, float* to) const {
    if (step == 1) return read(at, n, to);
    if (const float* const from = floats()) return gemm::copy_in_steps(from + at, step, n, to);
    constexpr int64_t kSome = 512;
    float some[kSome];
    for (const int64_t most = (kSome - 1) / step + 1; n > 0; n -= most, at += most * step, to += most) {
      const int64_t count = std::min(n, most);
      read(at, (count - 1) * step + 1, some);
      gemm::copy_in_steps(some, step, count, to);
    }
  }

 private:
  Element element_;
  bool pairs_ = false;
  const std::byte *first_, *second_ = nullptr;
};

// What an operand's planes are to micro-kernels.
struct Words {
  Element element = Element::own;
  bool pairs = false;  // of neighbouring planes; an odd last one's are zeros

  int64_t of(int64_t planes) const { return pairs ? divided_up(planes, 2) : planes; }
  // Of so many planes, `step` elements apart.
  Plane plane(const std::byte* planes, int64_t word, int64_t step, int64_t count) const {
    const int64_t bytes = step * bytes_each<float>(element);
    if (!pairs) return {element, planes + word * bytes};
    const std::byte* const first = planes + 2 * word * bytes;
    return {element, first, 2 * word + 1 < count ? first + bytes : nullptr};
  }
};

// What words of samples are: pairs of two samples, where the processor multiplies them in vectors.
inline Words words_of_samples(Element dy, Element x) { return {x, gemm::way_of(dy, x) == gemm::Way::pairs}; }
inline WeightTiles tiles_of_samples(Layout l, const Words& words) {
  l.batch = words.of(l.batch);
  return weight_tiles(l, sizeof(float));
}

// Whether there is a number that is infinite or none.
inline bool has_infinity(const float* words, int64_t n, bool pairs) {
  constexpr uint32_t kUpper = 0x7f800000, kLower = 0x7f80;
  uint32_t upper = 0, lower = 0;  // the largest exponents: a loop that the compiler vectorises
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = float_bits::of(words[i]);
    upper = std::max(upper, word & kUpper);
    lower = std::max(lower, word & kLower);
  }
  return upper == kUpper || (pairs && lower == kLower);
}

// Whether dx is always made of the whole weight by one node: of larger ones, whose products take less memory, it may be made in parts
// (exec/ops/conv_input_gradient.cpp), which have to be added tap by tap; Winograd's filtering has no products of single taps.
inline bool is_undivided(const Layout& l) {
  const double products = static_cast<double>(l.batch) * static_cast<double>(l.products()), weights = static_cast<double>(l.weights());
  return l.first == 0 && l.is_last() && (l.groups > 1 || takes_winograd(l) || products > weights);
}

inline constexpr int64_t kMostStride = 4;  // along an axis: more phases than that take columns

// Of an axis of windows: how far from an element, in steps, the windows are that read it; and these steps as windows over dy.
struct Reach {
  int64_t first = 0, last = 0;

  explicit Reach(const WindowAxis& a) : a_(a) {
    for (int64_t phase = 0; phase < phases(); ++phase) {
      for (int64_t k = 0; k < a.kernel; ++k) {
        if (!a.reads(phase, k)) continue;
        first = std::min(first, a.window(phase, k));
        last = std::max(last, a.window(phase, k));
      }
    }
  }
  int64_t phases() const { return std::min(a_.stride, a_.in); }
  WindowAxis windows() const {
    const int64_t out = divided_up(a_.in, a_.stride);
    return {.in = a_.out, .kernel = last - first + 1, .begin = -first, .end = out + last - a_.out, .out = out};
  }

 private:
  WindowAxis a_;
};

// Of the elements of dx in phase (down, across) of the strides: which taps read them, upwards, and where these find their words among the
// windows over dy (Reach::windows).
struct TapOfPhase {
  int64_t tap, place;
};
inline std::vector<TapOfPhase> taps_of_phase(const Windows& windows, int64_t down, int64_t across) {
  const Reach h(windows.h), w(windows.w);
  std::vector<TapOfPhase> taps;
  for (int64_t t = 0; t < windows.taps(); ++t) {
    const int64_t kh = t / windows.w.kernel, kw = t % windows.w.kernel;
    if (!windows.h.reads(down, kh) || !windows.w.reads(across, kw)) continue;
    taps.push_back({t, (windows.h.window(down, kh) - h.first) * (w.last - w.first + 1) + windows.w.window(across, kw) - w.first});
  }
  return taps;
}

// A channel of a result as sums: those of each phase of its steps in rows of windows, phase behind phase. Without phases a phase is all.
class PhasedRows {
 public:
  struct Axis {
    int64_t size = 1, stride = 1;
    int64_t phases() const { return std::min(stride, size); }
  };

  PhasedRows() = default;
  // h, w: of the result; phase, row: elements from the sums of a phase to those of the next one, and from a row of windows to the next
  PhasedRows(Axis h, Axis w, int64_t phase, int64_t row) : h_(h), w_(w), phase_(phase), row_(row) {}

  int64_t phases() const { return h_.phases() * w_.phases(); }
  int64_t width() const { return w_.size; }
  // Line i of the result, phase b of its columns, where the sums begin with row `row` of each phase.
  int64_t line(int64_t i, int64_t b, int64_t row) const {
    return (i % h_.stride * w_.phases() + b) * phase_ + (i / h_.stride - row) * row_;
  }
  // The first line of a row of windows, and the one behind the last one of so many.
  int64_t begin(int64_t row) const { return row * h_.stride; }
  int64_t end(int64_t row, int64_t rows) const { return std::min((row + rows) * h_.stride, h_.size); }
  // Those lines. to: the channel's first element; some: room for a line
  void store(const float* sums, int64_t row, int64_t rows, const Result<float>& to, float* some) const {
    const Result<float> lines(to.data, w_.size, 1, to.element);
    if (phases() == 1) return store_rows(sums, row_, lines.from(row, 0), rows, w_.size);
    for (int64_t i = row * h_.stride; i < end(row, rows); ++i) {
      if (w_.stride == 1) {
        store_rows(sums + line(i, 0, row), w_.size, lines.from(i, 0), 1, w_.size);
        continue;
      }
      float* const joined = to.element == Element::own ? lines.from(i, 0).own() : some;
      join_phases(sums + line(i, 0, row), phase_, w_.stride, w_.size, joined);
      if (joined == some) store_rows(some, w_.size, lines.from(i, 0), 1, w_.size);
    }
  }

 private:
  Axis h_, w_;
  int64_t phase_ = 0, row_ = 0;
};

// Of an element of a channel of dx, in row i and column j, the sum by its definition: over the taps that read it upwards, of each the
// chains over channels of y, or of `together` taps one. block: of the chains, in words; weight(o, tap): likewise; y: of the sample and
// group. What has no window isn't multiplied, which shows where a weight is infinite or no number.
template <typename Weight>
float input_gradient_at(const Layout& l, int64_t block, const Words& words, const std::byte* y, int64_t i, int64_t j, const Weight& weight,
                        int64_t together = 1) {
  const auto& [h, w] = l.windows;
  const int64_t all = words.of(l.out_channels);
  float sum = 0, product = 0;
  for (int64_t t = 0, tap = 0; t < l.windows.taps(); ++t) {
    const int64_t kh = t / w.kernel, kw = t % w.kernel, down = h.window(i, kh), across = w.window(j, kw);
    if (!h.reads(i, kh) || !w.reads(j, kw)) continue;
    if (tap++ % together == 0) sum += std::exchange(product, 0.0f);
    if (down < 0 || down >= h.out || across < 0 || across >= w.out) continue;
    for (int64_t begin = 0; begin < all; begin += block) {
      float chain = begin == 0 ? product : 0.0f;
      for (int64_t o = begin; o < std::min(begin + block, all); ++o) {
        float word;
        words.plane(y, o, l.windows.out_size(), l.out_channels).read(down * w.out + across, 1, &word);
        chain = gemm::add_product(weight(o, t), word, chain, words.pairs);
      }
      product = begin == 0 ? chain : product + chain;
    }
  }
  return sum + product;
}

}  // namespace convolution
ORT_TRAIN_OPS_END
