// Loops over tensors in which each operand has strides of its own: the machinery of data movement, broadcasting and indexing ops.
//
// Everything is prepared from shapes when a kernel is made; running allocates nothing. Strides and offsets count elements. The division
// into tasks is a fixed function of the shapes.

#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int kMaxAxes = 16;                      // that are left when what can be merged is merged
inline constexpr int64_t kTaskBytes = int64_t{1} << 15;  // what one task moves, about
inline constexpr int64_t kTaskElements = int64_t{1} << 14;
// How many items that take `each` make a task.
inline int64_t per_task(int64_t task, int64_t each) { return std::max<int64_t>(1, task / std::max<int64_t>(1, each)); }

// A loop nest over K operands, outermost axis first; axes of one element are dropped, adjacent ones merged where every operand allows it.
// There is always an innermost axis, maybe of one element.
template <int K> struct StridedLoop {
  int rank = 0;
  int64_t count = 1;  // iterations in all
  std::array<int64_t, kMaxAxes> dims{};
  std::array<std::array<int64_t, K>, kMaxAxes> strides{};

  StridedLoop() = default;
  StridedLoop(const Shape& shape, const std::array<std::vector<int64_t>, K>& operand_strides) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      count *= shape[axis];
      if (shape[axis] == 1) continue;
      std::array<int64_t, K> here;
      for (int k = 0; k < K; ++k) here[k] = operand_strides[k][axis];
      if (rank > 0 && merges(strides[rank - 1], here, shape[axis])) {
        dims[rank - 1] *= shape[axis];
        strides[rank - 1] = here;
        continue;
      }
      if (rank == kMaxAxes) throw error(ErrorCode::unsupported, "the shape {} has more axes than are supported", to_string(shape));
      dims[rank] = shape[axis];
      strides[rank++] = here;
    }
    if (rank == 0) {
      dims[0] = 1;
      strides[0].fill(1);
      rank = 1;
    }
  }

  int64_t inner() const { return dims[rank - 1]; }
  int64_t inner_stride(int operand) const { return strides[rank - 1][operand]; }

 private:
  static bool merges(const std::array<int64_t, K>& outer, const std::array<int64_t, K>& inner, int64_t inner_dim) {
    for (int k = 0; k < K; ++k) {
      if (outer[k] != inner[k] * inner_dim) return false;
    }
    return true;
  }
};

// body(offsets, first, run): iterations [first, first + run) lie along the innermost axis, their first elements at `offsets`.
template <int K, typename Body> void walk(const StridedLoop<K>& loop, int64_t begin, int64_t end, Body&& body) {
  if (begin >= end) return;
  std::array<int64_t, kMaxAxes> index{};
  std::array<int64_t, K> offsets{};
  int64_t rest = begin;
  for (int axis = loop.rank - 1; axis >= 0; --axis) {
    index[axis] = rest % loop.dims[axis];
    rest /= loop.dims[axis];
    for (int k = 0; k < K; ++k) offsets[k] += index[axis] * loop.strides[axis][k];
  }
  const int last = loop.rank - 1;
  for (int64_t at = begin; at < end;) {
    const int64_t run = std::min(loop.dims[last] - index[last], end - at);
    body(offsets, at, run);
    at += run;
    if (at == end) return;
    for (int k = 0; k < K; ++k) offsets[k] -= index[last] * loop.strides[last][k];
    index[last] = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      for (int k = 0; k < K; ++k) offsets[k] += loop.strides[axis][k];
      if (++index[axis] < loop.dims[axis]) break;
      for (int k = 0; k < K; ++k) offsets[k] -= loop.dims[axis] * loop.strides[axis][k];
      index[axis] = 0;
    }
  }
}

// Where each operand is in iteration i, for threads that take one iteration each.
template <int K> struct Offsets { int64_t of[K]; };
template <int K> HOST_DEVICE inline Offsets<K> offsets_at(const StridedLoop<K>& loop, int64_t i) {
  Offsets<K> at{};
  if (loop.count <= INT32_MAX) {  // divisions of 32 bits take a fraction of the time
    auto rest = static_cast<uint32_t>(i);
    for (int axis = loop.rank - 1; axis > 0; --axis) {
      const auto dim = static_cast<uint32_t>(loop.dims[axis]);
      const uint32_t above = rest / dim;
      for (int k = 0; k < K; ++k) at.of[k] += int64_t{rest - above * dim} * loop.strides[axis][k];
      rest = above;
    }
    for (int k = 0; k < K; ++k) at.of[k] += int64_t{rest} * loop.strides[0][k];
    return at;
  }
  for (int axis = loop.rank - 1; axis >= 0; --axis) {
    for (int k = 0; k < K; ++k) at.of[k] += i % loop.dims[axis] * loop.strides[axis][k];
    i /= loop.dims[axis];
  }
  return at;
}

