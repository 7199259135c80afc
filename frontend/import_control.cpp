// Control flow and sequences, which a Graph doesn't have: what decides them has to be known when the model is imported.
//
//   If                        the branch that is taken
//   Loop, Scan                their body, once for each turn
//   sequences of tensors      lists of values, known by position; optionals the value, or none
//
// A tensor of a body that is a weight is one parameter, however often the body stands in the graph.

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "frontend/importer.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/dependence.h"
#include "graph/error.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kMaxUnrolled = 200'000;  // nodes that one loop may become

const Reason kIncomplete{"lacks a body, or one of its inputs or outputs", "check the model with onnx.checker, and export it again"};

// Of a value that has to be known: "its condition" is computed from the model's inputs 'a', 'b'.
Reason unknown_because(const Graph& graph, const std::string& what, ValueId value) {
  std::vector<std::string> names;
  for (const ValueId input : inputs_behind(graph, value)) names.push_back(graph.value(input).name);
  std::sort(names.begin(), names.end());
  if (names.empty()) return {fmt::format("{} is computed from weights", what), "export the model without it"};
  return {fmt::format("{} is computed from the model's input{} '{}'", what, names.size() == 1 ? "" : "s", fmt::join(names, "', '")),
          fmt::format("where that is the same for all samples, fix it (`bind` {}=VALUE); else export the model without it", names[0])};
}

bool is_too_large(int64_t turns, size_t nodes) { return turns > kMaxUnrolled / std::max(static_cast<int64_t>(nodes), int64_t{1}); }
Reason too_large(size_t nodes, const std::string& times) {
  return {fmt::format("repeats a body of {} nodes {} times, which is too large a graph", nodes, times),
          "bind shorter lengths with `shapes`"};
}

void check_parts(int64_t count) {
  if (is_too_large(count, 1)) throw error(ErrorCode::unsupported, "divides a tensor into {} parts, which is too large a graph", count);
}

// One after the other along the axis, without it.
std::vector<ValueId> slices(Builder& builder, ValueId value, int64_t axis) {
  Shape shape = builder.shape(value);
  const int64_t count = shape[static_cast<size_t>(axis)];
  check_parts(count);
  shape.erase(shape.begin() + axis);
  std::vector<ValueId> parts{value};
  if (count > 1) {
    const std::vector<int64_t> sizes(static_cast<size_t>(count), 1);
    parts = builder.emit_many("Split", {value}, {{"axis", axis}, {"split", sizes}}, sizes.size());
  }
  for (ValueId& part : parts) part = builder.reshape(part, shape);
  return parts;
}

// Values of one shape, on a new axis.
ValueId stack(Builder& builder, std::vector<ValueId> values, int64_t axis) {
  axis = normalize_axis(axis, static_cast<int64_t>(builder.shape(values.at(0)).size()) + 1, "the new axis");
  for (ValueId& value : values) {
    Shape shape = builder.shape(value);  // of another rank, Concat refuses it
    shape.insert(shape.begin() + std::min(axis, static_cast<int64_t>(shape.size())), 1);
    value = builder.reshape(value, shape);
  }
  return values.size() == 1 ? values[0] : builder.emit("Concat", values, {{"axis", axis}});
}

// The value of each; throws where one is no tensor.
std::vector<ValueId> tensors_of(const std::vector<Meaning>& meanings) {
  std::vector<ValueId> values;
  for (const Meaning& meaning : meanings) {
    if (meaning.value == kNone) throw error(ErrorCode::unsupported, "stacks or joins what are no tensors");
    values.push_back(meaning.value);
  }
  return values;
}
bool any_tainted(const std::vector<Meaning>& meanings) {
  return std::any_of(meanings.begin(), meanings.end(), [](const Meaning& meaning) { return meaning.tainted; });
}

int64_t attribute_or(const onnx::NodeDef& node, const char* name, size_t i, int64_t otherwise) {
  const auto list = node.attributes.get(name, std::vector<int64_t>{});
  return i < list.size() ? list[i] : otherwise;
}

}  // namespace

