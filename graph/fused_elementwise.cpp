#include "graph/fused_elementwise.h"

#include <fmt/ranges.h>

#include <sstream>

#include "graph/error.h"

namespace ort_train {

void set_fused_steps(Attributes& attributes, const std::vector<FusedStep>& steps) {
  std::vector<std::string_view> names;
  std::vector<int64_t> operands;
  for (size_t i = 0; i < steps.size(); ++i) {
    names.push_back(steps[i].op->name);
    operands.push_back(static_cast<int64_t>(steps[i].operands.size()));
    operands.insert(operands.end(), steps[i].operands.begin(), steps[i].operands.end());
    for (const auto& [name, value] : steps[i].attributes.entries()) attributes.set(fmt::format("{}.{}", i, name), value);
  }
  attributes.set("ops", fmt::format("{}", fmt::join(names, " ")));
  attributes.set("operands", operands);
}

std::vector<FusedStep> fused_steps(const Attributes& attributes) {
  const auto wrong = [](std::string_view what) { return error(ErrorCode::unsupported, "its steps can't be read: {}", what); };
  std::istringstream names(attributes.get("ops", ""));
  const std::vector<int64_t> operands = attributes.get("operands", std::vector<int64_t>{});
  std::vector<FusedStep> steps;
  size_t at = 0;
  for (std::string name; names >> name;) {
    FusedStep step{.op = find_op(name)};
    const auto made = static_cast<int64_t>(steps.size());
    if (!step.op) throw wrong(name);
    const int64_t count = at < operands.size() ? operands[at++] : 0;
    if (count < 1 || count > static_cast<int64_t>(std::min(kMostStepOperands, operands.size() - at)))
      throw wrong("its operands don't fit its ops");
    for (int64_t i = 0; i < count; ++i) {
      step.operands.push_back(operands[at++]);
      if (step.operands.back() < -made) throw wrong("an operand is made later");
    }
    const std::string prefix = fmt::format("{}.", made);
    for (const auto& [full, value] : attributes.entries()) {
      if (full.starts_with(prefix)) step.attributes.set(full.substr(prefix.size()), value);
    }
    steps.push_back(std::move(step));
  }
  if (steps.empty() || steps.size() > kMostFusedSteps || at != operands.size()) throw wrong("its operands don't fit its ops");
  return steps;
}

std::vector<TensorType> types_of_steps(const std::vector<FusedStep>& steps, const std::vector<TensorType>& inputs) {
  if (inputs.size() > kMostFusedInputs)
    throw error(ErrorCode::unsupported, "fused ops have {} inputs, more than {}", inputs.size(), kMostFusedInputs);
  std::vector<TensorType> made;
  for (const FusedStep& step : steps) {
    InferContext context{.attributes = step.attributes};
    for (const int64_t operand : step.operands) {
      if (operand >= static_cast<int64_t>(inputs.size()))
        throw error(ErrorCode::unsupported, "a fused op reads input {}, which the node hasn't", operand);
      context.inputs.push_back(operand >= 0 ? &inputs[static_cast<size_t>(operand)] : &made[static_cast<size_t>(-1 - operand)]);
      context.constants.push_back(nullptr);
    }
    const TensorType type = step.op->infer(context).at(0);
    made.push_back(type);
  }
  for (const TensorType& type : made) {
    if (type.shape != made.back().shape)
      throw error(ErrorCode::unsupported, "a fused op makes {} on the way to {}", to_string(type), to_string(made.back()));
  }
  return made;
}

}  // namespace ort_train
