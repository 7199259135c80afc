// Adafactor's update (Shazeer & Stern, arXiv 1804.04235) in phases, because each needs a sum over the whole tensor from the one before it.
// A tensor is seen as matrices, its last two dimensions. For each, the running mean square of the gradient is kept by row and by column,
// and that of an element is taken to be row * column / mean(row). u is what the update would be before clipping by its own root mean
// square.
//
//   AdafactorRows(g, row, clip, scalars, column_sums?, row_sum?) -> row, column_sums, row_sum
//     row, each row's mean square, changes in place; in float64 the sums of squares by column and the sum of row go on from those given
//
//   AdafactorColumns{rows}(column, column_sums, clip, scalars) -> column, factor
//     column changes in place; factor = 1 / sqrt(column)
//
//   AdafactorSquares{rows, floor}(g, row, row_sum, factor, clip) -> float64 [blocks]
//     of u, in the blocks of exec/norm_block.h
//
//   AdafactorScale{clip_threshold, elements, scale_epsilon, decay_by_rate}(scalars, squares of u..., squares of p...) -> float32 [2]
//     the rates of weight decay and of u: rate * max(scale_epsilon, rms(p)) / max(1, rms(u) / clip_threshold), that of the decay without
//     clipping; with decay_by_rate the learning rate itself. Without squares of p there is no factor for it
//
//   AdafactorFactored{weight_decay, rows, floor}(p, g, row, row_sum, factor, clip, rates, scalars, m?) -> p, m
//     in place; with m, the mean of what is to be subtracted, p is changed by that
//
// With the full mean square v, for tensors of less than two dimensions:
//
//   AdafactorMoment{floor}(g, v, clip, scalars) -> v, float64 [blocks]
//     v changes in place; squares of u
//
//   AdafactorPlain{weight_decay, floor}(p, g, v, clip, rates, scalars, m?) -> p, m
//     in place
//
// `rows`: of the whole matrix, of which g may have some. `floor`: the least mean(row), and the least root of an element's mean square.
// Every sum is in double, in an order that neither threads nor the division into
// parts change: columns and row_sum go from row to row, on from one part to the next; blocks of squares are whole rows.
// `clip` multiplies the gradient; where it is NaN nothing is computed or changed. `scalars` are those of exec/ops/adafactor.h.

#include "exec/ops/adafactor.h"

#include <algorithm>
#include <cmath>

#include "exec/lanes.h"
#include "exec/norm_block.h"
#include "exec/op_list.h"
#include "exec/ops/adafactor_update.h"
#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kChunk = 64;  // columns whose sums a task adds up

Shape row_shape(const Shape& shape) { return shape.before(shape.size() - 1); }
Shape column_shape(const Shape& shape) {
  Shape result = shape.before(shape.size() - 2);
  result.push_back(shape.back());
  return result;
}

// Matrices, or rows, are taken by one task until they have about kUpdateBlock elements.
int64_t per_task(int64_t elements) { return std::max<int64_t>(1, kUpdateBlock / std::max<int64_t>(1, elements)); }

// Short rows, as those of a convolution's kernels, are added up one by one: a fixed function of n.
template <typename Step> __attribute__((always_inline)) inline double sum_of_squares(int64_t n, const Step& step) {
  const auto add = [&](double sum, int64_t i) {
    const auto x = static_cast<double>(step(i));
    return sum + x * x;
  };
  if (n >= kLanes) return sum_row<double>(n, add);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum = add(sum, i);
  return sum;
}

// --- rows and columns -----------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_rows(const InferContext& context) {
  const TensorType& g = context.input(0);
  const Matrices m = matrices_of(g.shape);
  check_input(context, 1, {g.dtype, row_shape(g.shape)});
  check_input(context, 2, {DType::float32, {}});
  check_input(context, 3, {DType::float32, {kAdafactorScalars}});
  const TensorType column_sums{DType::float64, {m.batch, m.columns}}, row_sum{DType::float64, {m.batch}};
  if (context.has(4) != context.has(5)) throw error(ErrorCode::unsupported, "it goes on from both sums or from none");
  if (context.has(4)) {
    check_input(context, 4, column_sums);
    check_input(context, 5, row_sum);
  }
  return {context.input(1), column_sums, row_sum};
}

