// mixed_precision: products run in float16 or bfloat16, what needs range or adds up many numbers in float32.
//
//   before   n, … = LayerNormalization(x, s, b) ; y = MatMul(n, w, c) ; z = Gelu(y) ; r = Add(x, MatMul(z, v))       all float32
//   after    n, … = LayerNormalization{to: bfloat16}(x, s, b) ; y = MatMul{to: bfloat16, compute: bfloat16}(n, w, c) ; z = Gelu(y)
//            r = Add(x, MatMul{to: float32, compute: bfloat16}(z, v))
//
// Each op says how it runs (PrecisionTraits in graph/op_traits.h), or the importer of one node (kRunsIn), which the user's list may change:
// low, in float32, or in the widest type of what it reads. Scalars, and single elements that nothing fed has a part in, don't count there:
// they take the others' type. (That a batch has one sample changes no type.) The ops' kernels compute in float32 whatever they store, so
// norms, softmax and activations may store 16 bits. Weights stay float32: products round them as they read them, so there are no copies of
// weights to keep; activations are cast once, right where they are made, for all that read them: before a Reshape of theirs. A Cast back to
// the type that it came from is the value before it. Casts of what can be stored in either type are done by the op that makes it. The
// model's outputs keep their types.
//
// Products of what no weight has a part in are made in float32, such as those of positions: nothing is kept for their gradients. Those that
// add up nothing (outer products, with an inner dimension of 1) and don't depend on a trained weight follow, as a Mul does.
//
// A number that the low type hasn't is used as it is, by a node in float32 whose result is rounded:
//
//   before   y = Mul(x, 0.22)              x bfloat16
//   after    w = Cast(x, float32) ; z = Mul(w, 0.22) ; y = Cast(z, bfloat16)       one node in the end (fuse_elementwise.cpp)
//
// Where it is outside of what the low type has, the result stays float32.
//
// Where weights are stored in the low type themselves (low_weights), trained ones are in which two axes at least have more than one
// element; vectors, which are little memory, and what isn't trained stay float32.
//
// Needs: fusions done, no gradients yet (autodiff's Casts follow from these). Leaves: each node with operands of types that it takes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/names.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

double largest_of(DType type) {
  return type == DType::float16 ? 65504 : type == DType::bfloat16 ? 0x1.fep127 : double{std::numeric_limits<float>::max()};
}
// The smallest with all of its digits.
double smallest_of(DType type) { return type == DType::float16 ? 0x1p-14 : 0x1p-126; }

