// Reductions on CUDA, in the order of exec/reduce.h.
//
//   rows     16 threads take a block of 512 elements, each of them a lane; where a run is short, one thread takes all of it
//   columns  a thread takes a block of 32 rows of one column, its neighbours those of the columns beside it
//
// What each has goes through shared memory to the thread that owns the output, which adds blocks in ascending order while the others load
// the next ones. Pieces are combined by a second launch.

#pragma once

#include <algorithm>
#include <type_traits>

#include "exec/block.h"
#include "exec/cuda/pack.h"
#include "exec/cuda/unroll.h"
#include "exec/ops/reduce.h"

ORT_TRAIN_OPS_BEGIN

// Where totals go: to the result, as Kind finishes it or, where `is_other`, Other, which combines in the same way; or they are pieces'.
template <class Kind, class Other, typename T> struct ReduceOutput {
  using Total = typename Kind::Total;
  void* y;
  Total* partials;  // (pieces, outputs), null where there is one piece
  int64_t outputs, count;
  bool is_other, is_wide;  // wide: float32 of 16-bit elements

  HOST_DEVICE void put(int64_t piece, int64_t output, Total total) const {
    if (partials)
      partials[piece * outputs + output] = total;
    else
      finish(output, total);
  }
  HOST_DEVICE void finish(int64_t output, Total total) const {
    if (is_other)
      finish_as<Other>(output, total);
    else
      finish_as<Kind>(output, total);
  }
  template <class As> HOST_DEVICE void finish_as(int64_t output, Total total) const {
    if (is_wide)
      static_cast<Compute<T>*>(y)[output] = As::template finish<Compute<T>>(total, count);
    else
      static_cast<T*>(y)[output] = As::template finish<T>(total, count);
  }
};

// A total that threads hand to each other: of booleans their byte.
template <class Kind> using PartOf = std::conditional_t<std::is_same_v<typename Kind::Total, bool>, uint8_t, typename Kind::Total>;
template <class Kind> struct CombineAs {
  HOST_DEVICE PartOf<Kind> operator()(PartOf<Kind> a, PartOf<Kind> b) const { return Kind::combine(a, b); }
};

// --- rows -------------------------------------------------------------------------------------------------------------------------------

