// Tensors of a convolution as the processor's kernels read and write them: columns, rows of 16 bits, places in a workspace.

#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "exec/columns.h"
#include "exec/convolution.h"
#include "exec/gemm.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// Places one behind another, each in whole lines.
class Places {
 public:
  int64_t take(int64_t bytes) { return std::exchange(end_, end_ + gemm::whole_lines(bytes)); }
  int64_t all() const { return end_; }

 private:
  int64_t end_ = 0;
};

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

// Of an element of a channel of dx, in row i and column j, the sum by its definition: over the taps that read it upwards, of each the
// chains over channels of y. weight(o, tap); y: of the sample and group. What has no window isn't multiplied, which shows where a weight is
// infinite or no number.
template <typename Weight>
float input_gradient_at(const Layout& l, int64_t block, const float* y, int64_t i, int64_t j, const Weight& weight) {
  const auto& [h, w] = l.windows;
  const int64_t plane = l.windows.out_size();
  float sum = 0;
  for (int64_t t = 0; t < l.windows.taps(); ++t) {
    const int64_t down = i + h.begin - t / w.kernel * h.dilation, across = j + w.begin - t % w.kernel * w.dilation;
    if (down < 0 || down % h.stride != 0 || down / h.stride >= h.out) continue;
    if (across < 0 || across % w.stride != 0 || across / w.stride >= w.out) continue;
    const float* const from = y + down / h.stride * w.out + across / w.stride;
    float product = 0;
    for (int64_t begin = 0; begin < l.out_channels; begin += block) {
      float chain = 0;
      for (int64_t o = begin; o < std::min(begin + block, l.out_channels); ++o) chain = std::fma(weight(o, t), from[o * plane], chain);
      product = begin == 0 ? chain : product + chain;
    }
    sum += product;
  }
  return sum;
}

}  // namespace convolution
ORT_TRAIN_OPS_END
