// SoftmaxCrossEntropy, its parts, its gradient and CountLabels on CUDA; exec/ops/cross_entropy.cpp says what they are. A row's chunks have
// 16 lanes each and are summed side by side, by 16 threads each; one thread a row adds the chunks' sums, one a tensor the rows' losses, in
// ascending order: the processor's.

#include "exec/ops/cross_entropy.h"

#include "exec/cuda/ordered_sum.h"
#include "exec/cuda/rows.h"
#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// Rows of n classes, some a block: each has `groups` (a power of two) groups of kClassLanes threads, and a group takes every groups-th
// chunk.
struct ClassRows {
  static constexpr int kThreads = 512, kGroups = kThreads / kClassLanes;
  int64_t rows, n;
  int groups;

  // For parts of rows with that many classes.
  static ClassRows of(int64_t rows, int64_t n, int64_t part) {
    int groups = 1;
    while (groups < kGroups && groups * kClassChunk < part) groups *= 2;
    return {rows, n, groups};
  }
  int64_t blocks() const { return (rows + kGroups / groups - 1) / (kGroups / groups); }
  HOST_DEVICE int64_t row(int64_t block, int t) const { return block * (kGroups / groups) + t / threads(); }
  HOST_DEVICE int threads() const { return groups * kClassLanes; }  // of a row
};

template <typename T, bool smoothed> struct CrossEntropyRows {
  using C = Compute<T>;
  static constexpr int kThreads = ClassRows::kThreads;
  struct Shared {
    double sums[ClassRows::kGroups], exponents[ClassRows::kGroups];  // of ScaledSums
    C largest[ClassRows::kGroups], plain[ClassRows::kGroups];
  };
  ClassRows rows;
  CrossEntropyTerms terms;
  int64_t ignore;
  bool weighted;  // the classes have weights: `losses` becomes lse
  const T* x;
  const int64_t* labels;
  C* lses;
  double* losses;
  DataError* error;
  // Of a part: what is known of each row before and after; lses and losses are none.
  const RowState* before = nullptr;
  RowState* after = nullptr;
  ClassRange range;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<C> largest, exps, plain;
    typename Block::template Own<RowState> state;  // of the row's first thread
    const int64_t chunks = (rows.n + kClassChunk - 1) / kClassChunk;
    block.each([&](int t) {
      const int64_t r = rows.row(block.index, t);
      state[t] = before && r < rows.rows ? before[r] : RowState{};
    });
    for (int64_t first = 0; first < chunks; first += rows.groups) {
      block.each([&](int t) {
        largest[t] = -std::numeric_limits<C>::infinity();
        walk(block.index, t, first, [&](C v) { largest[t] = Larger{}(largest[t], v); });
      });
      block.template fold<kClassLanes>(largest, Larger{});
      block.each([&](int t) {
        exps[t] = plain[t] = 0;
        const C base = base_of_chunk(largest[t]);
        walk(block.index, t, first, [&](C v) {
          exps[t] += math::exp(v - base);
          if (smoothed) plain[t] += v;
        });
      });
      block.template fold<kClassLanes>(exps, Plus{});
      if (smoothed) block.template fold<kClassLanes>(plain, Plus{});
      block.each([&](int t) {
        if (t % kClassLanes != 0) return;
        const int group = t / kClassLanes;
        const ScaledSum chunk = scaled_sum(largest[t], exps[t]);
        block.shared.sums[group] = chunk.sum;
        block.shared.exponents[group] = chunk.exponent;
        block.shared.largest[group] = largest[t];
        if (smoothed) block.shared.plain[group] = plain[t];
      });
      block.each([&](int t) {
        if (t % rows.threads() != 0) return;
        for (int g = 0; g < rows.groups && first + g < chunks; ++g) {
          const int group = t / kClassLanes + g;
          const ScaledSum chunk{block.shared.sums[group], block.shared.exponents[group], static_cast<double>(block.shared.largest[group])};
          state[t].exps = state[t].exps + chunk;
          if (smoothed) state[t].plain += static_cast<double>(block.shared.plain[group]);
        }
      });
    }
    block.each([&](int t) {
      const int64_t r = rows.row(block.index, t);
      if (t % rows.threads() == 0 && r < rows.rows) finish(r, state[t]);
    });
  }

 private:
  // step() of the numbers that a thread has of its group's chunk, `first` the first group's.
  template <class Step> HOST_DEVICE void walk(int64_t block, int t, int64_t first, const Step& step) const {
    const int64_t r = rows.row(block, t), begin = (first + t / kClassLanes % rows.groups) * kClassChunk;
    if (r >= rows.rows || begin >= rows.n) return;
    const T* const chunk = x + r * rows.n + begin;
    walk_lane<T, kClassLanes>(
        rows.n - begin < kClassChunk ? rows.n - begin : kClassChunk, t % kClassLanes, rows.n % 8 == 0,
        [&](int64_t i, auto width) { return loaded<width.value>(chunk + i); }, step);
  }

  HOST_DEVICE void finish(int64_t r, RowState state) const {
    const int64_t label = labels[r];
    if (after) {
      if (range.holds(label, rows.n)) state.at_label = static_cast<double>(load(x[r * rows.n + label - range.from]));
      after[r] = state;
      return;
    }
    const double lse = log_of<C>(state.exps);
    lses[r] = static_cast<C>(lse);
    losses[r] = weighted ? lse : 0;
    if (weighted || label == ignore) return;
    if (label < 0 || label >= rows.n)
      error->report(DataError::label, label, rows.n, r);
    else
      losses[r] = terms.loss(lse, static_cast<double>(load(x[r * rows.n + label])), state.plain, rows.n);
  }
};

