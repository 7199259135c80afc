// What attention and its gradient share: the problem, a thread's workspace, the scores of a block.

#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "exec/element_types.h"
#include "exec/gemm.h"
#include "exec/lanes.h"
#include "exec/product_types.h"

ORT_TRAIN_OPS_BEGIN
namespace attention {

inline constexpr int64_t kQueries = 128, kKeys = 256;

struct Problem {
  int64_t batch = 0, heads = 0, rows = 0, columns = 0, depth = 0, width = 0;  // B, H, T, S, D, E
  bool causal = false, safe = false;
  float scale = 1;
  std::array<int64_t, 4> bias{};  // strides, 0 where broadcast
  int64_t stride = 0;             // of a row of scores, a multiple of kLanes

  int64_t items() const { return batch * heads; }
  int64_t query_blocks() const { return (rows + kQueries - 1) / kQueries; }
  // Columns that some of the rows before `row` see, of those in the block that begins at `column`.
  int64_t block_columns(int64_t column, int64_t row) const { return std::min({kKeys, columns - column, causal ? row - column : columns}); }
};

// `first` is the position of q among the inputs, `bias` that of the bias.
inline Problem problem_of(const KernelSpec& spec, size_t first, size_t bias) {
  const Shape &q = spec.inputs[first].shape, &k = spec.inputs[first + 1].shape, &v = spec.inputs[first + 2].shape;
  Problem p{.batch = q[0], .heads = q[1], .rows = q[2], .columns = k[2], .depth = q[3], .width = v[3]};
  p.causal = spec.attributes.get("causal", 0) != 0;
  p.safe = spec.attributes.get("safe", 0) != 0;
  p.scale = spec.attributes.get("scale", 1.0f);
  p.stride = (std::min(p.columns, kKeys) + kLanes - 1) / kLanes * kLanes;
  if (spec.has(bias)) {
    const Shape& shape = spec.inputs[bias].shape;
    const std::vector<int64_t> strides = strides_of(shape);
    for (size_t i = 0; i < shape.size(); ++i) p.bias[4 - shape.size() + i] = shape[i] == 1 ? 0 : strides[i];
  }
  return p;
}

// A tensor of one head, or of several: what its elements are.
inline Element operand_element(const KernelSpec& spec, size_t input) {
  return element_of(spec.inputs[input].dtype, type_from(spec.attributes, "compute", DType::float32));
}
inline Element stored_element(const TensorType& type) { return element_of(type.dtype); }

// Places in a thread's workspace, in bytes from its beginning, where products have theirs.
class Places {
 public:
  template <typename T> int64_t take(int64_t elements) {
    return std::exchange(end_, end_ + gemm::whole_lines(elements * int64_t{sizeof(T)}));
  }
  int64_t all() const { return end_; }

