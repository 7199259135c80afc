// mixed_precision: products run in float16 or bfloat16, what needs range or adds up many numbers in float32.
//
//   before   n, … = LayerNormalization(x, s, b) ; y = MatMul(n, w, c) ; z = Gelu(y) ; r = Add(x, MatMul(z, v))       all float32
//   after    n, … = LayerNormalization{to: bfloat16}(x, s, b) ; y = MatMul{to: bfloat16, compute: bfloat16}(n, w, c) ; z = Gelu(y)
//            r = Add(x, MatMul{to: float32, compute: bfloat16}(z, v))
//
// Each op says how it runs (PrecisionTraits in graph/op_traits.h), which the user's list may change: low, in float32, or in the widest type
// of what it reads. Numbers of one element don't count there: they take the others' type. The ops' kernels compute in float32 whatever
// they store, so norms, softmax and activations may store 16 bits. Weights stay float32: products round them as they read them, so there
// are no copies of weights to keep; activations are cast once, right where they are made, for all that read them: before a Reshape of
// theirs. A Cast back to the type that it came from is the value before it. Casts of what can be stored in either type are done by the op
// that makes it. The model's outputs keep their types.
//
// Where weights are stored in the low type themselves (low_weights), trained ones of two dimensions and more are; vectors, which are little
// memory, and what isn't trained stay float32.
//
// Needs: fusions done, no gradients yet (autodiff's Casts follow from these). Leaves: each node with operands of types that it takes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/names.h"
#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

// A constant in another type. Finite numbers stay finite: masks are full of float32's lowest.
Tensor converted(const Tensor& from, DType to) {
  const double most = to == DType::float16 ? 65504 : to == DType::bfloat16 ? 0x1.fep127 : std::numeric_limits<float>::max();
  const std::vector<double> numbers = from.to_double();
  Tensor result(to, from.shape);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<float>(std::isfinite(numbers[i]) ? std::clamp(numbers[i], -most, most) : numbers[i]);
    if (to == DType::float16)
      result.data<float16>()[i] = to_float16(number);
    else if (to == DType::bfloat16)
      result.data<bfloat16>()[i] = to_bfloat16(number);
    else
      result.data<float>()[i] = number;
  }
  return result;
}

bool is_named(const AutocastRule& rule, const Node& node) {
  const auto& forms = node.op->onnx;
  return rule.name == node.op->name || fits(rule.name, node.name) ||
         std::any_of(forms.begin(), forms.end(), [&](const OnnxForm& form) { return rule.name == form.name; });
}

class Caster {
 public:
  Caster(Graph& graph, const PassOptions& options) : graph_(graph), options_(options), low_(options.precision) {
    of_weights_.resize(graph.value_count());
    for (ValueId id = 0; id < graph.value_count(); ++id) {
      const ValueKind kind = graph.value(id).kind;
      of_weights_[id] = kind == ValueKind::parameter || kind == ValueKind::constant;
    }
  }

  void run() {
    std::vector<bool> used(options_.autocast.size());
    for (const NodeId id : std::vector<NodeId>(graph_.order())) {
      const Node& node = graph_.node(id);
      Precision runs = node.op->traits.precision.runs;
      for (size_t i = 0; i < options_.autocast.size(); ++i) {
        if (!is_named(options_.autocast[i], node)) continue;
        runs = options_.autocast[i].runs;
        used[i] = true;
      }
      visit(id, runs);
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      std::vector<std::string> names;
      for (const NodeId id : graph_.order()) {
        for (const std::string& name : {std::string(graph_.node(id).op->name), graph_.node(id).name}) {
          if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        }
      }
      throw error(ErrorCode::usage,
                  "`autocast_list`: '{}' is no op and no node of the model as it is after the fusions; there are '{}' (`dump_after` "
                  "simplify_again FILE shows all)",
                  options_.autocast[i].name, fmt::join(nearest_names(options_.autocast[i].name, names, 4), "', '"));
    }
  }

  // The model's outputs have the types that the user knows.
  void restore_outputs(const std::vector<DType>& types) {
    for (size_t i = 0; i < types.size(); ++i) {
      ValueId& output = graph_.outputs[i];
      output = as(output, types[i], kNone);
    }
  }