// Where the classes have weights: losses from lses. A block a row, because with smoothing one thread has to add all classes.
template <typename T> struct WeightedCrossEntropy {
  using C = Compute<T>;
  static constexpr int kThreads = OrderedTiles::kThreads;
  using Shared = OrderedTiles;
  int64_t n;
  CrossEntropyTerms terms;
  int64_t ignore;
  const T* x;
  const int64_t* labels;
  const C* weights;
  double* losses;
  DataError* error;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> all, lse;
    const int64_t r = block.index;
    const T* const row = x + r * n;
    block.each([&](int t) { all[t] = 0, lse[t] = losses[r]; });
    if (terms.smoothing != 0) {
      const double of_row = losses[r];
      OrderedTiles::sum(block, block.shared, all, n, [&](int64_t i) {
        return CrossEntropyTerms::weighted_at(static_cast<double>(load(row[i])), static_cast<double>(weights[i]), of_row);
      });
    }
    block.each([&](int t) {
      if (t != 0) return;
      const int64_t label = labels[r];
      losses[r] = 0;
      if (label == ignore) return;
      if (label < 0 || label >= n)
        error->report(DataError::label, label, n, r);
      else
        losses[r] = terms.weighted_loss(lse[t], static_cast<double>(load(row[label])), static_cast<double>(weights[label]), all[t], n);
    });
  }
};

template <typename T> KernelRun forward(const KernelSpec& spec) {
  return [rows = ClassRows::of(label_count(spec, 0), class_count(spec, 0), class_count(spec, 0)),
          terms = CrossEntropyTerms(spec.attributes), ignore = spec.attributes.get("ignore_index", kNothingIgnored),
          weighted = spec.has(2)](const KernelArgs& args) {
    using C = Compute<T>;
    const T* const x = args.in<T>(0);
    const auto* labels = args.in<int64_t>(1);
    auto* losses = reinterpret_cast<double*>(args.workspace);
    if (terms.smoothing != 0 && !weighted)
      launch(CrossEntropyRows<T, true>{rows, terms, ignore, weighted, x, labels, args.out<C>(1), losses, args.error}, rows.blocks(), args);
    else
      launch(CrossEntropyRows<T, false>{rows, terms, ignore, weighted, x, labels, args.out<C>(1), losses, args.error}, rows.blocks(), args);
    if (weighted) launch(WeightedCrossEntropy<T>{rows.n, terms, ignore, x, labels, args.in<C>(2), losses, args.error}, rows.rows, args);
    launch(OrderedSum<SumOf<NumberAt, C>>{{{losses}, rows.rows, args.out<C>(0)}}, 1, args);
  };
}

template <typename T> KernelRun forward_part(const KernelSpec& spec) {
  return
      [rows = ClassRows::of(label_count(spec, 0), class_count(spec, 0), class_count(spec, 0)), terms = CrossEntropyTerms(spec.attributes),
       range = ClassRange(spec.attributes, 0), goes_on = spec.has(2)](const KernelArgs& args) {
        const auto run = [&]<bool smoothed>() {
          launch(CrossEntropyRows<T, smoothed>{.rows = rows,
                                               .terms = terms,
                                               .ignore = 0,
                                               .weighted = false,
                                               .x = args.in<T>(0),
                                               .labels = args.in<int64_t>(1),
                                               .lses = nullptr,
                                               .losses = nullptr,
                                               .error = args.error,
                                               .before = goes_on ? reinterpret_cast<const RowState*>(args.in<double>(2)) : nullptr,
                                               .after = reinterpret_cast<RowState*>(args.out<double>(0)),
                                               .range = range},
                 rows.blocks(), args);
        };
        terms.smoothing != 0 ? run.template operator()<true>() : run.template operator()<false>();
      };
}

