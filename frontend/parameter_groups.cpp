#include "frontend/parameter_groups.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "frontend/import_evidence.h"
#include "frontend/units.h"
#include "frontend/weight_names.h"
#include "graph/error.h"
#include "graph/names.h"

namespace ort_train {
namespace {

// A trained parameter.
struct Trained {
  ValueId id = kNone;
  WeightNames known{};
  NodeId reader = kNone;    // the first node that uses it
  size_t use = ~size_t{0};  // when that is
};

// In import order.
std::vector<Trained> trained_parameters(const Imported& model) {
  const Graph& graph = model.graph;
  const std::map<std::string, WeightNames> names = weight_names(model);
  std::vector<Trained> all;
  std::map<ValueId, size_t> places;
  for (const Weight& weight : model.weights) {
    const ValueId id = graph.find_value(weight.parameter);
    if (id == kNone || !graph.value(id).trainable) continue;
    places[id] = all.size();
    all.push_back({.id = id, .known = names.at(weight.parameter)});
  }
  size_t use = 0;
  for (const NodeId node : graph.order()) {
    for (const ValueId input : graph.node(node).inputs) {
      const auto found = places.find(input);
      if (found == places.end() || all[found->second].reader != kNone) continue;
      all[found->second].reader = node;
      all[found->second].use = use++;
    }
  }
  return all;
}

// --- patterns -------------------------------------------------------------------------------------------------------------------------

constexpr size_t kNoRule = ~size_t{0};
constexpr const char* kSecondMatrices = "*.lora_*B*";  // of adapters

[[noreturn]] void refuse_pattern(const std::string& pattern, const Imported& model, const std::vector<Trained>& trained) {
  for (const TensorFate& tensor : model.info.tensors) {
    if (tensor.treatment != Treatment::trained && importing::names_tensor({pattern}, tensor.name, tensor.original))
      throw error(ErrorCode::usage, "`param_groups` '{}': fits '{}', which is not trained ({}), and no tensor that is", pattern,
                  tensor.name, to_string(tensor.treatment));
  }
  std::vector<std::string> names;
  for (const Trained& parameter : trained) {
    names.insert(names.end(), parameter.known.names.begin(), parameter.known.names.end());
    if (!parameter.known.originals.empty()) names.push_back(parameter.known.originals);
  }
  std::string hint;
  const std::string wider = '*' + pattern + '*';
  const auto count = std::count_if(trained.begin(), trained.end(), [&](const Trained& parameter) { return parameter.known.fit(wider); });
  if (count > 0)
    hint = fmt::format("'{}' fits {}", wider, count);
  else if (const std::vector<std::string> near = nearest_names(pattern, names, 3); !near.empty())
    hint = fmt::format("it has '{}'", fmt::join(near, "', '"));
  throw error(
      ErrorCode::usage,
      "`param_groups` '{}' fits no tensor that is trained; {} (a pattern is over the whole name, * stands for any text; check lists "
      "all of them)",
      pattern, hint);
}

// The place of the rule that takes each; kNoRule where none does.
std::vector<size_t> match_rules(const std::vector<Trained>& trained, const Imported& model, const Options& options) {
  std::vector<size_t> rules(trained.size(), kNoRule);
  for (size_t rule = 0; rule < options.param_groups.size(); ++rule) {
    const std::string& pattern = options.param_groups[rule].pattern;
    size_t fits = 0, taken = 0;
    for (size_t i = 0; i < trained.size(); ++i) {
      if (!trained[i].known.fit(pattern)) continue;
      ++fits;
      if (rules[i] != kNoRule) continue;
      rules[i] = rule;
      ++taken;
    }
    if (fits == 0) refuse_pattern(pattern, model, trained);
    if (taken == 0 && pattern == kSecondMatrices)
      throw error(ErrorCode::usage, "`lora_plus_ratio`: the patterns of `param_groups` take all second matrices, and the first one counts");
    if (taken == 0)
      throw error(ErrorCode::usage, "`param_groups` '{}': the patterns before it take all that it fits, and the first one counts", pattern);
  }
  return rules;
}

// --- layers ---------------------------------------------------------------------------------------------------------------------------

// Of "transformer.h.3.attn.weight", "/transformer/h.3/attn/MatMul" or "/transformer/h/h.3/attn/MatMul" (the exporter's names of a
// Sequential's modules): "transformer.h.3"; empty where no part is a number.
std::string layer_in(std::string_view name) {
  std::string layer;
  std::string_view last;
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of("./"), name.size());
    const std::string_view part = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    if (part.empty() || part == last) continue;
    last = part;
    layer += (layer.empty() ? "" : ".") + std::string(part);
    if (std::all_of(part.begin(), part.end(), [](char c) { return '0' <= c && c <= '9'; })) return layer;
  }
  return {};
}

