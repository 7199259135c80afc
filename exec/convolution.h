// What the convolution and its gradients share: shapes, which part of the weight a node has, elements of 16 bits.

#pragma once

#include <algorithm>
#include <utility>

#include "exec/columns.h"
#include "exec/element_types.h"
#include "exec/gemm.h"
#include "exec/product_types.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

inline constexpr int64_t kColumnBytes = 384 << 10;  // of a tile of columns: beside the packed panel it fits in the second-level cache
inline constexpr int64_t kFewTasks = 16;            // with fewer, channels are divided too

struct Layout {
  Windows windows;
  int64_t batch = 0, groups = 1, in_channels = 0, out_channels = 0;  // channels of one group
  int64_t first = 0, total = 0;                                      // of y's channels: where a part begins; all of them

  int64_t depth() const { return in_channels * windows.taps(); }
  int64_t weights() const { return groups * out_channels * depth(); }
  int64_t image() const { return groups * in_channels * windows.in_size(); }  // elements of a sample of x
  int64_t result() const { return total * windows.out_size(); }               // and of y
  int64_t products() const { return groups * depth() * windows.out_size(); }  // and of what dx is made from
  int64_t x_at(int64_t n, int64_t g, int64_t channel) const { return n * image() + (g * in_channels + channel) * windows.in_size(); }
  int64_t y_at(int64_t n, int64_t g, int64_t channel) const {
    return n * result() + (first + g * out_channels + channel) * windows.out_size();
  }
  int64_t products_at(int64_t n, int64_t g, int64_t channel) const {
    return n * products() + (g * in_channels + channel) * windows.taps() * windows.out_size();
  }
  bool is_last() const { return first + groups * out_channels == total; }
};

inline Layout whole_layout(const Attributes& attributes, const Shape& x, const Shape& w) {
  Layout l{.windows = windows_of(attributes, x)};
  l.groups = attributes.get("group", int64_t{1});
  if (w.size() != x.size()) throw error(ErrorCode::unsupported, "a weight of {} does not fit {}", to_string(w), to_string(x));
  const bool divides = l.groups > 0 && w[0] > 0 && w[1] > 0 && w[0] % l.groups == 0 && x[1] == w[1] * l.groups;
  if (!divides) {
    throw error(ErrorCode::unsupported, "{} channels, a weight of {} and {} groups don't go together", x[1], to_string(w), l.groups);
  }
  if (attributes.get("kernel_shape", std::vector<int64_t>{}) != std::vector<int64_t>(w.begin() + 2, w.end()))
    throw error(ErrorCode::unsupported, "its kernel_shape is not that of its weight {}", to_string(w));
  l.batch = x[0];
  l.in_channels = w[1];
  l.out_channels = w[0] / l.groups;
  l.total = w[0];
  return l;
}

// Where w is a part that begins at channel `first` of `total`.
inline Layout part_layout(Layout l, int64_t first, int64_t total) {
  const int64_t count = l.groups * l.out_channels;
  if (first < 0 || count > total || first > total - count || (l.groups > 1 && count < total))
    throw error(ErrorCode::unsupported, "{} channels from {} on are no part of {} in {} groups", count, first, total, l.groups);
  l.first = first;
  l.total = total;
  return l;
}

inline Layout layout_of(const Attributes& attributes, const Shape& x, const Shape& w) {
  const Layout l = whole_layout(attributes, x, w);  // checks w
  return part_layout(l, attributes.get("first", int64_t{0}), attributes.get("total", w[0]));
}

// Of the gradients: the tensor's that they are of.
inline Shape shape_of(const Attributes& attributes) { return attributes.get("shape", Shape{}); }

inline Attributes attributes_of_part(const Node& node, const RowRange& rows, const char* size, int64_t value) {
  Attributes attributes = node.attributes;
  attributes.set("first", rows.first);
  attributes.set(size, value);
  return attributes;
}

// Where a weight's parts may begin, so that sums over its rows have the bits of the whole.
inline int64_t rows_of_parts(const Graph& graph, const Node& node, size_t input) {
  const bool can = input == 1 && node.attributes.get("group", int64_t{1}) == 1;
  return can ? depth_block(graph.value(node.inputs[1]).shape[0]) : 0;
}

// --- tiles ---------------------------------------------------------------------------------------------------------------------------

// So many samples share a tile of about `columns` windows.
inline int64_t samples_together(const Layout& l, int64_t columns) {
  return std::clamp<int64_t>(columns / l.windows.out_size(), 1, std::max<int64_t>(1, l.batch));
}

inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Places one behind another, each in whole lines.
class Places {
 public:
  int64_t take(int64_t bytes) { return std::exchange(end_, end_ + gemm::whole_lines(bytes)); }
  int64_t all() const { return end_; }

 private:
  int64_t end_ = 0;
};

// --- tensors of T, or of 16 bits ------------------------------------------------------------------------------------------------------

// What the elements of an operand are, and of a result.
inline Element operand_element(const KernelSpec& spec, size_t input) {
  return element_of(spec.inputs[input].dtype, type_from(spec.attributes, "compute", DType::float32));
}
inline Element result_element(const KernelSpec& spec) { return element_of(spec.outputs[0].dtype); }

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

// Prepares for the T of the sums: kernel.operator()<T>().
template <typename Kernel> auto for_sums(const KernelSpec& spec, Kernel&& kernel) {
  return for_type(Wide{}, compute_type(spec.outputs[0].dtype), kernel);
}
inline constexpr DTypes kTypes = kWide | kMixed;

// --- cost -----------------------------------------------------------------------------------------------------------------------------

// All three are the same multiply-adds.
template <Layout (*layout)(const KernelSpec&)> Cost cost(const KernelSpec& spec) {
  const Layout l = layout(spec);
  Cost cost{.flops = 2.0 * static_cast<double>(l.batch * l.groups * l.out_channels) * static_cast<double>(l.depth()) *
                     static_cast<double>(l.windows.out_size())};
  for (size_t i = 0; i < spec.inputs.size(); ++i) cost.bytes += spec.has(i) ? static_cast<double>(spec.inputs[i].bytes()) : 0;
  cost.bytes += static_cast<double>(spec.outputs[0].bytes());
  const int64_t others = l.total - l.groups * l.out_channels;  // channels of y, or dy, that a part leaves alone
  cost.bytes -= static_cast<double>(l.batch * others * l.windows.out_size() * size_of(spec.outputs[0].dtype));
  if (spec.has(3)) cost.bytes -= static_cast<double>(spec.inputs[3].bytes());  // y as it was
  return cost;
}

// Gathering and spreading columns takes as long as `more` multiply-adds with each element of them, of which the product itself makes
// `useful` (measured). Pairs of bfloat16 are multiplied faster, which leaves the other work as it is.
inline double share_of(const KernelSpec& spec, int64_t useful, double more) {
  const double rate = gemm::rate_of(operand_element(spec, 0), operand_element(spec, 1));
  return static_cast<double>(useful) / (static_cast<double>(useful) / rate + more);
}

}  // namespace convolution
ORT_TRAIN_OPS_END