// A thread a row.
template <typename C> struct LossOfParts {
  static constexpr int kThreads = 128;
  using Shared = NoShared;
  int64_t rows;
  ClassRange range;
  CrossEntropyTerms terms;
  int64_t ignore;
  const RowState* states;
  const int64_t* labels;
  C* lses;
  double* losses;
  DataError* error;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t r = block.index * kThreads + t;
      if (r >= rows) return;
      const RowState& state = states[r];
      const double lse = log_of<C>(state.exps);
      lses[r] = static_cast<C>(lse);
      losses[r] = 0;
      const int64_t label = labels[r];
      if (label == ignore) return;
      if (range.is_class(label))
        losses[r] = terms.loss(lse, state.at_label, state.plain, range.classes);
      else
        error->report(DataError::label, label, range.classes, r);
    });
  }
};

KernelRun loss_of_parts(const KernelSpec& spec) {
  return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename C>() -> KernelRun {
    return [rows = element_count(spec.inputs[1].shape), range = ClassRange(spec.attributes, 0), terms = CrossEntropyTerms(spec.attributes),
            ignore = spec.attributes.get("ignore_index", kNothingIgnored)](const KernelArgs& args) {
      constexpr int64_t kThreads = LossOfParts<C>::kThreads;
      auto* const losses = reinterpret_cast<double*>(args.workspace);
      launch(LossOfParts<C>{.rows = rows,
                            .range = range,
                            .terms = terms,
                            .ignore = ignore,
                            .states = reinterpret_cast<const RowState*>(args.in<double>(0)),
                            .labels = args.in<int64_t>(1),
                            .lses = args.out<C>(1),
                            .losses = losses,
                            .error = args.error},
             (rows + kThreads - 1) / kThreads, args);
      launch(OrderedSum<SumOf<NumberAt, C>>{{{losses}, rows, args.out<C>(0)}}, 1, args);
    };
  });
}

// A block has slices of some rows; dx may be x.
template <typename T> struct CrossEntropyGradRows {
  using C = Compute<T>;
  static constexpr int kThreads = ClassRows::kThreads;
  static constexpr int64_t kSlice = 8192;
  using Shared = NoShared;
  ClassRows rows;
  ClassRange range;
  CrossEntropyTerms terms;
  int64_t ignore, slices;
  const C* d_loss;
  const T* x;
  const C* lses;
  const int64_t* labels;
  const C* weights;  // null: none
  const double* all_weights;
  T* dx;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t r = rows.row(block.index / slices, t), begin = block.index % slices * kSlice;
      if (r >= rows.rows) return;
      const int64_t end = begin + kSlice < rows.n ? begin + kSlice : rows.n, first = begin + t % rows.threads(), label = labels[r];
      if (label == ignore) {
        for (int64_t i = first; i < end; i += rows.threads()) dx[r * rows.n + i] = store<T>(C(0));
      } else if (range.is_class(label)) {  // else the forward pass has reported it
        const C lse = lses[r];
        fill(x + r * rows.n, dx + r * rows.n, first, end, label - range.from, lse,
             weights ? terms.weighted_slope(lse, weights[label], *all_weights, rows.n) : terms.slope(lse, range.classes));
      }
    });
  }

 private:
  HOST_DEVICE void fill(const T* from, T* to, int64_t i, int64_t end, int64_t label, C lse, const CrossEntropySlope<C>& slope) const {
    const C scale = *d_loss, of_softmax = slope.of_softmax * scale, of_all = slope.of_all * scale;
    const auto value = [&](C v, C weight, int64_t at) {
      const C e = math::exp(v - lse);
      return at == label ? (e * slope.of_softmax - slope.all_at_label - slope.of_label) * scale
                         : e * of_softmax - (weights ? of_all * weight : of_all);
    };
    constexpr int kBatch = 4;
    const int64_t apart = rows.threads();
    for (; i + (kBatch - 1) * apart < end; i += kBatch * apart) {
      C v[kBatch], weight[kBatch];
      for (int k = 0; k < kBatch; ++k) v[k] = load(from[i + k * apart]), weight[k] = weights ? weights[i + k * apart] : C(1);
      for (int k = 0; k < kBatch; ++k) to[i + k * apart] = store<T>(value(v[k], weight[k], i + k * apart));
    }
    for (; i < end; i += apart) to[i] = store<T>(value(load(from[i]), weights ? weights[i] : C(1), i));
  }
};

template <typename C> struct WeightAt {
  const C* weights;
  HOST_DEVICE double operator()(int64_t i) const { return static_cast<double>(weights[i]); }
};

