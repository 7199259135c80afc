#include "frontend/import.h"

#include <algorithm>
#include <set>

#include "exec/kernel.h"
#include "frontend/importer.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/op_def.h"
#include "graph/rounding.h"

namespace ort_train {
namespace {

using namespace importing;

ModelInfo describe(const std::string& path, const onnx::ModelDef& model, const FileStamp& stamp) {
  ModelInfo info;
  info.stamps[""] = stamp;
  info.path = path;
  info.producer = model.producer_version.empty() ? model.producer : fmt::format("{} {}", model.producer, model.producer_version);
  const auto standard = model.opsets.find("");
  info.opset = standard == model.opsets.end() ? 0 : standard->second;
  info.nodes = static_cast<int64_t>(model.graph.nodes.size());
  info.external_files.assign(model.external_files.begin(), model.external_files.end());
  return info;
}

std::vector<DeclaredInput> declared_values(const std::vector<onnx::ValueDef>& values, const std::set<std::string>& initializers) {
  std::vector<DeclaredInput> result;
  for (const onnx::ValueDef& value : values) {
    if (initializers.contains(value.name)) continue;
    // Outputs that are no tensors can't be read by a loss; inputs of other types are obstacles, which import lists.
    if (!value.dtype) continue;
    DeclaredInput input{.name = value.name, .dtype = *value.dtype, .dims = {}, .has_shape = value.has_shape};
    for (const onnx::DimDef& dim : value.dims) input.dims.push_back(dim.size >= 0 ? std::to_string(dim.size) : dim.name);
    result.push_back(std::move(input));
  }
  return result;
}

// The names that some outputs depend on, and the nodes of the main graph between.
struct Needed {
  std::set<std::string> names;
  std::vector<bool> nodes;
};

Needed needed_for(const onnx::GraphDef& graph, const std::vector<std::string>& outputs) {
  Needed needed{.names = {outputs.begin(), outputs.end()}, .nodes = std::vector<bool>(graph.nodes.size())};
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const onnx::NodeDef& node = graph.nodes[i];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) { return needed.names.contains(name); }))
      continue;
    needed.nodes[i] = true;
    needed.names.merge(reads_of(node));
  }
  return needed;
}

void note_modes(const onnx::GraphDef& graph, const Graph& imported, bool is_frozen, ModelInfo& info) {
  std::set<int64_t> drawing;     // Dropout nodes in training mode: nothing else of ONNX draws in training alone
  std::set<std::string> random;  // nodes that draw always
  const auto live = static_cast<int64_t>(live_layers(imported).size());
  int64_t dropout = 0, frozen = 0;
  for (NodeId id : imported.order()) {
    const Node& node = imported.node(id);
    if (node.op->random && node.op->traits.outside_training) drawing.insert(node.attributes.get("ordinal", 0));
    if (node.op->random && !node.op->traits.outside_training) random.insert(node.name);
    frozen += node.op->traits.statistics == Statistics::running;
  }
  for (const onnx::NodeDef& node : graph.nodes) dropout += node.domain.empty() && node.op_type == "Dropout";
  dropout -= static_cast<int64_t>(drawing.size());  // those of function bodies are in no list: then it says too little
  if (!drawing.empty()) {
    info.notes.push_back(fmt::format("{} Dropout node{} in training mode: what is dropped follows from `seed`", drawing.size(),
                                     drawing.size() == 1 ? " is" : "s are"));
  }
  if (dropout > 0)
    info.notes.push_back(
        fmt::format("{} Dropout node{} in evaluation mode: kept, dropping nothing", dropout, dropout == 1 ? " is" : "s are"));
  if (live > 0) {
    info.notes.push_back(fmt::format("{} BatchNormalization node{} live: {} by each batch's statistics, which the running ones take in{}",
                                     live, live == 1 ? " is" : "s are", live == 1 ? "it normalises" : "they normalise",
                                     is_frozen ? ", also in layers whose weights stay as they are (`batch_norm` frozen)" : ""));
  }
  if (!random.empty()) {
    info.notes.push_back(fmt::format(
        "{} draw{} random numbers, which follow from `seed`; outside training, too",
        random.size() == 1 ? fmt::format("'{}'", *random.begin()) : fmt::format("{} nodes ('{}', …)", random.size(), *random.begin()),
        random.size() == 1 ? "s" : ""));
  }
  if (frozen > 0) {
    info.notes.push_back(fmt::format("{} BatchNormalization node{} frozen: {} running statistics stay as they are (`batch_norm` live)",
                                     frozen, frozen == 1 ? " is" : "s are", frozen == 1 ? "its" : "their"));
  }
}

