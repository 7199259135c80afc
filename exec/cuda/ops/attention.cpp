// Attention on a GPU; its meaning, and its kernel on the CPU: exec/ops/attention.cpp.
//
// A block of threads has some rows of one head and goes through all keys that they see, kKeys at a time: the scores of a block of keys in
// registers, weights by way of shared memory, the sums in registers; there is no workspace. So every row has the CPU's order: its largest
// score and the sum of its weights by blocks of keys, within a block by lanes; each element of o one chain for a block of keys, added to
// what the blocks before it summed up and rescaled. A row doesn't depend on which others are in its block. Heads of more than 128 elements
// are divided between blocks of threads, each of which makes the scores again.
//
// On a device, attention of 16 bits is made by cuDNN where it can (exec/cuda/half_attention.h).

#include "exec/cuda/attention.h"

#include "exec/cuda/half_attention.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace attention;

struct FirstOfTwo {
  template <typename T> HOST_DEVICE T operator()(T a, T) const { return a; }
};

template <typename T, int width, bool deep> struct AttentionKernel {
  static constexpr int kThreads = attention::kThreads, kResident = deep ? 2 : 3, kGroups = kKeys / 32;
  using Scoring = ScoreProduct<T, kGroups, 8, deep>;
  using Summing = SumProduct<T, kGroups, width, 8192 / (width * sizeof(T))>;
  using Tile = SumTile<T, width>;
  struct Summed {
    Weights<T, kGroups> weights;
    typename Summing::Stage stage;
  };
  struct Shared {
    union {
      typename Scoring::Stage scoring;
      Summed summed;
    };
    T largest[kRows<T>], sum[kRows<T>], keep[kRows<T>];  // keep: what sums so far are multiplied by
  };

  Problem p;
  Rows<T> q, k, v, bias, o;  // bias: its first row, strides lead to the others; without data where there is none
  T *lse, *rest;             // rest: with a bias, else null
  int64_t depth_rows, parts;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const Task task(block.index, p.items(), parts);
    const int64_t tiles = (p.rows + kRows<T> - 1) / kRows<T>;
    const int64_t row = (tiles - 1 - task.tile) * kRows<T>;  // where causal, the last rows have most to do: they begin
    const int64_t end = row + kRows<T> < p.rows ? row + kRows<T> : p.rows;
    const int64_t columns = p.causal && end < p.columns ? end : p.columns;
    const int64_t shared_keys = p.key_item(task.item);
    const Rows<T> queries = q.head(task.item), keys = k.head(shared_keys), values = v.head(shared_keys);
    Shared& shared = block.shared;
    typename Block::template Own<Scores<T, kGroups>> scores;
    typename Block::template Own<typename Tile::Sums> sums, chain;
    for (int64_t column = 0; column < columns; column += kKeys) {
      const int n = static_cast<int>(columns - column < kKeys ? columns - column : kKeys);
      // Columns of a block that some row of a warp sees.
      const auto seen_by_warp = [&](int t) {
        const int64_t first = row + t / 32 * kWarpRows<T>, last = first + kWarpRows<T> < end ? first + kWarpRows<T> - 1 : end - 1;
        return first < end ? static_cast<int>(seen(p, last, column, n)) : 0;
      };
      Scoring{queries, keys, row, column, n, static_cast<T>(p.scale), depth_rows}.run(block, shared.scoring, scores, [&](int t) {
        return Groups{0, (seen_by_warp(t) + 31) / 32};
      });
      weigh(block, task.item, row, column, n, scores, seen_by_warp);
      Summing{values, column, task.part * width, n}.run(block, shared.summed.weights, shared.summed.stage, chain, [&](int t) {
        return Range{0, seen_by_warp(t)};
      });
      block.each([&](int t) {
        ORT_TRAIN_UNROLL
        for (int r = 0; r < Tile::kOwnRows; ++r) {
          const T keep = shared.keep[Tile::row(Lane(t), r)];
          ORT_TRAIN_UNROLL
          for (int e = 0; e < kVector<T>; ++e) {
            T& sum = sums[t].of[r].of[e];
            sum = column == 0 ? scaled(T(1), chain[t].of[r].of[e]) : multiply_add(T(1), chain[t].of[r].of[e], sum * keep);
          }
        }
      });
    }
    block.each([&](int t) { store(t, task, row, shared, sums[t]); });
  }

 private:
  HOST_DEVICE int seen_by(int64_t row, int64_t column, int n) const { return row < p.rows ? static_cast<int>(seen(p, row, column, n)) : 0; }

  // Scores become weights relative to the row's largest score so far. A warp's rows are its own. seen_by_warp(t): as above.
  template <class Block, class Own, class Seen>
  HOST_DEVICE void weigh(Block& block, int64_t item, int64_t row, int64_t column, int n, Own& scores, const Seen& seen_by_warp) const {
    constexpr int kEach = kWarpRows<T>;
    Shared& shared = block.shared;
    typename Block::template Own<T> first[kEach], largest[kEach], sum[kEach];
    block.each([&](int t) {
      const int64_t from = bias_offset(p, item) + row * p.bias[2] + column * p.bias[3];
      BiasTile<T>{bias.data, bias.element, from, p.bias[2], p.bias[3]}.add(Lane(t), p.rows - row, n, scores[t]);
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kEach; ++r) {
        const int end = seen_by(row + t / 32 * kEach + r, column, n);
        ORT_TRAIN_UNROLL
        for (int m = 0; m < kGroups; ++m) {
          if (t % 32 + 32 * m >= end) scores[t].of[r][m] = -infinity<T>();
        }
        first[r][t] = scores[t].of[r][0];
      }
    });
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kEach; ++r) block.template fold<32>(first[r], FirstOfTwo{});
    block.each([&](int t) {
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kEach; ++r) {
        const int end = static_cast<int>(padded(p, seen_by(row + t / 32 * kEach + r, column, n)));
        T most = first[r][t];
        ORT_TRAIN_UNROLL
        for (int m = 0; m < kGroups; ++m) {
          if (32 * m < end) most = Larger{}(most, scores[t].of[r][m]);
        }
        largest[r][t] = most;
      }
    });
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kEach; ++r) block.template fold<32>(largest[r], Larger{});
    block.each([&](int t) {
      T now[kEach], lanes[kEach];
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kEach; ++r) {
        now[r] = largest_now(shared, t / 32 * kEach + r, column, largest[r][t]);
        lanes[r] = T(0);
        if (now[r] == -infinity<T>()) now[r] = hide(scores[t].of[r]);
      }
      const int end = seen_by_warp(t);
      ORT_TRAIN_UNROLL
      for (int m = 0; m < kGroups; ++m) {
        if (32 * m >= end) continue;  // of a warp; nothing reads them
        ORT_TRAIN_UNROLL
        for (int r = 0; r < kEach; ++r) {
          const T weight = math::exp_of_weight(scores[t].of[r][m] - now[r]);
          shared.summed.weights.at(t / 32 * kEach + r, t % 32 + 32 * m) = weight;
          lanes[r] += weight;
        }
      }
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kEach; ++r) sum[r][t] = lanes[r];
    });
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kEach; ++r) block.template fold<32>(sum[r], Plus{});
    block.each([&](int t) {
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kEach; ++r) {
        if (t % 32 == r) take_in(shared, t / 32 * kEach + r, column, largest[r][t], sum[r][t]);
      }
    });
  }

  // Of a row without a score, but perhaps NaN: what its weights become 0 relative to, or NaN.
  HOST_DEVICE static T hide(T (&scores)[kGroups]) {
    ORT_TRAIN_UNROLL
    for (int m = 0; m < kGroups; ++m) scores[m] = scores[m] != scores[m] ? scores[m] : -infinity<T>();
    return T(0);
  }

  HOST_DEVICE static T largest_now(const Shared& shared, int row, int64_t column, T in_block) {
    return column == 0 || in_block > shared.largest[row] ? in_block : shared.largest[row];
  }
  HOST_DEVICE static void take_in(Shared& shared, int row, int64_t column, T in_block, T sum) {
    const T now = largest_now(shared, row, column, in_block);
    const bool hidden = now == -infinity<T>();  // everything up to here
    const T keep = column == 0 ? T(0) : hidden ? T(1) : math::exp_of_weight(shared.largest[row] - now);
    shared.sum[row] = column == 0 ? sum : shared.sum[row] * keep + sum;
    shared.largest[row] = now;
    shared.keep[row] = keep;
  }

  HOST_DEVICE void store(int t, const Task& task, int64_t row, const Shared& shared, typename Tile::Sums& sums) const {
    const Rows<T> to = o.head(task.item);
    ORT_TRAIN_UNROLL
    for (int r = 0; r < Tile::kOwnRows; ++r) {
      const T sum = shared.sum[Tile::row(Lane(t), r)];
      const T inverse = p.safe && sum == T(0) ? T(0) : T(1) / sum;
      ORT_TRAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) sums.of[r].of[e] *= inverse;
      to.set_pack(row + Tile::row(Lane(t), r), task.part * width + Tile::column(Lane(t)), sums.of[r]);
    }
    if (task.part == 0 && t < kRows<T> && row + t < p.rows) {
      const bool hidden = p.safe && shared.sum[t] == T(0);
      const int64_t at = task.item * p.rows + row + t;
      lse[at] = hidden ? infinity<T>() : log_of_sum(shared.largest[t], shared.sum[t]);
      if (rest) rest[at] = hidden ? T(0) : rest_of_sum(shared.largest[t], shared.sum[t]);
    }
  }
};