  // Ops that can store their result in either type do so, instead of a Cast that alone reads it.
  void merge_casts() {
    const auto readers = graph_.readers();
    for (const auto& [of, cast] : casts_) {
      const ValueId value = of.first;
      const NodeId maker = graph_.value(value).producer, caster = graph_.value(cast).producer;
      if (maker == kNone || caster == kNone || readers[value] != std::vector{caster}) continue;
      if (!graph_.node(maker).op->traits.precision.chooses_result || graph_.node(maker).outputs[0] != value) continue;
      if (std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end()) continue;
      if (!can_result(graph_.node(maker), of.second)) continue;
      set_result(graph_.node(maker), of.second);
      graph_.replace_uses(cast, value);
      graph_.remove_node(caster);
    }
  }

 private:
  using Key = std::pair<ValueId, DType>;

  bool mixes(ValueId id) const { return id != kNone && (graph_.value(id).dtype == DType::float32 || graph_.value(id).dtype == low_); }
  bool keeps(const Node& node, size_t input) const { return (node.op->traits.precision.keeps_float32 >> input & 1) != 0; }

  // The type of what a node's operands have in common; single elements only count where there is nothing else.
  DType widest(const Node& node) const {
    if (node.attributes.has(kTypedByFirst)) return graph_.value(node.inputs[0]).dtype;
    bool any = false, any_float32 = false, single_float32 = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!mixes(input) || keeps(node, i)) continue;
      const bool is_float32 = graph_.value(input).dtype == DType::float32;
      if (element_count(graph_.value(input).shape) == 1) {
        single_float32 |= is_float32;
        continue;
      }
      any = true;
      any_float32 |= is_float32;
    }
    return (any ? any_float32 : single_float32) ? DType::float32 : low_;
  }

  void visit(NodeId id, Precision runs) {
    const Node before = graph_.node(id);
    const bool all_mix = std::all_of(before.inputs.begin(), before.inputs.end(),
                                     [&](ValueId v) { return v == kNone || mixes(v) || !is_floating(graph_.value(v).dtype); });
    bool from_weights = !before.inputs.empty();
    for (const ValueId input : before.inputs) from_weights &= input == kNone || of_weights_[input];
    if (before.op->writes.empty() && all_mix && !is_cast(before)) {
      const PrecisionTraits& traits = before.op->traits.precision;
      const DType type = runs == Precision::low ? low_ : runs == Precision::float32 ? DType::float32 : widest(before);
      bool rounds = false;
      for (size_t i = 0; i < before.inputs.size(); ++i) {
        const ValueId input = before.inputs[i];
        if (input != kNone && is_weight_blocks(graph_.value(input).dtype)) rounds |= type == low_;  // as it becomes float32
        if (!mixes(input)) continue;
        if (keeps(before, i)) {
          graph_.node(id).inputs[i] = as(input, DType::float32, id);
        } else if (type == low_ && traits.rounds && of_weights_[input] && graph_.value(input).dtype == DType::float32) {
          rounds = true;
        } else if (type == low_ || !traits.chooses_result || traits.rounds) {  // else it reads 16 bits as it computes: in float32
          graph_.node(id).inputs[i] = as(input, type, id);
        }
      }
      if (rounds) set_type(graph_.node(id).attributes, kComputeType, low_);
      if (traits.chooses_result && std::any_of(before.inputs.begin(), before.inputs.end(), [&](ValueId v) { return mixes(v); }))
        set_result(graph_.node(id), type);
    }
    infer(id);
    for (const ValueId output : graph_.node(id).outputs) {
      if (output != kNone) of_weights_[output] = from_weights;
    }
  }

  // A Cast that the user wrote says what it wants.
  static bool is_cast(const Node& node) { return node.op->name == "Cast"; }

  std::vector<TensorType> types_of(const Node& node) const {
    return infer_types(graph_, *node.op, node.inputs, node.attributes, node.outputs.size(), node.name);
  }

  void infer(NodeId id) {
    const std::vector<TensorType> types = types_of(graph_.node(id));
    for (size_t i = 0; i < types.size() && i < graph_.node(id).outputs.size(); ++i) {
      if (const ValueId output = graph_.node(id).outputs[i]; output != kNone) graph_.value(output).dtype = types[i].dtype;
    }
  }

  // Whether the op's own rules allow it: sums of float32 have no narrower result.
  bool can_result(Node node, DType type) const {
    set_type(node.attributes, kResultType, type);
    try {
      return types_of(node)[0].dtype == type;
    } catch (const Error&) {
      return false;
    }
  }

  void set_result(Node& node, DType type) {
    node.attributes.erase(kResultType);
    if (types_of(node)[0].dtype != type) set_type(node.attributes, kResultType, type);
    graph_.value(node.outputs[0]).dtype = type;
  }

  // The value in that type. A narrower copy is made where the value is, so that this need not live on for the copy's sake, a wider one
  // before its first reader (kNone: at the end).
  ValueId as(ValueId value, DType to, NodeId reader) {
    const DType from = graph_.value(value).dtype;
    if (from == to) return value;
    if (const auto found = casts_.find({value, to}); found != casts_.end()) return found->second;
    const NodeId maker = graph_.value(value).producer;
    ValueId result = kNone;
    if (const Tensor* tensor = graph_.constant(value)) {
      result = graph_.add_constant(converted(*tensor, to), graph_.value(value).name);
    } else if (maker != kNone && is_cast(graph_.node(maker)) && graph_.value(graph_.node(maker).inputs[0]).dtype == to && to == low_) {
      result = graph_.node(maker).inputs[0];
    } else {
      const ValueId whole = maker == kNone ? kNone : reshaped(maker);
      const ValueId of = whole == kNone ? kNone : as(whole, to, reader);
      Builder builder(graph_);
      builder.before(to == low_ ? node_after(maker) : reader);
      if (maker == kNone)
        builder.named(graph_.value(value).name);
      else
        builder.named(graph_.node(maker).name, graph_.node(maker).ordinal);
      result = whole == kNone ? builder.cast(value, to) : builder.reshape(of, graph_.value(value).shape);
    }
    of_weights_.resize(graph_.value_count());
    of_weights_[result] = of_weights_[value];
    casts_[{value, to}] = result;
    return result;
  }

  // What a node is only another shape of; kNone where it is something else.
  ValueId reshaped(NodeId id) const {
    const Node& node = graph_.node(id);
    const ValueId whole = viewed(node);
    const bool is_whole = whole != kNone && element_count(graph_.value(whole).shape) == element_count(graph_.value(node.outputs[0]).shape);
    return is_whole ? whole : kNone;
  }

  NodeId node_after(NodeId maker) const {
    const std::vector<NodeId>& order = graph_.order();
    if (maker == kNone) return order.front();
    const auto at = std::find(order.begin(), order.end(), maker);
    return std::next(at) == order.end() ? kNone : *std::next(at);
  }

  Graph& graph_;
  const PassOptions& options_;
  const DType low_;
  std::vector<bool> of_weights_;  // depends on nothing that is fed
  std::map<Key, ValueId> casts_;
};

void cast(Graph& graph, const PassOptions& options) {
  std::vector<DType> types;
  for (const ValueId output : graph.outputs) types.push_back(graph.value(output).dtype);
  if (options.low_weights) {
    const std::vector<ValueId> parameters = graph.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      Value& weight = graph.value(parameters[i]);
      if (!weight.trainable || weight.shape.size() < 2 || weight.dtype != DType::float32) continue;
      weight.dtype = options.precision;
      weight.ordinal = static_cast<uint32_t>(i);
    }
  }
  Caster caster(graph, options);
  caster.run();
  graph.remove_dead_nodes();  // a Reshape whose Cast is before it
  caster.merge_casts();
  caster.restore_outputs(types);  // after it: a loss reads the 16-bit numbers
  graph.remove_dead_nodes();
}

}  // namespace

bool mixed_precision(Graph& graph, const PassOptions& options) {
  const bool is_mixed = options.precision != DType::float32;
  if (is_mixed) cast(graph, options);
  for (const NodeId id : graph.order()) graph.node(id).attributes.erase(kTypedByFirst);  // nobody asks any more
  return is_mixed;
}

}  // namespace ort_train
