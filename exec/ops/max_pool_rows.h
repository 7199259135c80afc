// MaxPool and its gradient over a plane of floats or of 16 bits, rows of windows at a time, some windows to a vector. Of each row of x that
// a row of windows reads, the elements are divided by the phases of the stride, so that what a tap reads of neighbouring windows lies side
// by side; padding is -infinity there, which exceeds nothing. So are the rows of dx, which go to the result when no later window reads
// them.
//
// The gradient of x is added over windows upwards, as a loop over them would: in a row of windows taps go from last to first.

#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "exec/gemm.h"
#include "exec/phases.h"
#include "exec/places.h"
#include "exec/window.h"

ORT_TRAIN_OPS_BEGIN
namespace pool {

class MaxRows {
 public:
  MaxRows() = default;
  MaxRows(const Windows& windows, Element element) : h_(windows.h), w_(windows.w), element_(element) {
    slots_ = std::min((h_.kernel - 1) * h_.dilation + 1, h_.in);
    const auto whole = [](int64_t n) { return (n + gemm::kWidth - 1) / gemm::kWidth * gemm::kWidth; };
    width_ = whole(w_.out);
    phase_ = whole(std::max(width_ + (w_.kernel - 1) * w_.dilation / w_.stride, (w_.in + w_.begin + w_.stride - 1) / w_.stride));
    Places places;
    row_at_ = places.take<float>(phase_ * w_.stride);
    x_at_ = places.take<float>(slots_ * slot());
    dx_at_ = places.take<float>(slots_ * slot());
    y_at_ = places.take<float>(width_);
    found_at_ = places.take<int32_t>(width_);
    held_at_ = places.take<int64_t>(slots_);
    rows_at_ = places.take<Row>(slots_);
    bytes_ = places.all();
    for (int64_t kw = 0; kw < w_.kernel; ++kw) taps_.push_back(kw * w_.dilation % w_.stride * phase_ + kw * w_.dilation / w_.stride);
    for (int64_t ow = 0; ow < width_; ++ow) {  // the first tap that is no padding
      int32_t kw = 0;
      while (kw < w_.kernel && (w_.at(ow, kw) < 0 || w_.at(ow, kw) >= w_.in)) ++kw;
      firsts_.push_back(ow < w_.out && kw < w_.kernel ? kw : kNone);
    }
  }

  int64_t bytes() const { return bytes_; }

  void forward(const std::byte* x, std::byte* y, std::byte* place) const {
    auto* const best = reinterpret_cast<float*>(place + y_at_);
    hold_none(place);
    for (int64_t oh = 0; oh < h_.out; ++oh) {
      const Rows rows = rows_of(oh, x, place);
      for (int64_t i = 0; i < width_; i += gemm::kWidth) {
        gemm::Vector largest = gemm::broadcast(kLeast);
        for (const Row& row : rows) {
          for (int64_t kw = 0; kw < w_.kernel; ++kw) {
            const gemm::Vector value = gemm::load(row.x + tap(kw) + i);
            largest = exceeds(value, largest) ? value : largest;
          }
        }
        gemm::store(best + i, largest);
      }
      write(best, w_.out, y + oh * w_.out * size());
    }
  }

  void backward(const std::byte* dy, const std::byte* x, std::byte* dx, std::byte* place) const {
    auto* const of_windows = reinterpret_cast<float*>(place + y_at_);
    auto* const found = reinterpret_cast<int32_t*>(place + found_at_);
    auto* const sums = reinterpret_cast<float*>(place + dx_at_);
    std::fill_n(sums, slots_ * slot(), 0.0f);
    std::fill_n(of_windows, width_, 0.0f);
    hold_none(place);
    int64_t done = 0;  // rows of dx
    for (int64_t oh = 0; oh < h_.out; ++oh) {
      const Rows rows = rows_of(oh, x, place);
      if (rows.count > 0) find(rows, found);
      read(dy + oh * w_.out * size(), w_.out, of_windows);
      for (const Row& row : rows) {
        for (int64_t kw = w_.kernel - 1; kw >= 0; --kw) {
          float* const to = sums + row.slot * slot() + tap(kw);
          const Ints which = Ints{} + static_cast<int32_t>(row.tap + kw);
          for (int64_t i = 0; i < width_; i += gemm::kWidth) {
            const gemm::Vector added = load(found + i) == which ? gemm::load(of_windows + i) : gemm::zero();
            gemm::store(to + i, gemm::load(to + i) + added);
          }
        }
      }
      const int64_t end = oh + 1 < h_.out ? std::clamp<int64_t>(h_.at(oh + 1, 0), done, h_.in) : h_.in;
      for (; done < end; ++done) put(sums + done % slots_ * slot(), dx + done * w_.in * size(), place);
    }
  }

