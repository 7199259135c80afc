// Which tensors of the file are trained: every floating-point initializer of rank 1 and more, and every floating-point Constant of several
// elements that feeds a product, a sum or a normalisation (some exporters know no initializers). Not what the standard calls not
// differentiable where it stands (the scales of Resize, the values of OneHot), nor exponents, nor what a model computes of positions alone
// (import_fixed.cpp).

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "frontend/importer.h"
#include "graph/error.h"
#include "graph/onnx/schema.h"

namespace ort_train::importing {
namespace {

bool is_constant_place(const Use& use) {
  if (use.op_type == "Pow" && use.input == 1) return true;  // a trained exponent makes NaN of negative bases
  return onnx::never_differentiable(use.domain, use.op_type, use.opset, use.input);
}

// The running mean and variance: state of the layer, not what a gradient changes.
bool is_running_statistic(const Use& use) { return use.op_type == "BatchNormalization" && use.domain.empty() && use.input >= 3; }

// Whether what --untie leaves of the uses trains the tensor: the first of the main graph's, and those of nested graphs.
bool trains_unsplit(const std::vector<Use>& uses) {
  bool first = true;
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    const bool is_left = use.node == ~size_t{0} || std::exchange(first, false);
    return is_left && !is_running_statistic(use);
  });
}

bool only_moves(const Use& use) {
  static constexpr std::array kMoves{"Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Cast"};
  return use.domain.empty() && use.input == 0 && std::find(kMoves.begin(), kMoves.end(), use.op_type) != kMoves.end();
}

// Whether a Constant of this name feeds an op whose floating-point constants are weights.
bool feeds_weighted_op(const std::string& name, const Uses& uses, int depth = 0) {
  const auto readers = uses.find(name);
  if (readers == uses.end() || depth > 8) return false;
  return std::any_of(readers->second.begin(), readers->second.end(), [&](const Use& use) {
    static constexpr std::array kWeighted{"Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Mul"};
    if (std::find(kWeighted.begin(), kWeighted.end(), use.op_type) != kWeighted.end() || use.op_type.ends_with("Normalization"))
      return true;
    return only_moves(use) && feeds_weighted_op(use.output, uses, depth + 1);
  });
}

void count_uses(const std::vector<onnx::NodeDef>& nodes, const onnx::Opsets& opsets, bool nested, Uses& uses) {
  for (size_t at = 0; at < nodes.size(); ++at) {
    const onnx::NodeDef& node = nodes[at];
    const auto opset = opsets.find(node.domain);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].empty()) continue;
      uses[node.inputs[i]].push_back({.domain = node.domain,
                                      .op_type = node.op_type,
                                      .opset = opset == opsets.end() ? 0 : opset->second,
                                      .input = i,
                                      .output = node.outputs.empty() ? "" : node.outputs[0],
                                      .node = nested ? ~size_t{0} : at});
    }
    for (const auto& [name, graph] : node.graphs) {
      count_uses(graph->nodes, opsets, true, uses);
      for (const std::string& output : output_names(*graph)) uses[output].push_back({});
    }
  }
}

// Every name that a graph gives to a value.
std::set<std::string> names_of(const onnx::GraphDef& graph) {
  std::set<std::string> names = initializer_names(graph);
  for (const onnx::ValueDef& input : graph.inputs) names.insert(input.name);
  for (const onnx::NodeDef& node : graph.nodes) {
    names.insert(node.outputs.begin(), node.outputs.end());
    for (const auto& [attribute, nested] : node.graphs) names.merge(names_of(*nested));
  }
  return names;
}

}  // namespace

std::vector<std::string> output_names(const onnx::GraphDef& graph) {
  std::vector<std::string> names;
  for (const onnx::ValueDef& output : graph.outputs) names.push_back(output.name);
  return names;
}

Uses find_uses(const std::vector<onnx::NodeDef>& nodes, const std::vector<std::string>& outputs, const onnx::Opsets& opsets) {
  Uses uses;
  count_uses(nodes, opsets, false, uses);
  for (const std::string& output : outputs) uses[output].push_back({});
  return uses;
}

