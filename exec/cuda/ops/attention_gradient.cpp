// AttentionGrad on a GPU; its meaning, and its kernel on the CPU: exec/ops/attention_gradient.cpp.
//
// Three kernels, of which the last two make the scores again, tile by tile, in the order of the forward pass:
//
//   delta    dy . o of each row, summed by lanes, a warp a row: a number a row in the workspace
//   dq       a block of threads has some rows of one head and goes through the keys that they see, kKeys at a time: an element's sum over
//            such a block of keys is one chain, which is added to those before it
//   dk, dv   a block of threads has some keys of one head and goes through the rows that see them, kQueries at a time: an element's sum
//            over such a block of rows is one chain, as on the CPU, which has one block of rows after the other
//
// Heads of more than 128 elements are divided between blocks of threads, each of which makes the scores again.
//
// On a device, the gradient of attention of 16 bits is made by cuDNN where it can (exec/cuda/half_attention.h).

#include "exec/cuda/attention.h"
#include "exec/cuda/half_attention.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace attention;

template <typename T> struct GradientTensors {
  Problem p;
  Rows<T> dy, q, k, v, stored_dy, o, bias, dq, dk, dv;  // stored_dy: as it is, for dy . o
  const T *lse, *rest;                                  // rest: with a bias, else null
  T* delta;
  int64_t depth_rows, width_rows;  // of a block of the depth of scores, of their gradients

  // Of scores from a row and column of a head on; steps: from one of a thread's rows or columns to the next.
  HOST_DEVICE BiasTile<T> bias_at(int64_t item, int64_t row, int64_t column, int64_t row_step, int64_t column_step) const {
    return {bias.data, bias.element, bias_offset(p, item) + row * p.bias[2] + column * p.bias[3], row_step, column_step};
  }
  HOST_DEVICE T weight(T score, T lse_of_row, T rest_of_row) const { return math::exp_of_weight(score - lse_of_row - rest_of_row); }
  HOST_DEVICE T slope(T weight, T gradient, T lse_of_row, T delta_of_row) const {
    return slope_of_scores(p, lse_of_row) * weight * (gradient - delta_of_row);
  }
  HOST_DEVICE T rest_at(int64_t row) const { return rest ? rest[row] : T(0); }
};

// Adds a block's chain to the sums before it, as products with a start do.
template <class Tile, typename T>
HOST_DEVICE inline void add_chain(const typename Tile::Sums& chain, typename Tile::Sums& sums, bool first) {
  ORT_TRAIN_UNROLL
  for (int r = 0; r < Tile::kOwnRows; ++r) {
    ORT_TRAIN_UNROLL
    for (int e = 0; e < kVector<T>; ++e) {
      T& sum = sums.of[r].of[e];
      sum = first ? scaled(T(1), chain.of[r].of[e]) : multiply_add(T(1), chain.of[r].of[e], sum);
    }
  }
}
template <class Tile, typename T>
HOST_DEVICE inline void store_sums(int t, const Rows<T>& to, int64_t row, int64_t first, const typename Tile::Sums& sums) {
  ORT_TRAIN_UNROLL
  for (int r = 0; r < Tile::kOwnRows; ++r) to.set_pack(row + Tile::row(Lane(t), r), first + Tile::column(Lane(t)), sums.of[r]);
}

// --- delta ----------------------------------------------------------------------------------------------------------------------------

template <typename T> struct DeltaKernel {
  static constexpr int kThreads = 256, kResident = 4;
  using Shared = NoShared;
  Rows<T> dy, o;
  T* delta;
  int64_t rows;  // of all heads

  static int64_t blocks(int64_t rows) { return (rows + kThreads / 32 - 1) / (kThreads / 32); }
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<T> sum;
    const auto row = [&](int t) { return block.index * (kThreads / 32) + t / 32; };
    block.each([&](int t) {
      T lane = 0;
      if (row(t) < rows) {
        for (int64_t e = t % 32; e < dy.width; e += 32) lane = math::fma(dy.at(row(t) * dy.width + e), o.at(row(t) * dy.width + e), lane);
      }
      sum[t] = lane;
    });
    block.template fold<32>(sum, Plus{});
    block.each([&](int t) {
      if (t % 32 == 0 && row(t) < rows) delta[row(t)] = sum[t];
    });
  }
};

