#include "frontend/attach_model.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/loss_options.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

bool has(const std::vector<DeclaredInput>& values, const std::string& name) {
  return std::any_of(values.begin(), values.end(), [&](const DeclaredInput& value) { return value.name == name; });
}

// What an input of the attached model reads of the trained one: an output or an input. kNone: neither.
ValueId known_source(const Graph& graph, const Attachment& attachment, const std::string& name) {
  const ValueId output = attachment.is_loss ? graph.find_output(name) : kNone, named = graph.find_value(name);
  if (output != kNone || named == kNone) return output;
  if (graph.value(named).kind == ValueKind::input) return named;
  throw error(
      ErrorCode::unsupported,
      "'{}': its input '{}' has the name of a tensor inside the trained model, which is neither an input nor an output that it could "
      "read: rename the input, and the array of the data that it reads",
      attachment.path, name);
}

// That, or else a new input, which the data feed.
ValueId source_of(Graph& graph, const Attachment& attachment, const Value& input) {
  ValueId source = known_source(graph, attachment, input.name);
  if (source == kNone) {
    source = graph.add_value({.name = input.name, .dtype = input.dtype, .shape = input.shape, .kind = ValueKind::input});
    graph.inputs.push_back(source);
  }
  const TensorType type = graph.value(source).type();
  if (type.shape != input.shape || (type.dtype != input.dtype && !(is_floating(type.dtype) && is_floating(input.dtype))))
    throw error(ErrorCode::unsupported, "'{}': its input '{}' is {}, what goes into it is {}", attachment.path, input.name,
                to_string(input.type()), to_string(type));
  return type.dtype == input.dtype ? source : Builder(graph).named(input.name).cast(source, input.dtype);
}

// Copies `from` into `to`. Returns what each value became.
void append(Graph& to, const Graph& from, const Attachment& attachment) {
  constexpr uint32_t kAttached = uint32_t{1} << 31;  // it draws other random numbers than the node of that ordinal in the trained model
  std::vector<ValueId> now(from.value_count(), kNone);
  for (const ValueId id : from.inputs) now[id] = source_of(to, attachment, from.value(id));
  const auto copy = [&](ValueId id) {
    if (id == kNone || now[id] != kNone) return;
    Value value = from.value(id);
    value.name = attachment.prefix + value.name;
    if (!value.output_name.empty()) value.output_name = attachment.prefix + value.output_name;
    value.producer = kNone;
    value.trainable = false;
    now[id] = to.add_value(std::move(value));
  };
  for (const ValueId id : from.parameters()) copy(id);
  for (const NodeId id : from.order()) {
    Node node = from.node(id);
    node.name = attachment.prefix + node.name;
    node.ordinal |= kAttached;
    if (node.attributes.has("ordinal")) node.attributes.set("ordinal", int64_t{node.ordinal});
    for (std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
      for (ValueId& value : *values) {
        copy(value);
        if (value != kNone) value = now[value];
      }
    }
    to.add_node(std::move(node));
  }
  for (const ValueId id : from.outputs) {
    copy(id);  // one that no node makes
    to.outputs.push_back(now[id]);
  }
}

}  // namespace

std::vector<Attachment> attachments(const Options& options) {
  std::vector<Attachment> all;
  if (!options.teacher.empty()) all.push_back({.path = options.teacher, .prefix = kTeacherPrefix});
  if (!options.loss_model.empty()) all.push_back({.path = options.loss_model, .prefix = kLossModelPrefix, .is_loss = true});
  for (Attachment& attachment : all) attachment.model = declared(attachment.path);
  return all;
}

void bind_attachment(const Attachment& attachment, const Declared& trained, const DataSet& data, Binding& binding) {
  for (const DeclaredInput& input : attachment.model.inputs) {
    const bool is_fed = std::any_of(binding.fed.begin(), binding.fed.end(), [&](const FedInput& fed) { return fed.input == input.name; });
    const bool is_fixed = std::any_of(binding.constants.begin(), binding.constants.end(),
                                      [&](const ConstantInput& constant) { return constant.name == input.name; });
    if (is_fed || is_fixed || (attachment.is_loss && has(trained.outputs, input.name))) continue;
    if (data.is_row() || data.field(input.name) == nullptr) {
      std::vector<std::string> names;
      for (const DeclaredInput& known : trained.inputs) names.push_back(known.name);
      for (const DeclaredInput& known : trained.outputs) {
        if (attachment.is_loss) names.push_back(known.name);
      }
      for (const Field& field : data.fields()) {
        if (!data.is_row()) names.push_back(field.name);
      }
      throw error(ErrorCode::usage, "'{}': its input '{}' comes from nowhere: it has to have the name of one of these: {}", attachment.path,
                  input.name, fmt::join(names, ", "));
    }
    binding.fed.push_back({.input = input.name, .field = input.name});
  }
}

void attach_model(Imported& trained, const Attachment& attachment, const BatchShape& batch, const ImportOptions& options,
                  const DataSet& data, Workers& workers) {
  ImportOptions own{.shapes = {}, .bound_inputs = {}, .freeze = {}};
  const Graph& graph = trained.graph;
  for (const DeclaredInput& input : attachment.model.inputs) {
    if (const auto fixed = options.bound_inputs.find(input.name); fixed != options.bound_inputs.end()) {
      own.bound_inputs.insert(*fixed);
      continue;
    }
    const ValueId source = known_source(graph, attachment, input.name);
    Shape shape;
    if (source != kNone) {
      shape = graph.value(source).shape;
    } else {
      const Shape sample = batch.binding.cut(data.field(input.name)->shape, batch.length);
      shape = {batch.samples};
      shape.insert(shape.end(), sample.begin(), sample.end());
    }
    if (!input.has_shape) throw error(ErrorCode::unsupported, "'{}': {}", attachment.path, without_shape(input.name));
    if (shape.size() != input.dims.size())
      throw error(ErrorCode::unsupported, "'{}': its input '{}' has {} dimensions, what goes into it {}", attachment.path, input.name,
                  input.dims.size(), shape.size());
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (!fixed_size(input.dims[axis])) own.shapes[fmt::format("{}.{}", input.name, axis)] = shape[axis];
    }
  }
  Imported other = import_model(attachment.path, own, workers);
  std::vector<std::string> obstacles;
  for (const Obstacle& obstacle : other.obstacles) {
    if (obstacle.blocks) obstacles.push_back(obstacle.node + ": " + obstacle.reason);
  }
  if (!obstacles.empty())
    throw error(ErrorCode::unsupported, "'{}': {} of its nodes can't be imported: {}", attachment.path, obstacles.size(),
                fmt::join(obstacles, "; "));
  leave_training(other.graph, {});
  append(trained.graph, other.graph, attachment);
  for (Weight& weight : other.weights) {
    weight.parameter = attachment.prefix + weight.parameter;
    weight.is_attached = true;
    trained.weights.push_back(std::move(weight));
  }
  trained.graph.verify("attach");
}

}  // namespace ort_train
