#include "frontend/controlnet.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "frontend/import_evidence.h"
#include "frontend/units.h"
#include "frontend/weight_names.h"
#include "graph/error.h"
#include "graph/names.h"

namespace ort_train {

ControlNet control_net(const Options& options) {
  ControlNet control{.blocks = options.control};
  if (options.control_input.empty()) return control;
  if (!control.is_on())
    throw error(ErrorCode::usage, "`control_input` {} is the condition of copied blocks: say with `control` which", options.control_input);
  const auto wrong = [&] {
    return error(ErrorCode::usage, "`control_input` '{}' is not NAME=SIZE,SIZE,…: the sizes of one sample, or names of dimensions",
                 options.control_input);
  };
  const size_t equals = options.control_input.find('=');
  if (equals == std::string::npos || equals == 0) throw wrong();
  control.condition = options.control_input.substr(0, equals);
  for (std::string_view rest = std::string_view(options.control_input).substr(equals + 1); !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    control.dimensions.emplace_back(rest.substr(0, end));
    if (control.dimensions.back().empty()) throw wrong();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (control.dimensions.empty()) throw wrong();
  return control;
}

std::vector<onnx::ValueDef> add_condition(const ControlNet& control, onnx::GraphDef& graph) {
  if (control.condition.empty()) return {};
  const std::set<std::string> initializers = importing::initializer_names(graph);
  const onnx::ValueDef* first = nullptr;
  for (const onnx::ValueDef& input : graph.inputs) {
    if (input.name == control.condition)
      throw error(ErrorCode::usage, "`control_input` {}: the model has an input of that name: choose another", control.condition);
    if (first == nullptr && input.dtype && !input.dims.empty() && !initializers.contains(input.name)) first = &input;
  }
  if (first == nullptr) throw error(ErrorCode::usage, "`control_input` {}: the model has no input with samples", control.condition);
  const DType dtype = is_half(importing::low_type_of(graph)) ? importing::low_type_of(graph) : DType::float32;
  onnx::ValueDef value{.name = control.condition, .type = std::string(to_string(dtype)), .dtype = dtype, .has_shape = true};
  value.dims.push_back(first->dims[0]);  // the batch
  for (const std::string& text : control.dimensions) {
    onnx::DimDef dim;
    const char* const end = text.data() + text.size();
    const auto [at, problem] = std::from_chars(text.data(), end, dim.size);
    if (problem != std::errc() || at != end) dim = {.name = text};
    if (dim.size == 0 || dim.size < -1) throw error(ErrorCode::usage, "`control_input` {}: a dimension is at least 1", control.condition);
    value.dims.push_back(dim);
  }
  graph.inputs.push_back(value);
  return {value};
}

namespace importing {
namespace {

// Which axis of a tensor has its channels or features is told by the nearest of these that makes or reads it.
constexpr std::array kChannelsAreSecond{"Conv",
                                        "ConvTranspose",
                                        "BatchNormalization",
                                        "InstanceNormalization",
                                        "GroupNormalization",
                                        "MaxPool",
                                        "AveragePool",
                                        "LpPool",
                                        "GlobalMaxPool",
                                        "GlobalAveragePool",
                                        "LRN",
                                        "Resize",
                                        "Upsample",
                                        "DepthToSpace",
                                        "SpaceToDepth"};
constexpr std::array kFeaturesAreLast{"MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Gather"};
// Between tensors of one layout.
constexpr std::array kKeepLayout{
    "Add",      "Sub",  "Mul",       "Div",         "Sum",  "Min", "Max",  "Pow",   "Relu",     "LeakyRelu", "PRelu", "Sigmoid", "Tanh",
    "Erf",      "Gelu", "HardSwish", "HardSigmoid", "Mish", "Elu", "Selu", "Celu",  "Softplus", "Softsign",  "Swish", "Clip",    "Dropout",
    "Identity", "Cast", "Sqrt",      "Exp",         "Log",  "Neg", "Abs",  "Where", "Concat",   "Slice",     "Split", "Pad"};

template <size_t n> bool is_one_of(const onnx::NodeDef& node, const std::array<const char*, n>& ops) {
  return node.domain.empty() && std::find(ops.begin(), ops.end(), node.op_type) != ops.end();
}

// Whether a pattern names a module or one around it: by the whole name, or the last parts of it.
bool names_module(const std::string& pattern, const std::string& module) {
  return fits(pattern, module) || fits("*." + pattern, module) || fits(pattern + ".*", module) || fits("*." + pattern + ".*", module);
}

class Copier {
 public:
  Copier(const ControlNet& control, const onnx::GraphDef& graph, const PlainModel& plain)
      : control_(control), graph_(graph), plain_(plain), in_block_(graph.nodes.size()), copied_(graph.nodes.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const std::string& output : graph.nodes[i].outputs) producers_.emplace(output, i);
      for (const std::string& input : reads_of(graph.nodes[i])) readers_[input].push_back(i);
    }
    while (is_taken(prefix_)) prefix_ = fmt::format("control{}", ++number_);
  }

  ControlCopy run() {
    find_weights();
    find_blocks();
    if (!control_.condition.empty()) find_entry();
    spread();
    find_joins();
    prune();
    copy();
    describe();
    return std::move(result_);
  }

 private:
  struct Join {
    size_t node = 0, output = 0;
    std::string value, frozen;  // what the outside reads, and what the frozen block gives from now on
  };

  bool is_taken(const std::string& prefix) const {
    const auto begins = [&](const std::string& name) { return name.starts_with(prefix + "."); };
    return std::any_of(graph_.initializers.begin(), graph_.initializers.end(), [&](const auto& tensor) { return begins(tensor.name); }) ||
           std::any_of(producers_.begin(), producers_.end(), [&](const auto& value) { return begins(value.first); });
  }

  bool is_data(const std::string& name) const { return plain_.activations.contains(name); }
  bool gives_data(const onnx::NodeDef& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& output) { return is_data(output); });
  }