// --- dq -------------------------------------------------------------------------------------------------------------------------------

template <typename T, int width, bool deep> struct QueryGradientKernel {
  static constexpr int kThreads = attention::kThreads, kResident = deep ? 2 : 3, kGroups = kKeys / 32;
  using Scoring = ScoreProduct<T, kGroups, 2, deep>;
  using Summing = SumProduct<T, kGroups, width, 8192 / (width * sizeof(T))>;
  using Tile = SumTile<T, width>;
  struct Shared {
    Weights<T, kGroups> weights;
    union {
      typename Scoring::Stage scoring;
      typename Summing::Stage summing;
    };
    T lse[kRows<T>], rest[kRows<T>], delta[kRows<T>];
  };

  GradientTensors<T> of;
  int64_t parts;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const Problem& p = of.p;
    const Task task(block.index, p.items(), parts);
    const int64_t tiles = (p.rows + kRows<T> - 1) / kRows<T>;
    const int64_t row = (tiles - 1 - task.tile) * kRows<T>;  // where causal, the last rows have most to do: they begin
    const int64_t end = row + kRows<T> < p.rows ? row + kRows<T> : p.rows;
    const int64_t columns = p.causal && end < p.columns ? end : p.columns;
    const Rows<T> q = of.q.head(task.item), dy = of.dy.head(task.item);
    const Rows<T> k = of.k.head(p.key_item(task.item)), v = of.v.head(p.key_item(task.item));
    Shared& shared = block.shared;
    typename Block::template Own<Scores<T, kGroups>> scores;
    typename Block::template Own<typename Tile::Sums> sums, chain;
    block.each([&](int t) {
      if (t >= kRows<T> || row + t >= p.rows) return;
      shared.lse[t] = of.lse[task.item * p.rows + row + t];
      shared.rest[t] = of.rest_at(task.item * p.rows + row + t);
      shared.delta[t] = of.delta[task.item * p.rows + row + t];
    });
    for (int64_t column = 0; column < columns; column += kKeys) {
      const int n = static_cast<int>(columns - column < kKeys ? columns - column : kKeys);
      const auto seen_by_warp = [&](int t) {
        const int64_t first = row + t / 32 * kWarpRows<T>, last = first + kWarpRows<T> < end ? first + kWarpRows<T> - 1 : end - 1;
        return first < end ? static_cast<int>(seen(p, last, column, n)) : 0;
      };
      const auto groups = [&](int t) { return Groups{0, (seen_by_warp(t) + 31) / 32}; };
      Scoring{q, k, row, column, n, static_cast<T>(p.scale), of.depth_rows}.run(block, shared.scoring, scores, groups);
      block.each([&](int t) { weigh(t, task.item, row, column, n, seen_by_warp(t), shared, scores[t]); });
      Scoring{dy, v, row, column, n, T(1), of.width_rows}.run(block, shared.scoring, scores, groups);
      block.each([&](int t) { differentiate(t, row, column, n, seen_by_warp(t), shared, scores[t]); });
      Summing{k, column, task.part * width, n}.run(block, shared.weights, shared.summing, chain, [&](int t) {
        return Range{0, seen_by_warp(t)};
      });
      block.each([&](int t) { add_chain<Tile, T>(chain[t], sums[t], column == 0); });
    }
    block.each([&](int t) { store_sums<Tile>(t, of.dq.head(task.item), row, task.part * width, sums[t]); });
  }

 private:
  HOST_DEVICE int seen_by(int64_t row, int64_t column, int n) const {
    return row < of.p.rows ? static_cast<int>(seen(of.p, row, column, n)) : 0;
  }

  // Of a warp's columns before `end`; nothing reads the others.
  HOST_DEVICE void weigh(int t, int64_t item, int64_t row, int64_t column, int n, int end, Shared& shared,
                         Scores<T, kGroups>& scores) const {
    const Problem& p = of.p;
    of.bias_at(item, row, column, p.bias[2], p.bias[3]).add(Lane(t), p.rows - row, n, scores);
    int seen[kWarpRows<T>];
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kWarpRows<T>; ++r) seen[r] = seen_by(row + t / 32 * kWarpRows<T> + r, column, n);
    ORT_TRAIN_UNROLL
    for (int m = 0; m < kGroups; ++m) {
      if (32 * m >= end) continue;
      const int j = t % 32 + 32 * m;
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        const int at = t / 32 * kWarpRows<T> + r;
        shared.weights.at(at, j) = of.weight(j < seen[r] ? scores.of[r][m] : -infinity<T>(), shared.lse[at], shared.rest[at]);
      }
    }
  }

  HOST_DEVICE void differentiate(int t, int64_t row, int64_t column, int n, int end, Shared& shared,
                                 const Scores<T, kGroups>& gradients) const {
    int seen[kWarpRows<T>];
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kWarpRows<T>; ++r) seen[r] = seen_by(row + t / 32 * kWarpRows<T> + r, column, n);
    ORT_TRAIN_UNROLL
    for (int m = 0; m < kGroups; ++m) {
      if (32 * m >= end) continue;
      const int j = t % 32 + 32 * m;
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        const int at = t / 32 * kWarpRows<T> + r;
        T& weight = shared.weights.at(at, j);
        weight = of.slope(weight, j < seen[r] ? gradients.of[r][m] : T(0), shared.lse[at], shared.delta[at]);
      }
    }
  }
};