std::string layer_named(const Trained& parameter, const Graph& graph) {
  for (const std::string& name : parameter.known.names) {
    if (std::string layer = layer_in(name); !layer.empty()) return layer;
  }
  if (std::string layer = layer_in(parameter.known.originals); !layer.empty()) return layer;
  return parameter.reader == kNone ? std::string() : layer_in(graph.node(parameter.reader).name);
}

// By parameter; empty where there is none. A product's matrix is of the layer of its bias.
std::vector<std::string> layers_of(const std::vector<Trained>& trained, const Graph& graph) {
  std::vector<std::string> layers;
  std::map<ValueId, size_t> places;
  for (const Trained& parameter : trained) {
    places[parameter.id] = layers.size();
    layers.push_back(layer_named(parameter, graph));
  }
  const auto readers = graph.readers();
  std::vector<std::string> completed = layers;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!layers[i].empty() || trained[i].reader == kNone) continue;
    const Node& product = graph.node(trained[i].reader);
    std::vector<NodeId> together{trained[i].reader};
    if (product.outputs.size() == 1 && readers[product.outputs[0]].size() == 1) together.push_back(readers[product.outputs[0]][0]);
    for (const NodeId node : together) {
      for (const ValueId input : graph.node(node).inputs) {
        const auto bias = places.find(input);
        if (bias != places.end() && completed[i].empty() && graph.value(input).shape.size() < 2) completed[i] = layers[bias->second];
      }
    }
  }
  return completed;
}

struct Layers {
  std::vector<size_t> of{};          // each parameter's
  std::vector<std::string> names{};  // each layer's; empty: what stands before all or behind
};

Layers find_layers(const std::vector<Trained>& trained, const Graph& graph) {
  const std::vector<std::string> named = layers_of(trained, graph);
  std::vector<size_t> in_order(trained.size());
  for (size_t i = 0; i < in_order.size(); ++i) in_order[i] = i;
  std::stable_sort(in_order.begin(), in_order.end(), [&](size_t a, size_t b) { return trained[a].use < trained[b].use; });
  Layers layers{.of = std::vector<size_t>(trained.size()), .names = {""}};
  std::map<std::string, size_t> known;
  std::vector<size_t> behind;  // those without a number since the last layer began
  size_t last = 0;
  for (const size_t i : in_order) {
    const std::string& name = named[i];
    if (name.empty()) {
      layers.of[i] = last;
      if (last > 0) behind.push_back(i);
      continue;
    }
    const auto [layer, is_new] = known.emplace(name, layers.names.size());
    if (is_new) layers.names.push_back(name);
    layers.of[i] = last = layer->second;
    behind.clear();
  }
  if (known.empty())
    throw error(
        ErrorCode::usage,
        "`layer_decay`: the names of the weights don't tell layers apart (a layer's have its number as a part, h.3.weight); set the "
        "learning rates with `param_groups` (lr_scale)");
  if (behind.empty()) return layers;
  for (const size_t i : behind) layers.of[i] = layers.names.size();
  layers.names.push_back("");
  return layers;
}

}  // namespace

// --- the table ------------------------------------------------------------------------------------------------------------------------

std::vector<ParameterGroup> assign_groups(Imported& model, const Options& given) {
  Options options = given;
  // LoRA+ (Hayou et al., arXiv 2402.12354): behind the user's own.
  if (options.lora_plus_ratio != 1) options.param_groups.push_back({.pattern = kSecondMatrices, .lr_scale = options.lora_plus_ratio});
  if (options.param_groups.empty() && options.layer_decay == 1) return {{.name = "all"}};
  std::vector<ParameterGroup> groups{{.name = "others"}};
  const std::vector<Trained> trained = trained_parameters(model);
  const std::vector<size_t> rules = match_rules(trained, model, options);
  const Layers layers =
      options.layer_decay != 1 ? find_layers(trained, model.graph) : Layers{.of = std::vector<size_t>(trained.size()), .names = {""}};
  const size_t highest = layers.names.size() - 1;
  std::map<std::pair<size_t, size_t>, std::vector<ValueId>> members;  // by rule and layer
  for (size_t i = 0; i < trained.size(); ++i) {
    const bool has_rate = rules[i] != kNoRule && options.param_groups[rules[i]].lr.has_value();
    members[{rules[i], has_rate ? highest : layers.of[i]}].push_back(trained[i].id);
  }
  for (const auto& [key, ids] : members) {
    const auto [rule, layer] = key;
    uint32_t place = 0;
    if (rule != kNoRule || layer != highest) {
      place = static_cast<uint32_t>(groups.size());
      ParameterGroup group;
      if (rule != kNoRule) {
        const ParamGroup& of = options.param_groups[rule];
        group = {.name = of.pattern, .learning_rate = of.lr, .rate_scale = of.lr_scale, .weight_decay = of.weight_decay};
      }
      if (layer != highest) {
        group.rate_scale *= std::pow(options.layer_decay, static_cast<double>(highest - layer));
        group.name += fmt::format("{}layer {}{}", group.name.empty() ? "" : ", ", layer,
                                  layers.names[layer].empty() ? "" : fmt::format(" ({})", layers.names[layer]));
      }
      groups.push_back(std::move(group));
    }
    for (const ValueId id : ids) model.graph.value(id).group = place;
  }
  return groups;
}