 private:
  using Ints = decltype(gemm::Vector{} > gemm::Vector{});
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  static constexpr int32_t kNone = -1;

  // A row that windows read: where it is in x's slots, and the number of its first tap.
  struct Row {
    const float* x;
    int64_t slot, tap;
  };
  struct Rows {
    int64_t count = 0;
    Row* row = nullptr;

    const Row* begin() const { return row; }
    const Row* end() const { return row + count; }
  };

  static Ints exceeds(gemm::Vector a, gemm::Vector b) { return (a > b) | (a != a); }
  static Ints load(const int32_t* from) {
    Ints ints;
    std::memcpy(&ints, from, sizeof(ints));
    return ints;
  }

  int64_t size() const { return bytes_each<float>(element_); }
  int64_t slot() const { return phase_ * w_.stride; }
  int64_t tap(int64_t kw) const { return taps_[static_cast<size_t>(kw)]; }
  // Of each slot its row of x.
  int64_t* held(std::byte* place) const { return reinterpret_cast<int64_t*>(place + held_at_); }
  void hold_none(std::byte* place) const { std::fill_n(held(place), slots_, kNone); }

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

  // Those of x that row `oh` of windows reads, each copied to its slot if it isn't there.
  Rows rows_of(int64_t oh, const std::byte* x, std::byte* place) const {
    Rows rows{.row = reinterpret_cast<Row*>(place + rows_at_)};
    for (int64_t kh = 0; kh < h_.kernel; ++kh) {
      const int64_t row = h_.at(oh, kh);
      if (row < 0 || row >= h_.in) continue;
      const int64_t which = row % slots_;
      float* const to = reinterpret_cast<float*>(place + x_at_) + which * slot();
      if (std::exchange(held(place)[which], row) != row) divide(x + row * w_.in * size(), to, place);
      rows.row[rows.count++] = {to, which, kh * w_.kernel};
    }
    return rows;
  }

  // A row of x as phases.
  void divide(const std::byte* x, float* to, std::byte* place) const {
    auto* const row = reinterpret_cast<float*>(place + row_at_);
    std::fill_n(row, w_.begin, kLeast);
    read(x, w_.in, row + w_.begin);
    std::fill(row + w_.begin + w_.in, row + slot(), kLeast);
    divide_phases(row, phase_, w_.stride, to);
  }

  // Phases as a row of dx; they are zeros then.
  void put(float* sums, std::byte* dx, std::byte* place) const {
    auto* const row = reinterpret_cast<float*>(place + row_at_);
    join_phases(sums, phase_, w_.stride, w_.begin + w_.in, row);
    write(row + w_.begin, w_.in, dx);
    std::fill_n(sums, slot(), 0.0f);
  }

  // Of each window the tap whose element is the first of the largest, or kNone.
  void find(const Rows& rows, int32_t* found) const {
    for (int64_t i = 0; i < width_; i += gemm::kWidth) {
      const Ints first = load(firsts_.data() + i);
      Ints taps = first < 0 ? first : first + static_cast<int32_t>(rows.row[0].tap);
      gemm::Vector largest = gemm::broadcast(kLeast);
      for (const Row& row : rows) {
        for (int64_t kw = 0; kw < w_.kernel; ++kw) {
          const gemm::Vector value = gemm::load(row.x + tap(kw) + i);
          const Ints is_larger = exceeds(value, largest);
          largest = is_larger ? value : largest;
          taps = is_larger ? Ints{} + static_cast<int32_t>(row.tap + kw) : taps;
        }
      }
      std::memcpy(found + i, &taps, sizeof(taps));
    }
    std::fill(found + w_.out, found + width_, kNone);
  }

  WindowAxis h_, w_;
  Element element_ = Element::own;
  int64_t slots_ = 0, phase_ = 0, width_ = 0;  // rows at a time; elements of a phase of a row; windows of a row, in whole vectors
  int64_t row_at_ = 0, x_at_ = 0, dx_at_ = 0, y_at_ = 0, found_at_ = 0, held_at_ = 0, rows_at_ = 0, bytes_ = 0;
  std::vector<int64_t> taps_;  // where a row's are among its phases
  std::vector<int32_t> firsts_;
};

}  // namespace pool
ORT_TRAIN_OPS_END