// No weights: every node that calls a function would have its own, or all would share it, and the file doesn't say which.
void list_function_tensors(const onnx::ModelDef& model, const WeightTable& weights, ModelInfo& info) {
  constexpr const char* kWhy = "in the body of a function, where nothing is trained";
  std::map<std::string, TensorType> left;
  for (const auto& [name, tensor] : model.function_tensors) {
    // Those of branches are listed where a branch is taken, or isn't.
    if (tensor.dtype && is_floating(*tensor.dtype) && element_count(tensor.shape) > 1 && !weights.has_seen(tensor))
      left.emplace(name, TensorType{*tensor.dtype, tensor.shape});
  }
  for (const auto& [name, type] : left) info.tensors.push_back({.name = name, .type = type, .why = kWhy});
  if (left.empty()) return;
  const size_t count = left.size();
  info.notes.push_back(
      fmt::format("{} tensor{} in bodies of functions and stay{} as {} ('{}'{}): as an initializer that is handed to the "
                  "function {} would be trained",
                  count, count == 1 ? " is" : "s are", count == 1 ? "s" : "", count == 1 ? "it is" : "they are", left.begin()->first,
                  count == 1 ? "" : ", …", count == 1 ? "it" : "each"));
}

// Nodes that hang on placeholders go; the values that they would have made are not in the graph.
std::vector<bool> remove_unknown(Graph& graph, const std::vector<ValueId>& placeholders) {
  std::vector<bool> unknown(graph.value_count());
  for (ValueId id : placeholders) unknown[id] = true;
  std::vector<NodeId> removed;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNone && unknown[v]; })) continue;
    for (ValueId output : node.outputs) {
      if (output != kNone) unknown[output] = true;
    }
    removed.push_back(id);
  }
  for (NodeId id : removed) graph.remove_node(id);
  return unknown;
}

// The model's outputs, each a value of its own under its own name.
void add_outputs(Graph& graph, const std::vector<onnx::ValueDef>& outputs, const Walk& walk, const std::vector<bool>& unknown) {
  std::set<ValueId> taken;
  for (const onnx::ValueDef& output : outputs) {
    ValueId value = walk.output(output.name).value;
    if (value == kNone || unknown[value]) continue;
    if (graph.value(value).producer == kNone || !taken.insert(value).second) {
      value = Builder(graph).named(output.name).emit("Reshape", {value}, {{"shape", graph.value(value).shape}});
      taken.insert(value);
    }
    graph.name_output(value, output.name);
    graph.outputs.push_back(value);
  }
}

// What folding left over would stay in memory for the graph's life.
void drop_dead_constants(Graph& graph) {
  std::vector<bool> read(graph.value_count());
  for (NodeId id : graph.order()) {
    for (ValueId input : graph.node(id).inputs) {
      if (input != kNone) read[input] = true;
    }
  }
  for (ValueId id : graph.values_of(ValueKind::constant)) {
    if (read[id]) continue;
    graph.value(id).constant = nullptr;
    graph.value(id).kind = ValueKind::activation;
  }
}

// Whether something that couldn't be imported is on the way to what is needed. A tensor without a name belongs to no node, and nobody can
// say what reads it: it is in the way.
bool is_in_the_way(const Walk::Found& found, const Needed& needed) {
  if (!found.tensor.empty()) return needed.names.contains(found.tensor);
  return found.node >= needed.nodes.size() || needed.nodes[found.node];
}

