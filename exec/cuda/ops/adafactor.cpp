// Adafactor's ops on CUDA: exec/ops/adafactor.cpp has the meaning and the order of the sums, which is kept: a row is added up in 32 lanes,
// by a warp, or by one thread where it is short; a column from row to row (exec/cuda/squares.h), and so is the sum of row; of blocks of
// squares one thread adds rows in ascending order. The updates are element by element.

#include <algorithm>

#include "exec/block.h"
#include "exec/cuda/pack.h"
#include "exec/cuda/squares.h"
#include "exec/cuda/sum_inputs.h"
#include "exec/cuda/unroll.h"
#include "exec/norm_block.h"
#include "exec/op_list.h"
#include "exec/ops/adafactor_update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- rows and columns -----------------------------------------------------------------------------------------------------------------

// The squares of step(i), 0 <= i < n, as far as a lane of so many has them.
template <int lanes, class Step> HOST_DEVICE inline double lane_squares(int64_t n, int lane, const Step& step) {
  double sum = 0;
  for (int64_t i = lane; i < n; i += lanes) {
    const auto x = static_cast<double>(step(i));
    sum = sum + x * x;
  }
  return sum;
}

template <typename T, int lanes> struct RowMeans {
  static constexpr int kThreads = 256, kRows = kThreads / lanes;
  using Shared = NoShared;
  const T* g;
  T* row;
  const float *clip, *scalars;
  Matrices m;
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> sum;
    const auto row_of = [&](int t) { return block.index * kRows + t / lanes; };
    const bool skips = is_skipped(*clip);
    block.each([&](int t) {
      sum[t] = 0;
      if (skips || row_of(t) >= m.all_rows()) return;
      const T* const from = g + row_of(t) * m.columns;
      const T multiplier = *clip;
      sum[t] = lane_squares<lanes>(m.columns, t % lanes, [&](int64_t i) { return from[i] * multiplier; });
    });
    block.template fold<lanes>(sum, Plus{});
    block.each([&](int t) {
      if (skips || row_of(t) >= m.all_rows() || t % lanes != 0) return;
      const T beta2 = scalars[kAdafactorBeta2], gain = scalars[kAdafactorOneMinusBeta2];
      const double epsilon = scalars[kAdafactorEpsilon], mean = sum[t] / static_cast<double>(m.columns);
      row[row_of(t)] = beta2 * row[row_of(t)] + gain * static_cast<T>(mean + epsilon);
    });
  }
};

// A unit is 32 columns, a lane one of them.
template <typename T> struct ColumnSquares {
  using Stored = T;
  static constexpr int kSums = 1;
  static constexpr LanesJoin kJoin = LanesJoin::none;
  struct Values {
    T of[kSums];
  };
  const T* g;
  const float* clip;
  const double* before;  // null: zeros
  double* sums;
  Matrices m;
  int64_t strips;  // units of a matrix
  HOST_DEVICE bool skips() const { return is_skipped(*clip); }
  HOST_DEVICE int64_t length(int64_t) const { return m.rows * 32; }
  HOST_DEVICE Values operator()(int64_t unit, int64_t i) const {
    const int64_t column = unit % strips * 32 + i % 32, row = unit / strips * m.rows + i / 32;
    return {{column < m.columns ? g[row * m.columns + column] * static_cast<T>(*clip) : T(0)}};
  }
  HOST_DEVICE double start(int64_t unit, int lane) const {
    const int64_t column = unit % strips * 32 + lane;
    return before && column < m.columns ? before[unit / strips * m.columns + column] : 0;
  }
  HOST_DEVICE void put(int64_t unit, int, int lane, double sum) const {
    const int64_t column = unit % strips * 32 + lane;
    if (column < m.columns) sums[unit / strips * m.columns + column] = sum;
  }
};

// Of each matrix.
template <typename T> struct SumOfRow {
  const T* row;
  const float* clip;
  const double* before;  // null: zeros
  double* sums;
  int64_t rows;
  HOST_DEVICE int64_t count(int64_t) const { return is_skipped(*clip) ? 0 : rows; }
  HOST_DEVICE double start(int64_t matrix) const { return before ? before[matrix] : 0; }
  HOST_DEVICE double operator()(int64_t matrix, int64_t r) const { return static_cast<double>(row[matrix * rows + r]); }
  HOST_DEVICE void put(int64_t matrix, double sum) const {
    if (!is_skipped(*clip)) sums[matrix] = sum;
  }
};

