#include "passes/optimizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

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

constexpr std::string_view kQuantizedSuffix = "_8bit", kPlainSuffix = "_32bit";
constexpr std::string_view kBitsandbytesOption = "bitsandbytes_rounding", kEmbeddingsOption = "quantize_embeddings",
                           kLeastOption = "min_8bit_size";

// A name without what it says about the state's storage: `adamw_8bit`, and as Hugging Face has them `adamw_bnb_8bit`, `paged_adamw_8bit`,
// `paged_adamw_32bit` (any state may be on a disk here).
struct StorageName {
  std::string_view base;
  bool quantized = false;

  explicit StorageName(std::string_view name) : base(name), quantized(name.ends_with(kQuantizedSuffix)) {
    if (!quantized && !name.ends_with(kPlainSuffix)) return;
    base.remove_suffix((quantized ? kQuantizedSuffix : kPlainSuffix).size());
    constexpr std::string_view kPaged = "paged_", kBitsandbytes = "_bnb";
    if (base.starts_with(kPaged)) base.remove_prefix(kPaged.size());
    if (base.ends_with(kBitsandbytes)) base.remove_suffix(kBitsandbytes.size());
  }
};

bool is_switch(double x) { return x == 0 || x == 1; }

}  // namespace

const std::vector<OptimizerOption>& quantized_options() {
  static const std::vector<OptimizerOption> list{
      {.name = kLeastOption,
       .value = 4096,
       .help = "tensors of fewer elements keep float32 state",
       .fits = [](double x) { return x >= 0 && x <= 0x1p48 && x == std::floor(x); },
       .wrong = "is no number of elements"},
      {.name = kEmbeddingsOption,
       .value = 0,
       .help = "1: the state of embeddings is quantized, too, which is less stable",
       .fits = is_switch,
       .wrong = "has to be 0 or 1"},
      {.name = kBitsandbytesOption,
       .value = 0,
       .help = "1: state is rounded to the bit as by bitsandbytes, which makes small mean squares 0",
       .fits = is_switch,
       .wrong = "has to be 0 or 1"},
  };
  return list;
}

bool has_quantized_states(const Optimizer& optimizer) {
  const std::vector<StateDef> states = optimizer.def->states(optimizer, {DType::float32, {1}});
  return std::any_of(states.begin(), states.end(), [](const StateDef& state) { return state.quantized.has_value(); });
}

namespace {

// Names of the optimizers that have state in 8 bits, those that only have it with some of their options with these.
std::vector<std::string> quantizable() {
  std::vector<std::string> names;
  for (const OptimizerDef* def : all_optimizers()) {
    Optimizer optimizer{.def = def, .quantized = true};
    for (const OptimizerOption& option : optimizer.options()) optimizer.values.push_back(option.value);
    if (has_quantized_states(optimizer)) {
      names.push_back(optimizer.name());
      continue;
    }
    const std::vector<OptimizerOption> options = optimizer.options();
    for (size_t i = 0; i < options.size(); ++i) {
      Optimizer changed = optimizer;
      changed.values[i] = 0.9;
      if (!options[i].fits(0.9) || !has_quantized_states(changed)) continue;
      names.push_back(fmt::format("{} with `{}`", optimizer.name(), options[i].name));
      break;
    }
  }
  return names;
}

}  // namespace

Optimizer make_optimizer(std::string_view name, const std::map<std::string, double>& options) {
  const StorageName storage(name);
  Optimizer optimizer{.def = &find_optimizer(storage.base), .quantized = storage.quantized};
  const std::vector<OptimizerOption> all_options = optimizer.options();
  std::vector<std::string_view> known;
  for (const OptimizerOption& option : all_options) {
    known.push_back(option.name);
    optimizer.values.push_back(option.value);
  }
  for (const auto& [option, value] : options) {
    const auto at = static_cast<size_t>(std::find(known.begin(), known.end(), option) - known.begin());
    if (at == known.size()) {
      throw error(ErrorCode::usage, "`{}` {}: `optim` {} has no such option{}: leave it out", option, value, name,
                  known.empty() ? "" : fmt::format(", only `{}`", fmt::join(known, "`, `")));
    }
    if (!all_options[at].fits(value)) throw error(ErrorCode::usage, "`{}` {}: {}", option, value, all_options[at].wrong);
    optimizer.values[at] = value;
  }
  if (optimizer.quantized && !has_quantized_states(optimizer))
    throw error(ErrorCode::usage, "`optim` {}: {} keeps no state that is stored in 8 bits; these do: {}", name, optimizer.def->name,
                fmt::join(quantizable(), ", "));
  if (const auto conflict = optimizer.def->conflict; conflict != nullptr && !conflict(optimizer).empty())
    throw error(ErrorCode::usage, "`optim` {}: {}", name, conflict(optimizer));
  return optimizer;
}

std::string Optimizer::name() const { return fmt::format("{}{}", def->name, quantized ? kQuantizedSuffix : ""); }

std::vector<OptimizerOption> Optimizer::options() const {
  std::vector<OptimizerOption> all = def->options;
  if (quantized) all.insert(all.end(), quantized_options().begin(), quantized_options().end());
  return all;
}

double Optimizer::value(std::string_view option) const {
  const std::vector<OptimizerOption> all = options();
  for (size_t i = 0; i < values.size(); ++i) {
    if (all[i].name == option) return values[i];
  }
  throw internal_error("the optimizer {} has no option {}", name(), option);
}

std::vector<StateDef> Optimizer::states(const Value& parameter) const {
  std::vector<StateDef> all = def->states(*this, {compute_type(parameter.dtype), parameter.shape});
  for (StateDef& state : all) {
    if (quantized && parameter.quantized_state && state.quantized) state.type.dtype = *state.quantized;
  }
  return all;
}

Granularity Optimizer::granularity() const {
  const Granularity plain = def == nullptr ? Granularity::element : def->granularity;
  return quantized && plain == Granularity::element ? Granularity::block : plain;
}

int64_t Optimizer::state_block() const { return quantized || granularity() == Granularity::block ? kStateBlock : 1; }

bool Optimizer::quantizes(int64_t elements, bool is_embedding) const {
  return quantized && static_cast<double>(elements) >= value(kLeastOption) && (!is_embedding || value(kEmbeddingsOption) != 0);
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
  std::string label = fmt::format("{}{}{}", name(), variant.empty() ? "" : " ", variant);
  if (!quantized) return label;
  for (const OptimizerOption& option : quantized_options()) {  // which state is quantized
    if (option.name != kBitsandbytesOption && value(option.name) != option.value)
      label += fmt::format(" {}={}", option.name, value(option.name));
  }
  return label;
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
  const auto in_blocks = [&](ValueId input) { return input != kNone && is_quantized(graph.value(input).dtype); };
  if (std::any_of(inputs.begin(), inputs.end(), in_blocks) && optimizer.value(kBitsandbytesOption) != 0)
    attributes.set("bitsandbytes", int64_t{1});
  const std::vector<ValueId> results = builder_.emit_many(op, inputs, std::move(attributes), outputs);
  for (const Alias& write : op_named(op).writes) {
    const auto output = static_cast<size_t>(write.output), input = static_cast<size_t>(write.input);
    if (output < results.size() && inputs[input] != kNone) graph.value(results[output]).kind = graph.value(inputs[input]).kind;
  }
  return results;
}

}  // namespace ort_train
