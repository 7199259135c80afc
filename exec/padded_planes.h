// Planes of x with their padding, as a convolution reads them without im2col (exec/direct_convolution.h).
//
// Of a channel some rows are copied, divided into one plane for each phase of the strides: element (i, j) of phase (p, q) is that at
// (i * stride + p, j * stride + q) of the padded x. So what a tap reads for neighbouring windows lies side by side, at an offset from the
// first window that is the tap's own: a row of windows is so many elements wide as a row of the plane, and the windows of some rows are one
// range, in which the last elements of each row belong to no window.

#pragma once

#include <algorithm>
#include <vector>

#include "exec/window.h"

ORT_TRAIN_OPS_BEGIN

class PaddedPlanes {
 public:
  PaddedPlanes() = default;
  explicit PaddedPlanes(const Windows& windows) : h_(windows.h), w_(windows.w) {
    const auto last = [](const WindowAxis& a) { return (a.kernel - 1) * a.dilation; };
    more_rows_ = last(h_) / h_.stride;
    width_ = w_.out + last(w_) / w_.stride;
    // In steps of one, the padding behind a row is also that before the next one; behind the last row fill() leaves zeros, or the caller.
    constexpr int64_t kMostShared = 16;
    is_shared_ = w_.stride == 1 && w_.begin <= kMostShared && w_.out + last(w_) <= w_.in + w_.begin + w_.end;
    if (is_shared_) width_ = std::max(w_.in + std::max(w_.begin, w_.end), w_.out);
    for (int64_t kh = 0; kh < h_.kernel; ++kh) {
      for (int64_t kw = 0; kw < w_.kernel; ++kw) {
        const Phase phase{kh * h_.dilation % h_.stride, kw * w_.dilation % w_.stride};
        const auto known = std::find_if(phases_.begin(), phases_.end(), [&](const Phase& p) { return p.h == phase.h && p.w == phase.w; });
        taps_.push_back({known - phases_.begin(), kh * h_.dilation / h_.stride * width_ + kw * w_.dilation / w_.stride});
        if (known == phases_.end()) phases_.push_back(phase);
      }
    }
  }

  int64_t width() const { return width_; }
  // Elements of a channel, for so many rows of windows.
  int64_t channel(int64_t rows) const { return static_cast<int64_t>(phases_.size()) * plane(rows); }
  int64_t windows(int64_t rows) const { return (rows - 1) * width_ + w_.out; }
  // What tap t reads for the first window, in its channel.
  int64_t tap(int64_t t, int64_t rows) const {
    const Tap& tap = taps_[static_cast<size_t>(t)];
    return tap.phase * plane(rows) + tap.offset;
  }

  // `count` rows of windows of a channel of x, from `first` on, where there is room for `rows`. Behind the last channel the caller leaves
  // zeros, at least so many as a row has padding before it (16 at most, where that matters). x.read(at, step, n, to): n elements of the
  // plane from `at` on.
  template <typename Plane> void fill(const Plane& x, int64_t first, int64_t count, int64_t rows, float* to) const {
    for (const Phase& phase : phases_) {
      float* row = to;
      for (int64_t i = 0; i < count + more_rows_; ++i, row += width_) {
        const int64_t at = (first + i) * h_.stride + phase.h - h_.begin;
        if (at < 0 || at >= h_.in)
          std::fill_n(row, width_, 0.0f);
        else
          fill_row(x, at * w_.in, phase.w, row);
      }
      if (is_shared_ && count < rows) std::fill_n(row, width_, 0.0f);
      to += plane(rows);
    }
  }

 private:
  struct Phase {
    int64_t h, w;
  };
  struct Tap {
    int64_t phase, offset;
  };

  int64_t plane(int64_t rows) const { return (rows + more_rows_) * width_; }