 private:
  int64_t end_ = 0;
};

// What both ways have of a thread's workspace: the room of products, a block of scores, numbers of each row, a row of the bias in T.
template <typename T> struct Scratch {
  int64_t scores_at = 0, largest_at = 0, sum_at = 0, bias_at = 0;

  Scratch(const Problem& p, Element left, Places& places) {  // left: of q, dy: of what stands on the left of products
    const int64_t rows = std::min(p.rows, kQueries);
    Product<T> scores{.rows = rows, .columns = kKeys, .depth = p.depth}, values{.rows = rows, .depth = p.width}, others{.depth = kKeys};
    scores.a.element = values.a.element = left;
    places.take<std::byte>(std::max({product_workspace(scores), product_workspace(values), product_workspace(others)}));
    scores_at = places.take<T>(rows * p.stride);
    largest_at = places.take<T>(kQueries);
    sum_at = places.take<T>(kQueries);
    bias_at = places.take<T>(kKeys);
  }
};

template <typename T> T* at(std::byte* place, int64_t offset) { return reinterpret_cast<T*>(place + offset); }

// Of one head.
template <typename T> struct Scores {
  Operand<T> q, k;  // (T, D), (D, S)
  const std::byte* bias = nullptr;
  Element bias_element = Element::own;
};

// scores = scale * q k^T + bias for `rows` x `n` of them from (row, column) of one head on.
template <typename T>
void block_scores(const Problem& p, const Scores<T>& head, int64_t row, int64_t rows, int64_t column, int64_t n, const Scratch<T>& scratch,
                  std::byte* place) {
  T* const to = at<T>(place, scratch.scores_at);
  multiply<T>({.rows = rows,
               .columns = n,
               .depth = p.depth,
               .a = head.q.from(row, 0),
               .b = head.k.from(0, column),
               .c = {to, p.stride},
               .alpha = static_cast<T>(p.scale),
               .triangle = p.causal ? Triangle::result : Triangle::none,
               .diagonal = row - column},
              place);
  if (!head.bias) return;
  for (int64_t i = 0; i < rows; ++i) {
    T* const scores = to + i * p.stride;
    const int64_t first = (row + i) * p.bias[2] + column * p.bias[3];
    if (p.bias[3] == 0) {
      const T number = number_of<T>(head.bias, head.bias_element, first);
      for (int64_t j = 0; j < n; ++j) scores[j] += number;
    } else {
      const T* const add = vector_of<T>(head.bias, head.bias_element, first, n, place + scratch.bias_at);
      for (int64_t j = 0; j < n; ++j) scores[j] += add[j];
    }
  }
}

// How many of a block's n columns row `row` sees; the rest of its scores are hidden up to where products and lanes read.
inline int64_t seen(const Problem& p, int64_t row, int64_t column, int64_t n) {
  return p.causal ? std::clamp<int64_t>(row - column + 1, 0, n) : n;
}
inline int64_t padded(const Problem& p, int64_t seen) { return std::min(p.stride, (seen + gemm::kRows + kLanes - 1) / kLanes * kLanes); }

inline int64_t bias_offset(const Problem& p, int64_t item) { return item / p.heads * p.bias[0] + item % p.heads * p.bias[1]; }

// What is in T as elements of a result.
template <typename T> void store_elements(const T* from, int64_t n, const Result<T>& to) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_half(to.element)) return gemm::narrow(to.element, from, n, to.data);
  }
  std::copy_n(from, n, to.own());
}

// What a score takes besides the products: flops, each of which takes as long as three of a product.
inline constexpr double kExponential = 25, kSlower = 3;

inline double scores_of(const Problem& p) { return static_cast<double>(p.rows * p.columns) * (p.causal ? 0.5 : 1); }  // of an item
template <int products> double product_of(const Problem& p) { return static_cast<double>(products * (p.depth + p.width)); }

template <size_t first, size_t bias, int products> Cost cost(const KernelSpec& spec) {
  const Problem p = problem_of(spec, first, bias);
  Cost cost{.flops = static_cast<double>(p.items()) * scores_of(p) * (product_of<products>(p) + kExponential)};
  for (const TensorType& input : spec.inputs) cost.bytes += static_cast<double>(input.bytes());
  for (const TensorType& output : spec.outputs) cost.bytes += static_cast<double>(output.bytes());
  return cost;
}

template <size_t first, size_t bias, int products> double efficiency(const KernelSpec& spec, int) {
  const Problem p = problem_of(spec, first, bias);
  int64_t computed = 0;  // a block of rows has the scores of its last row
  for (int64_t begin = 0; begin < p.rows; begin += kQueries) {
    const int64_t end = std::min(begin + kQueries, p.rows);
    computed += (end - begin) * (p.causal ? std::min(end, p.columns) : p.columns);
  }
  if (computed == 0) return 0;
  const double product = product_of<products>(p);
  return scores_of(p) * (product + kExponential) / (static_cast<double>(computed) * (product + kSlower * kExponential));
}

}  // namespace attention
ORT_TRAIN_OPS_END