// Of a walk that is made to see what the model does, not what is trained: it reads no weights, and no patterns are checked, which may be
// over what is added later.
ImportOptions for_a_look(ImportOptions options) {
  options.retie = false;
  options.control = {};
  options.adapts = false;
  options.train = options.freeze = {};
  options.dropout = {};
  options.batch_norm_nodes = {};
  return options;
}

// What copy_blocks() has to know; empty where the model can't be imported.
std::optional<PlainModel> read_plain(const std::string& path, const onnx::ModelDef& model, const std::vector<std::string>& outputs,
                                     bool widens, const ImportOptions& given, Workers& workers) {
  const std::string condition = given.control.condition;
  const ImportOptions options = for_a_look(given);
  const BoundInputs inputs = bind_dimensions(model.graph, options);
  TensorFiles files(path);
  PlainModel plain{.outputs = {outputs.begin(), outputs.end()}, .widens = widens};
  if (widens) files.widen();
  Imported imported;
  WeightTable weights(imported.graph, files, options, imported);
  Walk walk(model, imported.graph, files, weights, inputs, make_folder(workers));
  walk.run(options);
  const Needed needed = needed_for(model.graph, outputs);
  plain.needed = needed.nodes;
  if (std::any_of(walk.found.begin(), walk.found.end(), [&](const Walk::Found& found) { return is_in_the_way(found, needed); }))
    return std::nullopt;
  std::set<std::string> data;  // what depends on an input
  for (const onnx::ValueDef& input : model.graph.inputs) {
    const Meaning* const meaning = walk.find(input.name);
    if (meaning == nullptr || meaning->value == kNone) continue;
    if (imported.graph.value(meaning->value).kind == ValueKind::input || input.name == condition) data.insert(input.name);
  }
  for (const onnx::NodeDef& node : model.graph.nodes) {
    const std::set<std::string> reads = reads_of(node);
    if (std::none_of(reads.begin(), reads.end(), [&](const std::string& name) { return data.contains(name); })) continue;
    for (const std::string& output : node.outputs) {
      const Meaning* const meaning = walk.find(output);
      if (meaning != nullptr && meaning->value != kNone && imported.graph.constant(meaning->value) == nullptr) data.insert(output);
    }
  }
  for (const std::string& name : data) plain.activations.emplace(name, imported.graph.value(walk.find(name)->value).type());
  for (const TensorFate& tensor : imported.info.tensors) {
    if (tensor.treatment == Treatment::trained || tensor.treatment == Treatment::statistic)
      plain.weights.emplace(tensor.name, tensor.original);
  }
  return plain;
}

// Those in branches that aren't taken are no weights. Which are taken is known only once the nodes before them have been gone through.
void drop_untaken(const std::string& path, const onnx::ModelDef& model, const ImportOptions& given, Workers& workers,
                  std::vector<HalfWeight>& halves) {
  if (std::all_of(halves.begin(), halves.end(), [](const HalfWeight& half) { return half.nested == nullptr; })) return;
  const ImportOptions options = for_a_look(given);
  TensorFiles files(path);
  files.widen();
  Imported imported;
  WeightTable weights(imported.graph, files, options, imported);
  try {
    const BoundInputs inputs = bind_dimensions(model.graph, options);
    Walk walk(model, imported.graph, files, weights, inputs, make_folder(workers));
    walk.run(options);
    std::erase_if(halves, [&](const HalfWeight& half) { return half.nested != nullptr && !walk.has_gone_through(*half.nested); });
  } catch (const Error&) {  // the import says it
  }
}

