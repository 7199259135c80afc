// sgd: stochastic gradient descent with L2 decay and, where it isn't 0, momentum, as torch.optim.SGD with dampening 0.
//
//   d = g + wd p ; buffer = momentum buffer + d ; p -= lr buffer           (without momentum: p -= lr d)

#include "exec/ops/sgd.h"

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

bool has_momentum(const Optimizer& o) { return o.value("momentum") != 0; }

std::vector<float> scalars(const Optimizer& o, int64_t, double learning_rate) {
  std::vector<float> numbers(kSgdScalars);
  numbers[kSgdRate] = static_cast<float>(learning_rate);
  numbers[kSgdMomentum] = static_cast<float>(o.value("momentum"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer& o, const TensorType& parameter) {
  if (!has_momentum(o)) return {};
  return {{.suffix = ".momentum_buffer", .type = parameter}};
}

std::vector<ValueId> update(UpdateBuilder& b) {
  const UpdatePart& part = b.parts[0];
  const Attributes attributes{{"weight_decay", static_cast<float>(b.weight_decay)},
                              {"momentum", static_cast<float>(b.optimizer.value("momentum"))}};
  std::vector<ValueId> inputs{part.parameter, part.gradient, b.clip, b.scalars};
  inputs.insert(inputs.end(), part.states.begin(), part.states.end());
  return {b.emit(part, "SGD", inputs, attributes, 1 + part.states.size())[0]};
}

}  // namespace

const OptimizerDef kSgdOptimizer{
    .name = "sgd",
    .options = {{.name = "momentum",
                 .value = 0,
                 .help = "share of the last step's direction that stays",
                 .fits = [](double x) { return x >= 0 && x < 1; },
                 .wrong = "has to lie in [0, 1)"}},
    .granularity = Granularity::element,
    .scalar_count = kSgdScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
    .rounds = true,
    .variant = [](const Optimizer& o) { return has_momentum(o) ? std::string_view("with momentum") : std::string_view(); },
};

}  // namespace ort_train