const Walk::Control* Walk::find_control(const onnx::NodeDef& node) {
  static const std::map<std::string, Control> kControls{{"If", &Walk::branch},
                                                        {"Loop", &Walk::loop},
                                                        {"Scan", &Walk::scan},
                                                        {"SequenceConstruct", &Walk::construct_sequence},
                                                        {"SequenceEmpty", &Walk::construct_sequence},
                                                        {"SequenceAt", &Walk::sequence_at},
                                                        {"SequenceInsert", &Walk::change_sequence},
                                                        {"SequenceErase", &Walk::change_sequence},
                                                        {"SequenceLength", &Walk::sequence_length},
                                                        {"SplitToSequence", &Walk::split_to_sequence},
                                                        {"ConcatFromSequence", &Walk::concat_from_sequence},
                                                        {"Optional", &Walk::optional},
                                                        {"OptionalGetElement", &Walk::optional},
                                                        {"OptionalHasElement", &Walk::optional_has_element}};
  static const Control kGradient = &Walk::gradient;
  if (node.domain == "ai.onnx.preview.training" && node.op_type == "Gradient") return &kGradient;
  if (!node.domain.empty()) return nullptr;
  const auto found = kControls.find(node.op_type);
  return found == kControls.end() ? nullptr : &found->second;
}

// Turns, branches and positions are settled here, once for all batches.
std::optional<Reason> Walk::run_control(Job& job, Control control) {
  const size_t settled = job.node.op_type == "Loop" ? 2 : job.inputs.size();  // what follows goes from turn to turn
  if (auto reason = refuse_counts(std::span(job.inputs).first(std::min(settled, job.inputs.size())))) return reason;
  return (this->*control)(job);
}

// The meanings side by side along a new axis.
std::optional<Reason> Walk::stack_of(Builder& builder, const std::vector<Meaning>& meanings, int64_t axis, Meaning& result) const {
  if (auto reason = refuse_counts(meanings)) return reason;
  result = {.value = stack(builder, tensors_of(meanings), axis), .tainted = any_tainted(meanings)};
  return std::nullopt;
}

std::optional<Reason> Walk::refuse_counts(std::span<const Meaning> meanings) const {
  for (const Meaning& meaning : meanings) {
    if (meaning.value == kNone || !selections_.has_counts(meaning.value)) continue;
    return Reason{fmt::format("reads '{}', the number of elements that a node selects of each batch", graph_.value(meaning.value).name),
                  "say with `selects` NODE=COUNT how many these are, if the number is always the same"};
  }
  return std::nullopt;
}

Builder Walk::builder(const Job& job) {
  Builder result(graph_);
  result.named(job.name, job.ordinal).folding(folder_);
  return result;
}

const Tensor* Walk::known(const Job& job, size_t input) const {
  return job.has(input) ? graph_.constant(job.inputs[input].value) : nullptr;
}

std::optional<Reason> Walk::integer(const Job& job, size_t input, const std::string& what, int64_t& value) const {
  const Tensor* const tensor = known(job, input);
  if (!tensor) return unknown_because(graph_, what, job.inputs.at(input).value);
  if (is_floating(tensor->dtype) || tensor->size() != 1)
    return Reason{fmt::format("{} is {} instead of one integer", what, to_string(tensor->type())), "check the model with onnx.checker"};
  value = tensor->to_int64()[0];
  return std::nullopt;
}

std::optional<Reason> Walk::boolean(const Meaning& meaning, const std::string& what, bool& value) const {
  const Tensor* const tensor = graph_.constant(meaning.value);
  if (!tensor) return unknown_because(graph_, what, meaning.value);
  if (tensor->dtype != DType::boolean || tensor->size() != 1)
    return Reason{fmt::format("{} is {} instead of one boolean", what, to_string(tensor->type())), "check the model with onnx.checker"};
  value = tensor->data<bool>()[0];
  return std::nullopt;
}

// --- bodies ---------------------------------------------------------------------------------------------------------------------------