template <typename T> double row_squares(const T* __restrict g, T clip, int64_t n) {
  return sum_of_squares(n, [&](int64_t i) { return g[i] * clip; });
}

// sums[c] += the squares of a column, row after row.
template <typename T> void add_columns(const T* __restrict g, T clip, int64_t rows, int64_t stride, int64_t n, double* __restrict sums) {
  double partial[kChunk];
  std::copy(sums, sums + n, partial);
  for (int64_t r = 0; r < rows; ++r, g += stride) {
    for (int64_t c = 0; c < n; ++c) {
      const auto x = static_cast<double>(g[c] * clip);
      partial[c] += x * x;
    }
  }
  std::copy(partial, partial + n, sums);
}

template <typename T> struct MakeRows {
  KernelRun operator()(const KernelSpec& spec) const {
    return [m = matrices_of(spec.inputs[0].shape), goes_on = spec.has(4)](const KernelArgs& args) {
      const T* const g = args.in<T>(0);
      T* const row = args.out<T>(0);
      double *const column_sums = args.out<double>(1), *const row_sum = args.out<double>(2);
      if (is_skipped(*args.in<float>(2))) return;
      const T clip = *args.in<float>(2);
      const float* const scalars = args.in<float>(3);
      const T beta2 = scalars[kAdafactorBeta2], gain = scalars[kAdafactorOneMinusBeta2];
      const double epsilon = scalars[kAdafactorEpsilon];
      args.workers().parallel_blocks(m.all_rows(), per_task(m.columns), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const double mean = row_squares(g + r * m.columns, clip, m.columns) / static_cast<double>(m.columns);
          row[r] = beta2 * row[r] + gain * static_cast<T>(mean + epsilon);
        }
      });
      const int64_t chunks = (m.columns + kChunk - 1) / kChunk;
      args.workers().parallel_blocks(m.batch * chunks, per_task(m.rows * std::min(m.columns, kChunk)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t matrix = i / chunks, from = i % chunks * kChunk, n = std::min(kChunk, m.columns - from);
          double* const sums = column_sums + matrix * m.columns + from;
          const double* const before = goes_on ? args.in<double>(4) + matrix * m.columns + from : nullptr;
          if (before == nullptr)
            std::fill(sums, sums + n, 0.0);
          else if (before != sums)
            std::copy(before, before + n, sums);
          add_columns(g + matrix * m.rows * m.columns + from, clip, m.rows, m.columns, n, sums);
        }
      });
      args.workers().parallel_blocks(m.batch, per_task(m.rows), [&](int64_t begin, int64_t end) {
        for (int64_t matrix = begin; matrix < end; ++matrix) {
          double sum = goes_on ? args.in<double>(5)[matrix] : 0;
          for (int64_t r = 0; r < m.rows; ++r) sum += static_cast<double>(row[matrix * m.rows + r]);
          row_sum[matrix] = sum;
        }
      });
    };
  }
};

std::vector<TensorType> infer_columns(const InferContext& context) {
  const TensorType& column = context.input(0);
  if (column.shape.empty()) throw error(ErrorCode::unsupported, "the columns' mean squares are no vectors");
  const int64_t n = element_count(column.shape), columns = column.shape.back();
  check_input(context, 1, {DType::float64, {columns == 0 ? 0 : n / columns, columns}});
  check_input(context, 2, {DType::float32, {}});
  check_input(context, 3, {DType::float32, {kAdafactorScalars}});
  return {column, column};
}

