// adafactor: of the mean squares of a matrix's gradient it keeps those of its rows and columns (Shazeer & Stern, arXiv 1804.04235), as
// transformers.optimization.Adafactor in the form that Hugging Face's Trainer uses: the learning rate is the schedule's (relative_step and
// warmup_init off), steps don't grow with the weight (scale_parameter off), no first moment (beta1 None).
//
//   b2 = 1 - t^decay_rate ; s = g^2 + epsilon
//   a matrix: row = b2 row + (1 - b2) mean of s along it ; column likewise ; u = g / sqrt(row / mean(row)) / sqrt(column)
//   a vector: v = b2 v + (1 - b2) s ; u = g / sqrt(v)
//   u /= max(1, rms(u) / clip_threshold) ; p -= lr wd p ; p -= lr u
//
// A matrix is the last two dimensions; rms(u) is over the whole tensor. So a weight's parts are updated in phases: sums of squares by row
// and by column, then u's squares, then the update.

#include "exec/ops/adafactor.h"

#include <cmath>

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

std::vector<float> scalars(const Optimizer& o, int64_t t, double learning_rate) {
  const double gain = std::pow(static_cast<double>(t), o.value("adafactor_decay_rate"));
  std::vector<float> numbers(kAdafactorScalars);
  numbers[kAdafactorRate] = static_cast<float>(learning_rate);
  numbers[kAdafactorBeta2] = static_cast<float>(1 - gain);
  numbers[kAdafactorOneMinusBeta2] = static_cast<float>(gain);
  numbers[kAdafactorEpsilon] = static_cast<float>(o.value("adafactor_epsilon"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer&, const TensorType& parameter) {
  const size_t rank = parameter.shape.size();
  if (rank < 2) return {{.suffix = ".exp_avg_sq", .type = parameter}};
  const Shape rows = parameter.shape.before(rank - 1);
  Shape columns = parameter.shape.before(rank - 2);
  columns.push_back(parameter.shape.back());
  // A matrix's parts have rows of their own and the columns of the whole.
  return {{.suffix = ".exp_avg_sq_row", .type = {parameter.dtype, rows}},
          {.suffix = ".exp_avg_sq_col", .type = {parameter.dtype, columns}, .shared = rank == 2}};
}

ValueId add_scale(UpdateBuilder& b, const std::vector<ValueId>& squares) {
  return b.emit_before_all(
      b.parts[0], "AdafactorScale", squares,
      {{"clip_threshold", static_cast<float>(b.optimizer.value("adafactor_clip_threshold"))}, {"elements", element_count(b.shape)}})[0];
}

std::vector<ValueId> update_plain(UpdateBuilder& b) {
  std::vector<ValueId> moments, squares, updated;
  for (const UpdatePart& part : b.parts) {
    const auto made = b.emit_before_all(part, "AdafactorMoment", {part.gradient, part.states[0], b.clip, b.scalars}, {}, 2);
    moments.push_back(made[0]);
    squares.push_back(made[1]);
  }
  const ValueId scale = add_scale(b, squares);
  for (size_t i = 0; i < b.parts.size(); ++i) {
    const UpdatePart& part = b.parts[i];
    updated.push_back(b.emit(part, "AdafactorPlain", {part.parameter, part.gradient, moments[i], b.clip, scale, b.scalars},
                             {{"weight_decay", static_cast<float>(b.weight_decay)}})[0]);
  }
  return updated;
}

// What u of a part is made of, besides its gradient: the rows' mean squares, their sum over the whole matrix, 1 / sqrt(column).
struct Factors {
  ValueId row = kNone, row_sum = kNone, column = kNone;
};

// By part. Of one matrix the sums go on from part to part; more matrices are divided between them, so that each part has sums of its own.
std::vector<Factors> add_factors(UpdateBuilder& b, int64_t rows) {
  const bool one_matrix = b.shape.size() == 2;
  std::vector<Factors> factors;
  ValueId column_sums = kNone, row_sum = kNone;
  for (const UpdatePart& part : b.parts) {
    std::vector<ValueId> inputs{part.gradient, part.states[0], b.clip, b.scalars};
    if (one_matrix && column_sums != kNone) inputs.insert(inputs.end(), {column_sums, row_sum});
    const auto sums = b.emit_before_all(part, "AdafactorRows", inputs, {}, 3);
    factors.push_back({.row = sums[0]});
    column_sums = sums[1], row_sum = sums[2];
    if (one_matrix && &part != &b.parts.back()) continue;
    const ValueId column =
        b.emit_before_all(part, "AdafactorColumns", {part.states[1], column_sums, b.clip, b.scalars}, {{"rows", rows}}, 2)[1];
    for (Factors& f : factors) {
      if (f.column == kNone) f.row_sum = row_sum, f.column = column;
    }
  }
  return factors;
}

std::vector<ValueId> update_factored(UpdateBuilder& b) {
  const int64_t rows = b.shape[b.shape.size() - 2];
  const std::vector<Factors> factors = add_factors(b, rows);
  std::vector<ValueId> squares, updated;
  for (size_t i = 0; i < b.parts.size(); ++i) {
    const Factors& f = factors[i];
    squares.push_back(
        b.emit_before_all(b.parts[i], "AdafactorSquares", {b.parts[i].gradient, f.row, f.row_sum, f.column, b.clip}, {{"rows", rows}})[0]);
  }
  const ValueId scale = add_scale(b, squares);
  for (size_t i = 0; i < b.parts.size(); ++i) {
    const UpdatePart& part = b.parts[i];
    const Factors& f = factors[i];
    updated.push_back(b.emit(part, "AdafactorFactored",
                             {part.parameter, part.gradient, f.row, f.row_sum, f.column, b.clip, scale, b.scalars},
                             {{"weight_decay", static_cast<float>(b.weight_decay)}, {"rows", rows}})[0]);
  }
  return updated;
}

}  // namespace

const OptimizerDef kAdafactorOptimizer{
    .name = "adafactor",
    .options =
        {
            {.name = "adafactor_decay_rate",
             .value = -0.8,
             .help = "the mean squares' decay in step t is 1 - t to the power of this",
             .fits = [](double x) { return x <= 0 && std::isfinite(x); },
             .wrong = "has to be 0 or less"},
            {.name = "adafactor_clip_threshold",
             .value = 1,
             .help = "the highest root mean square of a tensor's update, in learning rates",
             .fits = [](double x) { return x > 0; },
             .wrong = "is not positive"},
            {.name = "adafactor_epsilon",
             .value = 1e-30,
             .help = "added to the gradient's square",
             .fits = [](double x) { return static_cast<float>(x) > 0; },
             .wrong = "is not positive, or too small for float32"},
        },
    .granularity = Granularity::tensor,
    .scalar_count = kAdafactorScalars,
    .scalars = scalars,
    .states = states,
    .update = [](UpdateBuilder& b) { return b.shape.size() < 2 ? update_plain(b) : update_factored(b); },
};

}  // namespace ort_train
