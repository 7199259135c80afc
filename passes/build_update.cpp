// build_update: the optimizer's nodes behind the gradients.
//
//   before   g1 … gn
//   after    norm = GlobalNorm(SumSquares(g1) … SumSquares(gn)) ; c = ClipCoefficient(norm)
//            p1', m1', v1' = AdamW(p1, g1, m1, v1, c, scalars) …                            in import order
//
// A large parameter has several nodes, each for a part of it with state of its own ("NAME.exp_avg.0"), so that little of its state needs to
// be in memory at once:
//
//   p1 -> AdamW{part 0} -> AdamW{part 1} -> p1'
//
// Weight decay is an attribute of each node: on parameters of rank 2 and more. The scalars (learning rate, bias corrections) are computed
// once a step on the host, exec/ops/optimizer_scalars.h, and fed as a graph input. Without clipping c is the constant 1.

#include <algorithm>

#include "exec/ops/optimizer_scalars.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"

namespace ort_train {
namespace {

ValueId add_state(Graph& graph, ValueId parameter, const char* suffix, const std::vector<Part>& parts, size_t i) {
  Value state = part_value(graph.value(parameter), parts, i);
  state.name = part_name(graph.value(parameter).name + suffix, parts, i);
  state.kind = ValueKind::optimizer_state;
  return graph.add_value(std::move(state));
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

std::vector<Part> parts_of(const Value& parameter, const OptimizerSpec& spec) {
  const int64_t all = element_count(parameter.shape);
  if (parameter.bytes() < 2 * spec.part_bytes) return {{.offset = 0, .elements = all}};
  const int64_t most = spec.part_bytes / size_of(parameter.dtype);
  std::vector<Part> parts;
  for (int64_t offset = 0; offset < all; offset += most) parts.push_back({.offset = offset, .elements = std::min(most, all - offset)});
  return parts;
}

Attributes part_attributes(const std::vector<Part>& parts, size_t i) {
  Attributes attributes;
  if (parts.size() == 1) return attributes;
  attributes.set("offset", parts[i].offset);
  attributes.set("elements", parts[i].elements);
  return attributes;
}

std::string part_name(const std::string& name, const std::vector<Part>& parts, size_t i) {
  return parts.size() == 1 ? name : fmt::format("{}.{}", name, i);
}

Value part_value(const Value& whole, const std::vector<Part>& parts, size_t i) {
  return {.dtype = whole.dtype, .shape = parts.size() == 1 ? whole.shape : Shape{parts[i].elements}};
}

void emit_behind(Builder& builder, ValueId value) {
  const std::vector<NodeId>& order = builder.graph().order();
  const auto producer = std::find(order.begin(), order.end(), builder.value(value).producer);
  builder.before(producer == order.end() || std::next(producer) == order.end() ? kNone : *std::next(producer));
}

void build_norm(JobGraph& job, const OptimizerSpec& spec, Stage stage) {
  Builder builder(job.graph, stage);
  builder.named("gradient norm");
  std::vector<ValueId> squares;
  for (const auto& [parameter, gradients] : job.gradients) {
    const std::vector<Part> parts = parts_of(job.graph.value(parameter), spec);
    const bool whole = gradients.size() == 1;
    for (size_t i = 0; i < parts.size(); ++i) {
      const ValueId gradient = gradients[whole ? 0 : i];
      emit_behind(builder, gradient);
      squares.push_back(builder.emit("SumSquares", {gradient}, whole ? part_attributes(parts, i) : Attributes()));
    }
  }
  job.grad_norm = builder.before(kNone).emit("GlobalNorm", squares);
}

std::map<ValueId, ValueId> build_update(JobGraph& job, const OptimizerSpec& spec, ValueId norm, const UpdatePlaces& before) {
  Graph& graph = job.graph;
  Builder builder(graph, Stage::update);
  builder.named("gradient norm");
  if (before && !graph.order().empty()) builder.before(graph.order().front());
  const ValueId coefficient = spec.max_grad_norm > 0
                                  ? builder.emit("ClipCoefficient", {norm}, {{"max_norm", static_cast<float>(spec.max_grad_norm)}})
                                  : builder.constant(scalar_tensor(1.0f));
  job.scalars = graph.add_value({.name = kScalarsInput, .dtype = DType::float32, .shape = {kOptimizerScalars}, .kind = ValueKind::input});
  graph.inputs.push_back(job.scalars);

  std::map<ValueId, ValueId> updated;
  for (const auto& [parameter, gradients] : job.gradients) {
    const double decay = graph.value(parameter).shape.size() >= 2 ? spec.weight_decay : 0;
    builder.named(graph.value(parameter).name).before(before ? before(parameter) : kNone);
    const std::vector<Part> parts = parts_of(graph.value(parameter), spec);
    ValueId p = parameter;
    for (size_t i = 0; i < parts.size(); ++i) {
      const ValueId gradient = gradients[gradients.size() == 1 ? 0 : i];
      Attributes attributes = part_attributes(parts, i);
      attributes.set("weight_decay", static_cast<float>(decay));
      if (spec.kind == "adamw") {
        attributes.set("beta1", static_cast<float>(spec.beta1));
        attributes.set("beta2", static_cast<float>(spec.beta2));
        attributes.set("epsilon", static_cast<float>(spec.epsilon));
        const ValueId m = add_state(graph, parameter, ".exp_avg", parts, i), v = add_state(graph, parameter, ".exp_avg_sq", parts, i);
        p = emit_writer(builder, "AdamW", {p, gradient, m, v, coefficient, job.scalars}, attributes, 3);
      } else if (spec.kind == "sgd") {
        attributes.set("momentum", static_cast<float>(spec.momentum));
        const ValueId buffer = spec.momentum != 0 ? add_state(graph, parameter, ".momentum_buffer", parts, i) : kNone;
        p = emit_writer(builder, "SGD", {p, gradient, buffer, coefficient, job.scalars}, attributes, buffer == kNone ? 1 : 2);
      } else {
        throw error(ErrorCode::usage, "unknown optimizer '{}'; known: adamw, sgd", spec.kind);
      }
    }
    updated[parameter] = p;
  }
  return updated;
}

}  // namespace ort_train