// A body's own tensors are read, and its weights made, once, however often it is gone through.
Walk::Body& Walk::enter(const std::shared_ptr<const onnx::GraphDef>& graph, Job& job) {
  const auto [place, added] = bodies_.try_emplace(graph.get());
  Body& body = place->second;
  body.scope.outer = &job.scope;
  if (!added) return body;
  body.graph = graph;
  body.uses = find_uses(graph->nodes, output_names(*graph), job.site.opsets);
  add_tensors(*graph, body.uses, body.scope);
  for (const onnx::NodeDef& node : graph->nodes) {
    if (!node.domain.empty() || node.op_type != "Constant" || node.outputs.empty()) continue;
    if (const auto value = node.tensors.find("value"); value != node.tensors.end())
      body.scope.names.emplace(node.outputs[0], Meaning{.tensor = &value->second});
  }
  return body;
}

// Goes through a body whose inputs mean `inputs`. False where it could not be imported: its outputs are unknown then.
bool Walk::go_through(Job& job, const std::shared_ptr<const onnx::GraphDef>& graph, const std::vector<Meaning>& inputs,
                      std::vector<Meaning>& outputs) {
  Body& body = enter(graph, job);
  Scope scope{.outer = &body.scope, .in_body = true};
  for (size_t i = 0; i < graph->inputs.size(); ++i) scope.names.insert_or_assign(graph->inputs[i].name, inputs.at(i));
  const size_t found_before = found.size();
  list(graph->nodes, scope, {.opsets = job.site.opsets, .uses = body.uses, .caller = job.site.caller, .depth = job.site.depth});
  outputs.clear();
  for (const onnx::ValueDef& output : graph->outputs) {
    Meaning* meaning = scope.find(output.name);
    if (!meaning)
      throw error(ErrorCode::unsupported, "[{} '{}'] nothing gives its body's output '{}'", job.node.op_type, job.name, output.name);
    if (!resolve(job, *meaning, output.name)) return false;
    outputs.push_back(*meaning);
  }
  return found.size() == found_before && std::none_of(outputs.begin(), outputs.end(), [](const Meaning& m) { return m.unknown(); });
}

// Nested graphs that were not gone through.
void Walk::collect_untaken(const std::vector<onnx::NodeDef>& nodes) {
  for (const onnx::NodeDef& node : nodes) {
    const bool one_is_taken = node.op_type == "If" && std::any_of(node.graphs.begin(), node.graphs.end(),
                                                                  [&](const auto& named) { return bodies_.contains(named.second.get()); });
    for (const auto& [name, graph] : node.graphs) {
      if (!bodies_.contains(graph.get()))
        untaken_.emplace_back(graph, one_is_taken ? "in a branch that isn't taken" : "in a body that isn't run");
      collect_untaken(graph->nodes);
    }
  }
}

void Walk::leave_untaken() {
  collect_untaken(model_.graph.nodes);
  for (const auto& [graph, why] : untaken_) weights_.add_untaken(*graph, why);
}

// An If whose condition is known is its branch.
std::optional<Reason> Walk::branch(Job& job) {
  if (job.inputs.empty()) return kIncomplete;
  bool holds = false;
  if (auto reason = boolean(job.inputs[0], "its condition", holds)) return reason;
  const auto body = job.node.graphs.find(holds ? "then_branch" : "else_branch");
  if (body == job.node.graphs.end() || body->second->outputs.size() < job.node.outputs.size() || !body->second->inputs.empty())
    return kIncomplete;
  std::vector<Meaning> outputs;
  go_through(job, body->second, {}, outputs);
  for (size_t i = 0; i < outputs.size() && i < job.node.outputs.size(); ++i) bind(job, i, outputs[i]);
  leave_unknown(job);
  return std::nullopt;
}

