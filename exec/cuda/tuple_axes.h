// Index tuples on CUDA devices: IndexTuples (exec/scatter.h) without memory of its own.

#pragma once

#include "exec/cuda/indexing.h"
#include "exec/scatter.h"

ORT_TRAIN_OPS_BEGIN

// Which row of all batches a tuple names; negative, and a report: none.
template <typename Index> struct TuplePlace {
  const Index* indices;
  DataError* error;
  Size tuples;  // of a batch
  bool small;
  int64_t rows;  // of a batch
  int64_t length = 0;
  int64_t dims[kMaxAxes] = {};

  TuplePlace(const IndexTuples& of, const Index* indices, DataError* error)
      : indices(indices),
        error(error),
        tuples(of.tuples),
        small(of.batches * of.tuples <= INT32_MAX),
        rows(of.rows),
        length(static_cast<int64_t>(of.dims.size())) {
    std::copy(of.dims.begin(), of.dims.end(), dims);
  }
  HOST_DEVICE int64_t operator()(int64_t i) const {
    const int64_t row = tuple_position(indices, i * length, dims, length, error);
    return row < 0 ? -1 : tuples.split(i, small).above * rows + row;
  }
};

// Throws where a TuplePlace has no room.
inline void require_few_axes(const IndexTuples& tuples) {
  if (tuples.dims.size() > kMaxAxes)
    throw error(ErrorCode::unsupported, "index tuples of {} places are longer than is supported", tuples.dims.size());
}

ORT_TRAIN_OPS_END