KernelRun make(const KernelSpec& spec) {
  const Problem p = problem_of(spec, 0, 3);
  KernelRun run;
  for_sizes(compute_type(spec.inputs[0].dtype), p.depth, p.width, [&]<typename T, int width, bool deep>() {
    AttentionKernel<T, width, deep> kernel{.p = p,
                                           .q = rows_of<T>(spec.inputs[0].shape, operand_element(spec, 0)),
                                           .k = rows_of<T>(spec.inputs[1].shape, operand_element(spec, 1)),
                                           .v = rows_of<T>(spec.inputs[2].shape, operand_element(spec, 2)),
                                           .bias = {},
                                           .o = rows_of<T>(spec.outputs[0].shape, stored_element(spec.outputs[0])),
                                           .lse = nullptr,
                                           .rest = nullptr,
                                           .depth_rows = depth_block(p.depth),
                                           .parts = parts_of(p.width, width)};
    if (spec.has(3)) kernel.bias.element = stored_element(spec.inputs[3]);
    const int64_t blocks = (p.rows + kRows<T> - 1) / kRows<T> * p.items() * kernel.parts;
    run = [kernel, blocks](const KernelArgs& args) {
      AttentionKernel<T, width, deep> on = kernel;
      on.q = kernel.q.on(args.inputs[0]), on.k = kernel.k.on(args.inputs[1]), on.v = kernel.v.on(args.inputs[2]);
      if (args.inputs.size() > 3) on.bias = kernel.bias.on(args.inputs[3]);
      on.o = kernel.o.on(args.outputs[0]), on.lse = args.out<T>(1);
      on.rest = args.outputs.size() > 2 ? args.out<T>(2) : nullptr;
      launch(on, blocks, args);
    };
  });
  return run;
}

}  // namespace

constexpr Kernel kAttentionKernel{
    .types = kWide | kMixed,
    .cost = cost<0, 3, 2>,
    .workspace = halves::workspace_of_either<half_forward, halves::no_workspace>,
    .prepare = halves::prepare_either<half_forward, make>,
};

ORT_TRAIN_OPS_END
