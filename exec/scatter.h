// Scattering rows: what the gradients of Gather and GatherND and the ops ScatterND and ScatterElements have in common.
//
// Updates that meet in one place are combined in the order in which they are given, for any number of threads: a task owns a part of the
// output and looks through all positions for those that are its own.

#pragma once

#include <type_traits>

#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

// Ways to combine what is there with an update. Integers wrap around.
struct Replace {
  template <typename T> static T combine(T, T update) { return update; }
};
struct AddTo {
  template <typename T> static T combine(T old, T update) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(update));
    else return old + update;
  }
};
struct MultiplyBy {
  template <typename T> static T combine(T old, T update) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) * static_cast<std::make_unsigned_t<T>>(update));
    else return old * update;
  }
};
struct MaximumOf {
  template <typename T> static T combine(T old, T update) { return (update > old) | (update != update) ? update : old; }
};
struct MinimumOf {
  template <typename T> static T combine(T old, T update) { return (update < old) | (update != update) ? update : old; }
};

// `outer` tables of `rows` rows of `row` elements; `updates` rows for each of them.
struct RowScatter {
  int64_t outer = 1, rows = 0, row = 1, updates = 0;
  bool zeros_first = false;  // the tables start from zeros, which it writes

  // out[o, position(o, i), :] = combine(out[o, position(o, i), :], from[o, i, :]) for ascending i.
  template <typename Combine, typename T, typename Position>
  void run(Workers& workers, T* out, const T* from, Position&& position) const {
    constexpr bool sums = std::is_same_v<Combine, AddTo> && std::is_same_v<T, float>;
    if (outer == 0 || rows == 0 || row == 0) return;
    if constexpr (sums) {
      if (zeros_first && rows <= kWideRows && updates >= 2 * rows) return run_wide(workers, out, from, position);
    }
    const int64_t row_blocks = std::clamp<int64_t>(rows * row * static_cast<int64_t>(sizeof(T)) / (2 * kTaskBytes), 1, std::min<int64_t>(rows, 256));
    const int64_t block_rows = (rows + row_blocks - 1) / row_blocks;
    const int64_t columns = outer * row_blocks >= 16 ? row : std::min(row, kColumns), column_blocks = (row + columns - 1) / columns;
    const bool large = outer * rows > 8 * updates && rows * row * static_cast<int64_t>(sizeof(T)) > kLargeTable;  // most of it stays zero
    workers.parallel_for(outer * row_blocks * column_blocks, [&](int64_t task, int) {
      const int64_t o = task / (row_blocks * column_blocks), begin = task / column_blocks % row_blocks * block_rows;
      const int64_t end = std::min(rows, begin + block_rows), left = task % column_blocks * columns, width = std::min(columns, row - left);
      T* const table = out + o * rows * row + left;
      if (zeros_first && large && width == row && begin < end) {
        stream_zeros(table + begin * row, (end - begin) * row * static_cast<int64_t>(sizeof(T)));
      } else if (zeros_first) {
        for (int64_t r = begin; r < end; ++r) std::fill_n(table + r * row, width, T(0));
      }
      for (int64_t i = 0; i < updates; ++i) {
        const int64_t r = position(o, i);
        if (r < begin || r >= end) continue;
        T* const to = table + r * row;
        const T* const update = from + (o * updates + i) * row + left;
        for (int64_t c = 0; c < width; ++c) to[c] = Combine::combine(to[c], update[c]);
      }
    });
  }

 private:
  static constexpr int64_t kColumns = 64, kWideRows = 128, kLargeTable = int64_t{1} << 24;

  // Few rows, of which each gets many updates (characters, token types): sums in double, on the stack.
  template <typename Position>
  void run_wide(Workers& workers, float* out, const float* from, Position&& position) const {
    const int64_t column_blocks = (row + kColumns - 1) / kColumns;
    workers.parallel_for(outer * column_blocks, [&](int64_t task, int) {
      const int64_t o = task / column_blocks, left = task % column_blocks * kColumns, width = std::min(kColumns, row - left);
      double sums[kWideRows * kColumns];
      std::fill_n(sums, rows * kColumns, 0.0);
      for (int64_t i = 0; i < updates; ++i) {
        double* const sum = sums + position(o, i) * kColumns;
        const float* const update = from + (o * updates + i) * row + left;
        for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<double>(update[c]);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < width; ++c) out[(o * rows + r) * row + left + c] = static_cast<float>(sums[r * kColumns + c]);
      }
    });
  }
};

// Index tuples, as GatherND and ScatterND have them: the last axis of the indices addresses a row in the leading axes of the data.
struct IndexTuples {
  int64_t batches = 1, tuples = 1;  // tuples of one batch
  int64_t rows = 1, row = 1;        // of one batch of the data: what tuples address, and the elements of each
  std::vector<int64_t> dims;        // the axes that a tuple indexes

  IndexTuples(const Shape& data, const Shape& indices, int64_t batch_dims) {
    const size_t first = static_cast<size_t>(batch_dims), length = static_cast<size_t>(indices.back());
    for (size_t i = 0; i < first; ++i) batches *= data[i];
    for (size_t i = first; i + 1 < indices.size(); ++i) tuples *= indices[i];
    dims.assign(data.begin() + first, data.begin() + first + length);
    rows = element_count(dims);
    row = element_count(Shape(data.begin() + first + length, data.end()));
  }

  template <typename Index>
  int64_t position(const Index* tuple, const char* op) const {
    int64_t at = 0;
    for (size_t i = 0; i < dims.size(); ++i) at = at * dims[i] + checked_index(tuple[i], dims[i], op);
    return at;
  }

  // Writes the position of every tuple of every batch.
  template <typename Index>
  void positions(Workers& workers, const Index* indices, int64_t* to, const char* op) const {
    const int64_t length = static_cast<int64_t>(dims.size());
    workers.parallel_blocks(batches * tuples, kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = position(indices + i * length, op);
    });
  }
};

// The shape of what tuples take out of (or put into) data; throws Error(unsupported) where they don't fit together.
inline Shape tuples_shape(const Shape& data, const Shape& indices, int64_t batch_dims) {
  const int64_t rank = static_cast<int64_t>(data.size()), index_rank = static_cast<int64_t>(indices.size());
  bool valid = index_rank >= 1 && rank >= 1 && batch_dims >= 0 && batch_dims < std::min(rank, index_rank) && indices.back() >= 0 &&
               indices.back() <= rank - batch_dims && std::equal(data.begin(), data.begin() + batch_dims, indices.begin());
  if (!valid) throw error(ErrorCode::unsupported, "indices of the shape {} don't fit data of the shape {}", to_string(indices), to_string(data));
  Shape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), data.begin() + batch_dims + indices.back(), data.end());
  return shape;
}

// Room for the position of each tuple.
inline int64_t positions_workspace(const TensorType& indices) {
  return element_count(Shape(indices.shape.begin(), indices.shape.end() - 1)) * static_cast<int64_t>(sizeof(int64_t));
}

ORT_TRAIN_OPS_END
