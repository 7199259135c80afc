// adamw: Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as torch.optim.AdamW.
//
//   p *= 1 - lr wd ; m += (1 - b1) (g - m) ; v = b2 v + (1 - b2) g^2
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
//
// adam: with L2 decay instead (Kingma & Ba, arXiv 1412.6980), as torch.optim.Adam: g += wd p, then the same.

#include "exec/ops/adamw.h"

#include <cmath>

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

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
  return {{.suffix = ".exp_avg", .type = parameter, .quantized = DType::dynamic8},
          {.suffix = ".exp_avg_sq", .type = parameter, .quantized = DType::dynamic8_unsigned}};
}

OptimizerDef define(std::string_view name, std::vector<std::string_view> synonyms, std::vector<ValueId> (*update)(UpdateBuilder&)) {
  return {.name = name,
          .synonyms = std::move(synonyms),
          .options = {share("adam_beta1", 0.9, "decay of the mean"), share("adam_beta2", 0.999, "decay of the mean square"),
                      not_negative("adam_epsilon", 1e-8, "added to the root of the mean square")},
          .granularity = Granularity::element,
          .scalar_count = kAdamWScalars,
          .scalars = scalars,
          .states = states,
          .update = update,
          .rounds = true};
}

std::vector<ValueId> emit(UpdateBuilder& b, std::string_view op) {
  const auto number = [&](const char* option) { return static_cast<float>(b.optimizer.value(option)); };
  return {b.emit_update(b.parts[0], op,
                        {{"beta1", number("adam_beta1")}, {"beta2", number("adam_beta2")}, {"epsilon", number("adam_epsilon")}})};
}

}  // namespace

const OptimizerDef kAdamWOptimizer = define("adamw",
                                            {"adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_torch_xla",
                                             "adamw_torch_npu_fused", "paged_adamw", "paged_adamw_32bit"},
                                            [](UpdateBuilder& b) { return emit(b, "AdamW"); });
const OptimizerDef kAdamOptimizer = define("adam", {}, [](UpdateBuilder& b) { return emit(b, "Adam"); });

}  // namespace ort_train