// Loop(times, condition, carried…): the body maps (turn, condition, carried…) to (condition, carried…, rows…); the rows of all turns are
// stacked.
std::optional<Reason> Walk::loop(Job& job) {
  constexpr size_t kFirst = 2;  // of the carried inputs
  const auto found_body = job.node.graphs.find("body");
  if (found_body == job.node.graphs.end() || job.inputs.size() < kFirst) return kIncomplete;
  const onnx::GraphDef& body = *found_body->second;
  const size_t carried = job.inputs.size() - kFirst;
  if (body.inputs.size() != job.inputs.size() || body.outputs.size() < 1 + carried || job.node.outputs.size() + 1 > body.outputs.size())
    return kIncomplete;
  const bool counts = job.has(0), asks = job.has(1);
  if (!counts && !asks) return Reason{"repeats its body for ever", "export the model again"};
  int64_t times = std::numeric_limits<int64_t>::max();
  if (counts) {
    if (auto reason = integer(job, 0, "how often it repeats its body", times)) return reason;
  }
  Builder b = builder(job);
  std::vector<Meaning> inputs(body.inputs.size()), outputs;
  std::copy(job.inputs.begin() + kFirst, job.inputs.end(), inputs.begin() + kFirst);
  inputs[1] = asks ? job.inputs[1] : Meaning{.value = b.constant(scalar_tensor(true))};
  std::vector<std::vector<Meaning>> rows(body.outputs.size() - 1 - carried);  // by output, then by turn
  for (int64_t turn = 0; turn < times; ++turn) {
    bool goes_on = true;
    if (asks) {
      if (auto reason = boolean(inputs[1], fmt::format("whether it goes on after {} turns", turn), goes_on)) return reason;
    }
    if (!goes_on) break;
    if (is_too_large(turn + 1, body.nodes.size()))
      return too_large(body.nodes.size(), counts ? std::to_string(times) : "more than " + std::to_string(turn));
    inputs[0] = {.value = b.constant(scalar_tensor(turn))};
    if (!go_through(job, found_body->second, inputs, outputs)) return leave_unknown(job), std::nullopt;
    std::copy_n(outputs.begin(), 1 + carried, inputs.begin() + 1);
    for (size_t row = 0; row < rows.size(); ++row) rows[row].push_back(outputs[1 + carried + row]);
  }
  for (size_t i = 0; i < job.node.outputs.size(); ++i) {
    if (i < carried) {
      bind(job, i, inputs[kFirst + i]);
    } else if (const std::vector<Meaning>& turns = rows[i - carried]; !turns.empty()) {
      Meaning stacked;
      if (auto reason = stack_of(b, turns, 0, stacked)) return reason;
      bind(job, i, std::move(stacked));
    } else if (job.site.uses.contains(job.node.outputs[i])) {
      return Reason{fmt::format("repeats its body no time, so its output '{}' is empty", job.node.outputs[i]),
                    "export the model without it"};
    }
  }
  return std::nullopt;
}

// What a Scan's node says: which of its inputs are gone along, and how. The form of opset 8 has a batch in front of everything, and its
// axes are the first behind it.
struct ScanForm {
  const onnx::NodeDef& node;
  bool batched = false;
  size_t states = 0, sequences = 0, rows = 0;

  int64_t input_axis(size_t i) const { return batched ? 0 : attribute_or(node, "scan_input_axes", i, 0); }
  int64_t output_axis(size_t i) const { return batched ? 0 : attribute_or(node, "scan_output_axes", i, 0); }
  bool is_backward(size_t i) const { return attribute_or(node, batched ? "directions" : "scan_input_directions", i, 0) != 0; }
  bool is_stacked_backward(size_t i) const { return !batched && attribute_or(node, "scan_output_directions", i, 0) != 0; }

  // The elements of sequence i, in the order of the turns.
  std::vector<ValueId> elements(Builder& b, size_t i, ValueId sequence) const {
    const int64_t axis = normalize_axis(input_axis(i), static_cast<int64_t>(b.shape(sequence).size()), "the axis of its sequence");
    if (b.shape(sequence)[static_cast<size_t>(axis)] == 0) throw error(ErrorCode::unsupported, "scans an empty sequence");
    std::vector<ValueId> found = slices(b, sequence, axis);
    if (is_backward(i)) std::reverse(found.begin(), found.end());
    return found;
  }
};

