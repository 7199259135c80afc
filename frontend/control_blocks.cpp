// Which nodes of a model the patterns of `control` mean.

#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/control_parts.h"
#include "frontend/importer.h"
#include "frontend/weight_names.h"
#include "graph/error.h"
#include "graph/names.h"

namespace ort_train::importing {
namespace {

// Whether a pattern names a module or one around it: by the whole name, or the last parts of it.
bool names_module(const std::string& pattern, const std::string& module) {
  return fits(pattern, module) || fits("*." + pattern, module) || fits(pattern + ".*", module) || fits("*." + pattern + ".*", module);
}

class BlockFinder {
 public:
  BlockFinder(const ModelIndex& model, const std::vector<std::string>& patterns)
      : model_(model),
        nodes_(model.graph.nodes),
        patterns_(patterns),
        named_(nodes_.size()),
        follows_(nodes_.size()),
        in_block_(nodes_.size()) {}

  std::vector<bool> run() {
    match();
    look_ahead();
    fill_between();
    return std::move(in_block_);
  }

 private:
  // The names by which a pattern may mean a node: its module's where metadata say it; else the module that is the path in its name, and
  // the weights that it reads. A weight that several modules share has one name, but the exporter gives each of the others an Identity of
  // it that has the name of the module's own weight: that name counts then.
  std::vector<std::string> names_of(const onnx::NodeDef& node) const {
    if (!node.module.empty()) return {node.module};
    std::vector<std::string> names;
    if (std::string path = module_of_path(node.name); !path.empty()) names.push_back(std::move(path));
    for (const std::string& input : node.inputs) {
      const auto weights = model_.weights_of.find(input);
      if (weights == model_.weights_of.end()) continue;
      const auto producer = model_.producers.find(input);
      if (producer != model_.producers.end() && nodes_[producer->second].op_type == "Identity") {
        names.push_back(input);
        continue;
      }
      for (const std::string& weight : weights->second) {
        names.push_back(weight);
        for (std::string_view rest = model_.plain.weights.at(weight); !rest.empty();) {
          const size_t end = std::min(rest.find(", "), rest.size());
          names.emplace_back(rest.substr(0, end));
          rest.remove_prefix(std::min(end + 2, rest.size()));
        }
      }
    }
    return names;
  }

  // The nodes that the patterns name.
  void match() {
    std::set<std::string> fitting;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!model_.gives_data(nodes_[i])) continue;
      const std::vector<std::string> names = names_of(nodes_[i]);
      for (const std::string& pattern : patterns_) {
        if (!fits(pattern, nodes_[i].name) &&
            std::none_of(names.begin(), names.end(), [&](const std::string& name) { return names_module(pattern, name); }))
          continue;
        named_[i] = true;
        fitting.insert(pattern);
      }
    }
    for (const std::string& pattern : patterns_) {
      if (!fitting.contains(pattern)) refuse(pattern);
    }
  }

  // Which nodes depend on a named one, and on no layer behind it that isn't named.
  void look_ahead() {
    std::vector<bool> hindered(nodes_.size());  // by such a layer
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const std::string& input : nodes_[i].inputs) {
        const auto producer = model_.producers.find(input);
        if (producer == model_.producers.end()) continue;
        follows_[i] = follows_[i] || follows_[producer->second];
        hindered[i] = hindered[i] || hindered[producer->second];
      }
      const bool has_weights = model_.gives_data(nodes_[i]) && !model_.weights_read(nodes_[i]).empty();
      if (named_[i]) {
        follows_[i] = true;
        hindered[i] = false;
      } else if (has_weights || hindered[i]) {
        hindered[i] = hindered[i] || follows_[i];
        follows_[i] = false;
      }
    }
  }

  // Of these the nodes that lead to a named one are in the blocks as well.
  void fill_between() {
    std::vector<bool> leads(nodes_.size());
    for (size_t i = nodes_.size(); i-- > 0;) {
      in_block_[i] = named_[i] || (follows_[i] && leads[i] && model_.gives_data(nodes_[i]));
      if (!in_block_[i]) continue;
      if (!nodes_[i].graphs.empty())
        throw error(ErrorCode::unsupported,
                    "`control`: [{} '{}'] is in the blocks and has graphs of its own, which can't be copied: name other blocks",
                    nodes_[i].op_type, nodes_[i].name);
      for (const std::string& input : nodes_[i].inputs) {
        if (const auto producer = model_.producers.find(input); producer != model_.producers.end()) leads[producer->second] = true;
      }
    }
  }

  [[noreturn]] void refuse(const std::string& pattern) const {
    std::set<std::string> names;
    for (const onnx::NodeDef& node : nodes_) {
      if (!model_.gives_data(node)) continue;
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

  const ModelIndex& model_;
  const std::vector<onnx::NodeDef>& nodes_;
  const std::vector<std::string>& patterns_;
  std::vector<bool> named_, follows_, in_block_;
};

}  // namespace

ModelIndex::ModelIndex(const onnx::GraphDef& of, const PlainModel& imported) : graph(of), plain(imported) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& output : graph.nodes[i].outputs) {
      if (!output.empty()) producers.emplace(output, i);
    }
    for (const std::string& input : reads_of(graph.nodes[i])) readers[input].push_back(i);
  }
  for (const auto& [name, originals] : plain.weights) weights_of[name] = {name};
  for (const onnx::NodeDef& node : graph.nodes) {
    if (gives_data(node)) continue;
    const std::set<std::string> read = weights_read(node);
    for (const std::string& output : node.outputs) {
      if (!read.empty()) weights_of[output].insert(read.begin(), read.end());
    }
  }
}

bool ModelIndex::gives_data(const onnx::NodeDef& node) const {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](const std::string& output) { return plain.activations.contains(output); });
}

std::set<std::string> ModelIndex::weights_read(const onnx::NodeDef& node) const {
  std::set<std::string> all;
  for (const std::string& input : node.inputs) {
    if (const auto found = weights_of.find(input); found != weights_of.end()) all.insert(found->second.begin(), found->second.end());
  }
  return all;
}

std::vector<bool> find_blocks(const ModelIndex& model, const std::vector<std::string>& patterns) {
  return BlockFinder(model, patterns).run();
}

}  // namespace ort_train::importing