  // Of each value the weights that it is, or is made of by nodes that read no data, such as a transposed weight.
  void find_weights() {
    for (const auto& [name, originals] : plain_.weights) weights_of_[name] = {name};
    for (const onnx::NodeDef& node : graph_.nodes) {
      if (gives_data(node)) continue;
      const std::set<std::string> read = weights_read(node);
      for (const std::string& output : node.outputs) {
        if (!read.empty()) weights_of_[output].insert(read.begin(), read.end());
      }
    }
  }
  std::set<std::string> weights_read(const onnx::NodeDef& node) const {
    std::set<std::string> all;
    for (const std::string& input : node.inputs) {
      if (const auto found = weights_of_.find(input); found != weights_of_.end()) all.insert(found->second.begin(), found->second.end());
    }
    return all;
  }

  // The names by which a pattern may mean a node: its module's by the exporter's metadata, or else the path in its name, and those of the
  // weights that it reads. (Of a weight that two modules share, one reads an Identity, which has the name that its own would have.)
  std::vector<std::string> names_of(const onnx::NodeDef& node) const {
    if (!node.module.empty()) return {node.module};
    std::vector<std::string> names;
    if (std::string path = module_of_path(node.name); !path.empty()) names.push_back(std::move(path));
    for (const std::string& input : node.inputs) {
      const auto weights = weights_of_.find(input);
      if (weights == weights_of_.end()) continue;
      const auto producer = producers_.find(input);
      if (producer != producers_.end() && graph_.nodes[producer->second].op_type == "Identity") {
        names.push_back(input);
        continue;
      }
      for (const std::string& weight : weights->second) {
        names.push_back(weight);
        for (std::string_view rest = plain_.weights.at(weight); !rest.empty();) {
          const size_t end = std::min(rest.find(", "), rest.size());
          names.emplace_back(rest.substr(0, end));
          rest.remove_prefix(std::min(end + 2, rest.size()));
        }
      }
    }
    return names;
  }

  // Nodes that the patterns name, and those without weights that lie between two of them, but for what also depends on a layer in between
  // that they don't name.
  void find_blocks() {
    const size_t count = graph_.nodes.size();
    std::vector<bool> named(count), has_weights(count), follows(count), hindered(count), leads(count);
    std::set<std::string> fitting;
    for (size_t i = 0; i < count; ++i) {
      const onnx::NodeDef& node = graph_.nodes[i];
      if (!gives_data(node)) continue;
      const std::vector<std::string> names = names_of(node);
      for (const std::string& pattern : control_.blocks) {
        if (!fits(pattern, node.name) &&
            std::none_of(names.begin(), names.end(), [&](const std::string& name) { return names_module(pattern, name); }))
          continue;
        named[i] = true;
        fitting.insert(pattern);
      }
      has_weights[i] = !weights_read(node).empty();
    }
    for (const std::string& pattern : control_.blocks) {
      if (!fitting.contains(pattern)) refuse_pattern(pattern);
    }
    for (size_t i = 0; i < count; ++i) {
      for (const std::string& input : graph_.nodes[i].inputs) {
        const auto producer = producers_.find(input);
        if (producer == producers_.end()) continue;
        follows[i] = follows[i] || follows[producer->second];
        hindered[i] = hindered[i] || hindered[producer->second];
      }
      if (named[i]) {
        follows[i] = true;
        hindered[i] = false;
      } else if (has_weights[i] || hindered[i]) {
        hindered[i] = hindered[i] || follows[i];
        follows[i] = false;
      }
    }
    for (size_t i = count; i-- > 0;) {
      in_block_[i] = named[i] || (follows[i] && leads[i] && gives_data(graph_.nodes[i]));
      if (!in_block_[i]) continue;
      if (!graph_.nodes[i].graphs.empty())
        throw error(ErrorCode::unsupported,
                    "`control`: [{} '{}'] is in the blocks and has graphs of its own, which can't be copied: name other blocks",
                    graph_.nodes[i].op_type, graph_.nodes[i].name);
      for (const std::string& input : graph_.nodes[i].inputs) {
        if (const auto producer = producers_.find(input); producer != producers_.end()) leads[producer->second] = true;
      }
    }
  }

