#include "passes/optimizer.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/optimizers/list.h"

namespace ort_train {

const std::vector<const OptimizerDef*>& all_optimizers() {
  static const std::vector<const OptimizerDef*> list{&kAdamWOptimizer, &kSgdOptimizer, &kAdafactorOptimizer};
  return list;
}

std::string optimizer_names() {
  std::string text;
  const auto& all = all_optimizers();
  for (size_t i = 0; i < all.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : i + 1 < all.size() ? ", " : " or ", all[i]->name);
  return text;
}

Optimizer make_optimizer(std::string_view name, const std::map<std::string, double>& options) {
  const auto& all = all_optimizers();
  const auto found = std::find_if(all.begin(), all.end(), [&](const OptimizerDef* def) { return def->name == name; });
  if (found == all.end()) throw error(ErrorCode::usage, "`optim` {}: is not known: {}", name, optimizer_names());
  Optimizer optimizer{.def = *found};
  std::vector<std::string_view> known;
  for (const OptimizerOption& option : optimizer.def->options) {
    known.push_back(option.name);
    optimizer.values.push_back(option.value);
  }
  for (const auto& [option, value] : options) {
    const auto at = static_cast<size_t>(std::find(known.begin(), known.end(), option) - known.begin());
    if (at == known.size()) {
      throw error(ErrorCode::usage, "`{}` {}: `optim` {} has no such option{}: leave it out", option, value, name,
                  known.empty() ? "" : fmt::format(", only `{}`", fmt::join(known, "`, `")));
    }
    if (!optimizer.def->options[at].fits(value))
      throw error(ErrorCode::usage, "`{}` {}: {}", option, value, optimizer.def->options[at].wrong);
    optimizer.values[at] = value;
  }
  return optimizer;
}

double Optimizer::value(std::string_view option) const {
  for (size_t i = 0; i < values.size(); ++i) {
    if (def->options[i].name == option) return values[i];
  }
  throw error(ErrorCode::device, "internal error: the optimizer {} has no option {}; please report this", def->name, option);
}

std::vector<float> Optimizer::scalars(int64_t t, double learning_rate) const {
  std::vector<float> numbers = def->scalars(*this, t, learning_rate);
  require(numbers.size() == def->scalar_count, "an optimizer's scalars are as many as it says");
  return numbers;
}

std::string Optimizer::state_label() const {
  const std::string_view variant = def->variant != nullptr ? def->variant(*this) : std::string_view();
  return fmt::format("{}{}{}", def->name, variant.empty() ? "" : " ", variant);
}

std::vector<ValueId> UpdateBuilder::emit(const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs, Attributes attributes,
                                         size_t outputs) {
  return emit_at(part.before, part, op, std::move(inputs), std::move(attributes), outputs);
}
std::vector<ValueId> UpdateBuilder::emit_before_all(const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs,
                                                    Attributes attributes, size_t outputs) {
  return emit_at(before_all, part, op, std::move(inputs), std::move(attributes), outputs);
}

std::vector<ValueId> UpdateBuilder::emit_at(NodeId before, const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs,
                                            Attributes attributes, size_t outputs) {
  Graph& graph = builder_.graph();
  builder_.named(graph.value(part.parameter).name).before(before);
  const std::vector<ValueId> results = builder_.emit_many(op, inputs, std::move(attributes), outputs);
  for (const Alias& write : op_named(op).writes) {
    const auto output = static_cast<size_t>(write.output), input = static_cast<size_t>(write.input);
    if (output < results.size() && inputs[input] != kNone) graph.value(results[output]).kind = graph.value(inputs[input]).kind;
  }
  return results;
}

}  // namespace ort_train