template <typename T, int lanes> void launch_row_means(const RowMeans<T, lanes>& means, const KernelArgs& args) {
  constexpr int kRows = RowMeans<T, lanes>::kRows;
  launch(means, (means.m.all_rows() + kRows - 1) / kRows, args);
}

template <typename T> struct MakeRows {
  KernelRun operator()(const KernelSpec& spec) const {
    return [m = matrices_of(spec.inputs[0].shape), goes_on = spec.has(4)](const KernelArgs& args) {
      const T* const g = args.in<T>(0);
      T* const row = args.out<T>(0);
      const float *const clip = args.in<float>(2), *const scalars = args.in<float>(3);
      if (m.columns < kLanes)
        launch_row_means(RowMeans<T, 1>{g, row, clip, scalars, m}, args);
      else
        launch_row_means(RowMeans<T, kLanes>{g, row, clip, scalars, m}, args);
      const int64_t strips = (m.columns + 31) / 32;
      launch_lane_squares(ColumnSquares<T>{g, clip, goes_on ? args.in<double>(4) : nullptr, args.out<double>(1), m, strips},
                          m.batch * strips, args);
      launch(OrderedSum<SumOfRow<T>>{{row, clip, goes_on ? args.in<double>(5) : nullptr, args.out<double>(2), m.rows}}, m.batch, args);
    };
  }
};

template <typename T> struct ColumnUpdate {
  T *column, *factor;
  const double* sums;
  const float *clip, *scalars;
  double rows;
  HOST_DEVICE void operator()(int64_t i) const {
    if (is_skipped(*clip)) return;
    const T beta2 = scalars[kAdafactorBeta2], gain = scalars[kAdafactorOneMinusBeta2];
    const double epsilon = scalars[kAdafactorEpsilon];
    column[i] = beta2 * column[i] + gain * static_cast<T>(sums[i] / rows + epsilon);
    factor[i] = T(1) / math::sqrt(column[i]);
  }
};

template <typename T> struct MakeColumns {
  KernelRun operator()(const KernelSpec& spec) const {
    return [n = element_count(spec.inputs[0].shape), rows = spec.attributes.get("rows", int64_t{1})](const KernelArgs& args) {
      launch_elements(ColumnUpdate<T>{.column = args.out<T>(0),
                                      .factor = args.out<T>(1),
                                      .sums = args.in<double>(1),
                                      .clip = args.in<float>(2),
                                      .scalars = args.in<float>(3),
                                      .rows = static_cast<double>(rows)},
                      n, args);
    };
  }
};

// --- the update, and its root mean square ---------------------------------------------------------------------------------------------

// What u is made from.
template <typename T> struct FactoredInputs {
  const T *g, *row;
  const double* row_sum;
  const T* factor;
  const float* clip;
  Matrices m;
  int64_t rows;  // of the whole matrices
  float floor;
  HOST_DEVICE Factored<T> numbers() const { return Factored<T>(*clip, floor); }
  HOST_DEVICE T of_row(const Factored<T>& f, int64_t r) const { return f.of_row(row[r], row_sum[r / m.rows], rows); }
  HOST_DEVICE const T* factor_of(int64_t r) const { return factor + r / m.rows * m.columns; }
};
template <typename T> FactoredInputs<T> factored_inputs(const KernelSpec& spec, size_t g) {
  const Matrices m = matrices_of(spec.inputs[g].shape);
  return {.m = m, .rows = spec.attributes.get("rows", m.rows), .floor = floor_of(spec)};
}
template <typename T> FactoredInputs<T> with_places(FactoredInputs<T> inputs, const KernelArgs& args, size_t g) {
  inputs.g = args.in<T>(g);
  inputs.row = args.in<T>(g + 1);
  inputs.row_sum = args.in<double>(g + 2);
  inputs.factor = args.in<T>(g + 3);
  inputs.clip = args.in<float>(g + 4);
  return inputs;
}