template <typename T> struct MakeColumns {
  KernelRun operator()(const KernelSpec& spec) const {
    return [n = element_count(spec.inputs[0].shape), rows = spec.attributes.get("rows", int64_t{1})](const KernelArgs& args) {
      if (is_skipped(*args.in<float>(2))) return;
      const float* const scalars = args.in<float>(3);
      const T beta2 = scalars[kAdafactorBeta2], gain = scalars[kAdafactorOneMinusBeta2];
      const double epsilon = scalars[kAdafactorEpsilon];
      args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T mean = static_cast<T>(args.in<double>(1)[i] / static_cast<double>(rows) + epsilon);
          T& column = args.out<T>(0)[i];
          column = beta2 * column + gain * mean;
          args.out<T>(1)[i] = T(1) / std::sqrt(column);
        }
      });
    };
  }
};

// --- the update, and its root mean square ---------------------------------------------------------------------------------------------

void check_factors(const InferContext& context, size_t first, const TensorType& g) {
  const Matrices m = matrices_of(g.shape);
  check_input(context, first, {g.dtype, row_shape(g.shape)});
  check_input(context, first + 1, {DType::float64, {m.batch}});
  check_input(context, first + 2, {g.dtype, column_shape(g.shape)});
  check_input(context, first + 3, {DType::float32, {}});
}

std::vector<TensorType> infer_squares(const InferContext& context) {
  check_factors(context, 1, context.input(0));
  return {{DType::float64, {norm_blocks(context.input(0).shape)}}};
}

template <typename T> double factored_squares(const Factored<T> f, const T* __restrict g, const T* __restrict factor, T of_row, int64_t n) {
  return sum_of_squares(n, [&](int64_t i) { return f.update(of_row, factor[i], g[i]); });
}

template <typename T> struct MakeSquares {
  KernelRun operator()(const KernelSpec& spec) const {
    const Shape& shape = spec.inputs[0].shape;
    return [m = matrices_of(shape), n = element_count(shape), block = norm_block(shape), blocks = norm_blocks(shape),
            rows = spec.attributes.get("rows", matrices_of(shape).rows), floor = floor_of(spec)](const KernelArgs& args) {
      if (is_skipped(*args.in<float>(4))) return;
      const Factored<T> f(*args.in<float>(4), floor);
      args.workers().parallel_for(blocks, [&](int64_t task, int) {
        double sum = 0;
        const int64_t end = std::min(n, (task + 1) * block);
        for (int64_t i = task * block, count; i < end; i += count) {  // from row to row
          const int64_t r = i / m.columns, matrix = r / m.rows, column = i % m.columns;
          count = std::min(m.columns - column, end - i);
          const T of_row = f.of_row(args.in<T>(1)[r], args.in<double>(2)[matrix], rows);
          sum += factored_squares(f, args.in<T>(0) + i, args.in<T>(3) + matrix * m.columns + column, of_row, count);
        }
        args.out<double>(0)[task] = sum;
      });
    };
  }
};

std::vector<TensorType> infer_scale(const InferContext& context) {
  check_input(context, 0, {DType::float32, {kAdafactorScalars}});
  const bool scaled = context.attributes.get("scale_epsilon", 0.0f) > 0;
  if (context.inputs.size() < 2 || (scaled && context.inputs.size() % 2 != 1))
    throw error(ErrorCode::unsupported, "there are squares missing");
  check_squares(context, 1);
  return {{DType::float32, {2}}};
}

KernelRun make_scale(const KernelSpec& spec) {
  return [counts = counts_of(spec), scaling = AdafactorScaling(spec.attributes)](const KernelArgs& args) {
    const size_t second = scaling.second_of(counts.size());
    const double of_update = sum_of_inputs(args, counts, 1, second), of_parameter = sum_of_inputs(args, counts, second, counts.size());
    scaling.put_rates(args.in<float>(0), of_update, of_parameter, args.out<float>(0));
  };
}

