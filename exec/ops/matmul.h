// What matrix products are on every device (exec/ops/matmul.cpp has their meaning): how many, of which matrices, where these lie.

#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "exec/depth_block.h"
#include "exec/element_types.h"
#include "exec/product_types.h"

ORT_TRAIN_OPS_BEGIN
namespace matmul {

using Numeric = Types<float, double, int64_t, int32_t>;  // 16 bits are of products in float32

// One MatMul as so many equal products: rows x depth times depth x columns.
struct Layout {
  bool trans_a = false, trans_b = false;
  int64_t items = 1, rows = 0, columns = 0, depth = 0;
  Shape batch;                                // item -> indices
  std::vector<int64_t> a_strides, b_strides;  // elements an index; 0 where broadcast

  bool is_empty() const { return items * rows * columns == 0; }
};

inline bool flag(const Attributes& attributes, std::string_view name) { return attributes.get(name, 0) != 0; }
inline int64_t from_end(const Shape& shape, size_t i) { return shape[shape.size() - i]; }
inline Shape batch_of(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

inline std::vector<int64_t> batch_strides(const Shape& shape, const Shape& batch) {
  std::vector<int64_t> strides(batch.size(), 0);
  const std::vector<int64_t> own = strides_of(shape);
  const size_t skipped = batch.size() + 2 - shape.size();
  for (size_t i = 0; i + 2 < shape.size(); ++i) strides[skipped + i] = shape[i] == 1 ? 0 : own[i];
  return strides;
}

inline Layout layout_of(const Shape& a, const Shape& b, const Attributes& attributes) {
  Layout l{.trans_a = flag(attributes, "trans_a"), .trans_b = flag(attributes, "trans_b"), .batch = {}, .a_strides = {}, .b_strides = {}};
  l.rows = from_end(a, l.trans_a ? 1 : 2);
  l.depth = from_end(a, l.trans_a ? 2 : 1);
  l.columns = from_end(b, l.trans_b ? 2 : 1);
  const Shape a_batch = batch_of(a), b_batch = batch_of(b);
  if (!l.trans_a && element_count(b_batch) == 1 && b_batch.size() <= a_batch.size()) {
    l.rows *= element_count(a_batch);
    return l;
  }
  l.batch = broadcast(a_batch, b_batch);
  l.items = element_count(l.batch);
  l.a_strides = batch_strides(a, l.batch);
  l.b_strides = batch_strides(b, l.batch);
  return l;
}

// What of a and y a MatMulPart deals with.
struct Window {
  int64_t a_from = 0, a_width = 0;    // width 0: all columns
  int64_t y_from = 0, y_columns = 0;  // columns 0: y is the product
};

inline Window window_of(const Attributes& attributes) {
  return {.a_from = attributes.get("a_from", int64_t{0}),
          .a_width = attributes.get("a_width", int64_t{0}),
          .y_from = attributes.get("y_from", int64_t{0}),
          .y_columns = attributes.get("y_columns", int64_t{0})};
}

inline Shape windowed(Shape a, const Window& window) {
  if (window.a_width > 0) a.back() = window.a_width;
  return a;
}

// A part's columns of a alone.
inline Layout part_layout(const KernelSpec& spec) {
  return layout_of(windowed(spec.inputs[0].shape, window_of(spec.attributes)), spec.inputs[1].shape, spec.attributes);
}

inline bool adds_to_base(const KernelSpec& spec) { return spec.has(3) && window_of(spec.attributes).y_columns == 0; }

// Elements from each row of a matrix to the next, as they are stored.
struct Rows {
  int64_t a = 0, b = 0, y = 0;
};

inline Rows rows_of(const KernelSpec& spec, const Layout& l) {
  const int64_t y_columns = window_of(spec.attributes).y_columns;
  return {.a = spec.inputs[0].shape.back(), .b = l.trans_b ? l.depth : l.columns, .y = y_columns > 0 ? y_columns : l.columns};
}

// Of the depth of the product that this may be a part of.
inline int64_t block_of(const KernelSpec& spec, const Layout& l) {
  const int64_t columns_of_a = spec.attributes.get("a_columns", spec.inputs[0].shape.back());
  return depth_block(l.trans_a ? l.depth : columns_of_a, l.trans_a || l.trans_b ? 0 : l.columns);
}

inline Cost cost(const KernelSpec& spec) {
  const Layout l = part_layout(spec);
  Cost cost{.flops = 2.0 * static_cast<double>(l.items * l.rows) * static_cast<double>(l.columns) * static_cast<double>(l.depth)};
  const auto size = [](const TensorType& type) { return static_cast<double>(size_of(type.dtype)); };
  const auto rows = static_cast<double>(l.items * l.rows), columns = static_cast<double>(l.columns);
  cost.bytes = std::min(rows * static_cast<double>(l.depth) * size(spec.inputs[0]), static_cast<double>(spec.inputs[0].bytes())) +
               static_cast<double>(spec.inputs[1].bytes()) + rows * columns * size(spec.outputs[0]);
  if (adds_to_base(spec)) cost.bytes += rows * columns * size(spec.inputs[3]);
  return cost;
}

}  // namespace matmul
ORT_TRAIN_OPS_END
