// Copies the blocks of a model and joins the copy to it: copy_blocks().

#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/control_parts.h"
#include "frontend/importer.h"
#include "frontend/units.h"
#include "graph/error.h"

namespace ort_train::importing {
namespace {

class Copier {
 public:
  Copier(const ControlNet& control, const onnx::GraphDef& graph, const PlainModel& plain)
      : control_(control), graph_(graph), plain_(plain), model_(graph, plain), copied_(graph.nodes.size()) {
    const std::set<std::string> names = all_names(graph);
    const auto is_taken = [&] {
      return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix_ + "."); });
    };
    for (int number = 2; is_taken(); ++number) prefix_ = fmt::format("control{}", number);
    if (plain.widens) types_ = file_types(model_);
  }

  ControlCopy run() {
    in_block_ = find_blocks(model_, control_.blocks);
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

  bool is_of_block(const std::string& value) const {
    const auto producer = model_.producers.find(value);
    return producer != model_.producers.end() && in_block_[producer->second];
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
    check_layer(entry_, fmt::format("`control_input` {}: what it would be added to", control_.condition));
    const Channels channels = channels_of(model_, entry_);
    const char* const called = channels.are_second ? "channels" : "features";
    bool is_alike = x.shape.size() == c.shape.size();
    for (size_t i = 0; is_alike && i < x.shape.size(); ++i) is_alike = i == channels.axis || x.shape[i] == c.shape[i];
    if (!is_alike)
      throw error(ErrorCode::usage,
                  "`control_input` {}: is {}, and what it is added to, '{}', is {}: all dimensions but that of the {} have to be alike",
                  control_.condition, to_string(c), entry_, to_string(x), called);
    if (graph_.inputs.back().dims.at(channels.axis).size < 0)
      throw error(ErrorCode::usage,
                  "`control_input` {}: the layer of zeros behind it has weights for each of its {}: give a number for '{}'",
                  control_.condition, called, graph_.inputs.back().dims[channels.axis].name);
  }

  // Throws where no layer of zeros could be joined to a value.
  void check_layer(const std::string& value, const std::string& what) const {
    const TensorType& type = plain_.activations.at(value);
    const auto refuse = [&](const std::string& why) {
      return error(ErrorCode::usage, "{} '{}' is {} and {}: name other blocks", what, value, to_string(type), why);
    };
    if (type.shape.size() < 2) throw refuse("has no axis of channels or features, for which a layer of zeros has its weights");
    if (const Channels channels = channels_of(model_, value); !channels.is_fixed)
      throw refuse(fmt::format("its axis {} has a size that may vary with the data, but a layer of zeros has weights for each place of it",
                               channels.axis));
    if (!plain_.widens && is_half(type.dtype)) throw refuse("no weight of the model is, but this layer's would have to be");
    if (plain_.widens && !types_.contains(value))
      throw refuse("the file doesn't say its type there, float32 or 16 bits (ONNX's shape inference adds types)");
  }

  // What is copied: everything that depends on a weight of the blocks, or on the condition.
  void spread() {
    std::set<std::string> changed;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!in_block_[i]) continue;
      const std::set<std::string> read = model_.weights_read(graph_.nodes[i]);
      changed.insert(read.begin(), read.end());
    }
    if (changed.empty())
      throw error(ErrorCode::usage, "`control` '{}': the nodes of these names have no weights that could be copied",
                  fmt::join(control_.blocks, "', '"));
    if (!entry_.empty()) changed.insert(entry_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const onnx::NodeDef& node = graph_.nodes[i];
      if (!in_block_[i] && model_.gives_data(node)) continue;
      const std::set<std::string> reads = reads_of(node);
      const auto is_changed = [&](const std::string& name) { return changed.contains(name); };
      copied_[i] = std::any_of(reads.begin(), reads.end(), is_changed);
      if (copied_[i]) changed.insert(node.outputs.begin(), node.outputs.end());
    }
  }

  // Whether something outside the blocks reads a value on the way to the loss.
  bool is_read_outside(const std::string& value) const {
    if (plain_.outputs.contains(value)) return true;
    const auto readers = model_.readers.find(value);
    return readers != model_.readers.end() && std::any_of(readers->second.begin(), readers->second.end(), [&](size_t i) {
             // What only a Shape reads is no result.
             return !in_block_[i] && plain_.needed[i] && model_.gives_data(graph_.nodes[i]);
           });
  }

  void find_joins() {
    std::string other;  // an output that can't be joined
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!copied_[i] || !in_block_[i]) continue;
      const onnx::NodeDef& node = graph_.nodes[i];
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        const auto type = plain_.activations.find(node.outputs[k]);
        if (type == plain_.activations.end() || !is_read_outside(node.outputs[k])) continue;
        if (is_floating(type->second.dtype)) {
          check_layer(node.outputs[k], "`control`: something outside the blocks reads what they give, but");
          joins_.push_back({i, k, node.outputs[k], fmt::format("{}.frozen.{}", prefix_, joins_.size())});
          continue;
        }
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
    bool reads_entry = false;
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const onnx::NodeDef& node = graph_.nodes[i];
      copied_[i] = copied_[i] &&
                   std::any_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) { return wanted.contains(name); });
      if (!copied_[i]) continue;
      std::set<std::string> reads = reads_of(node);
      reads_entry = reads_entry || (reads.contains(entry_) && model_.gives_data(node));
      wanted.merge(reads);
    }
    if (!entry_.empty() && !reads_entry)
      throw error(ErrorCode::usage,
                  "`control_input` {}: what it would be added to, '{}', has no influence on what the blocks of `control` give: name others",
                  control_.condition, entry_);
  }

  // The element type that a value has in the file.
  DType file_type(const std::string& value) const { return plain_.widens ? types_.at(value) : plain_.activations.at(value).dtype; }

  void add_zeros(const std::string& name, DType dtype, const Shape& shape) {
    result_.initializers.push_back({.name = name, .type = std::string(to_string(dtype)), .dtype = dtype, .shape = shape, .added = true});
  }

  // A layer of zeros behind the node `behind` that makes what can be added to `like` of `from`; returns the name of its result.
  std::string add_layer(const std::string& name, size_t behind, const std::string& from, int64_t inputs, const std::string& like) {
    const Shape& shape = plain_.activations.at(like).shape;
    const Channels channels = channels_of(model_, like);
    const DType dtype = file_type(like);
    const int64_t outputs = shape[channels.axis];
    const std::string weight = name + ".weight", bias = name + ".bias";
    add_zeros(bias, dtype, {outputs});
    if (channels.are_second) {
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
    const onnx::TensorDef* original = nullptr;
    for (const onnx::TensorDef& tensor : graph_.initializers) {
      if (tensor.name == name) original = &tensor;
    }
    if (const auto producer = model_.producers.find(name); producer != model_.producers.end()) {
      const auto& tensors = graph_.nodes[producer->second].tensors;
      if (const auto value = tensors.find("value"); value != tensors.end()) original = &value->second;
    }
    require(original != nullptr, "a copied weight that the main graph doesn't have");
    onnx::TensorDef copy = *original;
    copy.name = copy_of(name);
    copy.added = true;
    parameters_ += element_count(copy.shape);
    result_.initializers.push_back(std::move(copy));
  }

  // Before the copy of a node: what is read instead of the entry.
  std::string add_entry(size_t node) {
    const int64_t channels = plain_.activations.at(control_.condition).shape[channels_of(model_, entry_).axis];
    std::string condition = control_.condition;
    if (const DType type = file_type(entry_); type != *graph_.inputs.back().dtype) {
      condition = prefix_ + ".condition.cast";
      put(node, onnx::make_cast(condition, control_.condition, type, condition));
    }
    const std::string layer = add_layer(prefix_ + ".condition", node, condition, channels, entry_);
    const std::string sum = prefix_ + ".entry";
    put(node, onnx::make_node("Add", sum, {entry_, layer}, sum));
    return sum;
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
          names[input] = add_entry(i);
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
    const int64_t channels = plain_.activations.at(join.value).shape[channels_of(model_, join.value).axis];
    const std::string layer = add_layer(name, join.node, copy_of(join.value), channels, join.value);
    put(join.node, onnx::make_node("Add", name + ".sum", {join.frozen, layer}, join.value));
    result_.edit.outputs.push_back({.node = join.node, .place = join.output, .name = join.frozen});
    for (const size_t reader : model_.readers[join.value]) {
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
    result_.note =
        fmt::format("control: {} a trained copy, of {}, which is joined to {} by {} of zeros{}; the model's own weights stay as they are",
                    copies_ == 1 ? "1 node has" : fmt::format("{} nodes have", copies_),
                    parameters_ == 1 ? "1 parameter" : grouped(parameters_) + " parameters", first_of(places, kShown),
                    places.size() == 1 ? "a layer" : fmt::format("{} layers", places.size()),
                    entry_.empty() ? "" : fmt::format(", '{}' to '{}' by another", control_.condition, entry_));
  }

  const ControlNet& control_;
  const onnx::GraphDef& graph_;
  const PlainModel& plain_;
  ModelIndex model_;
  std::string prefix_ = "control";                // of all new names
  std::unordered_map<std::string, DType> types_;  // file_types(), of a model with weights of 16 bits
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

}  // namespace ort_train::importing
