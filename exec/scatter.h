// Scattering rows: what the gradients of Gather and GatherND and the ops ScatterND and ScatterElements have in common.
//
// Updates that meet in one place are combined in the order in which they are given, for any number of threads: a task owns a part of the
// output and takes the updates that fall into it.

#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "exec/strided.h"
#include "exec/wrapping.h"

ORT_TRAIN_OPS_BEGIN

// Ways to combine what is there with an update. Integers wrap around.
struct Replace {
  template <typename T> HOST_DEVICE static T combine(T, T update) { return update; }
};
struct AddTo {
  template <typename T> HOST_DEVICE static T combine(T old, T update) {
    return static_cast<T>(static_cast<Wrapping<T>>(old) + static_cast<Wrapping<T>>(update));
  }
};
struct MultiplyBy {
  template <typename T> HOST_DEVICE static T combine(T old, T update) {
    return static_cast<T>(static_cast<Wrapping<T>>(old) * static_cast<Wrapping<T>>(update));
  }
};
struct MaximumOf {
  template <typename T> HOST_DEVICE static T combine(T old, T update) { return (update > old) | (update != update) ? update : old; }
};
struct MinimumOf {
  template <typename T> HOST_DEVICE static T combine(T old, T update) { return (update < old) | (update != update) ? update : old; }
};

// The attribute of ScatterElements and ScatterND and what reduces like them.
inline std::string reduction_of(const Attributes& attributes) { return attributes.get("reduction", "none"); }

// Calls body.operator()<Combine, T>(): replacing works on bits, the others on numbers, whose types are those of `Combined`.
template <typename Combined, typename Body> KernelRun with_combine(const std::string& reduction, DType dtype, Body&& body) {
  if (reduction == "none") return for_word(size_of(dtype), [&]<typename T>() { return body.template operator()<Replace, T>(); });
  return for_type(Combined{}, dtype, [&]<typename T>() -> KernelRun {
    if (reduction == "add") return body.template operator()<AddTo, T>();
    if (reduction == "mul") return body.template operator()<MultiplyBy, T>();
    if (reduction == "max") return body.template operator()<MaximumOf, T>();
    return body.template operator()<MinimumOf, T>();
  });
}

// The axis that the indices of Gather, GatherElements and ScatterElements are of.
inline int64_t indexed_axis(const Attributes& attributes, const Shape& shape) {
  return normalize_axis(attributes.get("axis", 0), static_cast<int64_t>(shape.size()), "axis");
}

// `outer` tables of `rows` rows of `row` elements; `updates` rows for each of them. Where a table is divided and only a range of its rows
// is at hand, how updates are added is chosen by the whole table all the same: a part has the bits that its rows have in the whole.
class RowScatter {
 public:
  struct Sizes {
    int64_t outer = 1, rows = 0, row = 1, updates = 0;
    bool zeros_first = false;  // the tables start from zeros, which it writes where nothing else is there
  };
  // `whole` is of undivided tables; `rows_here` of each are at hand (-1: all).
  RowScatter(const Sizes& whole, int64_t element_bytes, int64_t rows_here = -1)
      : sizes_(whole), in_double_(whole.zeros_first && whole.rows <= kWideRows && whole.updates >= 2 * whole.rows) {
    // From here on nothing may change a bit of a result: this is about which task does what.
    if (rows_here >= 0) sizes_.rows = rows_here;
    const Sizes& sizes = sizes_;
    const int64_t row_bytes = std::max<int64_t>(1, sizes.row * element_bytes);
    while (row_bytes << (block_shift_ + 1) <= kTaskBytes && int64_t{1} << block_shift_ < sizes.rows) ++block_shift_;
    blocks_ = (sizes.rows + (int64_t{1} << block_shift_) - 1) >> block_shift_;
    columns_ = sizes.outer * blocks_ >= 16 ? sizes.row : std::min(sizes.row, kColumns);
    together_ = per_task(kTaskBytes, row_bytes << block_shift_);
    large_ = sizes.outer * sizes.rows > 8 * sizes.updates && sizes.rows * row_bytes > kLargeTable;
  }

  const Sizes& sizes() const { return sizes_; }  // of what is at hand
  int64_t updates() const { return sizes_.updates; }
  // Whether sums of float32 are made in double.
  bool in_double() const { return in_double_; }
  // Room for the order in which the updates are taken, bytes.
  int64_t workspace() const { return (sizes_.outer * (sizes_.updates + blocks_) + 1) * static_cast<int64_t>(sizeof(int64_t)); }