// A constant in another type. Finite numbers stay finite: masks are full of float32's lowest.
Tensor converted(const Tensor& from, DType to) {
  const double most = largest_of(to);
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

bool is_named(const AutocastRule& rule, const Node& node) { return rule.name == node.op->name || fits(rule.name, node.name); }

// Whether the rows and columns of a product are multiplied, and nothing is added up.
bool is_outer_product(const Graph& graph, const Node& node) {
  if (node.op->name != "MatMul") return false;
  const Shape& a = graph.value(node.inputs[0]).shape;
  return a[a.size() - (node.attributes.get("trans_a", 0) != 0 ? 2 : 1)] == 1;
}

// Vectors, whatever their rank: scales (C, 1, 1) are some, too.
bool is_vector(const Shape& shape) {
  return std::count_if(shape.begin(), shape.end(), [](int64_t size) { return size > 1; }) < 2;
}

class Caster {
 public:
  Caster(Graph& graph, const PassOptions& options) : graph_(graph), options_(options), low_(options.precision) {
    sources_.resize(graph.value_count());
    for (ValueId id = 0; id < graph.value_count(); ++id) {
      const bool is_weight = graph.value(id).kind == ValueKind::parameter;
      sources_[id] = {.fed = !is_weight && !graph.constant(id), .weights = is_weight, .trained = is_weight && graph.value(id).trainable};
    }
  }

  void run() {
    std::vector<bool> used(options_.autocast.size());
    for (const NodeId id : std::vector<NodeId>(graph_.order())) {
      const Node& node = graph_.node(id);
      Precision runs = usual(node);
      for (size_t i = 0; i < options_.autocast.size(); ++i) {
        if (!is_named(options_.autocast[i], node)) continue;
        runs = options_.autocast[i].runs;
        used[i] = true;
      }
      visit(id, runs);
    }
    for (size_t i = 0; i < used.size() && options_.refuses_idle_rules; ++i) {
      if (!used[i]) refuse(options_.autocast[i].name);
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

  // What has a part in a value: something that is fed (or drawn), a weight, one that is trained.
  struct Sources {
    bool fed = false, weights = false, trained = false;
  };
  // How the low type has numbers.
  enum class Held : uint8_t { exactly, rounded, out_of_range };

  // A rule that fits nothing.
  [[noreturn]] void refuse(const std::string& rule) const {
    std::vector<std::string> names;
    for (const NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const auto form = std::find_if(node.op->onnx.begin(), node.op->onnx.end(), [&](const OnnxForm& known) { return known.name == rule; });
      if (form != node.op->onnx.end())
        throw error(ErrorCode::usage,
                    "`autocast_list`: '{}' is no op of the model as it is after the fusions: such nodes become others, '{}' for example; "
                    "give these, or the nodes by their names (`dump_after` simplify_again FILE shows all)",
                    rule, node.op->name);
      for (const std::string& name : {std::string(node.op->name), node.name}) {
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
    throw error(ErrorCode::usage,
                "`autocast_list`: '{}' is no op and no node of the model as it is after the fusions; there are '{}' (`dump_after` "
                "simplify_again FILE shows all)",
                rule, fmt::join(nearest_names(rule, names, 4), "', '"));
  }

  // How a node runs that no rule names.
  Precision usual(const Node& node) const {
    if (const std::optional<Precision> said = runs_in(node.attributes)) return *said;
    const Precision runs = node.op->traits.precision.runs;
    if (runs != Precision::low) return runs;
    const Sources sources = sources_of(node);
    if (!sources.weights) return Precision::float32;
    return !sources.trained && is_outer_product(graph_, node) ? Precision::follow : runs;
  }

  Sources sources_of(const Node& node) const {
    Sources all{.fed = node.op->random};
    for (const ValueId input : node.inputs) {
      if (input == kNone) continue;
      all.fed |= sources_[input].fed;
      all.weights |= sources_[input].weights;
      all.trained |= sources_[input].trained;
    }
    return all;
  }

  // A node's numbers that it computes with, where they are constants.
  Held numbers_of(const Node& node) const {
    const SingleNumber single = node.op->traits.precision.single;
    Held held = Held::exactly;
    if (single == SingleNumber::rounded) return held;
    for (const ValueId input : node.inputs) {
      const Tensor* const tensor = graph_.constant(input);
      if (!tensor || tensor->size() != 1 || tensor->dtype != DType::float32) continue;
      const double number = tensor->to_double()[0], size = std::abs(number);
      if (!std::isfinite(number) || number == 0 || (single == SingleNumber::added && size > largest_of(low_))) continue;
      if (size > largest_of(low_) || size < smallest_of(low_)) return Held::out_of_range;
      if (converted(*tensor, low_).to_double()[0] != number) held = Held::rounded;
    }
    return held;
  }

  // A product that reads constants as they are.
  static bool spares_constants(const Node& node, Precision runs) {
    return runs == Precision::follow && node.attributes.has(kRunsIn) && node.op->traits.precision.rounds;
  }

  bool mixes(ValueId id) const { return id != kNone && (graph_.value(id).dtype == DType::float32 || graph_.value(id).dtype == low_); }
  bool keeps(const Node& node, size_t input) const { return (node.op->traits.precision.keeps_float32 >> input & 1) != 0; }

  // The type of what a node's operands have in common; scalars and single elements of no sample only count where there is nothing else.
  DType widest(const Node& node) const {
    if (node.attributes.has(kTypedByFirst)) return graph_.value(node.inputs[0]).dtype;
    bool any = false, any_float32 = false, single_float32 = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!mixes(input) || keeps(node, i)) continue;
      if (graph_.constant(input) && spares_constants(node, Precision::follow)) continue;
      const bool is_float32 = graph_.value(input).dtype == DType::float32;
      const Shape& shape = graph_.value(input).shape;
      if (shape.empty() || (element_count(shape) == 1 && !sources_[input].fed)) {
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
    const Sources sources = sources_of(before);
    bool narrows = false;
    if (before.op->writes.empty() && all_mix && !is_cast(before)) {
      const PrecisionTraits& traits = before.op->traits.precision;
      DType type = runs == Precision::low ? low_ : runs == Precision::float32 ? DType::float32 : widest(before);
      if (runs == Precision::follow && type == low_) {
        const Held held = numbers_of(before);
        if (held != Held::exactly) type = DType::float32;
        narrows = held == Held::rounded;
      }
      bool rounds = false;
      for (size_t i = 0; i < before.inputs.size(); ++i) {
        const ValueId input = before.inputs[i];
        if (input != kNone && is_weight_blocks(graph_.value(input).dtype)) rounds |= type == low_;  // as it becomes float32
        if (!mixes(input)) continue;
        if (keeps(before, i)) {
          graph_.node(id).inputs[i] = as(input, DType::float32, id);
        } else if (narrows) {
          graph_.node(id).inputs[i] = widened(input, id);
        } else if (graph_.constant(input) && spares_constants(before, runs)) {
          continue;
        } else if (type == low_ && traits.rounds && !sources_[input].fed && graph_.value(input).dtype == DType::float32) {
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
      if (output != kNone) sources_[output] = sources;
    }
    if (narrows) {
      const ValueId wide = graph_.node(id).outputs[0];
      insert_after(graph_, wide, as(wide, low_, id));
    }
  }

  // The value in float32 for this reader alone, which is fused with the Cast: for others it is what it was.
  ValueId widened(ValueId value, NodeId reader) {
    Builder builder(graph_);
    const ValueId result = builder.before(reader).named(graph_.node(reader).name, graph_.node(reader).ordinal).cast(value, DType::float32);
    sources_.resize(graph_.value_count());
    sources_[result] = sources_[value];
    return result;
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
    sources_.resize(graph_.value_count());
    sources_[result] = sources_[value];
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
  std::vector<Sources> sources_;  // by ValueId
  std::map<Key, ValueId> casts_;
};

void cast(Graph& graph, const PassOptions& options) {
  std::vector<DType> types;
  for (const ValueId output : graph.outputs) types.push_back(graph.value(output).dtype);
  if (options.low_weights) {
    const std::vector<ValueId> parameters = graph.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      Value& weight = graph.value(parameters[i]);
      if (!weight.trainable || is_vector(weight.shape) || weight.dtype != DType::float32) continue;
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
  for (const NodeId id : graph.order()) {  // nobody asks any more
    for (const char* const attribute : {kTypedByFirst, kRunsIn}) graph.node(id).attributes.erase(attribute);
  }
  return is_mixed;
}

}  // namespace ort_train