// An item is a block of a row, or a short run; a unit one piece of one output. `lanes`: threads of an item.
template <class Kind, class Output, typename T, int lanes> struct ReduceRows {
  static constexpr int kThreads = 256, kItems = kThreads / lanes;
  using Block = typename Kind::Block;
  using Total = typename Kind::Total;
  using Part = PartOf<Kind>;
  struct Shared {
    Part items[kItems];
  };

  const T* x;
  Output output;
  StridedLoop<1> kept, reduced;
  int64_t inner, pieces, piece;
  int64_t per_run, items;  // of a unit that isn't short of any
  int group;               // items of a unit at once: a power of two
  bool cut_inner;

  struct Unit {
    const T* x;             // of the first run, or of the piece of it
    int64_t number, items;  // number: below 0 where there is none
    int64_t first, length;  // the first run; elements of each
    Total run, total;       // of the thread that owns the output
    int64_t in_run;         // items in `run`
  };

  template <class Threads> HOST_DEVICE void operator()(Threads& block) const {
    typename Threads::template Own<Unit> unit;
    typename Threads::template Own<Part> part;
    block.each([&](int t) { unit[t] = unit_of(block.index * (kItems / group) + t / lanes / group); });
    const int64_t rounds = (items + group - 1) / group;
    for (int64_t round = 0; round <= rounds; ++round) {
      block.each([&](int t) {
        part[t] = round < rounds ? item_of(unit[t], round * group + t / lanes % group, t % lanes) : static_cast<Total>(Kind::kIdentity);
        if (round > 0 && t % (lanes * group) == 0) add(unit[t], (round - 1) * group, block.shared.items + t / lanes);
      });
      if (round == rounds) break;
      block.template fold<lanes>(part, CombineAs<Kind>{});
      block.each([&](int t) {
        if (t % lanes == 0) block.shared.items[t / lanes] = part[t];
      });
    }
    block.each([&](int t) {
      const Unit& u = unit[t];
      if (u.number < 0 || t % (lanes * group) != 0) return;
      output.put(u.number / kept.count, u.number % kept.count, u.in_run == 0 ? u.total : Kind::combine(u.total, u.run));
    });
  }

  HOST_DEVICE Unit unit_of(int64_t number) const {
    const auto identity = static_cast<Total>(Kind::kIdentity);
    Unit unit{x, -1, 0, 0, 0, identity, identity, 0};
    if (number >= pieces * kept.count) return unit;
    const int64_t all = cut_inner ? inner : reduced.count, first = number / kept.count * piece;
    const int64_t count = first + piece < all ? piece : all - first;
    unit.number = number;
    unit.x = x + offsets_at(kept, number % kept.count).of[0] + (cut_inner ? first : 0);
    unit.first = cut_inner ? 0 : first;
    unit.length = cut_inner ? count : inner;
    unit.items = cut_inner ? (count + kReduceBlock - 1) / kReduceBlock : count * per_run;
    return unit;
  }

  HOST_DEVICE Total item_of(const Unit& unit, int64_t item, int lane) const {
    auto total = static_cast<Total>(Kind::kIdentity);
    if (item >= unit.items) return total;
    const int64_t run = per_run == 1 ? item : item / per_run, begin = (item - run * per_run) * kReduceBlock;
    const T* const from = unit.x + offsets_at(reduced, unit.first + run).of[0] + begin;
    if (lanes == 1 || is_short_run(unit.length)) {
      if (lane == 0) {
        for (int64_t i = 0; i < unit.length; ++i) total = Kind::combine(total, static_cast<Total>(Kind::take(from[i])));
      }
      return total;
    }
    return static_cast<Total>(lane_of(from, unit.length - begin, lane));
  }

  // Of a block of so many elements, or of the most that one has.
  HOST_DEVICE static Block lane_of(const T* from, int64_t n, int lane) {
    auto sum = static_cast<Block>(Kind::kIdentity);
    constexpr int kSteps = static_cast<int>(kReduceBlock) / kReduceLanes;
    if constexpr (std::is_integral_v<T>) {
      for (int64_t i = lane; i < n && i < kReduceBlock; i += kReduceLanes) sum = Kind::combine(sum, Kind::take(from[i]));
    } else if constexpr (std::is_same_v<T, Compute<T>>) {
      if (n >= kReduceBlock) {
        ORT_TRAIN_UNROLL
        for (int k = 0; k < kSteps; ++k) sum = Kind::combine(sum, Kind::take(from[k * kReduceLanes + lane]));
      } else {
        for (int64_t i = lane; i < n; i += kReduceLanes) sum = Kind::combine(sum, Kind::take(from[i]));
      }
    } else {
      constexpr int kPack = 8;  // neighbours of a lane
      if (n >= kReduceBlock && is_aligned<kPack>(from)) {
        ORT_TRAIN_UNROLL
        for (int k = 0; k < kSteps / kPack; ++k) {
          const auto pack = load_pack<kPack>(from + (k * kReduceLanes + lane) * kPack);
          ORT_TRAIN_UNROLL
          for (int e = 0; e < kPack; ++e) sum = Kind::combine(sum, Kind::take(pack.of[e]));
        }
      } else {
        for (int k = 0; k < kSteps; ++k) {
          const int64_t i = (k / kPack * kReduceLanes + lane) * kPack + k % kPack;
          if (i < n) sum = Kind::combine(sum, Kind::take(from[i]));
        }
      }
    }
    return sum;
  }

  // The owner adds a round's items.
  HOST_DEVICE void add(Unit& unit, int64_t first, const Part* of_items) const {
    for (int i = 0; i < group && first + i < unit.items; ++i) {
      unit.run = Kind::combine(unit.run, static_cast<Total>(of_items[i]));
      if (++unit.in_run < per_run) continue;
      unit.total = Kind::combine(unit.total, unit.run);
      unit.run = static_cast<Total>(Kind::kIdentity);
      unit.in_run = 0;
    }
  }
};

template <int lanes, class Kind, class Output, typename T>
void launch_rows(const ReducePlan& plan, const Output& output, const T* x, const KernelArgs& args) {
  using Rows = ReduceRows<Kind, Output, T, lanes>;
  const auto blocks_of = [](int64_t n) { return std::max<int64_t>(1, (n + kReduceBlock - 1) / kReduceBlock); };
  const int64_t per_run = blocks_of(plan.cut_inner ? std::min(plan.piece, plan.inner) : plan.inner);
  const int64_t items = plan.cut_inner ? per_run : std::min(plan.piece, plan.reduced.count) * per_run;
  int group = 1;
  while (group < Rows::kItems && group < items) group *= 2;
  const int64_t each = Rows::kItems / group;
  launch(Rows{x, output, plan.kept, plan.reduced, plan.inner, plan.pieces, plan.piece, per_run, items, group, plan.cut_inner},
         (plan.pieces * plan.kept.count + each - 1) / each, args);
}

// --- columns ----------------------------------------------------------------------------------------------------------------------------