// Of one sample: (states…, sequences…) to (states…, rows…), which are empty where the body could not be imported.
std::optional<Reason> Walk::scan_once(Job& job, const ScanForm& form, std::vector<Meaning> inputs, std::vector<Meaning>& results) {
  const std::shared_ptr<const onnx::GraphDef>& body = job.node.graphs.at("body");
  Builder b = builder(job);
  std::vector<std::vector<ValueId>> elements;
  for (size_t i = 0; i < form.sequences; ++i) {
    elements.push_back(form.elements(b, i, inputs[form.states + i].value));
    if (elements[i].size() != elements[0].size()) throw error(ErrorCode::unsupported, "its sequences have different lengths");
  }
  results.clear();
  if (is_too_large(static_cast<int64_t>(elements[0].size()), body->nodes.size()))
    return too_large(body->nodes.size(), std::to_string(elements[0].size()));
  std::vector<Meaning> outputs;
  std::vector<std::vector<Meaning>> rows(form.rows);
  for (size_t turn = 0; turn < elements[0].size(); ++turn) {
    for (size_t i = 0; i < form.sequences; ++i) inputs[form.states + i] = {.value = elements[i][turn], .tainted = job.tainted};
    if (!go_through(job, body, inputs, outputs)) return std::nullopt;
    std::copy_n(outputs.begin(), form.states, inputs.begin());
    for (size_t row = 0; row < form.rows; ++row) rows[row].push_back(outputs[form.states + row]);
  }
  results.assign(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(form.states));
  for (size_t row = 0; row < form.rows; ++row) {
    if (form.is_stacked_backward(row)) std::reverse(rows[row].begin(), rows[row].end());
    if (auto reason = stack_of(b, rows[row], form.output_axis(row), results.emplace_back())) return reason;
  }
  return std::nullopt;
}

// Scan(states…, sequences…): the body maps (states…, elements…) to (states…, rows…), once for each position along the sequences. The form
// of opset 8, whose first input are lengths, is gone through for each sample.
std::optional<Reason> Walk::scan(Job& job) {
  constexpr int kWithoutBatch = 9;
  ScanForm form{.node = job.node, .batched = job.opset < kWithoutBatch};
  const size_t first = form.batched ? 1 : 0;
  const auto body = job.node.graphs.find("body");
  const int64_t count = job.node.attributes.get("num_scan_inputs", int64_t{0});
  if (body == job.node.graphs.end() || job.inputs.size() < first || count < 1) return kIncomplete;
  std::vector<Meaning> inputs(job.inputs.begin() + static_cast<std::ptrdiff_t>(first), job.inputs.end());
  form.sequences = static_cast<size_t>(count);
  if (inputs.size() < form.sequences || body->second->inputs.size() != inputs.size()) return kIncomplete;
  form.states = inputs.size() - form.sequences;
  if (body->second->outputs.size() < form.states || job.node.outputs.size() > body->second->outputs.size()) return kIncomplete;
  form.rows = body->second->outputs.size() - form.states;
  if (form.batched && job.has(0)) return Reason{"has lengths of its sequences", "export the model with opset 9 or newer"};
  if (std::any_of(inputs.begin(), inputs.end(), [](const Meaning& input) { return input.value == kNone; })) return kIncomplete;

  std::vector<Meaning> results;
  if (!form.batched) {
    if (auto reason = scan_once(job, form, inputs, results)) return reason;
  } else {
    Builder b = builder(job);
    std::vector<std::vector<ValueId>> samples;  // of each input
    for (const Meaning& input : inputs) {
      const Shape& shape = b.shape(input.value);
      if (shape.empty() || shape[0] == 0 || shape[0] != b.shape(inputs[0].value)[0])
        return Reason{"its inputs have no batch in front", "export the model again"};
      samples.push_back(slices(b, input.value, 0));
    }
    std::vector<std::vector<Meaning>> of_samples(body->second->outputs.size());
    for (size_t sample = 0; sample < samples[0].size(); ++sample) {
      for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = {.value = samples[i][sample], .tainted = job.tainted};
      if (auto reason = scan_once(job, form, inputs, results)) return reason;
      if (results.empty()) break;
      for (size_t i = 0; i < results.size(); ++i) of_samples[i].push_back(results[i]);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (auto reason = stack_of(b, of_samples[i], 0, results[i])) return reason;
    }
  }
  for (size_t i = 0; i < results.size() && i < job.node.outputs.size(); ++i) bind(job, i, results[i]);
  leave_unknown(job);
  return std::nullopt;
}

// --- sequences and optionals ----------------------------------------------------------------------------------------------------------

namespace {

const Reason kNoSequence{"reads a tensor where the standard has a sequence of them", "check the model with onnx.checker"};

Meaning sequence_of(std::vector<Meaning> elements) {
  return {.sequence = std::make_shared<const std::vector<Meaning>>(std::move(elements))};
}

}  // namespace

