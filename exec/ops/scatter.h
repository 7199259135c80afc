// How ScatterElements and ScatterND are laid out, for the kernels of every device.

#pragma once

#include "exec/scatter.h"

ORT_TRAIN_OPS_BEGIN

// ScatterElements as lines along the axis, in the indices and in the data. Updates can only meet in a line.
struct ScatterLines {
  StridedLoop<2> loop;               // over the lines: where each begins in the indices, and in the data at index 0
  int64_t length = 0, size = 0;      // indices of a line, and what they count
  int64_t index_step = 1, step = 1;  // from one to the next

  explicit ScatterLines(const KernelSpec& spec) {
    const Shape &data = spec.inputs[0].shape, &indices = spec.inputs[1].shape;
    const auto axis = static_cast<size_t>(indexed_axis(spec.attributes, data));
    const std::vector<int64_t> data_strides = strides_of(data), index_strides = strides_of(indices);
    Shape lines = indices;
    lines[axis] = indices[axis] == 0 ? 0 : 1;
    loop = StridedLoop<2>(lines, {index_strides, data_strides});
    length = indices[axis], size = data[axis], index_step = index_strides[axis], step = data_strides[axis];
  }
};

// ScatterND's tuples: one table, which it writes over.
inline RowScatter scatter_of(const KernelSpec& spec, const IndexTuples& tuples) {
  return RowScatter({.outer = 1, .rows = tuples.rows, .row = tuples.row, .updates = tuples.tuples, .zeros_first = false},
                    size_of(spec.outputs[0].dtype));
}

ORT_TRAIN_OPS_END
