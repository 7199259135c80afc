// build_update: the optimizer's nodes behind the gradients.
//
//   before   g1 … gn
//   after    norm = GlobalNorm(SumSquares(g1) … SumSquares(gn)) ; c = UpdateFactor(norm)
//            p1', m1', v1' = AdamW(p1, g1, c, scalars, m1, v1) …                            in import order
//
// Which nodes these are, and which state, its definition says (passes/optimizer.h). Weight decay is on parameters of rank 2 and more. The
// scalars (learning rate, bias corrections) are computed once a step on the host, and fed as a graph input. Without clipping c is the
// constant 1.

#include <algorithm>

#include "exec/random.h"
#include "graph/builder.h"
#include "passes/build.h"

namespace ort_train {
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
  std::map<std::pair<std::string, int64_t>, ValueId> gradients;
  for (const auto& [parameter, gradient] : job.gradients) {
    const Value& value = job.graph.value(parameter);
    gradients[value.whole.empty() ? std::pair{value.name, int64_t{0}} : std::pair{value.whole, value.whole_offset}] = gradient;
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

ValueId add_scalars(Graph& graph, const OptimizerSpec& spec, const char* name) {
  const int64_t count = static_cast<int64_t>(spec.optimizer.def->scalar_count) + (spec.rounds ? kStepNumbers : 0);
  graph.inputs.push_back(graph.add_value({.name = name, .dtype = DType::float32, .shape = {count}, .kind = ValueKind::input}));
  return graph.inputs.back();
}

NodeId first_in_order(const Graph& graph, const std::vector<NodeId>& nodes) {
  const std::vector<NodeId>& order = graph.order();
  const auto first = std::find_first_of(order.begin(), order.end(), nodes.begin(), nodes.end());
  return first == order.end() ? kNone : *first;
}

namespace {

// What is updated together: a weight, or all parts of one, in order.
std::vector<std::vector<ValueId>> updated_together(const Graph& graph, const Optimizer& optimizer,
                                                   const std::map<ValueId, ValueId>& gradients) {
  std::vector<std::vector<ValueId>> groups;
  std::map<std::string, size_t> group_of;
  for (const auto& [parameter, gradient] : gradients) {
    const std::string& whole = graph.value(parameter).whole;
    size_t group = groups.size();
    if (optimizer.def->granularity == Granularity::tensor && !whole.empty()) group = group_of.emplace(whole, group).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(parameter);
  }
  for (std::vector<ValueId>& group : groups)
    std::sort(group.begin(), group.end(), [&](ValueId a, ValueId b) { return graph.value(a).whole_offset < graph.value(b).whole_offset; });
  return groups;
}

// The state of a weight's parts: what is shared once, the rest by part, each the range of the whole's that follows on the part's before it.
void add_states(Graph& graph, UpdateBuilder& update) {
  const DType dtype = compute_type(graph.value(update.parts[0].parameter).dtype);
  const std::vector<StateDef> of_whole = update.optimizer.def->states(update.optimizer, {dtype, update.shape});
  for (size_t i = 0; i < of_whole.size(); ++i) {
    const bool is_shared = of_whole[i].shared;
    ValueId one = kNone;
    for (UpdatePart& part : update.parts) {
      if (is_shared && one != kNone) {
        part.states.push_back(one);
        continue;
      }
      const Value parameter = graph.value(part.parameter);
      const bool is_part = !parameter.whole.empty();
      const StateDef def = is_shared ? of_whole[i] : update.optimizer.def->states(update.optimizer, {dtype, parameter.shape}).at(i);
      const std::string owner = is_shared && is_part ? parameter.whole : parameter.name;
      Value state{
          .name = owner + std::string(def.suffix), .dtype = def.type.dtype, .shape = def.type.shape, .kind = ValueKind::optimizer_state};
      state.owner = owner;
      state.fill = def.fill;
      if (is_part && !is_shared) {
        state.whole = parameter.whole + std::string(def.suffix);
        const int64_t rows = parameter.shape[0];  // the state has as many
        if (parameter.bytes() > 0) state.whole_offset = parameter.whole_offset / (parameter.bytes() / rows) * (state.bytes() / rows);
      }
      one = graph.add_value(std::move(state));
      part.states.push_back(one);
    }
  }
}

}  // namespace

std::map<ValueId, ValueId> build_update(Graph& graph, const OptimizerSpec& spec, const std::map<ValueId, ValueId>& gradients, ValueId norm,
                                        ValueId scalars, const UpdatePlaces& before) {
  Builder builder(graph, Stage::update);
  builder.named("gradient norm");
  if (before && !graph.order().empty()) builder.before(graph.order().front());
  const ValueId coefficient = spec.max_grad_norm > 0
                                  ? builder.emit("UpdateFactor", {norm}, {{"max_norm", static_cast<float>(spec.max_grad_norm)}})
                                  : builder.constant(scalar_tensor(1.0f));
  std::map<ValueId, ValueId> updated;
  for (const std::vector<ValueId>& parameters : updated_together(graph, spec.optimizer, gradients)) {
    UpdateBuilder update(builder, spec.optimizer);
    update.clip = coefficient;
    update.scalars = scalars;
    update.shape = graph.value(parameters[0]).shape;
    std::vector<NodeId> places;
    for (const ValueId parameter : parameters) {
      if (parameter != parameters[0]) update.shape[0] += graph.value(parameter).shape[0];
      places.push_back(before ? before(parameter) : kNone);
      update.parts.push_back({.parameter = parameter, .gradient = gradients.at(parameter), .before = places.back()});
    }
    update.before_all = before ? first_in_order(graph, places) : kNone;
    update.weight_decay = group_of(graph.value(parameters[0])) == ParameterGroup::decayed ? spec.weight_decay : 0;
    add_states(graph, update);
    const std::vector<ValueId> results = spec.optimizer.def->update(update);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Value& parameter = graph.value(parameters[i]);
      updated[parameters[i]] = results.at(i);
      if (!is_half(parameter.dtype)) continue;
      Attributes& attributes = graph.node(graph.value(results.at(i)).producer).attributes;
      attributes.set("seed", static_cast<int64_t>(spec.seed));
      attributes.set("ordinal", int64_t{parameter.ordinal});
      attributes.set("first", parameter.whole_offset / size_of(parameter.dtype));
    }
  }
  return updated;
}

}  // namespace ort_train
