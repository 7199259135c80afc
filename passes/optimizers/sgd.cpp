// sgd: stochastic gradient descent with L2 decay and, where it isn't 0, momentum (Sutskever et al., ICML 2013), as torch.optim.SGD.
//
//   d = g + wd p ; buffer = momentum buffer + (1 - dampening) d, at first d
//   p -= lr buffer                   nesterov: p -= lr (d + momentum buffer) ; without momentum: p -= lr d

#include "exec/ops/sgd.h"

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

bool has_momentum(const Optimizer& o) { return o.value("momentum") != 0; }

std::vector<float> scalars(const Optimizer& o, int64_t t, double learning_rate) {
  std::vector<float> numbers(kSgdScalars);
  numbers[kSgdRate] = static_cast<float>(learning_rate);
  numbers[kSgdMomentum] = static_cast<float>(o.value("momentum"));
  numbers[kSgdGain] = static_cast<float>(t == 1 ? 1 : 1 - o.value("dampening"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer& o, const TensorType& parameter) {
  if (!has_momentum(o)) return {};
  return {{.suffix = ".momentum_buffer", .type = parameter, .quantized = DType::dynamic8}};
}

std::vector<ValueId> update(UpdateBuilder& b) {
  const auto number = [&](const char* option) { return static_cast<float>(b.optimizer.value(option)); };
  return {b.emit_update(b.parts[0], "SGD",
                        {{"momentum", number("momentum")},
                         {"dampening", number("dampening")},
                         {"nesterov", static_cast<int64_t>(b.optimizer.value("nesterov"))}})};
}

std::string_view conflict(const Optimizer& o) {
  if (has_momentum(o)) {
    return o.value("nesterov") != 0 && o.value("dampening") != 0 ? "`nesterov` is without `dampening`: leave one of them out" : "";
  }
  if (o.value("nesterov") != 0) return "`nesterov` goes with `momentum`, which is 0";
  return o.value("dampening") != 0 ? "`dampening` goes with `momentum`, which is 0" : "";
}

}  // namespace

const OptimizerDef kSgdOptimizer{
    .name = "sgd",
    .options = {share("momentum", 0, "share of the last step's direction that stays"),
                {.name = "dampening",
                 .value = 0,
                 .help = "share of the gradient that doesn't enter the direction, but in the first step",
                 .fits = [](double x) { return x >= 0 && x <= 1; },
                 .wrong = "has to lie in [0, 1]"},
                flag("nesterov", false, "step where the momentum leads")},
    .granularity = Granularity::element,
    .scalar_count = kSgdScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
    .rounds = true,
    .variant = [](const Optimizer& o) { return has_momentum(o) ? std::string_view("with momentum") : std::string_view(); },
    .conflict = conflict,
};

}  // namespace ort_train