std::vector<Candidate> WeightTable::candidates(const onnx::GraphDef& graph, const Uses& uses) {
  std::vector<Candidate> found;
  const auto consider = [&](const std::string& name, const onnx::TensorDef& tensor) {
    std::vector<Use> readers = uses.at(name);
    std::erase_if(readers, [](const Use& use) { return use.op_type == "Shape" && use.domain.empty(); });  // of a constant
    if (!is_floating(*tensor.dtype) || tensor.shape.empty() || element_count(tensor.shape) == 0) return;
    if (std::all_of(readers.begin(), readers.end(), is_constant_place)) return;
    if (*tensor.dtype != DType::float32 && *tensor.dtype != DType::float64) {
      refused_.push_back(name);
      return;
    }
    found.push_back({.name = name,
                     .tensor = &tensor,
                     .trainable = !std::all_of(readers.begin(), readers.end(), is_running_statistic),
                     .uses = readers,
                     .bytes = files_.locate(tensor)});
  };
  int64_t unused = 0;
  for (const onnx::TensorDef& tensor : graph.initializers) {
    if (!uses.contains(tensor.name))
      ++unused;
    else if (tensor.dtype)
      consider(tensor.name, tensor);
  }
  if (unused > 0)
    result_.info.notes.push_back(fmt::format("{} initializer{} nothing reads: left as they are", unused, unused == 1 ? "" : "s"));
  for (const onnx::NodeDef& node : graph.nodes) {
    if (node.op_type != "Constant" || !node.domain.empty() || node.outputs.size() != 1) continue;
    const auto tensor = node.tensors.find("value");
    if (tensor == node.tensors.end() || !tensor->second.dtype || !feeds_weighted_op(node.outputs[0], uses)) continue;
    if (element_count(tensor->second.shape) > 1) consider(node.outputs[0], tensor->second);
  }
  return found;
}

// What is no weight becomes a constant.
void WeightTable::leave_fixed(std::vector<Candidate>& found, const Uses& uses) {
  const FixedTensors fixed = find_fixed(found, uses, files_);
  std::vector<bool> is_fixed(found.size());
  const auto leave = [&](const std::vector<size_t>& which, const char* one, const char* several) {
    if (which.empty()) return;
    constexpr size_t kShown = 4;
    std::vector<std::string> names;
    for (const size_t i : which) {
      is_fixed[i] = true;
      if (names.size() < kShown) names.push_back("'" + found[i].name + "'");
    }
    result_.info.notes.push_back(which.size() == 1 ? fmt::format("{} {}, no weight: left as it is", names[0], one)
                                                   : fmt::format("{} tensors {}, no weights: left as they are ({}{})", which.size(),
                                                                 several, fmt::join(names, ", "), which.size() > kShown ? ", …" : ""));
  };
  leave(fixed.masks, "is a mask", "are masks");
  leave(fixed.rotary, "has cosines or sines of positions", "are cosines and sines of positions");
  leave(fixed.frequencies, "has the frequencies of a rotary embedding", "are the frequencies of rotary embeddings");
  size_t i = 0;
  std::erase_if(found, [&](const Candidate&) { return is_fixed[i++]; });
}

// Two tensors may lie in the same place of a file, as the same tensor; if they overlap otherwise, training one would change the other.
void WeightTable::check_overlaps(const onnx::GraphDef& graph) {
  std::vector<std::pair<FileRange, const onnx::TensorDef*>> ranges;
  const auto add = [&](const onnx::TensorDef& tensor) {
    if (tensor.external() && tensor.bytes > 0) ranges.emplace_back(files_.locate(tensor), &tensor);
  };
  for (const onnx::TensorDef& tensor : graph.initializers) add(tensor);
  for (const onnx::NodeDef& node : graph.nodes) {
    for (const auto& [name, tensor] : node.tensors) add(tensor);
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.path, a.first.offset, a.first.bytes) < std::tie(b.first.path, b.first.offset, b.first.bytes);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const auto& [before, first] = ranges[i - 1];
    const auto& [range, second] = ranges[i];
    if (range.path != before.path || range.offset >= before.offset + before.bytes) continue;
    if (range != before || first->dtype != second->dtype || first->shape != second->shape) {
      throw error(ErrorCode::unsupported, "'{}' and '{}' share bytes of '{}' without being the same tensor; save the model again",
                  first->name, second->name, range.path);
    }
  }
}

ValueId WeightTable::make_parameter(const Candidate& candidate, const std::string& name, bool added) {
  const TensorType type{*candidate.tensor->dtype, candidate.tensor->shape};
  const ValueId id = graph_.add_value(
      {.name = name, .dtype = type.dtype, .shape = type.shape, .kind = ValueKind::parameter, .trainable = candidate.trainable});
  result_.weights.push_back(
      {.parameter = graph_.value(id).name,
       .places = {{.name = name, .bytes = candidate.bytes, .dtype = type.dtype, .shape = type.shape, .added = added}}});
  if (added) result_.info.added.push_back({name, type});
  return id;
}