void check_groups(const Options& options) {
  const auto is_number = [](double x) { return x >= 0 && std::isfinite(x); };
  for (const ParamGroup& group : options.param_groups) {
    const auto refuse = [&](const std::string& why) { return error(ErrorCode::usage, "`param_groups` '{}': {}", group.pattern, why); };
    if (group.pattern.empty()) throw refuse("the pattern is empty");
    if (group.lr && group.lr_scale != 1) throw refuse("has lr, a learning rate, and lr_scale, a factor: give one of them");
    if (!group.lr && group.lr_scale == 1 && !group.weight_decay)
      throw refuse("says nothing of what it fits: give lr, lr_scale or weight_decay");
    if (group.lr && !is_number(*group.lr)) throw refuse(fmt::format("lr {} has to be 0 or more", *group.lr));
    if (!is_number(group.lr_scale)) throw refuse(fmt::format("lr_scale {} has to be 0 or more", group.lr_scale));
    if (group.weight_decay && !is_number(*group.weight_decay))
      throw refuse(fmt::format("weight_decay {} has to be 0 or more", *group.weight_decay));
  }
  if (!(options.layer_decay > 0 && options.layer_decay <= 1))
    throw error(ErrorCode::usage, "`layer_decay` {} has to lie in (0, 1]", options.layer_decay);
}

double scaled_rate(const Options& options, int64_t batch) {
  if (options.scale_lr.empty()) return options.learning_rate;
  const int64_t samples = batch * options.gradient_accumulation_steps;
  const double k = static_cast<double>(samples) / static_cast<double>(options.base_batch_size);
  return options.learning_rate * (options.scale_lr == "linear" ? k : std::sqrt(k));
}

// --- reports --------------------------------------------------------------------------------------------------------------------------

std::vector<GroupReport> describe_groups(const Graph& graph, const std::vector<ParameterGroup>& groups, double rate, double weight_decay) {
  std::vector<GroupReport> rows;
  for (const ParameterGroup& group : groups) rows.push_back({.name = group.name, .learning_rate = group.rate(rate)});
  for (const ValueId id : graph.parameters()) {
    const Value& value = graph.value(id);
    if (!value.trainable) continue;
    GroupReport& row = rows.at(value.group);
    ++row.tensors;
    row.elements += element_count(value.shape);
    const double decay = groups[value.group].decay(weight_decay, value.shape);
    if (decay == 0) continue;
    row.weight_decay = decay;
    ++row.decayed;
  }
  return rows;
}

std::string shown_groups(const std::vector<GroupReport>& groups) {
  constexpr size_t kWidest = 48;
  size_t name = 0;
  for (const GroupReport& row : groups) name = std::clamp(row.name.size(), name, kWidest);
  std::string text =
      fmt::format("groups      {:<{}}  {:>7}  {:>14}  {:>13}  weight decay\n", "", name, "tensors", "parameters", "learning rate");
  for (const GroupReport& row : groups) {
    if (row.tensors == 0) continue;
    const std::string decay = row.decayed == 0 || row.decayed == row.tensors
                                  ? fmt::format("{:.4g}", row.weight_decay)
                                  : fmt::format("{:.4g} on {} of two dimensions and more", row.weight_decay, row.decayed);
    text += fmt::format("            {:<{}}  {:>7}  {:>14}  {:>13.4g}  {}\n", row.name, name, grouped(row.tensors), grouped(row.elements),
                        row.learning_rate, decay);
  }
  return text;
}

std::string groups_setting(const Options& options) {
  std::string text;
  for (const ParamGroup& group : options.param_groups) {
    text += fmt::format("{}'{}'", text.empty() ? "" : " ", group.pattern);
    if (group.lr) text += fmt::format(" lr={}", *group.lr);
    if (group.lr_scale != 1) text += fmt::format(" lr_scale={}", group.lr_scale);
    if (group.weight_decay) text += fmt::format(" weight_decay={}", *group.weight_decay);
  }
  return text;
}

}  // namespace ort_train
