// lars: SGD with momentum whose steps are as long as a share of the weight (You, Gitman & Ginsburg, arXiv 1708.03888, algorithm 1). Tensors
// of less than two dimensions have no trust ratio (theirs is 1), and weight decay only where their parameter group says so.
//
//   ratio = trust_coefficient |p| / (|g| + wd |p| + epsilon), or 1 where one of the norms is 0
//   buffer = momentum buffer + lr ratio (g + wd p) ; p -= buffer

#include "exec/ops/lars.h"

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

bool has_momentum(const Optimizer& o) { return o.value("momentum") != 0; }

std::vector<float> scalars(const Optimizer& o, int64_t, double learning_rate) {
  std::vector<float> numbers(kLarsScalars);
  numbers[kLarsRate] = static_cast<float>(learning_rate);
  numbers[kLarsTrustRatio] = 1;
  numbers[kLarsMomentum] = static_cast<float>(o.value("momentum"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer& o, const TensorType& parameter) {
  if (!has_momentum(o)) return {};
  return {{.suffix = ".momentum_buffer", .type = parameter}};
}

std::vector<ValueId> update(UpdateBuilder& b) {
  const auto number = [&](const char* option) { return static_cast<float>(b.optimizer.value(option)); };
  if (b.shape.size() >= 2) {
    std::vector<ValueId> inputs{b.scalars, b.clip};
    for (const UpdatePart& part : b.parts) inputs.push_back(b.emit_before_all(part, "SumSquares", {part.gradient})[0]);
    for (const UpdatePart& part : b.parts) inputs.push_back(b.emit_before_all(part, "SumSquares", {part.parameter})[0]);
    b.scalars = b.emit_before_all(b.parts[0], "LarsTrust", inputs,
                                  {{"trust_coefficient", number("lars_trust_coefficient")},
                                   {"epsilon", number("lars_epsilon")},
                                   {"weight_decay", static_cast<float>(b.weight_decay)}})[0];
  }
  std::vector<ValueId> updated;
  for (const UpdatePart& part : b.parts) updated.push_back(b.emit_update(part, "Lars", {{"momentum", number("momentum")}}));
  return updated;
}

}  // namespace

const OptimizerDef kLarsOptimizer{
    .name = "lars",
    .options = {share("momentum", 0.9, "share of the last step that stays"),
                not_negative("lars_trust_coefficient", 0.001, "share of a tensor's norm that a step has, at a learning rate of 1"),
                not_negative("lars_epsilon", 1e-8, "added to the norm of the gradient")},
    .granularity = Granularity::tensor,
    .scalar_count = kLarsScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
    .variant = [](const Optimizer& o) { return has_momentum(o) ? std::string_view("with momentum") : std::string_view(); },
};

}  // namespace ort_train
