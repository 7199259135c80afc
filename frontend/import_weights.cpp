// Makes the parameters of a graph out of the file's floating-point tensors. Which of them are trained is decided by the rules of
// import_rules.cpp; those stored twice become one parameter, those with --untie several.

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "frontend/import_evidence.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "graph/names.h"
#include "graph/onnx/reader.h"

namespace ort_train {

std::string_view to_string(Treatment treatment) {
  switch (treatment) {
    case Treatment::trained:
      return "trained";
    case Treatment::frozen:
      return "frozen";
    case Treatment::statistic:
      return "statistic";
    case Treatment::constant:
      return "constant";
  }
  return "";
}

std::string unreached_in_words(const Graph& graph, const std::vector<ValueId>& unreached, std::string_view from) {
  if (unreached.empty()) return "";
  constexpr size_t kShown = 4;
  const std::vector<ValueId> all = graph.parameters();
  const auto trainable = std::count_if(all.begin(), all.end(), [&](ValueId id) { return graph.value(id).trainable; });
  std::vector<std::string> names;
  for (const ValueId id : unreached) names.push_back(onnx::printable(graph.value(id).name));
  return fmt::format("{} of {} tensors {} no influence on {} and {} as {}: {}", grouped(static_cast<int64_t>(unreached.size())),
                     grouped(static_cast<int64_t>(trainable)), unreached.size() == 1 ? "has" : "have", from,
                     unreached.size() == 1 ? "stays" : "stay", unreached.size() == 1 ? "it is" : "they are", first_of(names, kShown));
}

}  // namespace ort_train