  // out[o, position(o, i), :] = combine(out[o, position(o, i), :], from[o, i, :]) for ascending i; a negative position: nowhere. Positions
  // and `out` are of the rows at hand. is_there: `out` has what tables start from, whatever `zeros_first` says.
  template <typename Combine, typename T, typename Position>
  void run(Workers& workers, T* out, const T* from, std::byte* workspace, Position&& position, bool is_there = false) const {
    const auto [outer, rows, row, updates, from_zeros] = sizes_;
    const bool zeros_first = from_zeros && !is_there;
    if (outer == 0 || rows == 0 || row == 0) return;
    if constexpr (std::is_same_v<Combine, AddTo> && std::is_same_v<T, float>) {
      if (in_double_) return run_in_double(workers, out, from, position, is_there);
    }
    // Sorted by block of rows, the updates of each ascending: starts[b] is where block b's begin.
    int64_t* const starts = reinterpret_cast<int64_t*>(workspace);
    int64_t* const order = starts + outer * blocks_ + 1;
    std::fill_n(starts, outer * blocks_ + 1, 0);
    const auto for_each = [&](auto&& body) {  // update, with its block
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < updates; ++i) {
          if (const int64_t at = position(o, i); at >= 0) body(i, o * blocks_ + (at >> block_shift_));
        }
      }
    };
    for_each([&](int64_t, int64_t block) { ++starts[block]; });
    for (int64_t b = 0, sum = 0; b <= outer * blocks_; ++b) sum += std::exchange(starts[b], sum);
    for_each([&](int64_t i, int64_t block) { order[starts[block]++] = i; });
    // Now starts[b] is where block b's end.
    const int64_t parts = (row + columns_ - 1) / columns_;
    workers.parallel_blocks(outer * blocks_ * parts, together_, [&](int64_t first, int64_t last) {
      for (int64_t unit = first; unit < last; ++unit) {
        const int64_t block = unit / parts, o = block / blocks_, left = unit % parts * columns_, width = std::min(columns_, row - left);
        const int64_t begin = block % blocks_ << block_shift_, end = std::min(rows, begin + (int64_t{1} << block_shift_));
        T* const table = out + o * rows * row + left;
        if (zeros_first && large_ && width == row) {
          stream_zeros(table + begin * row, (end - begin) * row * static_cast<int64_t>(sizeof(T)));
        } else if (zeros_first) {
          for (int64_t r = begin; r < end; ++r) std::fill_n(table + r * row, width, T(0));
        }
        for (int64_t n = block == 0 ? 0 : starts[block - 1]; n < starts[block]; ++n) {
          T* const to = table + position(o, order[n]) * row;
          const T* const update = from + (o * updates + order[n]) * row + left;
#pragma GCC ivdep
          for (int64_t c = 0; c < width; ++c) to[c] = Combine::combine(to[c], update[c]);
        }
      }
    });
  }

 private:
  static constexpr int64_t kColumns = 64, kWideRows = 128, kLargeTable = int64_t{1} << 24;

  // Few rows, of which each gets many updates (characters, token types): sums in double, on the stack.
  template <typename Position>
  void run_in_double(Workers& workers, float* out, const float* from, Position&& position, bool is_there) const {
    const auto [outer, rows, row, updates, zeros_first] = sizes_;
    const int64_t parts = (row + kColumns - 1) / kColumns;
    workers.parallel_for(outer * parts, [&](int64_t task, int) {
      const int64_t o = task / parts, left = task % parts * kColumns, width = std::min(kColumns, row - left);
      double sums[kWideRows * kColumns];
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < width; ++c)
          sums[r * kColumns + c] = is_there ? static_cast<double>(out[(o * rows + r) * row + left + c]) : 0.0;
      }
      for (int64_t i = 0; i < updates; ++i) {
        const int64_t at = position(o, i);
        if (at < 0) continue;
        double* const sum = sums + at * kColumns;
        const float* const update = from + (o * updates + i) * row + left;
        for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<double>(update[c]);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < width; ++c) out[(o * rows + r) * row + left + c] = static_cast<float>(sums[r * kColumns + c]);
      }
    });
  }

  Sizes sizes_;
  bool in_double_ = false;
  int block_shift_ = 0;   // rows of a block, which one task at a time owns: a power of two
  int64_t blocks_ = 1;    // of a table
  int64_t columns_ = 1;   // that a task takes of each row
  int64_t together_ = 1;  // blocks in a task
  bool large_ = false;    // most of a table stays zero and it is larger than caches
};

// Where in axes of those sizes an index tuple points, which begins at place `first` of the indices; -1, and a report, if outside.
template <typename Index>
HOST_DEVICE inline int64_t tuple_position(const Index* indices, int64_t first, const int64_t* dims, int64_t length, DataError* error) {
  int64_t at = 0;
  for (int64_t k = 0; k < length; ++k) {
    const int64_t index = checked_index(indices[first + k], dims[k], first + k, error);
    if (index < 0) return -1;
    at = at * dims[k] + index;
  }
  return at;
}

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

  // Of tuple `i` of all; -1, and a report, where it points outside.
  template <typename Index> int64_t position(const Index* indices, int64_t i, const KernelArgs& args) const {
    const int64_t length = static_cast<int64_t>(dims.size());
    return tuple_position(indices, i * length, dims.data(), length, args.error);
  }

  // Room for the position of every tuple, bytes.
  int64_t positions_bytes() const { return batches * tuples * static_cast<int64_t>(sizeof(int64_t)); }

  // Writes the position of every tuple of every batch, which are input `input`.
  template <typename Index> void positions(const KernelArgs& args, size_t input, int64_t* to) const {
    args.workers().parallel_blocks(batches * tuples, kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = position(args.in<Index>(input), i, args);
    });
  }
};

// The shape of what tuples take out of (or put into) data; throws Error(unsupported) where they don't fit together.
inline Shape tuples_shape(const Shape& data, const Shape& indices, int64_t batch_dims) {
  const int64_t rank = static_cast<int64_t>(data.size()), index_rank = static_cast<int64_t>(indices.size());
  bool valid = index_rank >= 1 && rank >= 1 && batch_dims >= 0 && batch_dims < std::min(rank, index_rank) && indices.back() >= 0 &&
               indices.back() <= rank - batch_dims && std::equal(data.begin(), data.begin() + batch_dims, indices.begin());
  if (!valid)
    throw error(ErrorCode::unsupported, "indices of the shape {} don't fit data of the shape {}", to_string(indices), to_string(data));
  Shape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), data.begin() + batch_dims + indices.back(), data.end());
  return shape;
}

ORT_TRAIN_OPS_END