// The last three inputs: rates, scalars, m.
std::vector<TensorType> infer_step(const InferContext& context, size_t rates) {
  check_input(context, rates, {DType::float32, {2}});
  check_input(context, rates + 1, {DType::float32, {kAdafactorScalars}});
  if (context.inputs.size() <= rates + 2) return {context.input(0)};
  check_same(context, 0, rates + 2);
  return {context.input(0), context.input(0)};
}

std::vector<TensorType> infer_factored(const InferContext& context) {
  check_same(context, 0, 1);
  check_factors(context, 2, context.input(0));
  return infer_step(context, 6);
}

template <typename T, typename Step>
void factored_loop(const Factored<T> f, const Step step, T of_row, const T* __restrict g, const T* __restrict factor, T* __restrict p,
                   T* __restrict m, int64_t n) {
  for (int64_t i = 0; i < n; ++i) step(f.update(of_row, factor[i], g[i]), p, m, i);
}

template <typename T, bool has_mean> KernelRun make_factored(const KernelSpec& spec) {
  const Matrices shape = matrices_of(spec.inputs[0].shape);
  return [m = shape, rows = spec.attributes.get("rows", shape.rows), weight_decay = double{spec.attributes.get("weight_decay", 0.0f)},
          floor = floor_of(spec)](const KernelArgs& args) {
    if (is_skipped(*args.in<float>(5))) return;
    const Factored<T> f(*args.in<float>(5), floor);
    const Step<T, has_mean> step(args.in<float>(7), args.in<float>(6), weight_decay);
    T* const mean = has_mean ? args.out<T>(1) : nullptr;
    args.workers().parallel_blocks(m.all_rows(), per_task(m.columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t matrix = r / m.rows, at = r * m.columns;
        const T of_row = f.of_row(args.in<T>(2)[r], args.in<double>(3)[matrix], rows);
        factored_loop(f, step, of_row, args.in<T>(1) + at, args.in<T>(4) + matrix * m.columns, args.out<T>(0) + at,
                      has_mean ? mean + at : nullptr, m.columns);
      }
    });
  };
}

template <typename T> struct MakeFactored {
  KernelRun operator()(const KernelSpec& spec) const {
    return spec.outputs.size() > 1 ? make_factored<T, true>(spec) : make_factored<T, false>(spec);
  }
};

// --- with the full mean square --------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_moment(const InferContext& context) {
  check_same(context, 0, 1);
  check_input(context, 2, {DType::float32, {}});
  check_input(context, 3, {DType::float32, {kAdafactorScalars}});
  return {context.input(1), {DType::float64, {norm_blocks(context.input(0).shape)}}};
}

template <typename T> void moment_loop(const MomentNumbers<T> c, const T* __restrict gradient, T* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    v[i] = moment_of(c, gradient[i] * c.clip, v[i]);
  }
}
template <typename T> double moment_squares(const MomentNumbers<T> c, const T* __restrict gradient, const T* __restrict v, int64_t n) {
  return sum_of_squares(n, [&](int64_t i) { return plain_update(gradient[i] * c.clip, v[i], c.floor); });
}

template <typename T> struct MakeMoment {
  KernelRun operator()(const KernelSpec& spec) const {
    const Shape& shape = spec.inputs[0].shape;
    return
        [n = element_count(shape), block = norm_block(shape), blocks = norm_blocks(shape), floor = floor_of(spec)](const KernelArgs& args) {
          const float* const scalars = args.in<float>(3);
          if (is_skipped(*args.in<float>(2))) return;
          const auto numbers = moment_numbers<T>(*args.in<float>(2), scalars, floor);
          args.workers().parallel_for(blocks, [&](int64_t task, int) {
            const int64_t from = task * block, count = std::min(block, n - from);
            moment_loop(numbers, args.in<T>(0) + from, args.out<T>(0) + from, count);
            args.out<double>(1)[task] = moment_squares(numbers, args.in<T>(0) + from, args.out<T>(0) + from, count);
          });
        };
  }
};