  template <typename Plane> void fill_row(const Plane& x, int64_t at, int64_t phase, float* to) const {
    const int64_t before = w_.begin - phase;  // elements of padding that are in no other phase's way
    const int64_t first = std::clamp<int64_t>(before > 0 ? (before + w_.stride - 1) / w_.stride : 0, 0, width_);
    const int64_t room = w_.in + before;
    const int64_t end = std::clamp<int64_t>(room > 0 ? (room + w_.stride - 1) / w_.stride : 0, first, width_);
    std::fill_n(to, first, 0.0f);
    x.read(at + first * w_.stride - before, w_.stride, end - first, to + first);
    std::fill_n(to + end, width_ - end, 0.0f);
  }

  WindowAxis h_, w_;
  int64_t more_rows_ = 0, width_ = 0;
  bool is_shared_ = false;  // padding behind rows
  std::vector<Phase> phases_;
  std::vector<Tap> taps_;
};

// An axis whose windows are of one element each, without padding, as steps of one over those that they read: every `step`th of x.
inline WindowAxis read_elements(const WindowAxis& a, int64_t& step) {
  const bool skips = a.kernel == 1 && a.stride > 1 && a.begin == 0 && a.end == 0;
  step = skips ? a.stride : 1;
  return skips ? WindowAxis{.in = a.out, .out = a.out} : a;
}

// What tiles of neighbouring windows read of a plane, as the gradient of the weight reads it: the rows from a tile's first row of windows
// on, with their padding, one behind the other. An element is one number or, with several channels side by side, `lanes`.
class TilePlane {
 public:
  TilePlane() = default;
  // columns: windows of a tile, at most
  TilePlane(const Windows& windows, int64_t columns) : h_(windows.h), w_(windows.w) {
    width_ = std::max(w_.begin + w_.in + std::max<int64_t>(0, w_.end), (w_.out - 1) * w_.stride + (w_.kernel - 1) * w_.dilation + 1);
    const int64_t rows = std::min((columns - 1 + w_.out - 1) / w_.out + 1, h_.out);  // of windows, of which a tile may have a part
    size_ = lines(rows) * width_;
  }

  int64_t size() const { return size_; }  // elements
  // Where a window's tap is, from the window's first one on.
  int64_t tap(int64_t t) const { return t / w_.kernel * h_.dilation * width_ + t % w_.kernel * w_.dilation; }

  // The copy for windows [column, column + count). put(row, to): row of the plane to where its first element is.
  template <typename Put> void fill(int64_t column, int64_t count, int64_t lanes, float* to, const Put& put) const {
    const int64_t first = column / w_.out, end = lines((column + count - 1) / w_.out - first + 1);
    for (int64_t line = 0; line < end; ++line, to += width_ * lanes) {
      const int64_t row = first * h_.stride + line - h_.begin;
      if (row < 0 || row >= h_.in) {
        std::fill_n(to, width_ * lanes, 0.0f);
        continue;
      }
      std::fill_n(to, w_.begin * lanes, 0.0f);
      put(row, to + w_.begin * lanes);
      std::fill_n(to + (w_.begin + w_.in) * lanes, (width_ - w_.begin - w_.in) * lanes, 0.0f);
    }
  }

  // Where the first tap of each of these windows is, of some samples whose copies lie one behind the other.
  void find_windows(int64_t samples, int64_t column, int64_t count, int64_t lanes, int32_t* to) const {
    for (int64_t i = 0; i < samples; ++i) {
      int64_t across = column % w_.out, line = i * size_;
      for (int64_t k = 0; k < count; ++k) {
        *to++ = static_cast<int32_t>((line + across * w_.stride) * lanes);
        if (++across == w_.out) across = 0, line += h_.stride * width_;
      }
    }
  }

 private:
  int64_t lines(int64_t rows) const { return (rows - 1) * h_.stride + (h_.kernel - 1) * h_.dilation + 1; }

  WindowAxis h_, w_;
  int64_t width_ = 0, size_ = 0;
};

ORT_TRAIN_OPS_END
