// build_update: the optimizer's nodes after the gradients.
//
//   before   g1 … gn
//   after    norm = GlobalNorm(SumSquares(g1) … SumSquares(gn)) ; c = UpdateFactor(norm, loss_scale)
//            p1', m1', v1' = AdamW(p1, g1, c, scalars, m1, v1) …                            in import order
//
// Which nodes these are, and which state, its definition says (passes/optimizer.h). Weight decay is that of the parameter's group, else the
// job's on parameters of rank 2 and more. The scalars (learning rate, bias corrections) are computed once a step on the host, and fed as a
// graph input for each group. c takes the loss scale out of the gradients, clips them, and has the updates skip a step whose norm isn't
// finite. Without clipping and loss scaling it is the constant 1. Where clipping is per layer, each weight has a norm and a c of its own,
// those of all its parts.

#include <fmt/format.h>

#include <algorithm>

#include "exec/random.h"
#include "graph/builder.h"
#include "passes/build.h"

namespace ort_train {
void emit_after(Builder& builder, const std::vector<ValueId>& values) {
  const std::vector<NodeId>& order = builder.graph().order();
  const auto makes_one = [&](NodeId id) {
    return std::any_of(values.begin(), values.end(), [&](ValueId value) { return builder.value(value).producer == id; });
  };
  const auto last = std::find_if(order.rbegin(), order.rend(), makes_one);
  builder.before(last == order.rbegin() || last == order.rend() ? kNone : *std::prev(last));
}
void emit_after(Builder& builder, ValueId value) { emit_after(builder, std::vector{value}); }

void insert_after(Graph& graph, ValueId from, ValueId to) {
  graph.replace_uses(from, to);
  std::vector<ValueId>& inputs = graph.node(graph.value(to).producer).inputs;
  std::replace(inputs.begin(), inputs.end(), to, from);
}

void build_norm(EntryGraph& job, Stage stage) {
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
    emit_after(builder, gradient);
    squares.push_back(job.squares[gradient] = builder.emit("SumSquares", {gradient}));
  }
  job.grad_norm = builder.before(kNone).emit("GlobalNorm", squares);
}

std::vector<ValueId> add_scalars(Graph& graph, const OptimizerSpec& spec, const char* name) {
  const int64_t count = static_cast<int64_t>(spec.optimizer.def->scalar_count) + (spec.rounds ? kStepNumbers : 0);
  std::vector<ValueId> scalars;
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    const std::string of_group = group == 0 ? std::string(name) : fmt::format("{}.{}", name, group);
    scalars.push_back(graph.add_value({.name = of_group, .dtype = DType::float32, .shape = {count}, .kind = ValueKind::input}));
  }
  graph.inputs.insert(graph.inputs.end(), scalars.begin(), scalars.end());
  return scalars;
}

ValueId add_loss_scale(Graph& graph, const OptimizerSpec& spec, const char* name) {
  if (!spec.loss_scaling) return kNone;
  graph.inputs.push_back(graph.add_value({.name = name, .dtype = DType::float32, .kind = ValueKind::input}));
  return graph.inputs.back();
}

NodeId first_in_order(const Graph& graph, const std::vector<NodeId>& nodes) {
  const std::vector<NodeId>& order = graph.order();
  const auto first = std::find_first_of(order.begin(), order.end(), nodes.begin(), nodes.end());
  return first == order.end() ? kNone : *first;
}

namespace {

// Weights: each as itself, or as all its parts, in order.
std::vector<std::vector<ValueId>> weights_of(const Graph& graph, const std::map<ValueId, ValueId>& gradients) {
  std::vector<std::vector<ValueId>> groups;
  std::map<std::string, size_t> group_of;
  for (const auto& [parameter, gradient] : gradients) {
    const std::string& whole = graph.value(parameter).whole;
    size_t group = groups.size();
    if (!whole.empty()) group = group_of.emplace(whole, group).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(parameter);
  }
  for (std::vector<ValueId>& group : groups)
    std::sort(group.begin(), group.end(), [&](ValueId a, ValueId b) { return graph.value(a).whole_offset < graph.value(b).whole_offset; });
  return groups;
}

// The state of a weight's parts: what is shared once, the rest by part, each the range of the whole's that follows on the part's before it.
void add_states(Graph& graph, UpdateBuilder& update) {
  Value weight = graph.value(update.parts[0].parameter);
  weight.shape = update.shape;
  const std::vector<StateDef> of_whole = update.optimizer.states(weight);
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
      const StateDef def = is_shared ? of_whole[i] : update.optimizer.states(parameter).at(i);
      const std::string owner = is_shared && is_part ? parameter.whole : parameter.name;
      Value state{
          .name = owner + std::string(def.suffix), .dtype = def.type.dtype, .shape = def.type.shape, .kind = ValueKind::optimizer_state};
      state.owner = owner;
      state.fill = def.fill;
      if (is_part && !is_shared) {
        state.whole = parameter.whole + std::string(def.suffix);
        const int64_t rows = parameter.shape[0];  // the state has as many
        const int64_t before = parameter.bytes() > 0 ? parameter.whole_offset / (parameter.bytes() / rows) : 0;
        const int64_t elements = element_count(state.shape) / std::max<int64_t>(rows, 1) * before;
        require(elements % storage_of(state.dtype).block_elements == 0, "a part that begins within a block of its state");
        state.whole_offset = bytes_of(state.dtype, elements);
      }
      one = graph.add_value(std::move(state));
      part.states.push_back(one);
    }
  }
}