// A block of threads takes one piece of `width` neighbouring outputs, kThreads / width blocks of their rows at a time.
template <class Kind, class Output, typename T> struct ReduceColumns {
  static constexpr int kThreads = 256;
  using Block = typename Kind::Block;
  using Total = typename Kind::Total;
  using Part = PartOf<Kind>;
  struct Shared {
    Part items[kThreads];
  };

  const T* x;
  Output output;
  StridedLoop<1> kept, reduced;
  int64_t inner, piece, strips;  // strips: of `width` outputs
  int width;                     // a power of two

  template <class Threads> HOST_DEVICE void operator()(Threads& block) const {
    typename Threads::template Own<const T*> from;
    typename Threads::template Own<Part> part, total;
    const int64_t number = block.index / strips, first = number * piece;
    const int64_t last = first + piece < reduced.count ? first + piece : reduced.count;
    const int64_t row_blocks = (last - first + kReduceRows - 1) / kReduceRows;
    const auto output_of = [&](int t) { return block.index % strips * width + t % width; };
    block.each([&](int t) {
      const int64_t column = output_of(t);
      total[t] = static_cast<Total>(Kind::kIdentity);
      from[t] = column < output.outputs ? x + offsets_at(kept, column / inner).of[0] + column % inner : nullptr;
    });
    const int high = kThreads / width;  // blocks of rows at a time
    const int64_t rounds = (row_blocks + high - 1) / high;
    for (int64_t round = 0; round <= rounds; ++round) {
      block.each([&](int t) {
        const int64_t row = first + (round * high + t / width) * kReduceRows;
        if (from[t] && row < last) part[t] = static_cast<Total>(rows_of(from[t], row, last - row));
        if (round == 0 || t >= width) return;
        for (int i = 0; i < high && (round - 1) * high + i < row_blocks; ++i)
          total[t] = Kind::combine(total[t], block.shared.items[i * width + t]);
      });
      if (round == rounds) break;
      block.each([&](int t) { block.shared.items[t] = part[t]; });
    }
    block.each([&](int t) {
      if (t < width && from[t]) output.put(number, output_of(t), total[t]);
    });
  }

  HOST_DEVICE Block rows_of(const T* from, int64_t first, int64_t n) const {
    auto sum = static_cast<Block>(Kind::kIdentity);
    const int64_t stride = reduced.strides[0][0];
    if (reduced.rank > 1) {
      for (int64_t r = 0; r < kReduceRows && r < n; ++r) sum = Kind::combine(sum, Kind::take(from[offsets_at(reduced, first + r).of[0]]));
    } else if (!std::is_integral_v<T> && n >= kReduceRows) {
      from += first * stride;
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kReduceRows; ++r) sum = Kind::combine(sum, Kind::take(from[r * stride]));
    } else {
      from += first * stride;
      for (int64_t r = 0; r < n && r < kReduceRows; ++r) sum = Kind::combine(sum, Kind::take(from[r * stride]));
    }
    return sum;
  }
};

template <class Kind, class Output, typename T>
void launch_columns(const ReducePlan& plan, const Output& output, const T* x, const KernelArgs& args) {
  using Columns = ReduceColumns<Kind, Output, T>;
  const int64_t row_blocks = (std::min(plan.piece, plan.reduced.count) + kReduceRows - 1) / kReduceRows;
  int width = 32;
  while (width < Columns::kThreads && Columns::kThreads / width > row_blocks) width *= 2;
  while (width > 1 && width / 2 >= output.outputs) width /= 2;
  const int64_t strips = (output.outputs + width - 1) / width;
  launch(Columns{x, output, plan.kept, plan.reduced, plan.inner, plan.piece, strips, width}, plan.pieces * strips, args);
}

// --- pieces -----------------------------------------------------------------------------------------------------------------------------

template <class Kind, class Output> struct CombinePieces {
  Output output;
  int64_t pieces;
  HOST_DEVICE void operator()(int64_t i) const {
    auto total = output.partials[i];
    for (int64_t piece = 1; piece < pieces; ++piece) total = Kind::combine(total, output.partials[piece * output.outputs + i]);
    output.finish(i, total);
  }
};

template <class Kind, class Other, typename T>
void launch_reduction(const ReducePlan& plan, bool is_other, bool is_wide, const KernelArgs& args) {
  using Output = ReduceOutput<Kind, Other, T>;
  Output output{.y = args.out<void>(0),
                .partials = plan.pieces > 1 ? reinterpret_cast<typename Kind::Total*>(args.workspace) : nullptr,
                .outputs = plan.outputs(),
                .count = plan.count,
                .is_other = is_other,
                .is_wide = is_wide};
  const T* const x = args.in<T>(0);
  if (plan.columns)
    launch_columns<Kind>(plan, output, x, args);
  else if (is_short_run(plan.inner))
    launch_rows<1, Kind>(plan, output, x, args);
  else
    launch_rows<kReduceLanes, Kind>(plan, output, x, args);
  if (plan.pieces > 1) launch_elements(CombinePieces<Kind, Output>{output, plan.pieces}, output.outputs, args);
}

// Kind's reduction or, with is_other, Other's.
template <template <typename> class Kind, template <typename> class Other, bool is_other, typename Supported>
KernelRun prepare_reduction(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [plan = reduction_plan(spec), is_wide = spec.outputs[0].dtype != dtype_of<T>()](const KernelArgs& args) {
      launch_reduction<Kind<T>, Other<T>, T>(plan, is_other, is_wide, args);
    };
  });
}

template <template <typename> class Kind, template <typename> class Other, bool is_other, typename Supported>
inline constexpr Kernel reduction_kernel{.types = dtypes_of(Supported{}),
                                         .cost = reduction_cost,
                                         .workspace = reduction_workspace,
                                         .prepare = prepare_reduction<Kind, Other, is_other, Supported>};

ORT_TRAIN_OPS_END