// --- dk, dv ---------------------------------------------------------------------------------------------------------------------------

// Rows are keys here, columns are the queries of all heads that share them, one head after another.
template <typename T, int width, bool deep> struct KeyGradientKernel {
  static constexpr int kThreads = attention::kThreads, kResident = deep ? 2 : width > 64 ? 3 : 4, kGroups = kQueries / 32;
  using Scoring = ScoreProduct<T, kGroups, 8, deep>;
  using Summing = SumProduct<T, kGroups, width, 16384 / (width * sizeof(T))>;
  using Tile = SumTile<T, width>;
  struct Shared {
    Weights<T, kGroups> weights;
    union {
      typename Scoring::Stage scoring;
      typename Summing::Stage summing;
    };
    T lse[kQueries], delta[kQueries];
  };

  GradientTensors<T> of;
  int64_t parts;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const Problem& p = of.p;
    const Task task(block.index, p.key_items(), parts);
    const int64_t key = task.tile * kRows<T>;  // where causal, the first keys have most to do: they begin
    const int64_t first = task.part * width;
    const Rows<T> k = of.k.head(task.item), v = of.v.head(task.item);
    Shared& shared = block.shared;
    typename Block::template Own<Scores<T, kGroups>> scores;
    typename Block::template Own<typename Tile::Sums> key_sums, value_sums, chain;
    block.each([&](int t) { Tile::clear(key_sums[t]), Tile::clear(value_sums[t]); });
    const int64_t begin = p.causal ? key / kQueries * kQueries : 0, head = task.item * p.group;
    const Rows<T> q = of.q.heads(head, p.group), dy = of.dy.heads(head, p.group);
    const int64_t end = begin < p.rows ? p.group * p.rows : 0;
    for (int64_t all = begin; all < end;) {  // counts the rows of all heads; a second loop takes more registers than there are
      const int64_t row = all % p.rows;
      const int n = static_cast<int>(p.rows - row < kQueries ? p.rows - row : kQueries);
      // The first row of a block that sees some key of a warp.
      const auto first_row = [&](int t) {
        const int64_t seeing = p.causal ? key + t / 32 * kWarpRows<T> - row : 0;
        return static_cast<int>(seeing < 0 ? 0 : seeing < n ? seeing : n);
      };
      const auto groups = [&](int t) { return Groups{first_row(t) / 32, (n + 31) / 32}; };
      const auto range = [&](int t) { return Range{first_row(t), n}; };
      block.each([&](int t) { load_rows_numbers(t, head * p.rows + all, n, shared); });
      Scoring{k, q, key, all, n, static_cast<T>(p.scale), of.depth_rows}.run(block, shared.scoring, scores, groups);
      block.each([&](int t) { weigh(t, head + all / p.rows, key, row, first_row(t), n, shared, scores[t]); });
      if (first < p.width) {
        Summing{dy, all, first, n}.run(block, shared.weights, shared.summing, chain, range);
        block.each([&](int t) { add_chain<Tile, T>(chain[t], value_sums[t], false); });
      }
      if (first < p.depth) {
        Scoring{v, dy, key, all, n, T(1), of.width_rows}.run(block, shared.scoring, scores, groups);
        block.each([&](int t) { differentiate(t, key, row, first_row(t), n, shared, scores[t]); });
        Summing{q, all, first, n}.run(block, shared.weights, shared.summing, chain, range);
        block.each([&](int t) { add_chain<Tile, T>(chain[t], key_sums[t], false); });
      }
      all += row + n < p.rows ? n : n + begin;
    }
    block.each([&](int t) {
      store_sums<Tile>(t, of.dv.head(task.item), key, first, value_sums[t]);
      store_sums<Tile>(t, of.dk.head(task.item), key, first, key_sums[t]);
    });
  }

 private:
  HOST_DEVICE void load_rows_numbers(int t, int64_t row, int n, Shared& shared) const {
    if (t >= n) return;
    shared.lse[t] = of.lse[row + t];
    shared.delta[t] = of.delta[row + t];
  }
  // Which of a block's keys, from `key` on, row `row` sees: the first so many.
  HOST_DEVICE int keys_seen(int64_t row, int64_t key) const {
    const int64_t seen = of.p.causal && row + 1 < of.p.columns ? row + 1 - key : of.p.columns - key;
    return static_cast<int>(seen < kRows<T> ? seen : kRows<T>);
  }

  // Of the rows that see some key of a warp, from `begin` on; nothing reads the others.
  HOST_DEVICE void weigh(int t, int64_t item, int64_t key, int64_t row, int begin, int n, Shared& shared,
                         Scores<T, kGroups>& scores) const {
    const Problem& p = of.p;
    of.bias_at(item, row, key, p.bias[3], p.bias[2]).add(Lane(t), p.columns - key, n, scores);
    ORT_TRAIN_UNROLL
    for (int m = 0; m < kGroups; ++m) {
      const int i = t % 32 + 32 * m;
      if (32 * m + 31 < begin || i >= n) continue;
      const T lse = shared.lse[i], rest = of.rest_at(item * p.rows + row + i);
      const int seen = keys_seen(row + i, key);
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        const int at = t / 32 * kWarpRows<T> + r;
        shared.weights.at(at, i) = of.weight(at < seen ? scores.of[r][m] : -infinity<T>(), lse, rest);
      }
    }
  }

  HOST_DEVICE void differentiate(int t, int64_t key, int64_t row, int begin, int n, Shared& shared,
                                 const Scores<T, kGroups>& gradients) const {
    ORT_TRAIN_UNROLL
    for (int m = 0; m < kGroups; ++m) {
      const int i = t % 32 + 32 * m;
      if (32 * m + 31 < begin || i >= n) continue;
      const T lse = shared.lse[i], delta = shared.delta[i];
      const int seen = keys_seen(row + i, key);
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kWarpRows<T>; ++r) {
        const int at = t / 32 * kWarpRows<T> + r;
        T& weight = shared.weights.at(at, i);
        weight = of.slope(weight, at < seen ? gradients.of[r][m] : T(0), lse, delta);
      }
    }
  }
};