std::vector<TensorType> infer_plain(const InferContext& context) {
  for (size_t i : {1, 2}) check_same(context, 0, i);
  check_input(context, 3, {DType::float32, {}});
  return infer_step(context, 4);
}

template <typename T, typename Step>
void plain_loop(const Step step, T clip, T floor, const T* __restrict g, const T* __restrict v, T* __restrict p, T* __restrict m,
                int64_t n) {
  for (int64_t i = 0; i < n; ++i) step(plain_update(g[i] * clip, v[i], floor), p, m, i);
}

template <typename T, bool has_mean> KernelRun make_plain(const KernelSpec& spec) {
  return [n = element_count(spec.inputs[0].shape), weight_decay = double{spec.attributes.get("weight_decay", 0.0f)},
          floor = static_cast<T>(floor_of(spec))](const KernelArgs& args) {
    if (is_skipped(*args.in<float>(3))) return;
    const Step<T, has_mean> step(args.in<float>(5), args.in<float>(4), weight_decay);
    const auto clip = static_cast<T>(*args.in<float>(3));
    T* const mean = has_mean ? args.out<T>(1) : nullptr;
    args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
      plain_loop(step, clip, floor, args.in<T>(1) + begin, args.in<T>(2) + begin, args.out<T>(0) + begin, has_mean ? mean + begin : nullptr,
                 end - begin);
    });
  };
}

template <typename T> struct MakePlain {
  KernelRun operator()(const KernelSpec& spec) const {
    return spec.outputs.size() > 1 ? make_plain<T, true>(spec) : make_plain<T, false>(spec);
  }
};

}  // namespace

constexpr OpDef kAdafactorRows{
    .name = "AdafactorRows",
    .infer = infer_rows,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 1}},
};
constexpr Kernel kAdafactorRowsKernel{
    .types = kWide,
    .in_place = {{.output = 1, .input = 4}, {.output = 2, .input = 5}},
    .cost = per_element<8, 6>,
    .prepare = for_floats<MakeRows>,
};
constexpr OpDef kAdafactorColumns{
    .name = "AdafactorColumns",
    .infer = infer_columns,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
};
constexpr Kernel kAdafactorColumnsKernel{
    .types = kWide,
    .cost = per_element<20, 8>,
    .prepare = for_floats<MakeColumns>,
};
constexpr OpDef kAdafactorSquares{
    .name = "AdafactorSquares",
    .infer = infer_squares,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kAdafactorSquaresKernel{
    .types = kWide,
    .cost = per_element<4, 5>,
    .prepare = for_floats<MakeSquares>,
};
constexpr OpDef kAdafactorScale{
    .name = "AdafactorScale",
    .infer = infer_scale,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kAdafactorScaleKernel{
    .types = {DType::float32},
    .cost = per_element<8, 1>,
    .prepare = make_scale,
};
constexpr OpDef kAdafactorFactored{
    .name = "AdafactorFactored",
    .infer = infer_factored,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}, {.output = 1, .input = 8}},
};
constexpr Kernel kAdafactorFactoredKernel{
    .types = kWide,
    .cost = per_element<12, 6>,
    .prepare = for_floats<MakeFactored>,
};
constexpr OpDef kAdafactorMoment{
    .name = "AdafactorMoment",
    .infer = infer_moment,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 1}},
};
constexpr Kernel kAdafactorMomentKernel{
    .types = kWide,
    .cost = per_element<12, 12>,
    .prepare = for_floats<MakeMoment>,
};
constexpr OpDef kAdafactorPlain{
    .name = "AdafactorPlain",
    .infer = infer_plain,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}, {.output = 1, .input = 6}},
};
constexpr Kernel kAdafactorPlainKernel{
    .types = kWide,
    .cost = per_element<16, 8>,
    .prepare = for_floats<MakePlain>,
};

ORT_TRAIN_OPS_END
