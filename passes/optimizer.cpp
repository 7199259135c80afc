#include "passes/optimizer.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/optimizers/list.h"

namespace ort_train {

const std::vector<const OptimizerDef*>& all_optimizers() {
  static const std::vector<const OptimizerDef*> list{&kAdamWOptimizer,          &kAdamOptimizer,   &kSgdOptimizer,  &kAdafactorOptimizer,
                                                     &kAdafactorTorchOptimizer, &kLionOptimizer,   &kLambOptimizer, &kLarsOptimizer,
                                                     &kAdagradOptimizer,        &kRmspropOptimizer};
  return list;
}

namespace {

const OptimizerDef& find_optimizer(std::string_view name) {
  std::vector<std::string_view> names;
  for (const OptimizerDef* def : all_optimizers()) {
    const auto& synonyms = def->synonyms;
    if (def->name == name || std::find(synonyms.begin(), synonyms.end(), name) != synonyms.end()) return *def;
    names.push_back(def->name);
  }
  throw error(ErrorCode::usage, "`optim` {}: is not known; these are, and Hugging Face's names for them: {}", name, fmt::join(names, ", "));
}

}  // namespace

Optimizer make_optimizer(std::string_view name, const std::map<std::string, double>& options) {
  Optimizer optimizer{.def = &find_optimizer(name)};
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
  if (const auto conflict = optimizer.def->conflict; conflict != nullptr && !conflict(optimizer).empty())
    throw error(ErrorCode::usage, "`optim` {}: {}", name, conflict(optimizer));
  return optimizer;
}

double Optimizer::value(std::string_view option) const {
  for (size_t i = 0; i < values.size(); ++i) {
    if (def->options[i].name == option) return values[i];
  }
  throw error(ErrorCode::device, "internal error: the optimizer {} has no option {}; please report this", def->name, option);
}

double Optimizer::learning_rate(int64_t t, double scheduled) const {
  return def->own_rate != nullptr ? def->own_rate(*this, t, scheduled) : scheduled;
}

std::vector<float> Optimizer::scalars(int64_t t, double scheduled) const {
  std::vector<float> numbers = def->scalars(*this, t, learning_rate(t, scheduled));
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

ValueId UpdateBuilder::emit_update(const UpdatePart& part, std::string_view op, Attributes attributes) {
  std::vector<ValueId> inputs{part.parameter, part.gradient, clip, scalars};
  inputs.insert(inputs.end(), part.states.begin(), part.states.end());
  attributes.set("weight_decay", static_cast<float>(weight_decay));
  return emit(part, op, std::move(inputs), std::move(attributes), 1 + part.states.size())[0];
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