// Strides with which a tensor of `shape` is read as if it were broadcast to `target`.
inline std::vector<int64_t> broadcast_strides(const Shape& shape, const Shape& target) {
  const std::vector<int64_t> own = strides_of(shape);
  std::vector<int64_t> strides(target.size(), 0);
  const size_t extra = target.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) strides[extra + i] = shape[i] == 1 ? 0 : own[i];
  return strides;
}

// out[i * out_strides + out_offset] = in[i * in_strides + in_offset] for each i inside `dims`. Any element type: bytes are moved.
struct CopyLayout {
  int64_t element_bytes = 0;
  Shape dims;
  std::vector<int64_t> out_strides, in_strides;
  int64_t out_offset = 0, in_offset = 0;
};

class StridedCopy {
 public:
  StridedCopy() = default;
  explicit StridedCopy(const CopyLayout& layout);
  void run(Workers& workers, void* out, const void* in) const;

  // The same, task by task, for several copies that run together.
  int64_t tasks() const { return (units_ + units_of_task_ - 1) / units_of_task_; }
  void run_task(int64_t task, void* out, const void* in) const;

 private:
  enum class Kind { nothing, rows, transpose, elements };
  void choose_kind();
  void choose_tasks();
  // Units [begin, end): elements, or squares of transposed matrices.
  template <typename T> void transpose(int64_t begin, int64_t end, T* out, const T* in) const;
  template <typename T> void copy_elements(int64_t begin, int64_t end, T* out, const T* in) const;

  Kind kind_ = Kind::nothing;
  int64_t element_bytes_ = 0, out_offset_ = 0, in_offset_ = 0;
  int64_t units_ = 0, units_of_task_ = 1;
  StridedLoop<2> loop_;  // operand 0: out, 1: in; for Kind::transpose the axes around the transposed matrix
  int64_t rows_ = 0, columns_ = 0, out_pitch_ = 0, in_pitch_ = 0;  // Kind::transpose: out[r * out_pitch + c] = in[r + c * in_pitch]
};

// Copies a tensor into the middle of a larger one and fills the frame around it; negative margins crop instead.
class FramedCopy {
 public:
  FramedCopy() = default;
  // before[i], after[i]: how many elements the output has more at the two ends of axis i.
  FramedCopy(int64_t element_bytes, const Shape& in, const std::vector<int64_t>& before, const std::vector<int64_t>& after);
  // `value`: one element, null for zero bytes.
  void run(Workers& workers, void* out, const void* in, const void* value) const;

 private:
  int64_t element_bytes_ = 0, rows_ = 0, row_ = 0;  // output rows and their elements
  int64_t left_ = 0, middle_ = 0, skip_ = 0;        // of a row: frame before it, elements copied, elements cropped at the input's start
  std::vector<int64_t> dims_, first_, last_, in_strides_;  // outer axes: output dims, where the input begins and ends in them
};

// Fills `count` elements; `value` null: zero bytes.
void fill_elements(void* out, int64_t count, const void* value, int64_t element_bytes);
// The same, or a copy, in parallel.
void fill_parallel(Workers& workers, void* out, int64_t count, const void* value, int64_t element_bytes);
void copy_parallel(Workers& workers, void* out, const void* in, int64_t bytes);
// Zeros that go past the caches: for what is too large to be found there later.
void stream_zeros(void* out, int64_t bytes);

// An index that may count from the end as a position; -1, and a report, where it is outside the axis.
template <typename Index> HOST_DEVICE inline int64_t checked_index(Index index, int64_t size, int64_t position, DataError* error) {
  const int64_t i = index < 0 ? int64_t{index} + size : int64_t{index};
  if (static_cast<uint64_t>(i) < static_cast<uint64_t>(size)) [[likely]]
    return i;
  error->report(DataError::index, index, size, position);
  return -1;
}
template <typename Index> int64_t checked_index(Index index, int64_t size, int64_t position, const KernelArgs& args) {
  return checked_index(index, size, position, args.error);
}

// The type of an index input.
inline void require_indices(const InferContext& context, size_t i) {
  const DType dtype = context.input(i).dtype;
  if (dtype != DType::int64 && dtype != DType::int32) {
    throw error(ErrorCode::unsupported, "indices are {}, but must be int64 or int32", to_string(dtype));
  }
}

// Cost of what moves or compares each element once.
inline Cost movement_cost(const KernelSpec& spec) {
  Cost cost;
  for (size_t i = 0; i < spec.inputs.size(); ++i) cost.bytes += spec.has(i) ? static_cast<double>(spec.inputs[i].bytes()) : 0;
  for (const TensorType& output : spec.outputs) cost.bytes += static_cast<double>(output.bytes());
  return cost;
}
inline Cost comparison_cost(const KernelSpec& spec) {
  Cost cost = movement_cost(spec);
  cost.flops = static_cast<double>(element_count(spec.outputs[0].shape));
  return cost;
}

ORT_TRAIN_OPS_END
