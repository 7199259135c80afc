// adafactor: of the mean squares of a matrix's gradient it keeps those of its rows and columns (Shazeer & Stern, arXiv 1804.04235), as
// transformers.optimization.Adafactor. By default in the form that Hugging Face's Trainer uses: the learning rate is the schedule's
// (relative_step and warmup_init off), steps don't grow with the weight (scale_parameter off), no first moment (beta1 None, here 0).
//
//   b2 = 1 - t^decay_rate ; s = g^2 + epsilon
//   a matrix: row = b2 row + (1 - b2) mean of s along it ; column likewise ; u = g / sqrt(row / mean(row)) / sqrt(column)
//   a vector: v = b2 v + (1 - b2) s ; u = g / sqrt(v)
//   relative_step: lr = min(0.01, 1 / sqrt(t)), with warmup_init min(1e-6 t, 1 / sqrt(t))
//   scale_parameter: lr *= max(scale_epsilon, rms(p))
//   u *= lr / max(1, rms(u) / clip_threshold) ; with beta1: m = b1 m + (1 - b1) u, u = m
//   p -= lr wd p ; p -= u
//
// adafactor_torch: as torch.optim.Adafactor, where epsilon is the least root of a mean square instead, and the least mean(row):
//
//   s = g^2 ; u = g / sqrt(max(row column / max(mean(row), epsilon), epsilon^2)), of a vector g / sqrt(max(v, epsilon^2))
//   u *= min(lr, 1 / sqrt(t)) max(scale_epsilon, rms(p)) / max(1, rms(u) / clip_threshold) ; p -= lr wd p ; p -= u
//
// A matrix is the last two dimensions; rms is over the whole tensor. So a weight's parts are updated in phases: sums of squares by row
// and by column, then u's squares, then the update.

#include "exec/ops/adafactor.h"

#include <algorithm>
#include <cmath>

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

bool is_on(const Optimizer& o, std::string_view option) { return o.value(option) != 0; }
float number(const UpdateBuilder& b, std::string_view option) { return static_cast<float>(b.optimizer.value(option)); }

// By which the two forms differ.
bool is_torchs(const Optimizer& o) { return o.def == &kAdafactorTorchOptimizer; }
bool has_mean(const Optimizer& o) { return !is_torchs(o) && is_on(o, "adafactor_beta1"); }
bool scales(const Optimizer& o) { return is_torchs(o) || is_on(o, "adafactor_scale_parameter"); }
float floor_of(const UpdateBuilder& b) { return is_torchs(b.optimizer) ? number(b, "adafactor_epsilon") : 0; }

double own_rate(const Optimizer& o, int64_t t, double learning_rate) {
  if (!is_on(o, "adafactor_relative_step")) return learning_rate;
  const auto step = static_cast<double>(t);
  return std::min(is_on(o, "adafactor_warmup_init") ? 1e-6 * step : 1e-2, 1 / std::sqrt(step));
}

