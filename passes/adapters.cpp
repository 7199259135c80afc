// adapters: a frozen weight W gets little beside it that is trained: LoRA's two small matrices A and B, DoRA's and a number for each
// output, or (IA)3's number for each output or input. adapter_nodes.cpp has the nodes.
//
// Adapters are of uses, not of weights: a weight that is used in two ways (a table that is the head's matrix, too) can't have one, because
// what W + scale * B A is for one use isn't for the other.
//
// Needs: simplified, so that products have their weights with flags; no fusions, no gradients. Leaves: new parameters, trained.

#include "passes/adapters.h"

#include <algorithm>
#include <optional>
#include <set>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"

namespace ort_train {
namespace {

bool is_grouped(const Node& node) { return node.attributes.get("group", int64_t{1}) != 1; }

// How the node uses its input `i`, a weight of two dimensions and more; none where it is nothing that has adapters.
std::optional<AdaptedUse> use_of(const Graph& graph, const Node& node, size_t i) {
  const Shape& shape = graph.value(node.inputs[i]).shape;
  const auto is = [&](std::string_view op) { return node.op->name == op; };
  if (is("MatMul") && i == 1 && shape.size() == 2)
    return node.attributes.get("trans_b", int64_t{0}) != 0 ? AdaptedUse::product : AdaptedUse::transposed_product;
  if (is("Conv") && i == 1 && !is_grouped(node)) return AdaptedUse::convolution;
  if (is("Gather") && i == 0 && shape.size() == 2 && node.attributes.get("axis", int64_t{0}) == 0) return AdaptedUse::lookup;
  return std::nullopt;
}

// What a node shows of logits that it reads: those themselves, a choice of their rows, with a bias, scaled or capped, or as probabilities.
std::vector<ValueId> shown_by(const Graph& graph, const Node& node) {
  static constexpr std::string_view kOfFirst[] = {"Transpose", "Slice", "Gather", "GatherND", "Softmax", "LogSoftmax", "Sigmoid", "Tanh"};
  const auto is = [&](std::string_view op) { return node.op->name == op; };
  if (node.op->traits.same_numbers || std::any_of(std::begin(kOfFirst), std::end(kOfFirst), is)) return {node.inputs[0]};
  const auto is_given = [&](ValueId id) {
    return graph.value(id).kind == ValueKind::parameter || graph.value(id).kind == ValueKind::constant;
  };
  const auto is_number = [&](ValueId id) { return is_given(id) && element_count(graph.value(id).shape) == 1; };
  std::vector<ValueId> shown;
  for (const size_t i : {0, 1}) {
    const bool is_shown = (is("Add") && is_given(node.inputs[1 - i])) || (is("Mul") && is_number(node.inputs[1 - i])) ||
                          (is("Div") && i == 0 && is_number(node.inputs[1]));
    if (is_shown) shown.push_back(node.inputs[i]);
  }
  return shown;
}

// The results of heads: the outputs that losses read, and the logits of losses that are in the model, but for what shows them; of other
// outputs, what has their shape. (A cache of keys and values is of products' results, too, laid out by heads of the attention.)
std::set<ValueId> heads(const Graph& graph, const std::set<size_t>& read) {
  std::set<ValueId> found, others, needed;
  for (size_t i = 0; i < graph.outputs.size(); ++i) (read.contains(i) ? found : others).insert(graph.outputs[i]);
  needed = found;
  for (auto at = graph.order().rbegin(); at != graph.order().rend(); ++at) {
    const Node& node = graph.node(*at);
    const bool is_needed = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return needed.contains(id); });
    if (is_needed) needed.insert(node.inputs.begin(), node.inputs.end());
    if (is_needed && (node.op->name == "SoftmaxCrossEntropy" || node.op->name == "LogSoftmax")) found.insert(node.inputs[0]);
    const bool is_head = found.contains(node.outputs[0]), is_other = others.contains(node.outputs[0]);
    if (!is_head && !is_other) continue;
    for (const ValueId input : shown_by(graph, node)) {
      if (is_head) found.insert(input);
      const bool is_in_place = node.op->name != "Transpose" && graph.value(input).shape == graph.value(node.outputs[0]).shape;
      if (is_other && is_in_place) others.insert(input);
    }
  }
  found.merge(others);
  return found;
}

}  // namespace

