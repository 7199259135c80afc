// adamw: Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as torch.optim.AdamW.
//
//   p *= 1 - lr wd ; m += (1 - b1) (g - m) ; v = b2 v + (1 - b2) g^2
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)

#include "exec/ops/adamw.h"

#include <cmath>

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

bool is_share(double x) { return x >= 0 && x < 1; }

std::vector<float> scalars(const Optimizer& o, int64_t t, double learning_rate) {
  const double beta1 = o.value("adam_beta1"), beta2 = o.value("adam_beta2");
  const double bias1 = 1 - std::pow(beta1, static_cast<double>(t)), bias2 = 1 - std::pow(beta2, static_cast<double>(t));
  std::vector<float> numbers(kAdamWScalars);
  numbers[kAdamWRate] = static_cast<float>(learning_rate);
  numbers[kAdamWStep] = static_cast<float>(learning_rate / bias1);
  numbers[kAdamWInverseRootBias] = static_cast<float>(1 / std::sqrt(bias2));
  numbers[kAdamWOneMinusBeta1] = static_cast<float>(1 - beta1);
  numbers[kAdamWBeta2] = static_cast<float>(beta2);
  numbers[kAdamWOneMinusBeta2] = static_cast<float>(1 - beta2);
  numbers[kAdamWEpsilon] = static_cast<float>(o.value("adam_epsilon"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer&, const TensorType& parameter) {
  return {{.suffix = ".exp_avg", .type = parameter}, {.suffix = ".exp_avg_sq", .type = parameter}};
}

std::vector<ValueId> update(UpdateBuilder& b) {
  const UpdatePart& part = b.parts[0];
  const auto number = [&](const char* option) { return static_cast<float>(b.optimizer.value(option)); };
  const Attributes attributes{{"weight_decay", static_cast<float>(b.weight_decay)},
                              {"beta1", number("adam_beta1")},
                              {"beta2", number("adam_beta2")},
                              {"epsilon", number("adam_epsilon")}};
  return {b.emit(part, "AdamW", {part.parameter, part.gradient, b.clip, b.scalars, part.states[0], part.states[1]}, attributes, 3)[0]};
}

}  // namespace

const OptimizerDef kAdamWOptimizer{
    .name = "adamw",
    .options =
        {
            {.name = "adam_beta1", .value = 0.9, .help = "decay of the mean", .fits = is_share, .wrong = "has to lie in [0, 1)"},
            {.name = "adam_beta2", .value = 0.999, .help = "decay of the mean square", .fits = is_share, .wrong = "has to lie in [0, 1)"},
            {.name = "adam_epsilon",
             .value = 1e-8,
             .help = "added to the root of the mean square",
             .fits = [](double x) { return x >= 0; },
             .wrong = "is negative"},
        },
    .granularity = Granularity::element,
    .scalar_count = kAdamWScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
    .rounds = true,
};

}  // namespace ort_train