template <typename T> KernelRun backward(const KernelSpec& spec) {
  return [n = class_count(spec, 1), count = label_count(spec, 1), range = ClassRange(spec.attributes, class_count(spec, 1)),
          terms = CrossEntropyTerms(spec.attributes), ignore = spec.attributes.get("ignore_index", kNothingIgnored),
          weighted = spec.has(4)](const KernelArgs& args) {
    using C = Compute<T>;
    constexpr int64_t kSlice = CrossEntropyGradRows<T>::kSlice;
    const ClassRows rows = ClassRows::of(count, n, std::min(n, kSlice));
    const int64_t slices = (n + kSlice - 1) / kSlice;
    const C* const weights = weighted ? args.in<C>(4) : nullptr;
    auto* all_weights = reinterpret_cast<double*>(args.workspace);
    if (weighted) launch(OrderedSum<SumOf<WeightAt<C>, double>>{{{weights}, n, all_weights}}, 1, args);
    launch(CrossEntropyGradRows<T>{.rows = rows,
                                   .range = range,
                                   .terms = terms,
                                   .ignore = ignore,
                                   .slices = slices,
                                   .d_loss = args.in<C>(0),
                                   .x = args.in<T>(1),
                                   .lses = args.in<C>(2),
                                   .labels = args.in<int64_t>(3),
                                   .weights = weights,
                                   .all_weights = all_weights,
                                   .dx = args.out<T>(0)},
           rows.blocks() * slices, args);
  };
}

KernelRun prepare_forward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() { return forward<T>(spec); });
}
KernelRun prepare_part(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() { return forward_part<T>(spec); });
}
KernelRun prepare_backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() { return backward<T>(spec); });
}

// How many labels count, by one block.
struct CountedLabels {
  static constexpr int kThreads = 1024;
  struct Shared {
    int64_t counts[kThreads / 32];
  };
  const int64_t* labels;
  int64_t n, ignore;
  float* result;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<int64_t> count;
    block.each([&](int t) {
      count[t] = 0;
      for (int64_t i = t; i < n; i += kThreads) count[t] += labels[i] != ignore;
    });
    block.template fold<32>(count, Plus{});
    block.each([&](int t) {
      if (t % 32 == 0) block.shared.counts[t / 32] = count[t];
    });
    block.each([&](int t) {
      if (t != 0) return;
      int64_t sum = 0;
      for (const int64_t part : block.shared.counts) sum += part;
      *result = static_cast<float>(sum);
    });
  }
};

template <typename W> struct WeightOfLabel {
  const int64_t* labels;
  const W* weights;
  int64_t classes, ignore;
  HOST_DEVICE double operator()(int64_t i) const {
    const int64_t label = labels[i];
    return label != ignore && label >= 0 && label < classes ? static_cast<double>(weights[label]) : 0;
  }
};

KernelRun make_count(const KernelSpec& spec) {
  const int64_t n = element_count(spec.inputs[0].shape), ignore = spec.attributes.get("ignore_index", kNothingIgnored);
  const int64_t classes = spec.has(1) ? spec.inputs[1].shape[0] : 0;
  if (classes == 0) {
    return [n, ignore](const KernelArgs& args) { launch(CountedLabels{args.in<int64_t>(0), n, ignore, args.out<float>(0)}, 1, args); };
  }
  return for_type(Wide{}, spec.inputs[1].dtype, [&]<typename W>() -> KernelRun {
    return [n, ignore, classes](const KernelArgs& args) {
      launch(OrderedSum<SumOf<WeightOfLabel<W>, float>>{{{args.in<int64_t>(0), args.in<W>(1), classes, ignore}, n, args.out<float>(0)}}, 1,
             args);
    };
  });
}

}  // namespace

constexpr Kernel kSoftmaxCrossEntropyKernel{
    .types = kFloating,
    .cost = cross_entropy_cost,
    .workspace = cross_entropy_workspace,
    .prepare = prepare_forward,
};
constexpr Kernel kSoftmaxCrossEntropyPartKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 2}},
    .cost = cross_entropy_cost,
    .prepare = prepare_part,
};
constexpr Kernel kSoftmaxCrossEntropyOfPartsKernel{
    .types = dtypes_of(Types<double>{}),
    .cost = cross_entropy_cost,
    .workspace = [](const KernelSpec& spec) { return Workspace{.shared = element_count(spec.inputs[1].shape) * int64_t{sizeof(double)}}; },
    .prepare = loss_of_parts,
};
constexpr Kernel kSoftmaxCrossEntropyGradKernel{
    .types = kFloating,
    .typed = 1,
    .in_place = {{.output = 0, .input = 1}},
    .cost = cross_entropy_cost,
    .workspace = [](const KernelSpec& spec) { return Workspace{.shared = spec.has(4) ? int64_t{sizeof(double)} : 0}; },
    .prepare = prepare_backward,
};
constexpr Kernel kCountLabelsKernel{
    .types = {DType::int64},
    .cost = cross_entropy_cost,
    .prepare = make_count,
};

ORT_TRAIN_OPS_END
