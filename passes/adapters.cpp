// adapters: a frozen weight W gets two small trained matrices beside it, A and B.
//
//   before   y = MatMul(x, w, bias, trans_b=1)                                       w [out, in]
//   after    u = MatMul(Dropout(x), a, trans_b=1)                                    a [rank, in]
//            y = Add(MatMul(x, w, bias, trans_b=1), MatMul(u, b, trans_b=1, alpha=scale))   b [out, rank]
//
// A convolution's a [rank, in, …] goes over x as w does, its b [out, rank, 1, …] over what that gives. Of a lookup, a [rank, rows] is
// looked up in columns. Adapters are of uses, not of weights: a weight that is used in two ways (a table that is the head's matrix, too)
// can't have one, because what W + scale * B A is for one use isn't for the other.
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

// Those of the outputs, and what they are but for views, casts and the bias that is added.
std::set<ValueId> heads(const Graph& graph, const std::set<size_t>& read) {
  std::set<ValueId> found;
  for (const size_t i : read) found.insert(graph.outputs.at(i));
  const auto is_given = [&](ValueId id) {
    return graph.value(id).kind == ValueKind::parameter || graph.value(id).kind == ValueKind::constant;
  };
  for (auto at = graph.order().rbegin(); at != graph.order().rend(); ++at) {
    const Node& node = graph.node(*at);
    if (!found.contains(node.outputs[0])) continue;
    if (node.op->traits.same_numbers || node.op->name == "Transpose") found.insert(node.inputs[0]);
    if (node.op->name != "Add") continue;
    for (const size_t i : {0, 1}) {
      if (is_given(node.inputs[1 - i])) found.insert(node.inputs[i]);
    }
  }
  return found;
}

class Adapting {
 public:
  Adapting(Graph& graph, const LoraSpec& spec) : graph_(graph), spec_(spec) {}

  void add(NodeId id, const Adapter& adapter) {
    const Node node = graph_.node(id);
    const ValueId a = graph_.find_value(adapter.a), b = graph_.find_value(adapter.b), y = node.outputs[0];
    Builder builder(graph_);
    emit_behind(builder.named(node.name, node.ordinal), y);
    ValueId result = kNone;
    if (adapter.use == AdaptedUse::convolution) {
      const size_t axes = graph_.value(a).shape.size() - 2;
      const ValueId narrow = builder.emit("Conv", {dropped(node), a}, node.attributes);
      const ValueId scaled = spec_.scale == 1 ? narrow : builder.emit("Mul", {narrow, builder.scalar_like(narrow, spec_.scale)});
      const Attributes one{{"kernel_shape", std::vector<int64_t>(axes, 1)},
                           {"strides", std::vector<int64_t>(axes, 1)},
                           {"dilations", std::vector<int64_t>(axes, 1)},
                           {"pads", std::vector<int64_t>(2 * axes, 0)}};
      result = builder.emit("Conv", {scaled, b}, one);
    } else {
      const bool is_lookup = adapter.use == AdaptedUse::lookup;
      ValueId narrow = kNone;
      if (is_lookup) {  // [rank, lookups]
        const ValueId columns = builder.emit("Gather", {a, node.inputs[1]}, {{"axis", int64_t{1}}});
        narrow = builder.reshape(columns, {spec_.rank, element_count(graph_.value(node.inputs[1]).shape)});
      } else {
        const Attributes flags{{"trans_a", node.attributes.get("trans_a", int64_t{0})}, {"trans_b", int64_t{1}}};
        narrow = builder.emit("MatMul", {dropped(node), a}, flags);
      }
      const double alpha = spec_.scale * static_cast<double>(node.attributes.get("alpha", 1.0f));
      result = builder.emit("MatMul", {narrow, b},
                            {{"trans_a", int64_t{is_lookup}}, {"trans_b", int64_t{1}}, {"alpha", static_cast<float>(alpha)}});
      if (is_lookup) result = builder.reshape(result, graph_.value(y).shape);
    }
    // All readers of y now read the sum, which alone reads y.
    insert_behind(graph_, y, builder.emit("Add", {y, result}));
  }

 private:
  // What of the node's x goes into the adapter: in training some of it is left out, by numbers that no other node of the file draws.
  ValueId dropped(const Node& node) {
    const ValueId x = node.inputs[0];
    if (spec_.dropout == 0) return x;
    constexpr uint32_t kOfAdapters = uint32_t{1} << 30;
    constexpr int kOpset = 13;
    const OnnxNode dropout{.op_type = "Dropout",
                           .name = node.name,
                           .opset = kOpset,
                           .attributes = {},
                           .inputs = {x, graph_.add_constant(scalar_tensor(static_cast<float>(spec_.dropout)), "ratio"),
                                      graph_.add_constant(scalar_tensor(true), "training_mode")},
                           .outputs = 1};
    Lowering lowering(graph_, dropout);
    emit_behind(lowering.named(node.name, node.ordinal | kOfAdapters), node.outputs[0]);
    op_named(dropout.op_type).onnx[0].lower(lowering);
    return lowering.results()[0];
  }

  Graph& graph_;
  const LoraSpec& spec_;
};

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

std::vector<Adapter> add_adapters(Graph& graph, const LoraSpec& spec, const std::set<size_t>& read) {
  std::vector<Adapter> adapters;
  std::map<ValueId, size_t> of;
  for (const Adaptable& weight : find_adaptable(graph, read)) {
    const auto module = spec.modules.find(weight.weight);
    if (module == spec.modules.end()) continue;
    if (!weight.obstacle.empty()) throw error(ErrorCode::unsupported, "'{}' can't have an adapter: {}", weight.weight, weight.obstacle);
    const ValueId id = graph.find_value(weight.weight);
    const Shape shape = graph.value(id).shape;
    Shape a, b;
    switch (weight.use) {
      case AdaptedUse::product:
        a = {spec.rank, shape[1]}, b = {shape[0], spec.rank};
        break;
      case AdaptedUse::transposed_product:
      case AdaptedUse::lookup:
        a = {spec.rank, shape[0]}, b = {shape[1], spec.rank};
        break;
      case AdaptedUse::convolution:
        a = b = shape;
        a[0] = spec.rank;
        std::fill(b.begin() + 1, b.end(), 1);
        b[1] = spec.rank;
        break;
    }
    const auto add = [&](const char* which, const Shape& of_shape) {
      const char* const pattern = weight.use == AdaptedUse::lookup ? "{}.lora_embedding_{}" : "{}.lora_{}.weight";
      const ValueId made = graph.add_value({.name = fmt::format(fmt::runtime(pattern), module->second, which),
                                            .dtype = graph.value(id).dtype,
                                            .shape = of_shape,
                                            .kind = ValueKind::parameter,
                                            .trainable = true});
      return graph.value(made).name;
    };
    of[id] = adapters.size();
    adapters.push_back({.weight = weight.weight, .use = weight.use, .module = module->second, .a = add("A", a), .b = add("B", b)});
  }
  Adapting adapting(graph, spec);
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    const Node& node = graph.node(id);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto at = node.inputs[i] == kNone ? of.end() : of.find(node.inputs[i]);
      if (at == of.end()) continue;
      adapting.add(id, adapters[at->second]);
      break;
    }
  }
  return adapters;
}

}  // namespace ort_train