std::vector<float> scalars(const Optimizer& o, int64_t t, double learning_rate) {
  const auto step = static_cast<double>(t);
  const double gain = std::pow(step, o.value("adafactor_decay_rate")), beta1 = has_mean(o) ? o.value("adafactor_beta1") : 0;
  std::vector<float> numbers(kAdafactorScalars);
  numbers[kAdafactorRate] = static_cast<float>(is_torchs(o) ? std::min(learning_rate, 1 / std::sqrt(step)) : learning_rate);
  numbers[kAdafactorDecayRate] = static_cast<float>(learning_rate);
  numbers[kAdafactorBeta1] = static_cast<float>(beta1);
  numbers[kAdafactorOneMinusBeta1] = static_cast<float>(1 - beta1);
  numbers[kAdafactorBeta2] = static_cast<float>(1 - gain);
  numbers[kAdafactorOneMinusBeta2] = static_cast<float>(gain);
  numbers[kAdafactorEpsilon] = is_torchs(o) ? 0 : static_cast<float>(o.value("adafactor_epsilon"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer& o, const TensorType& parameter) {
  const size_t rank = parameter.shape.size();
  std::vector<StateDef> all;
  if (rank < 2) {
    all = {{.suffix = ".exp_avg_sq", .type = parameter}};
  } else {
    const Shape rows = parameter.shape.before(rank - 1);
    Shape columns = parameter.shape.before(rank - 2);
    columns.push_back(parameter.shape.back());
    // A matrix's parts have rows of their own and the columns of the whole.
    all = {{.suffix = ".exp_avg_sq_row", .type = {parameter.dtype, rows}},
           {.suffix = ".exp_avg_sq_col", .type = {parameter.dtype, columns}, .shared = rank == 2}};
  }
  if (has_mean(o)) all.push_back({.suffix = ".exp_avg", .type = parameter});
  return all;
}

// The rates of decay and of u, from the squares of u by part.
ValueId add_rates(UpdateBuilder& b, const std::vector<ValueId>& squares) {
  std::vector<ValueId> inputs{b.scalars};
  inputs.insert(inputs.end(), squares.begin(), squares.end());
  Attributes attributes{{"clip_threshold", number(b, "adafactor_clip_threshold")},
                        {"elements", element_count(b.shape)},
                        {"decay_by_rate", int64_t{is_torchs(b.optimizer)}}};
  if (scales(b.optimizer)) {
    for (const UpdatePart& part : b.parts) inputs.push_back(b.emit_before_all(part, "SumSquares", {part.parameter})[0]);
    attributes.set("scale_epsilon", number(b, "adafactor_scale_epsilon"));
  }
  return b.emit_before_all(b.parts[0], "AdafactorScale", inputs, attributes)[0];
}

// The last phase of a part; its inputs up to the rates.
ValueId add_step(UpdateBuilder& b, const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {}) {
  inputs.push_back(b.scalars);
  if (has_mean(b.optimizer)) inputs.push_back(part.states.back());
  attributes.set("weight_decay", static_cast<float>(b.weight_decay));
  attributes.set("floor", floor_of(b));
  return b.emit(part, op, inputs, attributes, has_mean(b.optimizer) ? 2 : 1)[0];
}

std::vector<ValueId> update_plain(UpdateBuilder& b) {
  std::vector<ValueId> moments, squares, updated;
  for (const UpdatePart& part : b.parts) {
    const auto made =
        b.emit_before_all(part, "AdafactorMoment", {part.gradient, part.states[0], b.clip, b.scalars}, {{"floor", floor_of(b)}}, 2);
    moments.push_back(made[0]);
    squares.push_back(made[1]);
  }
  const ValueId rates = add_rates(b, squares);
  for (size_t i = 0; i < b.parts.size(); ++i) {
    const UpdatePart& part = b.parts[i];
    updated.push_back(add_step(b, part, "AdafactorPlain", {part.parameter, part.gradient, moments[i], b.clip, rates}));
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
    squares.push_back(b.emit_before_all(b.parts[i], "AdafactorSquares", {b.parts[i].gradient, f.row, f.row_sum, f.column, b.clip},
                                        {{"rows", rows}, {"floor", floor_of(b)}})[0]);
  }
  const ValueId rates = add_rates(b, squares);
  for (size_t i = 0; i < b.parts.size(); ++i) {
    const UpdatePart& part = b.parts[i];
    const Factors& f = factors[i];
    updated.push_back(add_step(b, part, "AdafactorFactored", {part.parameter, part.gradient, f.row, f.row_sum, f.column, b.clip, rates},
                               {{"rows", rows}}));
  }
  return updated;
}

std::vector<ValueId> update(UpdateBuilder& b) { return b.shape.size() < 2 ? update_plain(b) : update_factored(b); }

OptimizerOption positive(std::string_view name, double value, std::string_view help) {
  return {.name = name,
          .value = value,
          .help = help,
          .fits = [](double x) { return static_cast<float>(x) > 0; },
          .wrong = "is not positive, or too small for float32"};
}

const OptimizerOption kDecayRate{.name = "adafactor_decay_rate",
                                 .value = -0.8,
                                 .help = "the mean squares' decay in step t is 1 - t to the power of this",
                                 .fits = [](double x) { return x <= 0 && std::isfinite(x); },
                                 .wrong = "has to be 0 or less"};
const OptimizerOption kClipThreshold =
    positive("adafactor_clip_threshold", 1, "the highest root mean square of a tensor's update, in learning rates");
const OptimizerOption kScaleEpsilon =
    positive("adafactor_scale_epsilon", 1e-3, "the least root mean square of a tensor that steps are scaled by");

std::string_view conflict(const Optimizer& o) {
  return is_on(o, "adafactor_warmup_init") && !is_on(o, "adafactor_relative_step")
             ? "`adafactor_warmup_init` goes with `adafactor_relative_step`"
             : "";
}

}  // namespace

const OptimizerDef kAdafactorOptimizer{
    .name = "adafactor",
    .options = {kDecayRate, kClipThreshold, positive("adafactor_epsilon", 1e-30, "added to the gradient's square"), kScaleEpsilon,
                flag("adafactor_scale_parameter", false, "steps are scaled by the root mean square of the tensor"),
                flag("adafactor_relative_step", false, "the learning rate is min(0.01, 1 / sqrt(step)), whatever the schedule says"),
                flag("adafactor_warmup_init", false, "of relative steps: it begins as 1e-6 times the step"),
                share("adafactor_beta1", 0, "decay of the mean of updates; 0: there is none")},
    .granularity = Granularity::tensor,
    .scalar_count = kAdafactorScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
    .variant = [](const Optimizer& o) { return has_mean(o) ? std::string_view("with a mean") : std::string_view(); },
    .conflict = conflict,
    .own_rate = own_rate,
};

const OptimizerDef kAdafactorTorchOptimizer{
    .name = "adafactor_torch",
    .options = {kDecayRate, kClipThreshold, positive("adafactor_epsilon", 0x1p-23, "the least root of a mean square"), kScaleEpsilon},
    .granularity = Granularity::tensor,
    .scalar_count = kAdafactorScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
};

}  // namespace ort_train
