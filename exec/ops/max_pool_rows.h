// MaxPool and its gradient over a plane of floats or of 16 bits, rows of windows at a time, some windows to a vector. Of each row of x that
// a row of windows reads, the elements are divided by the phases of the stride, so that what a tap reads of neighbouring windows lies side
// by side; padding is -infinity there, which exceeds nothing.
//
// The gradient: of the rows of windows that read a row of x, which element of each window is the largest is kept beside dy until that row
// of dx is made, a phase of it at once. It is added over windows upwards, as a loop over them would: in a row of windows taps go from last
// to first.
//
// What is written is read with other offsets soon after, which waits until the processor has moved it from its store queue to the cache. So
// x is divided a row of windows ahead of what reads it, and rows of dx are made one row of windows later.

#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "exec/gemm.h"
#include "exec/phases.h"
#include "exec/window.h"
#include "exec/workspace.h"

ORT_TRAIN_OPS_BEGIN
namespace pool {

// Vectors of numbers of taps, and which lanes a condition holds in.
#ifdef __AVX512F__
using Ints = __m512i;
using Lanes = __mmask16;
inline Ints load_ints(const int32_t* from) { return _mm512_loadu_si512(from); }
inline void store_ints(int32_t* to, Ints ints) { _mm512_storeu_si512(to, ints); }
inline Ints broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
// To all that aren't negative.
inline Ints add_to_taps(Ints taps, int32_t x) {
  return _mm512_mask_add_epi32(taps, _mm512_movepi32_mask(taps) ^ 0xffff, taps, broadcast_int(x));
}
// Larger, or no number.
inline Lanes exceeds(gemm::Vector a, gemm::Vector b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
inline Lanes lanes_of(uint64_t bits) { return static_cast<Lanes>(bits); }
inline Lanes equal(Ints a, Ints b) { return _mm512_cmpeq_epi32_mask(a, b); }
inline gemm::Vector chosen(Lanes lanes, gemm::Vector a, gemm::Vector b) { return _mm512_mask_mov_ps(b, lanes, a); }
inline Ints chosen(Lanes lanes, Ints a, Ints b) { return _mm512_mask_mov_epi32(b, lanes, a); }
inline gemm::Vector add_in(Lanes lanes, gemm::Vector sum, gemm::Vector x) { return _mm512_mask_add_ps(sum, lanes, sum, x); }
#else
using Ints = __m256i;
using Lanes = __m256;
inline Ints load_ints(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store_ints(int32_t* to, Ints ints) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ints); }
inline Ints broadcast_int(int32_t x) { return _mm256_set1_epi32(x); }
inline Ints add_to_taps(Ints taps, int32_t x) {
  return _mm256_blendv_epi8(_mm256_add_epi32(taps, broadcast_int(x)), taps, _mm256_srai_epi32(taps, 31));
}
inline Lanes exceeds(gemm::Vector a, gemm::Vector b) {
  return _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
inline Lanes lanes_of(uint64_t bits) { return _mm256_castsi256_ps(gemm::lanes_of(bits)); }
inline Lanes equal(Ints a, Ints b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
inline gemm::Vector chosen(Lanes lanes, gemm::Vector a, gemm::Vector b) { return _mm256_blendv_ps(b, a, lanes); }
inline Ints chosen(Lanes lanes, Ints a, Ints b) { return _mm256_blendv_epi8(b, a, _mm256_castps_si256(lanes)); }
inline gemm::Vector add_in(Lanes lanes, gemm::Vector sum, gemm::Vector x) { return _mm256_add_ps(sum, _mm256_and_ps(lanes, x)); }
#endif

class MaxRows {
 public:
  MaxRows() = default;
  MaxRows(const Windows& windows, Element element) : h_(windows.h), w_(windows.w), element_(element) {
    slots_ = power_of_two(std::min((h_.kernel - 1) * h_.dilation + 1 + h_.stride, h_.in));
    const auto whole = [](int64_t n) { return (n + gemm::kWidth - 1) / gemm::kWidth * gemm::kWidth; };
    width_ = whole(w_.out);
    used_ = whole((w_.in + w_.begin + w_.stride - 1) / w_.stride);
    phase_ = std::max(whole(width_ + (w_.kernel - 1) * w_.dilation / w_.stride), used_);
    lines_ = power_of_two(std::min((h_.kernel - 1) * h_.dilation / h_.stride + 1, h_.out));
    margin_ = whole((w_.kernel - 1) * w_.dilation / w_.stride);
    WorkspaceLayout layout;
    row_at_ = layout.take<float>(slot());
    x_at_ = layout.take<float>(slots_ * slot());
    dx_at_ = layout.take<float>(slot());
    y_at_ = layout.take<float>(lines_ * line());
    found_at_ = layout.take<int32_t>(lines_ * line());
    readers_at_ = layout.take<Reader>(lines_);
    read_at_ = layout.take<Row>(slots_);
    bytes_ = layout.all();
    taps_of_phase_.resize(static_cast<size_t>(w_.stride));
    for (int64_t kw = 0; kw < w_.kernel; ++kw) {
      taps_.push_back(kw * w_.dilation % w_.stride * phase_ + kw * w_.dilation / w_.stride);
    }
    for (int64_t kw = w_.kernel; kw-- > 0;) {
      taps_of_phase_[static_cast<size_t>(kw * w_.dilation % w_.stride)].push_back({static_cast<int32_t>(kw), kw * w_.dilation / w_.stride});
    }
    for (int64_t ow = 0; ow < width_; ++ow) {  // the first tap that is no padding
      int32_t kw = 0;
      while (kw < w_.kernel && (w_.at(ow, kw) < 0 || w_.at(ow, kw) >= w_.in)) ++kw;
      firsts_.push_back(ow < w_.out && kw < w_.kernel ? kw : kNone);
    }
  }

  int64_t bytes() const { return bytes_; }

  void forward(const std::byte* x, std::byte* y, std::byte* workspace) const {
    auto* const best = reinterpret_cast<float*>(workspace + y_at_);
    int64_t divided = 0;  // rows of x
    divide_for(0, x, divided, workspace);
    for (int64_t oh = 0; oh < h_.out; ++oh) {
      divide_for(oh + 1, x, divided, workspace);
      const Rows rows = rows_of(oh, workspace);
      for_vectors(width_, [&]<int n>(int64_t i) {
        gemm::Vector largest[n];
        std::fill_n(largest, n, gemm::broadcast(kLeast));
        for (const Row& row : rows) {
          for (int64_t kw = 0; kw < w_.kernel; ++kw) {
            const float* const from = row.x + tap(kw) + i;
            for (int v = 0; v < n; ++v) {
              const gemm::Vector value = gemm::load(from + v * gemm::kWidth);
              largest[v] = chosen(exceeds(value, largest[v]), value, largest[v]);
            }
          }
        }
        for (int v = 0; v < n; ++v) gemm::store(best + i + v * gemm::kWidth, largest[v]);
      });
      write(best, w_.out, y + oh * w_.out * size());
    }
  }

  void backward(const std::byte* dy, const std::byte* x, std::byte* dx, std::byte* workspace) const {
    auto* const of_windows = reinterpret_cast<float*>(workspace + y_at_);
    auto* const found = reinterpret_cast<int32_t*>(workspace + found_at_);
    std::fill_n(of_windows, lines_ * line(), 0.0f);
    std::fill_n(found, lines_ * line(), kNone);
    int64_t divided = 0, done = 0;  // rows of x, rows of dx
    divide_for(0, x, divided, workspace);
    for (int64_t oh = 0; oh < h_.out; ++oh) {
      divide_for(oh + 1, x, divided, workspace);
      const int64_t end = std::clamp<int64_t>(h_.at(oh, 0), done, h_.in);  // of the rows of dx that no later window reads
      fetch(x, divided, std::min(divided + h_.stride, h_.in), [](const std::byte* line) { __builtin_prefetch(line, 0, 3); });
      fetch(dx, end, std::min(end + h_.stride, h_.in), [](const std::byte* line) { gemm::fetch_to_write(line); });
      for (; done < end; ++done) put(done, oh - 1, dx + done * w_.in * size(), workspace);
      find(rows_of(oh, workspace), found + first_of_line(oh));
      read(dy + oh * w_.out * size(), w_.out, of_windows + first_of_line(oh));
    }
    for (; done < h_.in; ++done) put(done, h_.out - 1, dx + done * w_.in * size(), workspace);
  }

 private:
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  static constexpr int32_t kNone = -1;
  static constexpr uint64_t kAllLanes = (uint64_t{1} << gemm::kWidth) - 1;

  // A row that windows read, as phases, and the number of its first tap.
  struct Row {
    const float* x;
    int64_t tap;
  };
  struct Rows {
    int64_t count = 0;
    Row* row = nullptr;

    const Row* begin() const { return row; }
    const Row* end() const { return row + count; }
  };

  // A row of windows that reads a row of dx: where it is kept, and the number of the first tap of those that do.
  struct Reader {
    int64_t line;
    int32_t tap;
  };
  // A tap of a phase: its windows begin so many elements of the phase before what it reads.
  struct PhaseTap {
    int32_t kw;
    int64_t back;
  };

  // body<n>(i) for n vectors from element i on, of all that `elements` fill: several at once don't wait for each other.
  template <typename Body> static void for_vectors(int64_t elements, const Body& body) {
    int64_t i = 0;
    for (; i + 4 * gemm::kWidth <= elements; i += 4 * gemm::kWidth) body.template operator()<4>(i);
    for (; i + 2 * gemm::kWidth <= elements; i += 2 * gemm::kWidth) body.template operator()<2>(i);
    if (i < elements) body.template operator()<1>(i);
  }

  int64_t size() const { return bytes_each<float>(element_); }
  int64_t slot() const { return phase_ * w_.stride; }
  float* slot_of(int64_t row, std::byte* workspace) const {
    return reinterpret_cast<float*>(workspace + x_at_) + (row & (slots_ - 1)) * slot();
  }
  // Of a row of windows: where it is among those that are kept.
  int64_t line() const { return margin_ + phase_; }
  int64_t first_of_line(int64_t oh) const { return (oh & (lines_ - 1)) * line() + margin_; }
  int64_t tap(int64_t kw) const { return taps_[static_cast<size_t>(kw)]; }
  static int64_t power_of_two(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n)))); }

  void read(const std::byte* from, int64_t n, float* to) const {
    if (element_ == Element::own)
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    else
      gemm::for_element(element_, [&]<Element e>() { gemm::widen<e>(from, n, to); });
  }
  void write(const float* from, int64_t n, std::byte* to) const {
    if (element_ == Element::own)
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    else
      gemm::narrow(element_, from, n, to);
  }

  // Rows [begin, end) of a plane come into the cache meanwhile.
  template <typename Fetch> void fetch(const std::byte* plane, int64_t begin, int64_t end, const Fetch& fetch_line) const {
    for (int64_t at = begin * w_.in * size(); at < end * w_.in * size(); at += 64) fetch_line(plane + at);
  }

  // Divides the rows of x up to the last one that row `oh` of windows reads. `divided`: how many are in their slots, or have been.
  void divide_for(int64_t oh, const std::byte* x, int64_t& divided, std::byte* workspace) const {
    if (oh >= h_.out) return;
    divided = std::max(divided, std::min(h_.at(oh, 0), h_.in));  // no later window reads those before
    for (const int64_t end = std::min(h_.at(oh, h_.kernel - 1) + 1, h_.in); divided < end; ++divided) {
      divide(x + divided * w_.in * size(), slot_of(divided, workspace), workspace);
    }
  }

  // Those of x that row `oh` of windows reads.
  Rows rows_of(int64_t oh, std::byte* workspace) const {
    Rows rows{.row = reinterpret_cast<Row*>(workspace + read_at_)};
    for (int64_t kh = 0; kh < h_.kernel; ++kh) {
      const int64_t row = h_.at(oh, kh);
      if (row >= 0 && row < h_.in) rows.row[rows.count++] = {slot_of(row, workspace), kh * w_.kernel};
    }
    return rows;
  }

  // Vectors of a row, `first` its element that is a vector's first one: of the lanes beyond its ends kLeast is read, nothing written.
  uint64_t lanes_of_row(int64_t first) const { return gemm::lowest(w_.in - first) & ~gemm::lowest(-first) & kAllLanes; }
  gemm::Vector load_of_row(const float* row, int64_t first) const {
    const uint64_t lanes = lanes_of_row(first);
    if (lanes == kAllLanes) return gemm::load(row + first);
    return chosen(lanes_of(lanes), gemm::load_some(row + first, lanes), gemm::broadcast(kLeast));
  }
  void store_to_row(float* row, int64_t first, gemm::Vector v) const {
    const uint64_t lanes = lanes_of_row(first);
    lanes == kAllLanes ? gemm::store(row + first, v) : gemm::store_some(row + first, lanes, v);
  }
  bool divides_rows() const { return element_ == Element::own && w_.stride == 2; }

  // A row of x as phases.
  void divide(const std::byte* x, float* to, std::byte* workspace) const {
    if (divides_rows()) {
      const auto* const own = reinterpret_cast<const float*>(x);
      for (int64_t i = 0, first = -w_.begin; i < phase_; i += gemm::kWidth, first += 2 * gemm::kWidth) {
        const gemm::EvenOdd both(load_of_row(own, first), load_of_row(own, first + gemm::kWidth));
        gemm::store(to + i, both.even);
        gemm::store(to + phase_ + i, both.odd);
      }
      return;
    }
    auto* const row = reinterpret_cast<float*>(workspace + row_at_);
    std::fill_n(row, w_.begin, kLeast);
    read(x, w_.in, row + w_.begin);
    std::fill(row + w_.begin + w_.in, row + slot(), kLeast);
    divide_phases(row, phase_, w_.stride, to);
  }

  // A row of dx, of which `last` is the last row of windows that may have read it.
  void put(int64_t row_of_x, int64_t last, std::byte* dx, std::byte* workspace) const {
    const auto* const of_windows = reinterpret_cast<const float*>(workspace + y_at_);
    const auto* const found = reinterpret_cast<const int32_t*>(workspace + found_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + dx_at_);
    auto* const row = reinterpret_cast<float*>(workspace + row_at_);
    auto* const readers = reinterpret_cast<Reader*>(workspace + readers_at_);
    int64_t count = 0;
    for (int64_t oh = std::max<int64_t>(0, last - lines_ + 1); oh <= last; ++oh) {
      int64_t kh = 0;
      while (kh < h_.kernel && h_.at(oh, kh) != row_of_x) ++kh;
      if (kh < h_.kernel) readers[count++] = {first_of_line(oh), static_cast<int32_t>(kh * w_.kernel)};
    }
    for (size_t phase = 0; phase < taps_of_phase_.size(); ++phase) {
      float* const of_phase = sums + static_cast<int64_t>(phase) * phase_;
      for_vectors(used_, [&]<int n>(int64_t i) {
        gemm::Vector sum[n];
        std::fill_n(sum, n, gemm::zero());
        for (const Reader* reader = readers; reader < readers + count; ++reader) {
          for (const PhaseTap& tap : taps_of_phase_[phase]) {
            const int64_t window = reader->line + i - tap.back;
            const Ints which = broadcast_int(reader->tap + tap.kw);
            for (int v = 0; v < n; ++v) {
              const int64_t at = window + v * gemm::kWidth;
              sum[v] = add_in(equal(load_ints(found + at), which), sum[v], gemm::load(of_windows + at));
            }
          }
        }
        for (int v = 0; v < n; ++v) gemm::store(of_phase + i + v * gemm::kWidth, sum[v]);
      });
    }
    if (divides_rows()) {
      auto* const to = reinterpret_cast<float*>(dx);
      for (int64_t i = 0, first = -w_.begin; first < w_.in; i += gemm::kWidth, first += 2 * gemm::kWidth) {
        const gemm::Joined joined(gemm::load(sums + i), gemm::load(sums + phase_ + i));
        store_to_row(to, first, joined.first);
        store_to_row(to, first + gemm::kWidth, joined.second);
      }
      return;
    }
    join_phases(sums, phase_, w_.stride, w_.begin + w_.in, row);
    write(row + w_.begin, w_.in, dx);
  }

  // Of each window the tap whose element is the first of the largest, or kNone.
  void find(const Rows& rows, int32_t* found) const {
    if (rows.count == 0) {
      std::fill_n(found, width_, kNone);
      return;
    }
    for_vectors(width_, [&]<int n>(int64_t i) {
      gemm::Vector largest[n];
      Ints taps[n];
      std::fill_n(largest, n, gemm::broadcast(kLeast));
      for (int v = 0; v < n; ++v) {
        taps[v] = add_to_taps(load_ints(firsts_.data() + i + v * gemm::kWidth), static_cast<int32_t>(rows.row[0].tap));
      }
      for (const Row& row : rows) {
        for (int64_t kw = 0; kw < w_.kernel; ++kw) {
          const float* const from = row.x + tap(kw) + i;
          const Ints which = broadcast_int(static_cast<int32_t>(row.tap + kw));
          for (int v = 0; v < n; ++v) {
            const gemm::Vector value = gemm::load(from + v * gemm::kWidth);
            const Lanes is_larger = exceeds(value, largest[v]);
            largest[v] = chosen(is_larger, value, largest[v]);
            taps[v] = chosen(is_larger, which, taps[v]);
          }
        }
      }
      for (int v = 0; v < n; ++v) store_ints(found + i + v * gemm::kWidth, taps[v]);
    });
    std::fill(found + w_.out, found + width_, kNone);
  }

  WindowAxis h_, w_;
  Element element_ = Element::own;
  int64_t slots_ = 0, phase_ = 0, width_ = 0;  // rows at a time; elements of a phase of a row; windows of a row, in whole vectors
  int64_t used_ = 0;                           // of a phase, what belongs to x
  int64_t lines_ = 0, margin_ = 0;             // rows of windows that are kept; elements before each
  int64_t row_at_ = 0, read_at_ = 0, x_at_ = 0, dx_at_ = 0, y_at_ = 0, found_at_ = 0, readers_at_ = 0, bytes_ = 0;
  std::vector<int64_t> taps_;                         // where a row's are among its phases
  std::vector<std::vector<PhaseTap>> taps_of_phase_;  // from the last to the first
  std::vector<int32_t> firsts_;
};

}  // namespace pool
ORT_TRAIN_OPS_END