// A block of threads takes a block of squares, whose rows are whole.
template <typename T, int lanes> struct FactoredSquares {
  static constexpr int kThreads = 256, kRows = kThreads / lanes;
  struct Shared {
    double rows[kRows];
  };
  FactoredInputs<T> in;
  double* sums;
  int64_t block_rows;
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> part, sum;
    const bool skips = is_skipped(*in.clip);
    const int64_t first = block.index * block_rows, all = in.m.all_rows();
    const int64_t rows = skips ? 0 : first + block_rows < all ? block_rows : all - first;
    block.each([&](int t) { sum[t] = 0; });
    const int64_t rounds = (rows + kRows - 1) / kRows;
    for (int64_t round = 0; round <= rounds; ++round) {
      block.each([&](int t) {
        const int64_t r = round * kRows + t / lanes;
        part[t] = r < rows ? lane_of(first + r, t % lanes) : 0;
        if (t > 0 || round == 0) return;
        for (int i = 0; i < kRows && (round - 1) * kRows + i < rows; ++i) sum[t] += block.shared.rows[i];
      });
      if (round == rounds) break;
      block.template fold<lanes>(part, Plus{});
      block.each([&](int t) {
        if (t % lanes == 0) block.shared.rows[t / lanes] = part[t];
      });
    }
    block.each([&](int t) {
      if (t == 0 && !skips) sums[block.index] = sum[t];
    });
  }
  HOST_DEVICE double lane_of(int64_t r, int lane) const {
    const Factored<T> f = in.numbers();
    const T of_row = in.of_row(f, r), *const g = in.g + r * in.m.columns, *const factor = in.factor_of(r);
    return lane_squares<lanes>(in.m.columns, lane, [&](int64_t i) { return f.update(of_row, factor[i], g[i]); });
  }
};

template <typename T> struct MakeSquares {
  KernelRun operator()(const KernelSpec& spec) const {
    const Shape& shape = spec.inputs[0].shape;
    return [in = factored_inputs<T>(spec, 0), block = norm_block(shape), blocks = norm_blocks(shape)](const KernelArgs& args) {
      const FactoredInputs<T> placed = with_places(in, args, 0);
      double* const sums = args.out<double>(0);
      const int64_t rows = block / std::max<int64_t>(1, in.m.columns);
      if (in.m.columns < kLanes)
        launch(FactoredSquares<T, 1>{placed, sums, rows}, blocks, args);
      else
        launch(FactoredSquares<T, kLanes>{placed, sums, rows}, blocks, args);
    };
  }
};

struct PutRates {
  AdafactorScaling scaling;
  const float* scalars;
  const double* of_update;
  float* rates;
  HOST_DEVICE void operator()(double of_parameter) const { scaling.put_rates(scalars, *of_update, of_parameter, rates); }
};

Workspace scale_workspace(const KernelSpec&) { return {.shared = 2 * sizeof(double)}; }

KernelRun make_scale(const KernelSpec& spec) {
  return [counts = counts_of(spec), scaling = AdafactorScaling(spec.attributes)](const KernelArgs& args) {
    const size_t second = scaling.second_of(counts.size());
    auto* const sum = reinterpret_cast<double*>(args.workspace);
    launch_input_sum(args, counts, 1, second, sum, KeepSum{sum});
    launch_input_sum(args, counts, second, counts.size(), sum + 1, PutRates{scaling, args.in<float>(0), sum, args.out<float>(0)});
  };
}

// Four neighbouring elements of a row.
template <typename T, bool has_mean> struct FactoredUpdate {
  static constexpr int kEach = 4;
  using Four = Pack<T, kEach>;
  FactoredInputs<T> in;
  const float *rates, *scalars;
  T *p, *mean;
  double weight_decay;
  HOST_DEVICE void operator()(int64_t i) const {
    if (is_skipped(*in.clip)) return;
    const int64_t across = (in.m.columns + kEach - 1) / kEach, r = i / across, column = i % across * kEach, at = r * in.m.columns + column;
    const int64_t n = in.m.columns - column;
    const Factored<T> f = in.numbers();
    const Step<T, has_mean> step(scalars, rates, weight_decay);
    const T of_row = in.of_row(f, r), *const factor = in.factor_of(r) + column;
    if (in.m.columns % kEach == 0) {
      const Four factors = load_pack<kEach>(factor), gradient = load_pack<kEach>(in.g + at);
      Four parameter = load_pack<kEach>(p + at), means = has_mean ? load_pack<kEach>(mean + at) : Four{};
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kEach; ++k) step(f.update(of_row, factors.of[k], gradient.of[k]), parameter.of, means.of, k);
      store_pack(p + at, parameter);
      if (has_mean) store_pack(mean + at, means);
    } else {
      for (int k = 0; k < kEach && k < n; ++k) step(f.update(of_row, factor[k], in.g[at + k]), p, mean, at + k);
    }
  }
};

template <typename T, bool has_mean> KernelRun make_factored(const KernelSpec& spec) {
  return [in = factored_inputs<T>(spec, 1), weight_decay = double{spec.attributes.get("weight_decay", 0.0f)}](const KernelArgs& args) {
    using Update = FactoredUpdate<T, has_mean>;
    launch_elements(Update{.in = with_places(in, args, 1),
                           .rates = args.in<float>(6),
                           .scalars = args.in<float>(7),
                           .p = args.out<T>(0),
                           .mean = has_mean ? args.out<T>(1) : nullptr,
                           .weight_decay = weight_decay},
                    in.m.all_rows() * ((in.m.columns + Update::kEach - 1) / Update::kEach), args);
  };
}