// --- kernel ---------------------------------------------------------------------------------------------------------------------------

template <typename T> GradientTensors<T> tensors_of(const KernelSpec& spec) {
  GradientTensors<T> of{.p = problem_of(spec, 1, 6)};
  const auto operand = [&](size_t i) { return rows_of<T>(spec.inputs[i].shape, operand_element(spec, i)); };
  const auto stored = [&](const TensorType& type) { return rows_of<T>(type.shape, stored_element(type)); };
  of.dy = operand(0), of.q = operand(1), of.k = operand(2), of.v = operand(3);
  of.stored_dy = stored(spec.inputs[0]), of.o = stored(spec.inputs[4]);
  if (spec.has(6)) of.bias.element = stored_element(spec.inputs[6]);
  of.dq = stored(spec.outputs[0]), of.dk = stored(spec.outputs[1]), of.dv = stored(spec.outputs[2]);
  of.depth_rows = depth_block(of.p.depth);
  of.width_rows = depth_block(of.p.width);
  return of;
}

template <typename T> GradientTensors<T> on(const GradientTensors<T>& prepared, const KernelArgs& args) {
  GradientTensors<T> of = prepared;
  of.dy = of.dy.on(args.inputs[0]), of.stored_dy = of.stored_dy.on(args.inputs[0]);
  of.q = of.q.on(args.inputs[1]), of.k = of.k.on(args.inputs[2]), of.v = of.v.on(args.inputs[3]);
  of.o = of.o.on(args.inputs[4]), of.lse = args.in<T>(5), of.rest = args.inputs.size() > 7 ? args.in<T>(7) : nullptr;
  if (args.inputs.size() > 6) of.bias = of.bias.on(args.inputs[6]);
  of.dq = of.dq.on(args.outputs[0]), of.dk = of.dk.on(args.outputs[1]), of.dv = of.dv.on(args.outputs[2]);
  of.delta = reinterpret_cast<T*>(args.workspace);
  return of;
}

