// What attention's kernels of all devices share: the problem, its blocks of rows and keys, which scores count, what it costs.

#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "exec/element.h"
#include "exec/lanes.h"
#include "exec/math.h"
#include "exec/product_types.h"

ORT_TRAIN_OPS_BEGIN
namespace attention {

inline constexpr int64_t kQueries = 128, kKeys = 256;
// Where causal, products read weights so far behind a row's last column at least, which are zeros: rows of a block in vector registers.
// Those of tile registers have more rows, but begin at multiples of these, as zeros end at a multiple of kLanes.
inline constexpr int64_t kBeyond = 8;

struct Problem {
  int64_t batch = 0, heads = 0, rows = 0, columns = 0, depth = 0, width = 0;  // B, H, T, S, D, E
  int64_t group = 1;                                                          // neighbouring heads that share keys and values: H / K
  bool causal = false, safe = false, replaces = false;
  float scale = 1;
  std::array<int64_t, 4> bias{};  // strides, 0 where broadcast
  int64_t stride = 0;             // of a row of scores, a multiple of kLanes

  HOST_DEVICE int64_t items() const { return batch * heads; }
  HOST_DEVICE int64_t key_items() const { return items() / group; }
  HOST_DEVICE int64_t key_item(int64_t item) const { return item / group; }
  int64_t query_blocks() const { return (rows + kQueries - 1) / kQueries; }
  int64_t key_blocks() const { return (columns + kKeys - 1) / kKeys; }
  // Columns that the rows before `row` see.
  int64_t columns_before(int64_t row) const { return causal ? std::min(columns, row) : columns; }
  // Columns that some of the rows before `row` see, of those in the block that begins at `column`.
  int64_t block_columns(int64_t column, int64_t row) const { return std::min({kKeys, columns - column, causal ? row - column : columns}); }
};

// `first` is the position of q among the inputs, `bias` that of the bias.
inline Problem problem_of(const KernelSpec& spec, size_t first, size_t bias) {
  const Shape &q = spec.inputs[first].shape, &k = spec.inputs[first + 1].shape, &v = spec.inputs[first + 2].shape;
  Problem p{.batch = q[0], .heads = q[1], .rows = q[2], .columns = k[2], .depth = q[3], .width = v[3]};
  p.group = k[1] > 0 ? q[1] / k[1] : 1;
  p.causal = spec.attributes.get("causal", 0) != 0;
  p.safe = spec.attributes.get("safe", 0) != 0;
  p.replaces = spec.attributes.get("replaces", 0) != 0;
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

// How many of a block's n columns row `row` sees; the rest of its scores are hidden up to where products and lanes read.
HOST_DEVICE inline int64_t seen(const Problem& p, int64_t row, int64_t column, int64_t n) {
  const int64_t most = p.causal && row - column + 1 < n ? row - column + 1 : n;
  return most > 0 ? most : 0;
}
HOST_DEVICE inline int64_t padded(const Problem& p, int64_t seen) {
  const int64_t end = (seen + kBeyond + kLanes - 1) / kLanes * kLanes;
  return end < p.stride ? end : p.stride;
}

HOST_DEVICE inline int64_t bias_offset(const Problem& p, int64_t item) { return item / p.heads * p.bias[0] + item % p.heads * p.bias[1]; }

// A row's largest score and the sum of its weights relative to that, as lse. Not libm's logarithm: each device's has bits of its own.
template <typename T> HOST_DEVICE inline T log_of_sum(T largest, T sum) { return largest + math::log(sum); }
// What rounding takes from that where a mask makes all of a row's scores -1e9 or the like: the logarithm as a whole. Below 1,024 it takes
// at most 2^-14 (in float32), which is left out: 0.
template <typename T> HOST_DEVICE inline T rest_of_sum(T largest, T sum) {
  constexpr T kUsual = 1024;
  if (largest > -kUsual && largest < kUsual) return T(0);
  return math::log(sum) - (log_of_sum(largest, sum) - largest);
}

inline constexpr float kHidden = -1e30f;  // a score at or below this is hidden, as passes/fuse_attention.cpp has it
// What the gradients of a row's scores are multiplied by.
template <typename T> HOST_DEVICE inline T slope_of_scores(const Problem& p, T lse) {
  return p.replaces && lse <= T(kHidden) ? T(0) : static_cast<T>(p.scale);
}

// What a score takes besides the products: flops, each of which takes as long as four of a product (measured).
inline constexpr double kExponential = 25, kSlower = 4;

inline double scores_of(const Problem& p) { return static_cast<double>(p.rows * p.columns) * (p.causal ? 0.5 : 1); }  // of an item
template <int products> double product_of(const Problem& p) { return static_cast<double>(products * (p.depth + p.width)); }

template <size_t first, size_t bias, int products> Cost cost(const KernelSpec& spec) {
  const Problem p = problem_of(spec, first, bias);
  Cost cost{.flops = static_cast<double>(p.items()) * scores_of(p) * (product_of<products>(p) + kExponential)};
  for (const TensorType& input : spec.inputs) cost.bytes += static_cast<double>(input.bytes());
  for (const TensorType& output : spec.outputs) cost.bytes += static_cast<double>(output.bytes());
  return cost;
}

}  // namespace attention
ORT_TRAIN_OPS_END