  [[noreturn]] void refuse_pattern(const std::string& pattern) const {
    std::set<std::string> names;
    for (const onnx::NodeDef& node : graph_.nodes) {
      if (!gives_data(node)) continue;
      for (const std::string& name : names_of(node)) {
        names.insert(name);
        // The modules around it, and their last parts: "encoder.layer.0", "layer.0".
        for (size_t end = name.find('.'); end != std::string::npos; end = name.find('.', end + 1)) {
          const std::string module = name.substr(0, end);
          names.insert(module);
          const size_t last = module.rfind('.'), before = last == 0 || last == std::string::npos ? last : module.rfind('.', last - 1);
          if (before != std::string::npos) names.insert(module.substr(before + 1));
        }
      }
    }
    const std::vector<std::string> near = nearest_names(pattern, {names.begin(), names.end()}, 3);
    throw error(ErrorCode::usage, "`control` '{}' fits no module, node or weight of the model; {} (* stands for any text)", pattern,
                near.empty() ? "it has none" : fmt::format("it has '{}'", fmt::join(near, "', '")));
  }

  bool is_of_block(const std::string& value) const {
    const auto producer = producers_.find(value);
    return producer != producers_.end() && in_block_[producer->second];
  }

  // What the condition is added to: the first tensor of floating-point numbers that the blocks read.
  void find_entry() {
    for (size_t i = 0; i < graph_.nodes.size() && entry_.empty(); ++i) {
      if (!in_block_[i]) continue;
      for (const std::string& input : graph_.nodes[i].inputs) {
        const auto type = plain_.activations.find(input);
        if (type == plain_.activations.end() || !is_floating(type->second.dtype) || is_of_block(input)) continue;
        entry_ = input;
        break;
      }
    }
    if (entry_.empty())
      throw error(ErrorCode::usage,
                  "`control_input` {}: the blocks of `control` read no floating-point numbers that it could be added to: "
                  "name blocks behind the embedding",
                  control_.condition);
    const TensorType &x = plain_.activations.at(entry_), &c = plain_.activations.at(control_.condition);
    const size_t axis = channel_axis(entry_);
    bool is_alike = x.dtype == c.dtype && x.shape.size() == c.shape.size();
    for (size_t i = 0; is_alike && i < x.shape.size(); ++i) is_alike = i == axis || x.shape[i] == c.shape[i];
    if (!is_alike)
      throw error(ErrorCode::usage,
                  "`control_input` {}: is {}, and what it is added to, '{}', is {}: all dimensions but that of the {} have to be alike",
                  control_.condition, to_string(c), entry_, to_string(x), axis == 1 && x.shape.size() > 2 ? "channels" : "features");
  }