std::optional<Reason> Walk::construct_sequence(Job& job) {
  bind(job, 0, sequence_of(job.inputs));
  return std::nullopt;
}

// The position from 0 to `last` that an input gives in its node's sequence, of which it may count from the end.
std::optional<Reason> Walk::position(const Job& job, size_t input, int64_t last, int64_t& at) const {
  if (auto reason = integer(job, input, "the position in its sequence", at)) return reason;
  const auto size = static_cast<int64_t>(job.inputs[0].sequence->size());
  if (at < 0) at += size;
  if (at < 0 || at > last) return Reason{fmt::format("asks for a position outside a sequence of {}", size), "export the model again"};
  return std::nullopt;
}

std::optional<Reason> Walk::sequence_at(Job& job) {
  if (!job.inputs.at(0).sequence) return kNoSequence;
  const std::vector<Meaning>& elements = *job.inputs[0].sequence;
  int64_t at = 0;
  if (auto reason = position(job, 1, static_cast<int64_t>(elements.size()) - 1, at)) return reason;
  bind(job, 0, elements[static_cast<size_t>(at)]);
  return std::nullopt;
}

// SequenceInsert(sequence, tensor, position) and SequenceErase(sequence, position); by default at the end.
std::optional<Reason> Walk::change_sequence(Job& job) {
  if (!job.inputs.at(0).sequence) return kNoSequence;
  std::vector<Meaning> elements = *job.inputs[0].sequence;
  const bool inserts = job.node.op_type == "SequenceInsert";
  const size_t where = inserts ? 2 : 1;
  const int64_t last = static_cast<int64_t>(elements.size()) - (inserts ? 0 : 1);
  if (last < 0) return Reason{"takes an element from an empty sequence", "export the model again"};
  int64_t at = last;
  if (job.has(where)) {
    if (auto reason = position(job, where, last, at)) return reason;
  }
  if (inserts)
    elements.insert(elements.begin() + at, job.inputs.at(1));
  else
    elements.erase(elements.begin() + at);
  bind(job, 0, sequence_of(std::move(elements)));
  return std::nullopt;
}

std::optional<Reason> Walk::sequence_length(Job& job) {
  if (!job.inputs.at(0).sequence) return kNoSequence;
  bind(job, 0, {.value = builder(job).constant(scalar_tensor(static_cast<int64_t>(job.inputs[0].sequence->size())))});
  return std::nullopt;
}

// SplitToSequence(tensor, sizes): sizes of one element is the size of each part; without it parts of 1, without the axis unless keepdims.
std::optional<Reason> Walk::split_to_sequence(Job& job) {
  if (!job.has(0)) return kIncomplete;
  const ValueId from = job.inputs[0].value;
  Builder b = builder(job);
  const int64_t axis =
      normalize_axis(job.node.attributes.get("axis", int64_t{0}), static_cast<int64_t>(b.shape(from).size()), "the axis that is split");
  const int64_t length = b.shape(from)[static_cast<size_t>(axis)];
  std::vector<ValueId> parts;
  if (!job.has(1) && length > 0 && job.node.attributes.get("keepdims", int64_t{1}) == 0) {
    parts = slices(b, from, axis);
  } else {
    std::vector<int64_t> sizes{1};
    bool repeats = true;  // all parts but the last have sizes[0]
    if (job.has(1)) {
      const Tensor* const tensor = known(job, 1);
      if (!tensor) return unknown_because(graph_, "how it is split", job.inputs[1].value);
      sizes = tensor->to_int64();
      repeats = tensor->shape.empty() && sizes[0] > 0;
    }
    if (repeats) {
      const int64_t size = sizes[0];
      check_parts(length / size);
      sizes.assign(static_cast<size_t>(length / size), size);
      if (length % size != 0) sizes.push_back(length % size);
    }
    int64_t sum = 0;
    for (const int64_t size : sizes) sum = size < 0 || size > length ? length + 1 : std::min(sum + size, length + 1);
    if (sum != length)
      return Reason{fmt::format("splits {} elements into parts of {}", length, fmt::join(sizes, ", ")), "export the model again"};
    parts = sizes.size() == 1 ? std::vector{from} : b.emit_many("Split", {from}, {{"axis", axis}, {"split", sizes}}, sizes.size());
  }
  std::vector<Meaning> elements;
  for (const ValueId part : parts) elements.push_back({.value = part, .tainted = job.tainted});
  bind(job, 0, sequence_of(std::move(elements)));
  return std::nullopt;
}

