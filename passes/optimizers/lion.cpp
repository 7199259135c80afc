// lion: steps by the sign of a mean (Chen et al., arXiv 2302.06675), as the authors' code (google/automl, lion_pytorch.py). The learning
// rate is to be 3 to 10 times smaller than adamw's, the weight decay as much larger.
//
//   p *= 1 - lr wd ; p -= lr sign(b1 m + (1 - b1) g) ; m = b2 m + (1 - b2) g                  sign(0) = 0

#include "exec/ops/lion.h"

#include "passes/optimizers/list.h"

namespace ort_train {
namespace {

std::vector<float> scalars(const Optimizer& o, int64_t, double learning_rate) {
  std::vector<float> numbers(kLionScalars);
  numbers[kLionRate] = static_cast<float>(learning_rate);
  numbers[kLionBeta1] = static_cast<float>(o.value("adam_beta1"));
  numbers[kLionOneMinusBeta1] = static_cast<float>(1 - o.value("adam_beta1"));
  numbers[kLionBeta2] = static_cast<float>(o.value("adam_beta2"));
  numbers[kLionOneMinusBeta2] = static_cast<float>(1 - o.value("adam_beta2"));
  return numbers;
}

std::vector<ValueId> update(UpdateBuilder& b) {
  const auto number = [&](const char* option) { return static_cast<float>(b.optimizer.value(option)); };
  return {b.emit_update(b.parts[0], "Lion", {{"beta1", number("adam_beta1")}, {"beta2", number("adam_beta2")}})};
}

}  // namespace

const OptimizerDef kLionOptimizer{
    .name = "lion",
    .synonyms = {"lion_32bit", "paged_lion_32bit"},
    .options = {share("adam_beta1", 0.9, "share of the mean in the direction"), share("adam_beta2", 0.99, "decay of the mean")},
    .granularity = Granularity::element,
    .scalar_count = kLionScalars,
    .scalars = scalars,
    .states =
        [](const Optimizer&, const TensorType& parameter) {
          return std::vector<StateDef>{{.suffix = ".exp_avg", .type = parameter, .quantized = DType::dynamic8}};
        },
    .update = update,
    .rounds = true,
};

}  // namespace ort_train