Meaning WeightTable::add_parameter(const Candidate& candidate) { return {.value = make_parameter(candidate, candidate.name, false)}; }

// --untie: every node of the main graph that reads the weight gets a copy, but for the first; what nested graphs read stays the weight
// itself.
void WeightTable::split(const Candidate& candidate, Meaning& meaning, std::set<std::string>& names) {
  bool first = true;
  int64_t number = 2;
  for (const Use& use : candidate.uses) {
    if (use.node == ~size_t{0} || std::exchange(first, false)) continue;
    std::string name;
    do name = fmt::format("{}.use{}", candidate.name, number++);
    while (!names.insert(name).second);
    Candidate copy = candidate;
    copy.trainable = !is_running_statistic(use);
    meaning.copies[{use.node, use.input}] = make_parameter(copy, name, true);
    result_.info.edits.push_back({.node = use.node, .input = use.input, .name = name});
  }
}

Meaning WeightTable::tie_to(const Candidate& kept, const Meaning& parameter, const Candidate& tied, bool transposed) {
  const std::string& name = graph_.value(parameter.value).name;
  for (Weight& weight : result_.weights) {
    if (weight.parameter != name) continue;
    if (tied.bytes != kept.bytes) {
      weight.places.push_back(
          {.name = tied.name, .bytes = tied.bytes, .dtype = *tied.tensor->dtype, .shape = tied.tensor->shape, .transposed = transposed});
    }
  }
  result_.info.notes.push_back(fmt::format("tied '{}' with '{}' ({})", tied.name, kept.name,
                                           tied.bytes == kept.bytes ? "stored in the same place"
                                           : transposed             ? "stored twice, transposed"
                                                                    : "stored twice"));
  if (!transposed) return parameter;
  return {.value = Builder(graph_).named(tied.name).transpose(parameter.value, {1, 0})};
}

std::map<std::string, Meaning> WeightTable::add(const onnx::GraphDef& graph, const Uses& uses, bool is_main) {
  check_overlaps(graph);
  std::vector<Candidate> found = candidates(graph, uses);
  leave_fixed(found, uses);
  std::vector<Tie> ties;
  if (options_.retie && !options_.untie) ties = find_ties(found, files_);
  std::map<size_t, Tie> tie_of;
  for (const Tie& tie : ties) tie_of[tie.tied] = tie;

  std::map<std::string, Meaning> meanings;
  std::vector<Meaning> by_index;
  std::set<std::string> names = names_of(graph);
  std::vector<std::string> shared;
  for (size_t i = 0; i < found.size(); ++i) {
    const Candidate& candidate = found[i];
    const auto place = by_place_.find({candidate.bytes.path, candidate.bytes.offset});
    if (place != by_place_.end() && place->second.first.tensor->shape == candidate.tensor->shape) {
      by_index.push_back(tie_to(place->second.first, place->second.second, candidate, false));
    } else if (const auto tie = tie_of.find(i); tie != tie_of.end()) {
      by_index.push_back(tie_to(found[tie->second.kept], by_index[tie->second.kept], candidate, tie->second.transposed));
    } else {
      const bool splits = options_.untie && is_main;
      Candidate kept = candidate;
      if (splits) kept.trainable = trains_unsplit(candidate.uses);
      by_index.push_back(add_parameter(kept));
      if (splits) split(candidate, by_index.back(), names);
      by_place_.insert_or_assign({candidate.bytes.path, candidate.bytes.offset}, std::pair(candidate, by_index.back()));
    }
    meanings[candidate.name] = by_index.back();
    if (candidate.uses.size() > 1) shared.push_back(fmt::format("'{}' ({})", candidate.name, candidate.uses.size()));
  }
  if (!shared.empty()) {
    const size_t shown = std::min<size_t>(shared.size(), 4);
    result_.info.notes.push_back(
        fmt::format("{} weight{} used in several places, {}{}: {}", shared.size(), shared.size() == 1 ? " is" : "s are",
                    fmt::join(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(shown), ", "), shown < shared.size() ? ", …" : "",
                    options_.untie ? "each use has its own copy" : "their gradients are summed (--untie splits them)"));
  }
  return meanings;
}

}  // namespace ort_train::importing
