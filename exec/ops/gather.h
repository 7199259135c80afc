// How Gather and its kin are laid out, for the kernels of every device. What the ops mean: gather.cpp.

#pragma once

#include "exec/scatter.h"

ORT_TRAIN_OPS_BEGIN

// --- Gather ---------------------------------------------------------------------------------------------------------------------------

// data [outer..., n, inner...] and indices [...] -> [outer..., indices..., inner...]
inline Shape gathered_shape(const Shape& data, const Shape& indices, int64_t axis) {
  Shape shape(data.begin(), data.begin() + axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  return shape;
}

struct GatherSizes {
  int64_t outer, size, inner, indices;
  GatherSizes(const Shape& data, const Shape& index_shape, int64_t axis)
      : outer(element_count(Shape(data.begin(), data.begin() + axis))),
        size(data[axis]),
        inner(element_count(Shape(data.begin() + axis + 1, data.end()))),
        indices(element_count(index_shape)) {}
};

inline Cost gather_cost(const KernelSpec& spec) {
  return {.flops = 0, .bytes = 2.0 * static_cast<double>(spec.outputs[0].bytes()) + static_cast<double>(spec.inputs[1].bytes())};
}

// --- parts of tables ------------------------------------------------------------------------------------------------------------------

// Rows [first, first + rows) of a table of `total` rows.
struct TablePart {
  int64_t first = 0, rows = 0, total = 0;
  // Where in the part the row of an index is; negative: in another one.
  HOST_DEVICE int64_t position(int64_t index) const {
    const int64_t at = (index < 0 ? index + total : index) - first;
    return at < rows ? at : -1;
  }
};

inline TablePart checked_part(int64_t first, int64_t rows, int64_t total) {
  if (first < 0 || rows < 0 || rows > total || first > total - rows)
    throw error(ErrorCode::unsupported, "{} rows from {} on are no part of {}", rows, first, total);
  return {.first = first, .rows = rows, .total = total};
}

// What a GatherPart has at hand: `rows` rows.
inline TablePart part_of(const Attributes& attributes, int64_t rows) {
  return checked_part(attributes.get("first", int64_t{0}), rows, attributes.get("total", rows));
}

inline Cost gather_part_cost(const KernelSpec& spec) {
  const int64_t rows = spec.inputs[0].shape[0], total = std::max<int64_t>(1, part_of(spec.attributes, rows).total);
  return {.flops = 0, .bytes = gather_cost(spec).bytes * static_cast<double>(rows) / static_cast<double>(total)};
}

// --- its gradient ---------------------------------------------------------------------------------------------------------------------

// The whole table.
inline Shape table_of(const Attributes& attributes) { return attributes.get("shape", Shape{}); }

// What of it a GatherGrad makes.
inline TablePart made_part(const Attributes& attributes) {
  const Shape table = table_of(attributes);
  const int64_t total = table[static_cast<size_t>(indexed_axis(attributes, table))];
  return checked_part(attributes.get("first", int64_t{0}), attributes.get("rows", total), total);
}

// All that is made, or of a base the rows that are added to.
inline Cost gather_grad_cost(const KernelSpec& spec) {
  if (!spec.has(2)) return comparison_cost(spec);
  const TablePart part = made_part(spec.attributes);
  const double share = static_cast<double>(part.rows) / static_cast<double>(std::max<int64_t>(1, part.total));
  const double elements = static_cast<double>(element_count(spec.inputs[0].shape)) * share;
  return {.flops = elements, .bytes = 3 * elements * static_cast<double>(size_of(spec.outputs[0].dtype))};
}

inline RowScatter gather_grad_scatter(const KernelSpec& spec) {
  const Shape table = table_of(spec.attributes);
  const GatherSizes whole(table, spec.inputs[1].shape, indexed_axis(spec.attributes, table));
  return RowScatter({.outer = whole.outer, .rows = whole.size, .row = whole.inner, .updates = whole.indices, .zeros_first = true},
                    size_of(spec.outputs[0].dtype), made_part(spec.attributes).rows);
}

// --- GatherElements, GatherND ---------------------------------------------------------------------------------------------------------

// Of GatherElements and ScatterElements: where in the data each index points if it is 0, and the way from an index to the next.
struct ElementLines {
  StridedLoop<1> loop;
  int64_t size = 0, step = 1;

  explicit ElementLines(const KernelSpec& spec) {
    const Shape& data = spec.inputs[0].shape;
    const auto axis = static_cast<size_t>(indexed_axis(spec.attributes, data));
    std::vector<int64_t> others = strides_of(data);
    size = data[axis], step = others[axis];
    others[axis] = 0;  // along the axis the index says where
    loop = StridedLoop<1>(spec.inputs[1].shape, {others});
  }
};

inline IndexTuples gather_nd_grad_tuples(const KernelSpec& spec) {
  return IndexTuples(spec.outputs[0].shape, spec.inputs[1].shape, spec.attributes.get("batch_dims", 0));
}

inline RowScatter gather_nd_grad_scatter(const KernelSpec& spec) {
  const IndexTuples tuples = gather_nd_grad_tuples(spec);
  return RowScatter({.outer = tuples.batches, .rows = tuples.rows, .row = tuples.row, .updates = tuples.tuples, .zeros_first = true},
                    size_of(spec.outputs[0].dtype));
}

ORT_TRAIN_OPS_END