std::vector<Adaptable> find_adaptable(const Graph& graph, const std::set<size_t>& read) {
  const std::set<ValueId> outputs = heads(graph, read);
  std::map<ValueId, Adaptable> found;
  std::map<ValueId, std::string> others, mixed;  // uses that have no adapter; that are of another kind than the first: the node
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (input == kNone || graph.value(input).kind != ValueKind::parameter || graph.value(input).shape.size() < 2) continue;
      const std::optional<AdaptedUse> use = use_of(graph, node, i);
      if (!use) {
        others.emplace(input, describe(graph, id));
        continue;
      }
      const auto [at, is_first] = found.emplace(input, Adaptable{.weight = graph.value(input).name, .use = *use, .node = node.name});
      at->second.is_head |= outputs.contains(node.outputs[0]);
      at->second.is_read_by_others |= node.attributes.get("trans_a", int64_t{0}) != 0;  // its gradient has the weight on the left
      if (!is_first && at->second.use != *use) mixed.emplace(input, describe(graph, id));
    }
  }
  std::vector<Adaptable> all;
  for (const ValueId id : graph.parameters()) {
    const auto at = found.find(id);
    if (at == found.end()) continue;
    at->second.is_read_by_others |= others.contains(id);
    mixed.insert(others.begin(), others.end());
    if (const auto other = mixed.find(id); other != mixed.end())
      at->second.obstacle =
          fmt::format("{} uses it in another way than '{}' does (`untie` gives each a weight of its own)", other->second, at->second.node);
    else if (graph.value(id).dtype != DType::float32)
      at->second.obstacle = fmt::format("it is {}; adapters are of float32 weights", to_string(graph.value(id).dtype));
    all.push_back(std::move(at->second));
  }
  return all;
}

std::string to_string(AdapterKind kind) { return kind == AdapterKind::lora ? "LoRA" : kind == AdapterKind::dora ? "DoRA" : "(IA)3"; }

std::set<std::string> Adapter::trained() const {
  std::set<std::string> names{a, b, magnitude, factors};
  names.erase("");
  return names;
}

namespace {

// The parameters of a weight's adapter.
Adapter new_adapter(Graph& graph, const AdapterSpec& spec, const Adaptable& weight, const std::string& module) {
  const Value& value = graph.value(graph.find_value(weight.weight));
  const DType dtype = value.dtype;
  const Shape shape = value.shape;
  const bool is_turned = weight.use == AdaptedUse::transposed_product || weight.use == AdaptedUse::lookup;
  const int64_t out = shape[is_turned ? 1 : 0], in = shape[is_turned ? 0 : 1];
  const auto add = [&](const char* name, const Shape& of_shape, bool trained = true) {
    const ValueId made = graph.add_value({.name = fmt::format("{}.{}", module, name),
                                          .dtype = dtype,
                                          .shape = of_shape,
                                          .kind = ValueKind::parameter,
                                          .trainable = trained});
    return graph.value(made).name;
  };
  Adapter adapter{.weight = weight.weight, .use = weight.use, .module = module};
  if (spec.kind == AdapterKind::ia3) {
    adapter.scales_inputs = spec.scaled_inputs.contains(weight.weight);
    adapter.factors = add("ia3_l", {adapter.scales_inputs ? in : out});
    return adapter;
  }
  Shape a{spec.rank, in}, b{out, spec.rank};
  if (weight.use == AdaptedUse::convolution) {
    a.insert(a.end(), shape.begin() + 2, shape.end());
    b.resize(shape.size(), 1);
  }
  const bool is_lookup = weight.use == AdaptedUse::lookup;
  adapter.a = add(is_lookup ? "lora_embedding_A" : "lora_A.weight", a);
  adapter.b = add(is_lookup ? "lora_embedding_B" : "lora_B.weight", b);
  if (spec.kind == AdapterKind::dora) {
    adapter.squares = add("lora_squares", {out}, /*trained=*/false);  // before what is made of it
    adapter.magnitude = add("lora_magnitude_vector", {out});
  }
  return adapter;
}

}  // namespace

std::vector<Adapter> add_adapters(Graph& graph, const AdapterSpec& spec, const std::set<size_t>& read) {
  std::vector<Adapter> adapters;
  std::map<ValueId, size_t> of;
  for (const Adaptable& weight : find_adaptable(graph, read)) {
    const auto module = spec.modules.find(weight.weight);
    if (module == spec.modules.end()) continue;
    if (!weight.obstacle.empty()) throw error(ErrorCode::unsupported, "'{}' can't have an adapter: {}", weight.weight, weight.obstacle);
    if (weight.use == AdaptedUse::lookup && spec.kind != AdapterKind::lora)
      throw error(ErrorCode::unsupported, "'{}' is an embedding, which {} isn't for: leave it out of `{}`", weight.weight,
                  to_string(spec.kind), spec.kind == AdapterKind::dora ? "lora_target" : "ia3_target");
    of[graph.find_value(weight.weight)] = adapters.size();
    adapters.push_back(new_adapter(graph, spec, weight, module->second));
  }
  const std::vector<ValueId> outputs = graph.outputs;
  AdapterNodes nodes(graph, spec);
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    const Node& node = graph.node(id);
    for (const ValueId input : node.inputs) {
      const auto at = input == kNone ? of.end() : of.find(input);
      if (at == of.end()) continue;
      nodes.add(id, adapters[at->second]);
      break;
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {  // what is an output now has the name that the user knows
    if (graph.outputs[i] == outputs[i]) continue;
    const std::string name = graph.output_name(outputs[i]);
    graph.value(outputs[i]).output_name.clear();
    graph.name_output(graph.outputs[i], name);
  }
  return adapters;
}

}  // namespace ort_train
