// rmsprop: steps divided by the root of the mean square (Tieleman & Hinton, Coursera lecture 6.5, 2012; centered: Graves, arXiv 1308.0850),
// with L2 decay, as torch.optim.RMSprop.
//
//   g += wd p ; v = alpha v + (1 - alpha) g^2 ; d = g / (sqrt(v) + epsilon)
//   centered: a += (1 - alpha) (g - a) ; d = g / (sqrt(v - a^2) + epsilon)
//   p -= lr d                        with momentum: buffer = momentum buffer + d ; p -= lr buffer
//
// v - a^2 is smaller than what 8 bits leave of v and of a: centered, the state isn't quantized, as in bitsandbytes.

#include "exec/ops/rmsprop.h"

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

bool has_momentum(const Optimizer& o) { return o.value("momentum") != 0; }
bool is_centered(const Optimizer& o) { return o.value("rmsprop_centered") != 0; }

std::vector<float> scalars(const Optimizer& o, int64_t, double learning_rate) {
  std::vector<float> numbers(kRmspropScalars);
  numbers[kRmspropRate] = static_cast<float>(learning_rate);
  numbers[kRmspropAlpha] = static_cast<float>(o.value("rmsprop_alpha"));
  numbers[kRmspropOneMinusAlpha] = static_cast<float>(1 - o.value("rmsprop_alpha"));
  numbers[kRmspropMomentum] = static_cast<float>(o.value("momentum"));
  numbers[kRmspropEpsilon] = static_cast<float>(o.value("rmsprop_epsilon"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer& o, const TensorType& parameter) {
  std::vector<StateDef> all{{.suffix = ".square_avg", .type = parameter, .quantized = DType::dynamic8_unsigned}};
  if (is_centered(o)) all.push_back({.suffix = ".grad_avg", .type = parameter});
  if (has_momentum(o)) all.push_back({.suffix = ".momentum_buffer", .type = parameter, .quantized = DType::dynamic8});
  return all;
}

std::vector<ValueId> update(UpdateBuilder& b) {
  const auto number = [&](const char* option) { return static_cast<float>(b.optimizer.value(option)); };
  return {b.emit_update(b.parts[0], "RMSprop",
                        {{"alpha", number("rmsprop_alpha")},
                         {"momentum", number("momentum")},
                         {"epsilon", number("rmsprop_epsilon")},
                         {"centered", static_cast<int64_t>(is_centered(b.optimizer))}})};
}

std::string_view conflict(const Optimizer& o) {
  return o.quantized && is_centered(o) ? "`rmsprop_centered` takes the difference of two states, which 8 bits are too few for: let `optim` "
                                         "be rmsprop, or leave it out"
                                       : "";
}

std::string_view variant(const Optimizer& o) {
  if (is_centered(o)) return has_momentum(o) ? "centered with momentum" : "centered";
  return has_momentum(o) ? "with momentum" : "";
}

}  // namespace

const OptimizerDef kRmspropOptimizer{
    .name = "rmsprop",
    .synonyms = {"rmsprop_bnb", "rmsprop_bnb_32bit"},
    .options = {share("rmsprop_alpha", 0.99, "decay of the mean square"), share("momentum", 0, "share of the last step that stays"),
                not_negative("rmsprop_epsilon", 1e-8, "added to the root of the mean square"),
                flag("rmsprop_centered", false, "subtract the squared mean from the mean square")},
    .granularity = Granularity::element,
    .scalar_count = kRmspropScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
    .rounds = true,
    .variant = variant,
    .conflict = conflict,
};

}  // namespace ort_train
