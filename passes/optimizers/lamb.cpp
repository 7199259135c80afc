// lamb: Adam whose steps are as long as a share of the weight (You et al., arXiv 1904.00962), as NVIDIA apex's FusedLAMB. Tensors of less
// than two dimensions have no trust ratio (apex: those without weight decay), but with lamb_use_nvlamb.
//
//   m = b1 m + (1 - b1) g ; v = b2 v + (1 - b2) g^2              without lamb_grad_averaging: m = b1 m + g
//   u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + epsilon) + wd p
//   p -= lr |p| / |u| u                                          where one of the norms is 0: p -= lr u

#include "exec/ops/lamb.h"

#include <cmath>

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

std::vector<float> scalars(const Optimizer& o, int64_t t, double learning_rate) {
  const double beta1 = o.value("adam_beta1"), beta2 = o.value("adam_beta2");
  const bool corrected = o.value("lamb_bias_correction") != 0;
  const auto bias = [&](double beta) { return corrected ? 1 - std::pow(beta, static_cast<double>(t)) : 1; };
  std::vector<float> numbers(kLambScalars);
  numbers[kLambRate] = static_cast<float>(learning_rate);
  numbers[kLambTrustRatio] = 1;
  numbers[kLambBeta1] = static_cast<float>(beta1);
  numbers[kLambGain1] = static_cast<float>(o.value("lamb_grad_averaging") != 0 ? 1 - beta1 : 1);
  numbers[kLambBeta2] = static_cast<float>(beta2);
  numbers[kLambOneMinusBeta2] = static_cast<float>(1 - beta2);
  numbers[kLambInverseBias1] = static_cast<float>(1 / bias(beta1));
  numbers[kLambInverseRootBias2] = static_cast<float>(1 / std::sqrt(bias(beta2)));
  numbers[kLambEpsilon] = static_cast<float>(o.value("adam_epsilon"));
  return numbers;
}

std::vector<StateDef> states(const Optimizer&, const TensorType& parameter) {
  return {{.suffix = ".exp_avg", .type = parameter, .quantized = DType::dynamic8},
          {.suffix = ".exp_avg_sq", .type = parameter, .quantized = DType::dynamic8_unsigned}};
}

std::vector<ValueId> update(UpdateBuilder& b) {
  if (b.shape.size() >= 2 || b.optimizer.value("lamb_use_nvlamb") != 0) {
    std::vector<ValueId> inputs{b.scalars}, of_parameters;
    for (const UpdatePart& part : b.parts) {
      const auto squares =
          b.emit_before_all(part, "LambSquares", {part.parameter, part.gradient, b.clip, b.scalars, part.states[0], part.states[1]},
                            {{"weight_decay", static_cast<float>(b.weight_decay)}}, 2);
      inputs.push_back(squares[0]);
      of_parameters.push_back(squares[1]);
    }
    inputs.insert(inputs.end(), of_parameters.begin(), of_parameters.end());
    b.scalars = b.emit_before_all(b.parts[0], "LambTrust", inputs)[0];
  }
  std::vector<ValueId> updated;
  for (const UpdatePart& part : b.parts) updated.push_back(b.emit_update(part, "Lamb"));
  return updated;
}

}  // namespace

const OptimizerDef kLambOptimizer{
    .name = "lamb",
    .options = {share("adam_beta1", 0.9, "decay of the mean"), share("adam_beta2", 0.999, "decay of the mean square"),
                not_negative("adam_epsilon", 1e-6, "added to the root of the mean square"),
                flag("lamb_bias_correction", true, "correct the means for their beginning at 0"),
                flag("lamb_grad_averaging", true, "the gradient enters its mean by 1 - beta1, not by 1"),
                flag("lamb_use_nvlamb", false, "tensors of less than two dimensions have a trust ratio, too")},
    .granularity = Granularity::tensor,
    .scalar_count = kLambScalars,
    .scalars = scalars,
    .states = states,
    .update = update,
};

}  // namespace ort_train
