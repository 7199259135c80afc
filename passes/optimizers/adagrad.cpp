// adagrad: steps divided by the root of all squares so far (Duchi, Hazan & Singer, JMLR 12, 2011), with L2 decay, as torch.optim.Adagrad.
//
//   g += wd p ; sum += g^2 ; p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(sum) + epsilon)

#include "exec/ops/adagrad.h"

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

std::vector<float> scalars(const Optimizer& o, int64_t t, double learning_rate) {
  std::vector<float> numbers(kAdagradScalars);
  numbers[kAdagradRate] = static_cast<float>(learning_rate / (1 + static_cast<double>(t - 1) * o.value("adagrad_lr_decay")));
  numbers[kAdagradEpsilon] = static_cast<float>(o.value("adagrad_epsilon"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer& o, const TensorType& parameter) {
  return {
      {.suffix = ".sum", .type = parameter, .fill = o.value("adagrad_initial_accumulator_value"), .quantized = DType::dynamic8_unsigned}};
}

}  // namespace

const OptimizerDef kAdagradOptimizer{
    .name = "adagrad",
    .options = {not_negative("adagrad_lr_decay", 0, "the learning rate is divided by 1 + (step - 1) times this"),
                not_negative("adagrad_initial_accumulator_value", 0, "what the sum of squares begins as"),
                not_negative("adagrad_epsilon", 1e-10, "added to the root of the sum of squares")},
    .granularity = Granularity::element,
    .scalar_count = kAdagradScalars,
    .scalars = scalars,
    .states = states,
    .update =
        [](UpdateBuilder& b) {
          const auto epsilon = static_cast<float>(b.optimizer.value("adagrad_epsilon"));
          return std::vector{b.emit_update(b.parts[0], "Adagrad", {{"epsilon", epsilon}})};
        },
    .rounds = true,
};

}  // namespace ort_train