// Whether 16-bit types stand for float32: where most of the model's numbers are of such a type, or some of its weights are.
bool has_half_weights(const std::string& path, const onnx::ModelDef& model, TensorFiles& files, const ImportOptions& options,
                      Workers& workers, ModelInfo& info) {
  info.low = low_type_of(model.graph);
  if (is_half(info.low)) {
    info.notes.push_back(
        fmt::format("the model's numbers are {0}: its weights are trained as float32 and written back as {0}", to_string(info.low)));
    return true;
  }
  std::vector<HalfWeight> halves = WeightTable::half_weights(model, files, options);
  drop_untaken(path, model, options, workers, halves);
  if (halves.empty()) return false;
  info.notes.push_back(fmt::format(
      "{} of 16 bits ('{}'{}): trained as float32 and written back as {}; what the model computes in 16 bits is computed in float32 here",
      halves.size() == 1 ? "1 weight is" : fmt::format("{} weights are", halves.size()), halves[0].name, halves.size() == 1 ? "" : ", …",
      halves.size() == 1 ? "it was" : "they were"));
  return true;
}

// Makes the copy that `control` wants, in a model whose obstacles are found without it.
void add_copied_blocks(const std::string& path, const ImportOptions& options, const std::vector<std::string>& outputs, bool widens,
                       Workers& workers, onnx::ModelDef& model, ModelInfo& info) {
  if (!options.control.is_on()) return;
  std::vector<onnx::ValueDef> condition = add_condition(options.control, model.graph);
  const std::optional<PlainModel> plain = read_plain(path, model, outputs, widens, options, workers);
  if (!plain) return;
  ControlCopy copy = copy_blocks(options.control, model.graph, *plain);
  apply(copy.edit, model.graph);
  model.graph.initializers.insert(model.graph.initializers.end(), copy.initializers.begin(), copy.initializers.end());
  info.edit = std::move(copy.edit);
  info.edit.graph_inputs = std::move(condition);
  info.notes.push_back(std::move(copy.note));
}

}  // namespace

namespace importing {

std::set<std::string> reads_of(const onnx::NodeDef& node) {
  std::set<std::string> names(node.inputs.begin(), node.inputs.end());
  if (node.op_type == "Gradient") names.insert(node.attributes.get("y", ""));
  for (const auto& [name, graph] : node.graphs) {
    for (const onnx::NodeDef& inner : graph->nodes) names.merge(reads_of(inner));
    for (const onnx::ValueDef& output : graph->outputs) names.insert(output.name);
  }
  names.erase("");
  return names;
}

// What live BatchNormalization changes is read by nothing else: as a frozen weight it would change with each batch.
void find_shared_statistics(const Graph& graph, std::vector<Obstacle>& obstacles) {
  const auto readers = graph.readers();
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name != "RunningStatistics") continue;
    std::set<uint32_t> applications;  // of the layer: by their ordinals
    for (size_t i = 2; i < node.inputs.size(); i += 2) applications.insert(graph.node(graph.value(node.inputs[i]).producer).ordinal);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      for (const NodeId reader : readers[node.inputs[i]]) {
        const Node& other = graph.node(reader);
        const bool makes_output = other.op->name == "Mul" && applications.contains(other.ordinal);  // of the node in the file
        if (reader == id || makes_output) continue;
        obstacles.push_back(
            {.node = fmt::format("BatchNormalization '{}'", node.name),
             .reason = fmt::format("its running statistic '{}' is read by {} as well: the exporter has merged equal tensors",
                                   graph.value(node.inputs[i]).name, describe(graph, reader)),
             .hint = "`untie` gives each use of a merged tensor one of its own; `batch_norm` chooses what is live"});
      }
    }
  }
}

}  // namespace importing

void place_added(ModelInfo& model, int64_t limit) {
  constexpr int64_t kAlignment = 4096;  // of a mapped file
  std::vector<onnx::NewInitializer>& added = model.edit.initializers;
  int64_t bytes = model.stamps.at("").bytes;
  for (const onnx::NewInitializer& tensor : added) bytes += tensor.type.bytes();
  if (added.empty() || bytes <= limit) return;
  std::string name = "added.data";
  while (std::find(model.external_files.begin(), model.external_files.end(), name) != model.external_files.end()) name = "more-" + name;
  int64_t at = 0;
  for (onnx::NewInitializer& tensor : added) {
    tensor.location = name;
    tensor.offset = at;
    at += round_up(tensor.type.bytes(), kAlignment);
  }
}

