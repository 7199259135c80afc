// build_update: the optimizer's nodes behind the gradients.
//
//   before   g1 … gn
//   after    norm = GlobalNorm(SumSquares(g1) … SumSquares(gn)) ; c = ClipCoefficient(norm)
//            p1', m1', v1' = AdamW(p1, g1, m1, v1, c, scalars) …                            in import order
//
// Weight decay is an attribute of each node: on parameters of rank 2 and more. The scalars (learning rate, bias corrections) are computed
// once a step on the host, exec/ops/optimizer_scalars.h, and fed as a graph input. Without clipping c is the constant 1.

#include <algorithm>

#include "exec/ops/optimizer_scalars.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/split_weights.h"

namespace ort_train {
namespace {

ValueId add_state(Graph& graph, ValueId parameter, const char* suffix) {
  const Value& p = graph.value(parameter);
  return graph.add_value({.name = p.name + suffix, .dtype = p.dtype, .shape = p.shape, .kind = ValueKind::optimizer_state});
}

// The outputs that are state changed in place keep the kind of what they change. Returns what becomes of the first input.
ValueId emit_writer(Builder& builder, const char* op, std::vector<ValueId> inputs, const Attributes& attributes, size_t outputs) {
  const std::vector<ValueId> results = builder.emit_many(op, inputs, attributes, outputs);
  for (const Alias& write : op_named(op).writes) {
    if (static_cast<size_t>(write.output) >= results.size() || inputs[write.input] == kNone) continue;
    builder.graph().value(results[write.output]).kind = builder.graph().value(inputs[write.input]).kind;
  }
  return results[0];
}

}  // namespace

void emit_behind(Builder& builder, const std::vector<ValueId>& values) {
  const std::vector<NodeId>& order = builder.graph().order();
  const auto makes_one = [&](NodeId id) {
    return std::any_of(values.begin(), values.end(), [&](ValueId value) { return builder.value(value).producer == id; });
  };
  const auto last = std::find_if(order.rbegin(), order.rend(), makes_one);
  builder.before(last == order.rbegin() || last == order.rend() ? kNone : *std::prev(last));
}
void emit_behind(Builder& builder, ValueId value) { emit_behind(builder, std::vector{value}); }

void build_norm(JobGraph& job, Stage stage) {
  // By the weights' names, then from part to part: in which parts they are doesn't show.
  const std::map<std::string, PlaceOfPart> parts = part_places(job);
  std::map<std::pair<std::string, int64_t>, ValueId> gradients;
  for (const auto& [parameter, gradient] : job.gradients) {
    const std::string& name = job.graph.value(parameter).name;
    const auto part = parts.find(name);
    gradients[part == parts.end() ? std::pair{name, int64_t{0}} : std::pair{part->second.weight, part->second.offset}] = gradient;
  }
  require(gradients.size() == job.gradients.size(), "two parameters of one name");
  Builder builder(job.graph, stage);
  builder.named("gradient norm");
  std::vector<ValueId> squares;
  for (const auto& [place, gradient] : gradients) {
    emit_behind(builder, gradient);
    squares.push_back(builder.emit("SumSquares", {gradient}));
  }
  job.grad_norm = builder.before(kNone).emit("GlobalNorm", squares);
}

ValueId add_scalars(Graph& graph, const char* name) {
  graph.inputs.push_back(graph.add_value({.name = name, .dtype = DType::float32, .shape = {kOptimizerScalars}, .kind = ValueKind::input}));
  return graph.inputs.back();
}

std::map<ValueId, ValueId> build_update(Graph& graph, const OptimizerSpec& spec, const std::map<ValueId, ValueId>& gradients, ValueId norm,
                                        ValueId scalars, const UpdatePlaces& before) {
  Builder builder(graph, Stage::update);
  builder.named("gradient norm");
  if (before && !graph.order().empty()) builder.before(graph.order().front());
  const ValueId coefficient = spec.max_grad_norm > 0
                                  ? builder.emit("ClipCoefficient", {norm}, {{"max_norm", static_cast<float>(spec.max_grad_norm)}})
                                  : builder.constant(scalar_tensor(1.0f));
  std::map<ValueId, ValueId> updated;
  for (const auto& [parameter, gradient] : gradients) {
    const double decay = graph.value(parameter).shape.size() >= 2 ? spec.weight_decay : 0;
    builder.named(graph.value(parameter).name).before(before ? before(parameter) : kNone);
    Attributes attributes{{"weight_decay", static_cast<float>(decay)}};
    ValueId& p = updated[parameter];
    if (spec.kind == "adamw") {
      attributes.set("beta1", static_cast<float>(spec.beta1));
      attributes.set("beta2", static_cast<float>(spec.beta2));
      attributes.set("epsilon", static_cast<float>(spec.epsilon));
      const ValueId m = add_state(graph, parameter, kFirstMomentName), v = add_state(graph, parameter, kSecondMomentName);
      p = emit_writer(builder, "AdamW", {parameter, gradient, m, v, coefficient, scalars}, attributes, 3);
    } else if (spec.kind == "sgd") {
      attributes.set("momentum", static_cast<float>(spec.momentum));
      const ValueId buffer = spec.momentum != 0 ? add_state(graph, parameter, kMomentumName) : kNone;
      p = emit_writer(builder, "SGD", {parameter, gradient, buffer, coefficient, scalars}, attributes, buffer == kNone ? 1 : 2);
    } else {
      throw error(ErrorCode::usage, "unknown optimizer '{}'; known: adamw, sgd", spec.kind);
    }
  }
  return updated;
}

}  // namespace ort_train