  // What is copied: everything that depends on a weight of the blocks, or on the condition.
  void spread() {
    std::set<std::string> changed;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!in_block_[i]) continue;
      const std::set<std::string> read = weights_read(graph_.nodes[i]);
      changed.insert(read.begin(), read.end());
    }
    if (changed.empty())
      throw error(ErrorCode::usage, "`control` '{}': the nodes of these names have no weights that could be copied",
                  fmt::join(control_.blocks, "', '"));
    if (!entry_.empty()) changed.insert(entry_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const onnx::NodeDef& node = graph_.nodes[i];
      if (!in_block_[i] && gives_data(node)) continue;
      const std::set<std::string> reads = reads_of(node);
      const auto is_changed = [&](const std::string& name) { return changed.contains(name); };
      copied_[i] = std::any_of(reads.begin(), reads.end(), is_changed);
      if (copied_[i]) changed.insert(node.outputs.begin(), node.outputs.end());
    }
  }

  // Whether something outside the blocks reads a value on the way to the loss.
  bool is_read_outside(const std::string& value) const {
    if (plain_.outputs.contains(value)) return true;
    const auto readers = readers_.find(value);
    return readers != readers_.end() &&
           std::any_of(readers->second.begin(), readers->second.end(), [&](size_t i) { return !in_block_[i] && plain_.needed[i]; });
  }

  void find_joins() {
    std::string other;  // an output that can't be joined
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!copied_[i] || !in_block_[i]) continue;
      const onnx::NodeDef& node = graph_.nodes[i];
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        const auto type = plain_.activations.find(node.outputs[k]);
        if (type == plain_.activations.end() || !is_read_outside(node.outputs[k])) continue;
        if (is_floating(type->second.dtype) && !type->second.shape.empty())
          joins_.push_back({i, k, node.outputs[k], fmt::format("{}.frozen.{}", prefix_, joins_.size())});
        else
          other = fmt::format(": '{}' is {}, and floating-point numbers are what a layer can be joined to", node.outputs[k],
                              to_string(type->second));
      }
    }
    if (joins_.empty())
      throw error(ErrorCode::usage, "`control` '{}': what these blocks give does not lead to the loss{} (name others, or another `output`)",
                  fmt::join(control_.blocks, "', '"), other);
  }

  // What leads to no join isn't copied.
  void prune() {
    std::set<std::string> wanted;
    for (const Join& join : joins_) wanted.insert(join.value);
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const onnx::NodeDef& node = graph_.nodes[i];
      copied_[i] = copied_[i] &&
                   std::any_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) { return wanted.contains(name); });
      if (copied_[i]) wanted.merge(reads_of(node));
    }
  }

  size_t channel_axis(const std::string& value) const {
    const size_t rank = plain_.activations.at(value).shape.size();
    std::vector<std::string> near{value};
    constexpr size_t kFarthest = 1000;
    for (size_t at = 0; at < std::min(near.size(), kFarthest) && rank > 2; ++at) {
      std::vector<size_t> nodes;
      if (const auto producer = producers_.find(near[at]); producer != producers_.end()) nodes.push_back(producer->second);
      if (const auto readers = readers_.find(near[at]); readers != readers_.end())
        nodes.insert(nodes.end(), readers->second.begin(), readers->second.end());
      for (const size_t i : nodes) {
        const onnx::NodeDef& node = graph_.nodes[i];
        if (is_one_of(node, kChannelsAreSecond)) return 1;
        if (is_one_of(node, kFeaturesAreLast)) return rank - 1;
        if (!is_one_of(node, kKeepLayout)) continue;
        for (const auto* names : {&node.inputs, &node.outputs}) {
          for (const std::string& name : *names) {
            const auto type = plain_.activations.find(name);
            if (type != plain_.activations.end() && type->second.shape.size() == rank &&
                std::find(near.begin(), near.end(), name) == near.end())
              near.push_back(name);
          }
        }
      }
    }
    return rank - 1;
  }

  // The element type that a value has in the file.
  DType file_type(const std::string& value) const {
    if (!is_half(plain_.low)) return plain_.activations.at(value).dtype;
    const auto declared = graph_.declared.find(value);
    return declared != graph_.declared.end() && declared->second.dtype ? *declared->second.dtype : plain_.low;
  }

  void add_zeros(const std::string& name, DType dtype, const Shape& shape) {
    result_.initializers.push_back({.name = name, .type = std::string(to_string(dtype)), .dtype = dtype, .shape = shape, .added = true});
  }

  // A layer of zeros behind the node `behind` that makes what can be added to `like` of `from`; returns the name of its result.
  std::string add_layer(const std::string& name, size_t behind, const std::string& from, int64_t inputs, const std::string& like) {
    const Shape& shape = plain_.activations.at(like).shape;
    const size_t axis = channel_axis(like);
    const DType dtype = file_type(like);
    const int64_t outputs = shape[axis];
    const std::string weight = name + ".weight", bias = name + ".bias";
    add_zeros(bias, dtype, {outputs});
    if (axis == 1 && shape.size() > 2) {
      Shape kernel(shape.size(), 1);
      kernel[0] = outputs;
      kernel[1] = inputs;
      add_zeros(weight, dtype, kernel);
      put(behind, onnx::make_node("Conv", name, {from, weight, bias}, name));
      return name;
    }
    add_zeros(weight, dtype, {inputs, outputs});
    put(behind, onnx::make_node("MatMul", name + ".product", {from, weight}, name + ".product"));
    put(behind, onnx::make_node("Add", name, {name + ".product", bias}, name));
    return name;
  }

  void put(size_t behind, onnx::NodeDef node) { result_.edit.nodes.push_back({behind, std::move(node)}); }

  std::string copy_of(const std::string& name) const { return prefix_ + "." + name; }

  void copy_weight(const std::string& name) {
    for (const onnx::TensorDef& tensor : graph_.initializers) {
      if (tensor.name == name) result_.initializers.push_back(tensor);
    }
    if (const auto producer = producers_.find(name); producer != producers_.end())
      result_.initializers.push_back(graph_.nodes[producer->second].tensors.at("value"));
    onnx::TensorDef& copy = result_.initializers.back();
    require(copy.name == name || !copy.added, "a copied weight that the main graph doesn't have");
    copy.name = copy_of(name);
    copy.added = true;
    parameters_ += element_count(copy.shape);
  }

  void copy() {
    std::map<std::string, std::string> names;  // what a copy reads instead
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!copied_[i]) continue;
      const onnx::NodeDef& node = graph_.nodes[i];
      ++copies_;
      std::vector<std::string> inputs = node.inputs, outputs = node.outputs;
      for (std::string& input : inputs) {
        if (!entry_.empty() && input == entry_ && !names.contains(input)) {
          const int64_t channels = plain_.activations.at(control_.condition).shape[channel_axis(entry_)];
          const std::string layer = add_layer(prefix_ + ".condition", i, control_.condition, channels, entry_);
          names[input] = prefix_ + ".entry";
          put(i, onnx::make_node("Add", names[input], {input, layer}, names[input]));
        } else if (plain_.weights.contains(input) && !names.contains(input)) {
          names[input] = copy_of(input);
          copy_weight(input);
        }
        if (const auto name = names.find(input); name != names.end()) input = name->second;
      }
      for (std::string& output : outputs) {
        if (output.empty()) continue;
        names[output] = copy_of(output);
        output = names[output];
      }
      put(i, onnx::copy_node(node, copy_of(node.name.empty() ? node.outputs[0] : node.name), inputs, outputs));
      for (size_t j = 0; j < joins_.size(); ++j) {
        if (joins_[j].node == i) join(joins_[j], fmt::format("{}.zero.{}", prefix_, j));
      }
    }
  }

  void join(const Join& join, const std::string& name) {
    const int64_t channels = plain_.activations.at(join.value).shape[channel_axis(join.value)];
    const std::string layer = add_layer(name, join.node, copy_of(join.value), channels, join.value);
    put(join.node, onnx::make_node("Add", name + ".sum", {join.frozen, layer}, join.value));
    result_.edit.outputs.push_back({.node = join.node, .place = join.output, .name = join.frozen});
    for (const size_t reader : readers_[join.value]) {
      if (!in_block_[reader]) continue;
      const std::vector<std::string>& inputs = graph_.nodes[reader].inputs;
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (inputs[k] == join.value) result_.edit.inputs.push_back({.node = reader, .place = k, .name = join.frozen});
      }
    }
  }

  void describe() {
    std::vector<std::string> places;
    for (const Join& join : joins_) places.push_back("'" + join.value + "'");
    constexpr size_t kShown = 4;
    const size_t shown = std::min(places.size(), kShown);
    result_.note = fmt::format(
        "control: {} nodes have a trained copy, of {} parameters, which is joined to {}{} by {} of zeros{}; the model's own weights stay "
        "as "
        "they are",
        copies_, grouped(parameters_), fmt::join(places.begin(), places.begin() + static_cast<ptrdiff_t>(shown), ", "),
        shown < places.size() ? ", …" : "", places.size() == 1 ? "a layer" : fmt::format("{} layers", places.size()),
        entry_.empty() ? "" : fmt::format(", '{}' to '{}' by another", control_.condition, entry_));
  }

  const ControlNet& control_;
  const onnx::GraphDef& graph_;
  const PlainModel& plain_;
  std::string prefix_ = "control";  // of all new names
  int number_ = 1;
  std::unordered_map<std::string, size_t> producers_;             // of values
  std::unordered_map<std::string, std::vector<size_t>> readers_;  // nodes in nested graphs are their outer node
  std::unordered_map<std::string, std::set<std::string>> weights_of_;
  std::vector<bool> in_block_, copied_;
  std::string entry_;  // what the condition is added to
  std::vector<Join> joins_;
  ControlCopy result_;
  int64_t parameters_ = 0, copies_ = 0;
};

}  // namespace

ControlCopy copy_blocks(const ControlNet& control, const onnx::GraphDef& graph, const PlainModel& plain) {
  return Copier(control, graph, plain).run();
}

}  // namespace importing
}  // namespace ort_train