template <typename T> struct MakeFactored {
  KernelRun operator()(const KernelSpec& spec) const {
    return spec.outputs.size() > 1 ? make_factored<T, true>(spec) : make_factored<T, false>(spec);
  }
};

// --- with the full mean square --------------------------------------------------------------------------------------------------------

// Loading an element for the squares updates its v.
template <typename T> struct MomentSquares {
  using Stored = T;
  static constexpr int kSums = 1;
  struct Values {
    T of[kSums];
  };
  const T* g;
  T* v;
  const float *clip, *scalars;
  float floor;
  HOST_DEVICE bool skips() const { return is_skipped(*clip); }
  HOST_DEVICE Values operator()(int64_t i) const {
    const MomentNumbers<T> c = moment_numbers<T>(*clip, scalars, floor);
    const T gradient = g[i] * c.clip, square = moment_of(c, gradient, v[i]);
    v[i] = square;
    return {{plain_update(gradient, square, c.floor)}};
  }
};

template <typename T> struct MakeMoment {
  KernelRun operator()(const KernelSpec& spec) const {
    return [shape = spec.inputs[0].shape, floor = floor_of(spec)](const KernelArgs& args) {
      launch_norm_squares<LanesJoin::of_a_row>(MomentSquares<T>{args.in<T>(0), args.out<T>(0), args.in<float>(2), args.in<float>(3), floor},
                                               shape, args, args.out<double>(1));
    };
  }
};

template <typename T, bool has_mean> struct PlainUpdate {
  const T *g, *v;
  const float *clip, *rates, *scalars;
  T *p, *mean;
  double weight_decay;
  T floor;
  HOST_DEVICE void operator()(int64_t i) const {
    if (is_skipped(*clip)) return;
    const Step<T, has_mean> step(scalars, rates, weight_decay);
    step(plain_update(g[i] * static_cast<T>(*clip), v[i], floor), p, mean, i);
  }
};

template <typename T, bool has_mean> KernelRun make_plain(const KernelSpec& spec) {
  return [n = element_count(spec.inputs[0].shape), weight_decay = double{spec.attributes.get("weight_decay", 0.0f)},
          floor = static_cast<T>(floor_of(spec))](const KernelArgs& args) {
    launch_elements(PlainUpdate<T, has_mean>{.g = args.in<T>(1),
                                             .v = args.in<T>(2),
                                             .clip = args.in<float>(3),
                                             .rates = args.in<float>(4),
                                             .scalars = args.in<float>(5),
                                             .p = args.out<T>(0),
                                             .mean = has_mean ? args.out<T>(1) : nullptr,
                                             .weight_decay = weight_decay,
                                             .floor = floor},
                    n, args);
  };
}

template <typename T> struct MakePlain {
  KernelRun operator()(const KernelSpec& spec) const {
    return spec.outputs.size() > 1 ? make_plain<T, true>(spec) : make_plain<T, false>(spec);
  }
};

}  // namespace

constexpr Kernel kAdafactorRowsKernel{
    .types = kWide,
    .in_place = {{.output = 1, .input = 4}, {.output = 2, .input = 5}},
    .cost = per_element<8, 6>,
    .prepare = for_floats<MakeRows>,
};
constexpr Kernel kAdafactorColumnsKernel{
    .types = kWide,
    .cost = per_element<20, 8>,
    .prepare = for_floats<MakeColumns>,
};
constexpr Kernel kAdafactorSquaresKernel{
    .types = kWide,
    .cost = per_element<4, 5>,
    .prepare = for_floats<MakeSquares>,
};
constexpr Kernel kAdafactorScaleKernel{
    .types = {DType::float32},
    .cost = per_element<8, 1>,
    .workspace = scale_workspace,
    .prepare = make_scale,
};
constexpr Kernel kAdafactorFactoredKernel{
    .types = kWide,
    .cost = per_element<12, 6>,
    .prepare = for_floats<MakeFactored>,
};
constexpr Kernel kAdafactorMomentKernel{
    .types = kWide,
    .cost = per_element<12, 12>,
    .prepare = for_floats<MakeMoment>,
};
constexpr Kernel kAdafactorPlainKernel{
    .types = kWide,
    .cost = per_element<16, 8>,
    .prepare = for_floats<MakePlain>,
};

ORT_TRAIN_OPS_END