std::optional<Reason> Walk::concat_from_sequence(Job& job) {
  if (!job.inputs.at(0).sequence) return kNoSequence;
  const std::vector<Meaning>& elements = *job.inputs[0].sequence;
  if (elements.empty()) return Reason{"joins an empty sequence", "export the model without it"};
  if (auto reason = refuse_counts(elements)) return reason;
  const std::vector<ValueId> values = tensors_of(elements);
  Builder b = builder(job);
  const int64_t axis = job.node.attributes.get("axis", int64_t{0});
  ValueId joined = values[0];
  if (job.node.attributes.get("new_axis", int64_t{0}) != 0)
    joined = stack(b, values, axis);
  else if (values.size() > 1)
    joined = b.emit("Concat", values, {{"axis", normalize_axis(axis, static_cast<int64_t>(b.shape(joined).size()), "the axis")}});
  bind(job, 0, {.value = joined, .tainted = any_tainted(elements)});
  return std::nullopt;
}

// Optional(x) is x, of which OptionalGetElement gives x again.
std::optional<Reason> Walk::optional(Job& job) {
  Meaning meaning = job.inputs.empty() ? Meaning{.absent = true} : job.inputs[0];
  if (job.node.op_type == "OptionalGetElement" && meaning.absent)
    return Reason{"takes the element of an optional that has none", "export the model again"};
  bind(job, 0, std::move(meaning));
  return std::nullopt;
}

std::optional<Reason> Walk::optional_has_element(Job& job) {
  const bool has = !job.inputs.empty() && !job.inputs[0].absent;
  bind(job, 0, {.value = builder(job).constant(scalar_tensor(has))});
  return std::nullopt;
}

// ai.onnx.preview.training Gradient-1: outputs dy / dx for each x of the attribute `xs`, of the nodes before it. What goes into it are the
// values of the `xs` and `zs` where it is taken, which have to be those of the graph.
std::optional<Reason> Walk::gradient(Job& job) {
  const auto names = [&](const char* attribute) {  // the reader joins lists of texts by commas
    std::vector<std::string> list;
    std::istringstream text(job.node.attributes.get(attribute, ""));
    for (std::string name; std::getline(text, name, ',');) list.push_back(name);
    return list;
  };
  std::vector<std::string> read = names("xs");
  const size_t count = read.size();
  for (const std::string& name : names("zs")) read.push_back(name);
  if (count == 0 || job.outputs > count || read != job.node.inputs)
    return Reason{"takes a gradient elsewhere than where the graph is", "export the model with inputs that are its xs and zs"};
  const std::string y = job.node.attributes.get("y", "");
  const Meaning* const of = job.scope.find(y);
  if (of == nullptr || of->value == kNone || !is_floating(graph_.value(of->value).dtype))
    return Reason{fmt::format("takes the gradient of '{}', which no node before it gives as floating-point numbers", y),
                  "check the model with onnx.checker"};
  std::vector<ValueId> xs;
  for (size_t i = 0; i < count; ++i) xs.push_back(job.inputs[i].value);
  // A gradient of gradients doubles the graph each time.
  const auto nodes = static_cast<int64_t>(graph_.node_count());
  if (nodes > kMaxUnrolled / 2 && graph_.order().size() > model_.graph.nodes.size())
    return Reason{fmt::format("with the gradients of gradients before it the model has more than {} nodes", kMaxUnrolled / 2),
                  "export the model without them: training takes gradients by itself"};
  const std::vector<ValueId> gradients = gradients_of(graph_, of->value, xs, Stage::forward);
  visited_ += static_cast<int64_t>(graph_.node_count()) - nodes;
  for (size_t i = 0; i < job.outputs; ++i) {
    ValueId value = gradients[i];
    if (value == kNone) value = builder(job).emit("Expand", {builder(job).scalar_like(xs[i], 0)}, {{"shape", graph_.value(xs[i]).shape}});
    bind(job, i, {.value = value});
  }
  return std::nullopt;
}

}  // namespace ort_train::importing