namespace ort_train::importing {
namespace {

constexpr int64_t kMaxConstant = int64_t{16} << 20;  // bytes: larger ones are parameters that nothing changes, and stay in the file

// A tensor is asked for by its name.
void check_names(const onnx::GraphDef& graph) {
  std::set<std::string> names;
  for (const onnx::TensorDef& tensor : graph.initializers) {
    if (!names.insert(tensor.name).second)
      throw error(ErrorCode::unsupported,
                  "the model has two initializers '{}', and which one is meant can't be told: rename one, or export it again", tensor.name);
  }
}

bool only_moves(const Use& use) {
  static constexpr std::array kMoves{"Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Cast"};
  return use.domain.empty() && use.input == 0 && std::find(kMoves.begin(), kMoves.end(), use.op_type) != kMoves.end();
}

Error shared_bytes(const std::string& first, const std::string& second, const std::string& path) {
  return error(ErrorCode::unsupported, "'{}' and '{}' share bytes of '{}' without being the same tensor; save the model again", first,
               second, path);
}

// What reads a tensor behind nodes that only move its elements.
void add_ends(const std::vector<Use>& uses, const Uses& all, int depth, std::vector<Use>& ends) {
  constexpr int kDeepest = 8;
  for (const Use& use : uses) {
    const auto readers = all.find(use.output);
    if (!only_moves(use) || readers == all.end() || depth == kDeepest)
      ends.push_back(use);
    else
      add_ends(readers->second, all, depth + 1, ends);
  }
}

// Whether all that a use leads to are running statistics.
bool leads_to_statistics(const Use& use, const Uses& all) {
  std::vector<Use> ends;
  add_ends({use}, all, 0, ends);
  return std::all_of(ends.begin(), ends.end(), is_running_statistic);
}

// Whether what --untie leaves of the uses trains the tensor: the first of the main graph's, and those of nested graphs.
bool trains_unsplit(const std::vector<Use>& uses, const Uses& all) {
  bool first = true;
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    const bool is_left = use.node == ~size_t{0} || std::exchange(first, false);
    return is_left && !leads_to_statistics(use, all);
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
    if (node.op_type == "Gradient") {  // ai.onnx.preview.training's reads what it is a gradient of by name
      if (const std::string y = node.attributes.get("y", ""); !y.empty())
        uses[y].push_back({.domain = node.domain, .op_type = node.op_type});
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

void WeightTable::locate(Candidate& candidate) const {
  candidate.bytes = files_.locate(*candidate.tensor);
  candidate.integers = files_.integers(*candidate.tensor, candidate.bytes);
}

std::vector<Subject> WeightTable::subjects(const onnx::GraphDef& graph, const Uses& uses) {
  std::vector<Subject> found;
  const auto consider = [&](const std::string& name, const onnx::TensorDef& tensor, bool in_node) {
    if (!is_floating(*tensor.dtype)) return others_.emplace_back(name, fmt::format("is {}", tensor.type)), void();
    if (element_count(tensor.shape) == 0) return;
    seen_.insert(seen_key(tensor));
    std::vector<Use> readers = uses.at(name), ends;
    std::erase_if(readers, [](const Use& use) { return use.op_type == "Shape" && use.domain.empty(); });  // of a constant
    add_ends(readers, uses, 0, ends);
    found.push_back(
        {.candidate = {.name = name, .tensor = &tensor, .uses = std::move(readers)}, .in_node = in_node, .ends = std::move(ends)});
    if (tensor.offset >= 0) locate(found.back().candidate);
  };
  int64_t unused = 0;
  for (const onnx::TensorDef& tensor : graph.initializers) {
    if (!uses.contains(tensor.name)) {
      ++unused;
      others_.emplace_back(tensor.name, "is read by nothing");
    } else if (tensor.dtype) {
      consider(tensor.name, tensor, false);
    }
  }
  if (unused > 0)
    result_.info.notes.push_back(fmt::format("{} initializer{} nothing reads: left as they are", unused, unused == 1 ? "" : "s"));
  for (const onnx::NodeDef& node : graph.nodes) {
    if (node.op_type != "Constant" || !node.domain.empty() || node.outputs.size() != 1 || !uses.contains(node.outputs[0])) continue;
    const auto tensor = node.tensors.find("value");
    if (node.attributes.has("value_floats")) others_.emplace_back(node.outputs[0], "is a list of numbers in a Constant node");
    if (tensor == node.tensors.end() || !tensor->second.dtype || !is_floating(*tensor->second.dtype)) continue;
    const Shape& shape = tensor->second.shape;
    if (element_count(shape) > 1 || (!shape.empty() && is_layers_own(uses.at(node.outputs[0]), shape)))
      consider(node.outputs[0], tensor->second, true);
  }
  return found;
}

// Those that become parameters; the others are constants.
std::vector<Candidate> WeightTable::parameters(const onnx::GraphDef& graph, const Uses& uses, bool is_main) {
  Evidence evidence{
      .graph = graph, .uses = uses, .files = files_, .options = options_, .is_main = is_main, .subjects = subjects(graph, uses)};
  for (const onnx::NodeDef& node : graph.nodes) {
    for (const std::string& output : node.outputs) evidence.producers.emplace(output, &node);
  }
  const std::vector<Verdict> verdicts = decide(evidence, result_.info.notes);
  std::vector<Candidate> found;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    Candidate& candidate = evidence.subjects[i].candidate;
    const TensorType type{*candidate.tensor->dtype, candidate.tensor->shape};
    const bool is_constant = verdicts[i].treatment == Treatment::constant;
    candidate.trainable = verdicts[i].treatment == Treatment::trained;
    candidate.is_constant = is_constant;
    candidate.fate = result_.info.tensors.size();
    result_.info.tensors.push_back({candidate.name, type, verdicts[i].treatment, verdicts[i].why, verdicts[i].original});
    // Constants of 16 bits are read as such, unless these stand for float32.
    if (is_constant && (type.bytes() <= kMaxConstant || (is_half(type.dtype) && !files_.widens()))) continue;
    if (candidate.bytes.path.empty() && !candidate.tensor->added) locate(candidate);  // says why it can't be trained
    found.push_back(std::move(candidate));
  }
  if (is_main) note_own_names(graph);
  if (const std::vector<std::string> missing = missing_parameters(evidence); !missing.empty()) {
    constexpr size_t kShown = 16;
    result_.info.notes.push_back(
        fmt::format("{} of the exported program's parameters {} in the file, being unused, tied with others or merged into others: {}",
                    missing.size(), missing.size() == 1 ? "isn't" : "aren't", first_of(missing, kShown)));
  }
  return found;
}

// The weights of 16 bits in a graph and in those nested in it.
void WeightTable::find_halves(const onnx::GraphDef& graph, const onnx::Opsets& opsets, bool is_main, std::vector<HalfWeight>& found) {
  bool has_any = false;
  const auto look = [&](const onnx::TensorDef& tensor) { has_any |= tensor.dtype && is_half(*tensor.dtype); };
  for (const onnx::TensorDef& tensor : graph.initializers) look(tensor);
  for (const onnx::NodeDef& node : graph.nodes) {
    for (const auto& [name, tensor] : node.tensors) look(tensor);
  }
  if (has_any) {
    for (const Candidate& candidate : parameters(graph, find_uses(graph.nodes, output_names(graph), opsets), is_main)) {
      if (!candidate.is_constant && is_half(*candidate.tensor->dtype)) found.push_back({candidate.name, is_main ? nullptr : &graph});
    }
  }
  for (const onnx::NodeDef& node : graph.nodes) {
    for (const auto& [name, nested] : node.graphs) find_halves(*nested, opsets, /*is_main=*/false, found);
  }
}

// PyTorch's older exporter gives what it folds names of its own, and says nothing of what that was.
void WeightTable::note_own_names(const onnx::GraphDef& graph) {
  if (!graph.program.empty()) return;
  std::vector<std::string> names;
  for (const TensorFate& tensor : result_.info.tensors) {
    if (tensor.treatment == Treatment::trained && tensor.name.starts_with("onnx::")) names.push_back(tensor.name);
  }
  if (names.empty()) return;
  result_.info.notes.push_back(fmt::format(
      "{} weight{} the exporter's own name, as '{}': transposed, joined, or merged with BatchNormalization by folding, and trained in that "
      "form (torch.onnx.export with do_constant_folding=False keeps the parameters)",
      names.size(), names.size() == 1 ? " has" : "s have", names[0]));
}

// A weight that is stored twice is frozen under all of its names where `freeze` has one of them, unless `train` has another; otherwise
// it is trained if it is trained under any of them.
void WeightTable::share_choices(std::vector<Candidate>& found, const std::vector<Tie>& ties) {
  const auto named = [&](const std::vector<std::string>& patterns, const Candidate& candidate) {
    const TensorFate& fate = result_.info.tensors[candidate.fate];
    return names_tensor(patterns, fate.name, fate.original);
  };
  std::map<size_t, std::vector<size_t>> groups;  // by the one that is kept
  for (const Tie& tie : ties) groups[tie.kept].push_back(tie.tied);
  std::map<PlaceKey, size_t> places;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [place, is_first] = places.emplace(place_key(found[i]), i);
    if (!is_first) groups[place->second].push_back(i);
  }
  for (auto& [kept, group] : groups) {
    group.push_back(kept);
    const auto any = [&](const std::vector<std::string>& patterns) {
      return std::any_of(group.begin(), group.end(), [&](size_t i) { return named(patterns, found[i]); });
    };
    const bool are_constants = std::all_of(group.begin(), group.end(), [&](size_t i) { return found[i].is_constant; });
    if (are_constants && !any(options_.train)) continue;
    for (const size_t i : group) found[i].is_constant = false;
    const bool adapts = options_.adapts && !found[kept].tensor->added;
    if (!any(options_.freeze) && !adapts) {
      const bool trains = std::any_of(group.begin(), group.end(), [&](size_t i) { return found[i].trainable; });
      for (const size_t i : group) {
        if (found[i].trainable == trains) continue;
        found[i].trainable = true;
        TensorFate& fate = result_.info.tensors[found[i].fate];
        fate.treatment = Treatment::trained;
        fate.why = "tied with a weight that is trained";
      }
      continue;
    }
    const bool trains = any(options_.train);
    for (const size_t i : group) {
      found[i].trainable = trains;
      TensorFate& fate = result_.info.tensors[found[i].fate];
      fate.treatment = trains ? Treatment::trained : Treatment::frozen;
      fate.why = trains   ? "`train` names it, or what it is tied with"
                 : adapts ? trained_instead(options_)
                          : "`freeze` names it, or what it is tied with";
    }
  }
}

void WeightTable::check_patterns(const std::vector<std::string>& patterns, const char* option) const {
  const std::vector<TensorFate>& tensors = result_.info.tensors;
  for (const std::string& pattern : patterns) {
    const auto is_named = [&](const TensorFate& tensor) { return names_tensor({pattern}, tensor.name, tensor.original); };
    if (std::any_of(tensors.begin(), tensors.end(),
                    [&](const TensorFate& tensor) { return tensor.treatment != Treatment::statistic && is_named(tensor); }))
      continue;
    if (const auto statistic = std::find_if(tensors.begin(), tensors.end(), is_named); statistic != tensors.end()) {
      throw error(ErrorCode::usage, "`{}` '{}': '{}' is a {}, which no gradient changes: `batch_norm` says whether batches do", option,
                  pattern, statistic->name, statistic->why);
    }
    for (const auto& [name, why] : others_) {
      if (fits(pattern, name))
        throw error(ErrorCode::usage, "`{}` '{}': '{}' {}; only floating-point tensors that a node reads are trained", option, pattern,
                    name, why);
    }
    std::vector<std::string> names;
    for (const TensorFate& tensor : tensors) {
      names.push_back(tensor.name);
      if (!tensor.original.empty()) names.push_back(tensor.original);
    }
    const std::vector<std::string> near = nearest_names(pattern, names, 3);
    throw error(ErrorCode::usage, "`{}` '{}' fits no tensor of the model; {} (check lists all of them; * stands for any text)", option,
                pattern, near.empty() ? "it has none" : fmt::format("it has '{}'", fmt::join(near, "', '")));
  }
}

void WeightTable::add_untaken(const onnx::GraphDef& graph, const char* why) {
  const auto look = [&](const std::string& name, const onnx::TensorDef& tensor, int64_t fewest) {
    if (!tensor.dtype || !is_floating(*tensor.dtype) || element_count(tensor.shape) < fewest) return;
    if (!seen_.insert(seen_key(tensor)).second && tensor.offset >= 0) return;  // of a function that is expanded once more
    TensorFate fate{.name = name, .type = {*tensor.dtype, tensor.shape}, .why = why};
    const auto same =
        tensor.offset < 0 ? by_place_.end() : by_place_.find(place_key({.name = name, .tensor = &tensor, .bytes = files_.locate(tensor)}));
    if (same == by_place_.end()) {
      others_.emplace_back(name, fmt::format("is {}", why));
    } else {
      fate.treatment = result_.info.tensors[same->second.first.fate].treatment;
      fate.why = fmt::format("stored in the same place as '{}'", same->second.first.name);
    }
    untaken_fates_.push_back(std::move(fate));
  };
  for (const onnx::TensorDef& tensor : graph.initializers) look(tensor.name, tensor, 1);
  for (const onnx::NodeDef& node : graph.nodes) {
    const auto value = node.tensors.find("value");
    if (node.op_type == "Constant" && value != node.tensors.end() && !node.outputs.empty()) look(node.outputs[0], value->second, 2);
  }
}

void WeightTable::finish(const onnx::ModelDef& model) {
  check_choices();
  check_shared_with_functions(model);
  list_untaken();
}

void WeightTable::check_shared_with_functions(const onnx::ModelDef& model) {
  struct Stored {
    std::string name;
    const onnx::TensorDef* tensor;
  };
  std::multimap<std::pair<std::string, int64_t>, Stored> of_functions;  // external ones, by path and offset
  for (const auto& [name, tensor] : model.function_tensors) {
    if (!tensor.external() || tensor.bytes <= 0) continue;
    const FileRange range = files_.locate(tensor);
    of_functions.emplace(std::pair(range.path, range.offset), Stored{name, &tensor});
  }
  if (of_functions.empty()) return;
  for (const Weight& weight : result_.weights) {
    for (const WeightPlace& place : weight.places) {
      if (weight.is_constant || place.added) continue;
      const auto [begin, end] = of_functions.equal_range({place.bytes.path, place.bytes.offset});
      for (auto shared = begin; shared != end; ++shared) {  // but for the weight itself, of a branch in a function
        if (!has_seen(*shared->second.tensor)) throw shared_bytes(place.name, shared->second.name, place.bytes.path);
      }
    }
  }
}

void WeightTable::list_untaken() {
  std::vector<std::string> names;
  std::string why;  // of the last
  for (TensorFate& fate : untaken_fates_) {
    if (fate.treatment == Treatment::constant) {
      names.push_back(fate.name);
      why = fate.why;
    }
    result_.info.tensors.push_back(std::move(fate));
  }
  if (names.empty()) return;
  result_.info.notes.push_back(
      names.size() == 1
          ? fmt::format("'{}' is {}: it stays as it is", names[0], why)
          : fmt::format("{} tensors ('{}', …) are in branches or bodies that aren't run: they stay as they are", names.size(), names[0]));
}

// What `train` and `freeze` did.
void WeightTable::check_choices() {
  if (options_.train.empty() && options_.freeze.empty() && !options_.adapts) return;
  check_patterns(options_.train, "train");
  check_patterns(options_.freeze, "freeze");
  int64_t trained = 0, frozen = 0, elements = 0, frozen_elements = 0;
  std::string names;
  for (const TensorFate& tensor : result_.info.tensors) {
    if (tensor.treatment != Treatment::trained && tensor.treatment != Treatment::frozen) continue;
    const bool is_frozen = tensor.treatment == Treatment::frozen;
    elements += element_count(tensor.type.shape);
    frozen_elements += is_frozen ? element_count(tensor.type.shape) : 0;
    ++(is_frozen ? frozen : trained);
    if (is_frozen || tensor.why.starts_with("`train`")) names += fmt::format("{} {}\n", tensor.name, to_string(tensor.treatment));
  }
  if (trained == 0 && !options_.adapts) {
    throw error(ErrorCode::usage,
                "nothing is left to train: `freeze` names all {} weights of the model (`train` takes some of them out again)", frozen);
  }
  result_.info.chosen = names;
  if (options_.adapts && options_.train.empty()) return;  // another note says it
  result_.info.notes.push_back(fmt::format("by `train` and `freeze`, {} of {} tensors are trained, {} frozen ({} of {} parameters)",
                                           trained, trained + frozen, frozen, frozen_elements, elements));
}

// Two tensors may lie in the same place of a file, as the same tensor; if they overlap otherwise, training one would change the other.
void WeightTable::check_overlaps(const onnx::ModelDef& model) {
  struct Stored {
    FileRange range;
    std::string name;
    const onnx::TensorDef* tensor;
  };
  std::vector<Stored> all;
  const auto add = [&](const std::string& name, const onnx::TensorDef& tensor) {
    if (tensor.external() && tensor.bytes > 0) all.push_back({files_.locate(tensor), name, &tensor});
  };
  onnx::each_tensor(model.graph, add);
  for (const auto& [name, tensor] : model.function_tensors) add(name, tensor);
  std::stable_sort(all.begin(), all.end(), [](const Stored& a, const Stored& b) {
    return std::tie(a.range.path, a.range.offset, a.range.bytes) < std::tie(b.range.path, b.range.offset, b.range.bytes);
  });
  for (size_t i = 1; i < all.size(); ++i) {
    const Stored &first = all[i - 1], &second = all[i];
    if (second.range.path != first.range.path || second.range.offset >= first.range.offset + first.range.bytes) continue;
    if (second.range != first.range || first.tensor->dtype != second.tensor->dtype || first.tensor->shape != second.tensor->shape)
      throw shared_bytes(first.name, second.name, second.range.path);
  }
}

ValueId WeightTable::make_parameter(const Candidate& candidate, const std::string& name, bool added) {
  const TensorType type{*candidate.tensor->dtype, candidate.tensor->shape};
  const ValueId id = graph_.add_value({.name = name,
                                       .dtype = compute_type(type.dtype),
                                       .shape = type.shape,
                                       .kind = ValueKind::parameter,
                                       .trainable = candidate.trainable});
  WeightPlace place = weight_place(candidate);  // of a copy, too
  place.name = name;
  place.added = added;
  result_.weights.push_back({.parameter = graph_.value(id).name,
                             .dtype = graph_.value(id).dtype,
                             .places = {std::move(place)},
                             .is_constant = candidate.is_constant});
  if (added && candidate.bytes.path.empty()) result_.weights.back().fresh = FreshNumbers();  // zeros
  if (added) result_.info.edit.initializers.push_back({name, type});
  if (!added) note_integers(candidate);
  return id;
}

// Integers take one byte or several, so that new ones don't fit into the place of the old: the new file has bytes instead.
void WeightTable::note_integers(const Candidate& candidate) {
  if (!candidate.integers) return;
  result_.info.edit.stored.push_back({.offset = candidate.bytes.offset,
                                      .end = candidate.bytes.offset + candidate.bytes.bytes,
                                      .bytes = element_count(candidate.tensor->shape) * size_of(*candidate.tensor->dtype)});
}

Meaning WeightTable::add_parameter(const Candidate& candidate) {
  return {.value = make_parameter(candidate, candidate.name, candidate.tensor->added)};
}

// --untie: every node of the main graph that reads the weight gets a copy, but for the first; what nested graphs read stays the weight
// itself.
void WeightTable::split(const Candidate& candidate, const Uses& uses, Meaning& meaning, std::set<std::string>& names) {
  bool first = true;
  int64_t number = 2;
  for (const Use& use : candidate.uses) {
    if (use.node == ~size_t{0} || std::exchange(first, false)) continue;
    std::string name;
    do name = fmt::format("{}.use{}", candidate.name, number++);
    while (!names.insert(name).second);
    Candidate copy = candidate;
    copy.trainable = candidate.trainable && !leads_to_statistics(use, uses);
    meaning.copies[{use.node, use.input}] = make_parameter(copy, name, true);
    result_.info.edit.inputs.push_back({.node = use.node, .place = use.input, .name = name});
  }
}

Meaning WeightTable::tie_to(const Candidate& kept, const Meaning& parameter, const Candidate& tied, bool transposed) {
  const std::string& name = graph_.value(parameter.value).name;
  for (Weight& weight : result_.weights) {
    if (weight.parameter != name) continue;
    if (tied.bytes == kept.bytes && !tied.tensor->added) continue;
    WeightPlace place = weight_place(tied);
    place.transposed = transposed;
    if (place.added) result_.info.edit.initializers.push_back({place.name, {place.dtype, place.shape}});
    if (!place.added) note_integers(tied);
    weight.places.push_back(std::move(place));
  }
  result_.info.notes.push_back(fmt::format("tied '{}' with '{}' ({})", tied.name, kept.name,
                                           tied.bytes == kept.bytes ? "stored in the same place"
                                           : transposed             ? "stored twice, transposed"
                                                                    : "stored twice"));
  if (!transposed) return parameter;
  return {.value = Builder(graph_).named(tied.name).transpose(parameter.value, {1, 0})};
}

// The codes of quantized weights stay as they are in the file, and are not read before they have their place in memory.
void WeightTable::add_quantized(const onnx::GraphDef& graph, const Uses& uses, std::map<std::string, Meaning>& meanings) {
  std::vector<std::string> names;
  int64_t bytes = 0;
  for (const onnx::TensorDef& tensor : graph.initializers) {
    const auto readers = uses.find(tensor.name);
    if (readers == uses.end() || !tensor.dtype || is_floating(*tensor.dtype) || element_count(tensor.shape) == 0) continue;
    if (tensor.offset < 0 || tensor.varints) continue;  // in no one piece: a constant
    if (!std::all_of(readers->second.begin(), readers->second.end(), is_quantized_place)) continue;
    const TensorType type{*tensor.dtype, tensor.shape};
    result_.info.tensors.push_back(
        {tensor.name, type, Treatment::frozen, fmt::format("quantized weight of {}", readers->second[0].op_type), ""});
    meanings[tensor.name] = add_parameter(
        {.name = tensor.name, .tensor = &tensor, .trainable = false, .uses = readers->second, .bytes = files_.locate(tensor)});
    names.push_back(tensor.name);
    bytes += type.bytes();
  }
  if (names.empty()) return;
  result_.info.notes.push_back(fmt::format("{} quantized weight{} ('{}'{}), {} bytes: frozen, dequantized where {} used", names.size(),
                                           names.size() == 1 ? "" : "s", names[0], names.size() == 1 ? "" : ", …", bytes,
                                           names.size() == 1 ? "it is" : "they are"));
}

std::map<std::string, Meaning> WeightTable::add(const onnx::GraphDef& graph, const Uses& uses, bool is_main) {
  check_names(graph);
  std::vector<Candidate> found = parameters(graph, uses, is_main);
  for (const Candidate& candidate : found) {
    if (files_.widens() || candidate.is_constant || !is_half(*candidate.tensor->dtype)) continue;
    throw error(ErrorCode::unsupported, "'{}' is a weight of 16 bits in a branch of a function: inline the functions (onnx.inliner)",
                candidate.name);
  }
  std::vector<Tie> ties;
  if (options_.retie && !options_.untie) ties = find_ties(found, files_);
  share_choices(found, ties);
  std::map<size_t, Tie> tie_of;
  for (const Tie& tie : ties) tie_of[tie.tied] = tie;

  std::map<std::string, Meaning> meanings;
  std::vector<Meaning> by_index;
  std::set<std::string> names = names_of(graph);
  std::vector<std::string> shared;
  for (size_t i = 0; i < found.size(); ++i) {
    const Candidate& candidate = found[i];
    const auto place = by_place_.find(place_key(candidate));
    if (place != by_place_.end() && place->second.first.tensor->shape != candidate.tensor->shape)  // of a branch
      throw shared_bytes(place->second.first.tensor->name, candidate.tensor->name, candidate.bytes.path);
    if (place != by_place_.end()) {
      by_index.push_back(tie_to(place->second.first, place->second.second, candidate, false));
    } else if (const auto tie = tie_of.find(i); tie != tie_of.end()) {
      by_index.push_back(tie_to(found[tie->second.kept], by_index[tie->second.kept], candidate, tie->second.transposed));
    } else {
      const bool splits = options_.untie && is_main;
      Candidate kept = candidate;
      if (splits) kept.trainable = candidate.trainable && trains_unsplit(candidate.uses, uses);
      by_index.push_back(add_parameter(kept));
      if (splits) split(candidate, uses, by_index.back(), names);
      by_place_.insert_or_assign(place_key(candidate), std::pair(candidate, by_index.back()));
    }
    meanings[candidate.name] = by_index.back();
    if (candidate.uses.size() > 1 && candidate.trainable) shared.push_back(fmt::format("'{}' ({})", candidate.name, candidate.uses.size()));
  }
  add_quantized(graph, uses, meanings);
  if (!shared.empty()) {
    constexpr size_t kShown = 4;
    result_.info.notes.push_back(fmt::format(
        "{} weight{} used in several places, {}: {}", shared.size(), shared.size() == 1 ? " is" : "s are", first_of(shared, kShown),
        options_.untie ? "each use has its own copy" : "their gradients are summed (`untie` splits them)"));
  }
  return meanings;
}

std::vector<HalfWeight> WeightTable::half_weights(const onnx::ModelDef& model, TensorFiles& files, const ImportOptions& options) {
  Imported unused;
  WeightTable table(unused.graph, files, options, unused);
  std::vector<HalfWeight> found;
  table.find_halves(model.graph, model.opsets, /*is_main=*/true, found);
  return found;
}

}  // namespace ort_train::importing
