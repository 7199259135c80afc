// Reductions over any axes in one canonical order, a fixed function of shape and type.
//
// Kinds and plans are those of exec/reduce_plan.h. Floats are summed in short float blocks whose results are added in double:
//   rows     the innermost axis is reduced: 512 elements in 16 lanes make a block (exec/lanes.h); lanes
//            are combined as a tree, blocks in ascending order
//   columns  the innermost axis stays: 32 rows make a block, for many columns at once (bias gradients: (N, C) -> (C))
// Where few outputs are left, the reduced range is cut into pieces that are reduced in parallel and combined in ascending order; pieces are
// cut by shape, never by the number of threads.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "exec/lane_rows.h"
#include "exec/reduce_plan.h"

ORT_TRAIN_OPS_BEGIN

// --- loops ----------------------------------------------------------------------------------------------------------------------------

// The compiler leaves conditional lanes scalar; vectors of 32 bytes suit both instruction sets.
template <typename Kind, typename T, int64_t kLanes> void extreme_lanes(const T* x, int64_t n, T* lanes) {
  typedef T Vector __attribute__((vector_size(32)));
  constexpr int64_t kWidth = 32 / sizeof(T), kVectors = kLanes / kWidth;
  Vector best[kVectors];
  std::memcpy(best, lanes, sizeof best);
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int64_t v = 0; v < kVectors; ++v) {
      Vector here;
      std::memcpy(&here, x + i + v * kWidth, sizeof here);
      best[v] = Kind::combine(best[v], here);
    }
  }
  std::memcpy(lanes, best, sizeof best);
}

// The same kind of floats, as which elements of 16 bits are read.
template <typename Kind> struct OfFloats;
template <template <typename> class Kind, typename T> struct OfFloats<Kind<T>> { using Type = Kind<float>; };

template <typename Kind, typename T> typename Kind::Total reduce_run(const T* x, int64_t n) {
  using Block = typename Kind::Block;
  using Total = typename Kind::Total;
  constexpr int kLanes = kReduceLanes;
  constexpr int64_t kBlock = kReduceBlock;
  Total total = static_cast<Total>(Kind::kIdentity);
  if (is_short_run(n)) {
    for (int64_t i = 0; i < n; ++i) total = Kind::combine(total, static_cast<Total>(Kind::take(x[i])));
    return total;
  }
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t length = std::min(kBlock, n - begin);
    Block lanes[kLanes];
    for (Block& lane : lanes) lane = static_cast<Block>(Kind::kIdentity);
    int64_t done = 0;
    if constexpr (is_extreme<Kind> && std::is_floating_point_v<T>) {
      done = length / kLanes * kLanes;
      extreme_lanes<Kind, T, kLanes>(x + begin, done, lanes);
    }
    if constexpr (is_half(dtype_of<T>())) {
      using Floats = typename OfFloats<Kind>::Type;
      const auto visit = [&](int l, bool is_there, float value) __attribute__((always_inline)) {
        const Block with = Floats::combine(lanes[l], Floats::take(value));
        lanes[l] = is_there ? with : lanes[l];
      };
      visit_rows<T, kLanes>(length, visit, x + begin);
    } else {
      each_in_lanes<T, kLanes>(length - done,
                               [&](int l, int64_t i) { lanes[l] = Kind::combine(lanes[l], Kind::take(x[begin + done + i])); });
    }
    Total tree[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) tree[l] = static_cast<Total>(lanes[l]);
    join_lanes(tree, [](Total a, Total b) { return Kind::combine(a, b); });
    total = Kind::combine(total, tree[0]);
  }
  return total;
}

