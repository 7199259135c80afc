// What a reduction is: its Kind, what is loaded, combined and returned, and its plan, a fixed function of the shape. The order is that of
// exec/reduce.h on every device.

#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "exec/math.h"
#include "exec/strided.h"
#include "graph/half.h"
#include "graph/rounding.h"

ORT_TRAIN_OPS_BEGIN

// --- kinds ----------------------------------------------------------------------------------------------------------------------------

// Integers wrap around, so they are summed without sign.
template <typename T> using BlockOf = std::conditional_t<std::is_integral_v<T>, uint64_t, Compute<T>>;
template <typename T> using TotalOf = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

template <typename T> struct SumKind {
  using Block = BlockOf<T>;
  using Total = TotalOf<T>;
  static constexpr int kIdentity = 0;
  HOST_DEVICE static Block take(T x) { return static_cast<Block>(load(x)); }
  template <typename V> HOST_DEVICE static V combine(V a, V b) { return a + b; }
  template <typename R> HOST_DEVICE static R finish(Total total, int64_t) { return store<R>(static_cast<Compute<R>>(total)); }
};

template <typename T> struct MeanKind : SumKind<T> {
  template <typename R> HOST_DEVICE static R finish(TotalOf<T> total, int64_t count) {
    if constexpr (std::is_integral_v<T>)
      return count == 0 ? R(0) : static_cast<R>(static_cast<int64_t>(total) / count);
    else
      return store<R>(static_cast<Compute<R>>(total / static_cast<double>(count)));
  }
};

template <typename T> struct SumSquareKind : SumKind<T> {
  HOST_DEVICE static BlockOf<T> take(T x) { return static_cast<BlockOf<T>>(load(x)) * static_cast<BlockOf<T>>(load(x)); }
};

template <typename T> struct L2Kind : SumSquareKind<T> {
  template <typename R> HOST_DEVICE static R finish(TotalOf<T> total, int64_t) {
    const double root = math::sqrt(static_cast<double>(total));
    if constexpr (std::is_integral_v<T>)
      return to_integer<R>(root);
    else
      return store<R>(static_cast<Compute<R>>(root));
  }
};

// In double throughout: a float product may leave the range on its way.
template <typename T> struct ProdKind {
  using Block = TotalOf<T>;
  using Total = TotalOf<T>;
  static constexpr int kIdentity = 1;
  HOST_DEVICE static Block take(T x) { return static_cast<Block>(load(x)); }
  template <typename V> HOST_DEVICE static V combine(V a, V b) { return a * b; }
  template <typename R> HOST_DEVICE static R finish(Total total, int64_t) { return store<R>(static_cast<Compute<R>>(total)); }
};

// NaN wins.
template <typename T> struct MaxKind {
  using Block = Compute<T>;
  using Total = Compute<T>;
  using Limits = std::numeric_limits<Compute<T>>;
  static constexpr Compute<T> kIdentity = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  HOST_DEVICE static Block take(T x) { return load(x); }
  template <typename V> HOST_DEVICE static V combine(V a, V b) { return (b > a) | (b != b) ? b : a; }
  template <typename R> HOST_DEVICE static R finish(Total total, int64_t) { return store<R>(static_cast<Compute<R>>(total)); }
};

template <typename T> struct MinKind {
  using Block = Compute<T>;
  using Total = Compute<T>;
  using Limits = std::numeric_limits<Compute<T>>;
  static constexpr Compute<T> kIdentity = Limits::has_infinity ? Limits::infinity() : Limits::max();
  HOST_DEVICE static Block take(T x) { return load(x); }
  template <typename V> HOST_DEVICE static V combine(V a, V b) { return (b < a) | (b != b) ? b : a; }
  template <typename R> HOST_DEVICE static R finish(Total total, int64_t) { return store<R>(static_cast<Compute<R>>(total)); }
};

template <typename Kind> inline constexpr bool is_extreme = false;
template <typename T> inline constexpr bool is_extreme<MaxKind<T>> = true;
template <typename T> inline constexpr bool is_extreme<MinKind<T>> = true;

// --- the plan of one reduction --------------------------------------------------------------------------------------------------------

inline constexpr int kReduceLanes = 16;       // of a block of a row
inline constexpr int64_t kReduceBlock = 512;  // elements of a block of a row
inline constexpr int64_t kReduceRows = 32;    // rows of a block of columns
// Elements that are combined one after another, without lanes.
HOST_DEVICE inline bool is_short_run(int64_t n) { return n < 2 * kReduceLanes; }

struct ReducePlan {
  static constexpr int64_t kColumns = 256;  // columns that are reduced together
  static constexpr int64_t kTasks = 32;     // with as many outputs or blocks of columns, nothing is cut
  static constexpr int64_t kPieces = 16;    // at most, of one output

  bool columns = false;           // the innermost axis stays
  StridedLoop<1> kept, reduced;   // input strides; without the innermost run of axes
  int64_t inner = 1;              // elements of that run
  int64_t count = 1;              // elements reduced to one
  int64_t pieces = 1, piece = 0;  // iterations of the reduced loop in a piece, or
  bool cut_inner = false;         // elements of the innermost run

  ReducePlan() = default;
  ReducePlan(const Shape& shape, const std::vector<int64_t>& axes) {
    std::vector<bool> drops(shape.size());
    for (int64_t axis : axes) drops[axis] = true;
    const std::vector<int64_t> strides = strides_of(shape);
    size_t end = shape.size();
    while (end > 0 && shape[end - 1] == 1) --end;
    const bool drop_inner = end > 0 && drops[end - 1];
    columns = !drop_inner;
    while (end > 0 && (shape[end - 1] == 1 || drops[end - 1] == drop_inner)) inner *= shape[--end];
    Shape kept_dims, reduced_dims;
    std::vector<int64_t> kept_strides, reduced_strides;
    for (size_t axis = 0; axis < end; ++axis) {
      (drops[axis] ? reduced_dims : kept_dims).push_back(shape[axis]);
      (drops[axis] ? reduced_strides : kept_strides).push_back(strides[axis]);
    }
    kept = StridedLoop<1>(kept_dims, {kept_strides});
    reduced = StridedLoop<1>(reduced_dims, {reduced_strides});
    count = reduced.count * (columns ? 1 : inner);
    cut();
  }

  int64_t outputs() const { return kept.count * (columns ? inner : 1); }
  int64_t column_blocks() const { return (inner + kColumns - 1) / kColumns; }
  int64_t unit_elements() const {  // what is read for one piece of one output or block of columns
    return std::max<int64_t>(1, cut_inner ? piece : piece * (columns ? std::min(inner, kColumns) : inner));
  }

 private:
  void cut() {
    piece = std::max<int64_t>(reduced.count, 1);
    if (columns) {
      if (kept.count * column_blocks() < kTasks) piece = std::max<int64_t>(256, round_up((reduced.count + kPieces - 1) / kPieces, 32));
      pieces = std::max<int64_t>(1, (reduced.count + piece - 1) / piece);
    } else if (kept.count < kTasks && count > 0) {
      const int64_t elements = std::max<int64_t>(32768, round_up((count + kPieces - 1) / kPieces, 512));
      cut_inner = reduced.count == 1;
      piece = cut_inner ? elements : std::max<int64_t>(1, elements / inner);
      const int64_t all = cut_inner ? inner : reduced.count;
      pieces = (all + piece - 1) / piece;
    }
  }
};

ORT_TRAIN_OPS_END