std::string without_shape(const std::string& input) {
  return fmt::format("the model declares no shape for its input '{}', not even a rank; export it with dynamic axes instead", input);
}

Declared declared(const std::string& path, const ControlNet& control) {
  FileStamp stamp;
  onnx::ModelDef model = open_model(path, &stamp);
  add_condition(control, model.graph);
  const std::set<std::string> initializers = initializer_names(model.graph);
  Declared result{.inputs = declared_values(model.graph.inputs, initializers),
                  .outputs = declared_values(model.graph.outputs, {}),
                  .info = describe(path, model, stamp)};
  return result;
}

Imported import_model(const std::string& path, const ImportOptions& options, Workers& workers) {
  FileStamp stamp;
  onnx::ModelDef model = open_model(path, &stamp);
  Imported result;
  result.info = describe(path, model, stamp);
  result.graph.name = model.graph.name.empty() ? "graph" : model.graph.name;
  if (model.graph.outputs.empty())
    throw error(ErrorCode::unsupported, "'{}': the model has no outputs, so there is nothing to train", path);
  std::vector<std::string> loss_outputs = options.outputs;
  std::replace(loss_outputs.begin(), loss_outputs.end(), std::string(), model.graph.outputs[0].name);

  try {
    TensorFiles files(path);
    const bool widens = has_half_weights(path, model, files, options, workers, result.info);
    if (widens) files.widen();
    add_copied_blocks(path, options, loss_outputs, widens, workers, model, result.info);
    const BoundInputs inputs = bind_dimensions(model.graph, options);
    WeightTable weights(result.graph, files, options, result);
    Walk walk(model, result.graph, files, weights, inputs, make_folder(workers));
    walk.run(options);
    for (const onnx::NodeDef& node : model.graph.nodes) {
      if (!options.untie || node.module.empty() || node.name.empty()) continue;
      std::string& module = result.info.node_modules.emplace(node.name, node.module).first->second;
      if (module != node.module) module.clear();  // two nodes of one name
    }
    files.check_external(result.info);  // also those that only an untaken branch mentions
    place_added(result.info);
    list_function_tensors(model, weights, result.info);
    note_modes(model.graph, result.graph, options.adapts, result.info);

    const std::vector<std::string> names = output_names(model.graph);
    for (const std::string& loss_output : loss_outputs) {
      if (std::find(names.begin(), names.end(), loss_output) == names.end() || !walk.output(loss_output).sequence) continue;
      result.obstacles.push_back({.node = onnx::printable(fmt::format("output '{}'", loss_output)),
                                  .reason = "is a sequence of tensors, which no loss can read",
                                  .hint = "choose another one (`output` NAME), or export the model with a tensor"});
    }

    const Needed needed = needed_for(model.graph, loss_outputs);
    for (Walk::Found& found : walk.found) {
      found.obstacle.blocks = is_in_the_way(found, needed);
      for (std::string* text : {&found.obstacle.node, &found.obstacle.reason, &found.obstacle.hint})
        *text = onnx::printable(std::move(*text));
      result.obstacles.push_back(std::move(found.obstacle));
    }
    if (walk.skipped > 0) {
      result.info.notes.push_back(fmt::format("{} node{} behind those that can't be imported could not be looked at closely", walk.skipped,
                                              walk.skipped == 1 ? "" : "s"));
    }
    const std::vector<bool> unknown = remove_unknown(result.graph, walk.placeholders);
    add_outputs(result.graph, model.graph.outputs, walk, unknown);
    find_shared_statistics(result.graph, result.obstacles);
    for (std::string& note : result.info.notes) note = onnx::printable(std::move(note));
  } catch (const Error& e) {
    throw error(e.code(), "'{}': {}", path, onnx::printable(e.what()));
  }
  result.graph.remove_dead_nodes();
  drop_dead_constants(result.graph);
  result.graph.verify("import");
  return result;
}

}  // namespace ort_train