KernelRun make(const KernelSpec& spec) {
  KernelRun run;
  const Problem p = problem_of(spec, 1, 6);
  for_sizes(compute_type(spec.inputs[0].dtype), p.depth, p.width, [&]<typename T, int width, bool deep>() {
    const auto tiles = [](int64_t rows) { return (rows + kRows<T> - 1) / kRows<T>; };
    const int64_t query_parts = parts_of(p.depth, width), key_parts = parts_of(std::max(p.depth, p.width), width);
    const int64_t query_blocks = tiles(p.rows) * p.items() * query_parts, key_blocks = tiles(p.columns) * p.key_items() * key_parts;
    const int64_t rows = p.items() * p.rows;
    run = [=, prepared = tensors_of<T>(spec)](const KernelArgs& args) {
      const GradientTensors<T> of = on(prepared, args);
      launch(DeltaKernel<T>{of.stored_dy, of.o, of.delta, rows}, DeltaKernel<T>::blocks(rows), args);
      launch(QueryGradientKernel<T, width, deep>{of, query_parts}, query_blocks, args);
      launch(KeyGradientKernel<T, width, deep>{of, key_parts}, key_blocks, args);
    };
  });
  return run;
}

// delta of each row.
Workspace own_workspace(const KernelSpec& spec) {
  const Problem p = problem_of(spec, 1, 6);
  return {.shared = p.items() * p.rows * size_of(compute_type(spec.inputs[0].dtype))};
}

}  // namespace

constexpr Kernel kAttentionGradKernel{
    .types = kWide | kMixed,
    .cost = cost<1, 6, 5>,
    .workspace = halves::workspace_of_either<half_backward, own_workspace>,
    .prepare = halves::prepare_either<half_backward, make>,
};

ORT_TRAIN_OPS_END