ValueId emit_factor(Builder& builder, const OptimizerSpec& spec, const StepNumbers& step, ValueId norm) {
  std::vector<ValueId> inputs{norm};
  if (spec.loss_scaling) inputs.push_back(step.loss_scale);
  if (spec.loss_scaling && norm != step.norm) inputs.push_back(step.norm);
  return builder.emit("UpdateFactor", std::move(inputs), {{"max_norm", static_cast<float>(spec.max_grad_norm)}});
}

// By the norm of one weight.
ValueId emit_factor_of(Builder& builder, const OptimizerSpec& spec, const StepNumbers& step, const std::vector<ValueId>& parts,
                       const std::map<ValueId, ValueId>& gradients, const UpdatePlaces& before) {
  const Graph& graph = builder.graph();
  const Value& first = graph.value(parts[0]);
  std::vector<NodeId> places;
  for (const ValueId part : parts) places.push_back(before ? before(part) : kNone);
  builder.named(first.whole.empty() ? first.name : first.whole).before(before ? first_in_order(graph, places) : kNone);
  std::vector<ValueId> squares;
  for (const ValueId part : parts) {
    const auto known = step.squares.find(gradients.at(part));
    squares.push_back(known != step.squares.end() ? known->second : builder.emit("SumSquares", {gradients.at(part)}));
  }
  return emit_factor(builder, spec, step, builder.emit("GlobalNorm", squares));
}

// How an update rounds a weight of 16 bits.
void set_rounding(Graph& graph, const OptimizerSpec& spec, ValueId parameter, ValueId updated) {
  const Value& of = graph.value(parameter);
  if (!is_half(of.dtype)) return;
  Attributes& attributes = graph.node(graph.value(updated).producer).attributes;
  attributes.set("seed", static_cast<int64_t>(spec.seed));
  attributes.set("ordinal", int64_t{of.ordinal});
  attributes.set("first", of.whole_offset / size_of(of.dtype));
}

}  // namespace

std::map<ValueId, ValueId> build_update(Graph& graph, const OptimizerSpec& spec, const std::map<ValueId, ValueId>& gradients,
                                        const StepNumbers& step, const UpdatePlaces& before) {
  Builder builder(graph, Stage::update);
  builder.named("gradient norm");
  if (before && !graph.order().empty()) builder.before(graph.order().front());
  const bool per_layer = spec.clip_per_layer && spec.max_grad_norm > 0;
  ValueId factor = kNone;
  if (!per_layer)
    factor =
        spec.max_grad_norm > 0 || spec.loss_scaling ? emit_factor(builder, spec, step, step.norm) : builder.constant(scalar_tensor(1.0f));
  std::map<ValueId, ValueId> updated;
  const auto update_together = [&](const std::vector<ValueId>& parameters) {
    UpdateBuilder update(builder, spec.optimizer);
    update.clip = factor;
    const Value& first = graph.value(parameters[0]);  // its parts are of the same group
    update.scalars = step.scalars.at(first.group);
    update.shape = graph.value(parameters[0]).shape;
    std::vector<NodeId> places;
    for (const ValueId parameter : parameters) {
      if (parameter != parameters[0]) update.shape[0] += graph.value(parameter).shape[0];
      places.push_back(before ? before(parameter) : kNone);
      update.parts.push_back({.parameter = parameter, .gradient = gradients.at(parameter), .before = places.back()});
    }
    update.before_all = before ? first_in_order(graph, places) : kNone;
    update.weight_decay = spec.groups.at(first.group).decay(spec.weight_decay, first.shape);
    add_states(graph, update);
    const std::vector<ValueId> results = spec.optimizer.def->update(update);
    for (size_t i = 0; i < parameters.size(); ++i) {
      updated[parameters[i]] = results.at(i);
      set_rounding(graph, spec, parameters[i], results.at(i));
    }
  };
  for (const std::vector<ValueId>& weight : weights_of(graph, gradients)) {
    if (per_layer) factor = emit_factor_of(builder, spec, step, weight, gradients, before);
    if (spec.optimizer.granularity() == Granularity::tensor) {
      update_together(weight);
    } else {
      for (const ValueId part : weight) update_together({part});
    }
  }
  return updated;
}

}  // namespace ort_train