// totals[c] of rows [begin, end) of the reduced loop, for `width` columns at x.
template <typename Kind, typename T>
void reduce_columns(const StridedLoop<1>& loop, int64_t begin, int64_t end, const T* x, int64_t width, typename Kind::Total* totals) {
  using Block = typename Kind::Block;
  using Total = typename Kind::Total;
  constexpr int64_t kRows = kReduceRows;
  Block block[ReducePlan::kColumns];
  for (int64_t c = 0; c < width; ++c) totals[c] = static_cast<Total>(Kind::kIdentity);
  const auto add_block = [&] {
    for (int64_t c = 0; c < width; ++c) totals[c] = Kind::combine(totals[c], static_cast<Total>(block[c]));
  };
  int64_t rows = 0;  // in the block
  walk(loop, begin, end, [&](const std::array<int64_t, 1>& offsets, int64_t, int64_t run) {
    const int64_t step = loop.inner_stride(0);
    const T* row = x + offsets[0];
    for (int64_t r = 0; r < run;) {
      if (rows == 0) {
        for (int64_t c = 0; c < width; ++c) block[c] = static_cast<Block>(Kind::kIdentity);
      }
      if (run - r >= 4 && kRows - rows >= 4) {  // the same order, with a quarter of the block's loads and stores
        const T *r0 = row, *r1 = row + step, *r2 = row + 2 * step, *r3 = row + 3 * step;
#pragma GCC ivdep
        for (int64_t c = 0; c < width; ++c) {
          Block sum = Kind::combine(block[c], Kind::take(r0[c]));
          sum = Kind::combine(sum, Kind::take(r1[c]));
          sum = Kind::combine(sum, Kind::take(r2[c]));
          block[c] = Kind::combine(sum, Kind::take(r3[c]));
        }
        row += 4 * step;
        rows += 4;
        r += 4;
      } else {
        for (int64_t c = 0; c < width; ++c) block[c] = Kind::combine(block[c], Kind::take(row[c]));
        row += step;
        ++rows;
        ++r;
      }
      if (rows == kRows) {
        add_block();
        rows = 0;
      }
    }
  });
  if (rows > 0) add_block();
}

// The offset of an iteration of a loop.
inline int64_t offset_at(const StridedLoop<1>& loop, int64_t index) {
  int64_t offset = 0;
  for (int axis = loop.rank - 1; axis >= 0; --axis) {
    offset += index % loop.dims[axis] * loop.strides[axis][0];
    index /= loop.dims[axis];
  }
  return offset;
}

// Of elements of T to results of R.
template <typename Kind, typename T, typename R> void run_reduce(const ReducePlan& plan, const KernelArgs& args) {
  using Total = typename Kind::Total;
  const T* const x = args.in<T>(0);
  R* const y = args.out<R>(0);
  Total* const partials = reinterpret_cast<Total*>(args.workspace);  // (pieces, outputs), where there are several pieces
  const int64_t outputs = plan.outputs(), blocks = plan.columns ? plan.column_blocks() : 1;
  const auto store = [&](int64_t piece, int64_t output, Total total) {
    if (plan.pieces == 1)
      y[output] = Kind::template finish<R>(total, plan.count);
    else
      partials[piece * outputs + output] = total;
  };
  // A unit is one piece of one output, or of a block of columns; short ones share a task.
  args.workers().parallel_blocks(
      plan.pieces * plan.kept.count * blocks, per_task(kTaskElements, plan.unit_elements()), [&](int64_t begin, int64_t end) {
        Total totals[ReducePlan::kColumns];
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t piece = unit / (plan.kept.count * blocks), index = unit / blocks % plan.kept.count;
          const int64_t first = piece * plan.piece, last = std::min(first + plan.piece, plan.cut_inner ? plan.inner : plan.reduced.count);
          const T* const from = x + offset_at(plan.kept, index);
          if (plan.columns) {
            const int64_t left = unit % blocks * ReducePlan::kColumns, width = std::min(ReducePlan::kColumns, plan.inner - left);
            reduce_columns<Kind>(plan.reduced, first, last, from + left, width, totals);
            for (int64_t c = 0; c < width; ++c) store(piece, index * plan.inner + left + c, totals[c]);
          } else if (plan.cut_inner) {
            store(piece, index, reduce_run<Kind>(from + first, last - first));
          } else {
            Total total = static_cast<Total>(Kind::kIdentity);
            walk(plan.reduced, first, last, [&](const std::array<int64_t, 1>& offsets, int64_t, int64_t run) {
              for (int64_t i = 0; i < run; ++i)
                total = Kind::combine(total, reduce_run<Kind>(from + offsets[0] + i * plan.reduced.inner_stride(0), plan.inner));
            });
            store(piece, index, total);
          }
        }
      });
  if (plan.pieces == 1) return;
  args.workers().parallel_blocks(outputs, ReducePlan::kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      Total total = partials[output];
      for (int64_t piece = 1; piece < plan.pieces; ++piece) total = Kind::combine(total, partials[piece * outputs + output]);
      y[output] = Kind::template finish<R>(total, plan.count);
    }
  });
}

ORT_TRAIN_OPS_END
