// Control flow and sequences, which a Graph doesn't have: what decides them has to be known when the model is imported.
//
//   If                        the branch that is taken
//   Loop, Scan                their body, once for each turn
//   sequences of tensors      lists of values, known by position; optionals the value, or none
//
// A tensor of a body that is a weight is one parameter, however often the body stands in the graph.

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "frontend/importer.h"
#include "graph/builder.h"
#include "graph/error.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kMaxUnrolled = 200'000;  // nodes that one loop may become

const Reason kIncomplete{"lacks a body, or one of its inputs or outputs", "check the model with onnx.checker, and export it again"};

// The model's inputs that a value is computed from, by name.
std::set<std::string> inputs_behind(const Graph& graph, ValueId value) {
  std::set<std::string> names;
  std::vector<bool> seen(graph.value_count());
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId at = open.back();
    open.pop_back();
    if (at == kNone || seen[at]) continue;
    seen[at] = true;
    const Value& found = graph.value(at);
    if (found.kind == ValueKind::input) names.insert(found.name);
    if (found.producer == kNone) continue;
    const std::vector<ValueId>& inputs = graph.node(found.producer).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return names;
}

// Of a value that has to be known: "its condition" is computed from the model's inputs 'a', 'b'.
Reason unknown_because(const Graph& graph, const std::string& what, ValueId value) {
  const std::set<std::string> names = inputs_behind(graph, value);
  if (names.empty()) return {fmt::format("{} is computed from weights", what), "export the model without it"};
  return {
      fmt::format("{} is computed from the model's input{} '{}'", what, names.size() == 1 ? "" : "s", fmt::join(names, "', '")),
      fmt::format("where that is the same for all samples, fix it (`bind` {}=VALUE); else export the model without it", *names.begin())};
}

// One after the other along the axis, without it.
std::vector<ValueId> slices(Builder& builder, ValueId value, int64_t axis) {
  Shape shape = builder.shape(value);
  const int64_t count = shape[static_cast<size_t>(axis)];
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
  for (ValueId& value : values) {
    Shape shape = builder.shape(value);
    shape.insert(shape.begin() + axis, 1);
    value = builder.reshape(value, shape);
  }
  return values.size() == 1 ? values[0] : builder.emit("Concat", values, {{"axis", axis}});
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
  if (!node.domain.empty()) return nullptr;
  const auto found = kControls.find(node.op_type);
  return found == kControls.end() ? nullptr : &found->second;
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

// --- bodies ---------------------------------------------------------------------------------------------------------------------------

// The body's own tensors: read once, however often it is gone through.
Walk::Scope& Walk::enter(const onnx::GraphDef& body, const Uses& uses, Scope& outer) {
  const auto [place, added] = bodies_.try_emplace(&body);
  Scope& scope = place->second;
  scope.outer = &outer;
  if (!added) return scope;
  add_tensors(body, uses, scope);
  for (const onnx::NodeDef& node : body.nodes) {
    if (!node.domain.empty() || node.op_type != "Constant" || node.outputs.empty()) continue;
    if (const auto value = node.tensors.find("value"); value != node.tensors.end())
      scope.names.emplace(node.outputs[0], Meaning{.tensor = &value->second});
  }
  return scope;
}

// Goes through a body whose inputs mean `inputs`. False where it could not be imported: its outputs are unknown then.
bool Walk::go_through(Job& job, const onnx::GraphDef& body, const std::vector<Meaning>& inputs, std::vector<Meaning>& outputs) {
  auto uses = uses_.find(&body);
  if (uses == uses_.end()) uses = uses_.emplace(&body, find_uses(body.nodes, output_names(body), job.site.opsets)).first;
  Scope scope{.outer = &enter(body, uses->second, job.scope), .in_body = true};
  for (size_t i = 0; i < body.inputs.size(); ++i) scope.names.insert_or_assign(body.inputs[i].name, inputs.at(i));
  const size_t found_before = found.size();
  list(body.nodes, scope, {.opsets = job.site.opsets, .uses = uses->second, .caller = job.site.caller, .depth = job.site.depth});
  outputs.clear();
  for (const onnx::ValueDef& output : body.outputs) {
    Meaning* meaning = scope.find(output.name);
    if (!meaning)
      throw error(ErrorCode::unsupported, "[{} '{}'] nothing gives its body's output '{}'", job.node.op_type, job.name, output.name);
    if (!resolve(job, *meaning, output.name)) return false;
    outputs.push_back(*meaning);
  }
  return found.size() == found_before && std::none_of(outputs.begin(), outputs.end(), [](const Meaning& m) { return m.unknown(); });
}

// An If whose condition is known is its branch.
std::optional<Reason> Walk::branch(Job& job) {
  if (!job.has(0)) return kIncomplete;
  const Tensor* condition = known(job, 0);
  if (!condition) return unknown_because(graph_, "its condition", job.inputs[0].value);
  if (condition->dtype != DType::boolean || condition->size() != 1)
    return Reason{"its condition is not one boolean", "export the model again"};
  const auto body = job.node.graphs.find(condition->data<bool>()[0] ? "then_branch" : "else_branch");
  if (body == job.node.graphs.end() || body->second->outputs.size() < job.node.outputs.size() || !body->second->inputs.empty())
    return kIncomplete;
  std::vector<Meaning> outputs;
  go_through(job, *body->second, {}, outputs);
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
  const size_t rows = body.outputs.size() - 1 - carried;
  const bool counts = job.has(0), asks = job.has(1);
  if (!counts && !asks) return Reason{"repeats its body for ever", "export the model again"};
  int64_t times = kMaxUnrolled;
  if (counts) {
    if (auto reason = integer(job, 0, "how often it repeats its body", times)) return reason;
  }
  Builder b = builder(job);
  std::vector<Meaning> inputs(body.inputs.size()), outputs;
  std::copy(job.inputs.begin() + kFirst, job.inputs.end(), inputs.begin() + kFirst);
  inputs[1] = asks ? job.inputs[1] : Meaning{.value = b.constant(scalar_tensor(true))};
  std::vector<std::vector<ValueId>> stacks(rows);
  const auto body_nodes = static_cast<int64_t>(body.nodes.size());
  for (int64_t turn = 0; turn < times; ++turn) {
    if (asks) {
      const Tensor* const condition = graph_.constant(inputs[1].value);
      if (!condition) return unknown_because(graph_, fmt::format("whether it goes on after {} turns", turn), inputs[1].value);
      if (condition->dtype != DType::boolean || condition->size() != 1)
        return Reason{"its condition is not one boolean", "export the model again"};
      if (!condition->data<bool>()[0]) break;
    }
    if ((turn + 1) * body_nodes > kMaxUnrolled)
      return Reason{fmt::format("repeats a body of {} nodes {} times, which is too large a graph", body_nodes,
                                counts ? std::to_string(times) : "more than " + std::to_string(turn)),
                    "bind shorter lengths with `shapes`"};
    inputs[0] = {.value = b.constant(scalar_tensor(turn))};
    if (!go_through(job, body, inputs, outputs)) return leave_unknown(job), std::nullopt;
    std::copy_n(outputs.begin(), 1 + carried, inputs.begin() + 1);
    for (size_t row = 0; row < rows; ++row) {
      const Meaning& meaning = outputs[1 + carried + row];
      if (meaning.sequence) return Reason{"stacks sequences", "export the model with tensors"};
      stacks[row].push_back(meaning.value);
      job.tainted |= meaning.tainted;
    }
  }
  for (size_t i = 0; i < job.node.outputs.size(); ++i) {
    if (i < carried) {
      bind(job, i, inputs[kFirst + i]);
    } else if (!stacks[i - carried].empty()) {
      bind(job, i, {.value = stack(b, stacks[i - carried], 0), .tainted = job.tainted});
    } else if (job.site.uses.contains(job.node.outputs[i])) {
      return Reason{fmt::format("repeats its body no time, so its output '{}' is empty", job.node.outputs[i]),
                    "export the model without it"};
    }
  }
  return std::nullopt;
}

// Scan(states…, sequences…): the body maps (states…, elements…) to (states…, elements…), once for each position along the sequences. The
// form of opset 8 has a batch in front of everything, and lengths as its first input.
std::optional<Reason> Walk::scan(Job& job) {
  constexpr int kWithoutBatch = 9;
  const bool batched = job.opset < kWithoutBatch;
  const size_t first = batched ? 1 : 0;
  const auto found_body = job.node.graphs.find("body");
  if (found_body == job.node.graphs.end() || job.inputs.size() < first) return kIncomplete;
  const onnx::GraphDef& body = *found_body->second;
  const int64_t count = job.node.attributes.get("num_scan_inputs", int64_t{0});
  const size_t given = job.inputs.size() - first;
  if (count < 1 || given < static_cast<size_t>(count) || body.inputs.size() != given) return kIncomplete;
  const size_t sequences = static_cast<size_t>(count), states = given - sequences;
  if (body.outputs.size() < states || job.node.outputs.size() > body.outputs.size()) return kIncomplete;
  if (batched && job.has(0)) return Reason{"has lengths of its sequences", "export the model with opset 9 or newer"};
  for (size_t i = first; i < job.inputs.size(); ++i) {
    if (!job.has(i)) return kIncomplete;
  }
  const size_t rows = body.outputs.size() - states;
  Builder b = builder(job);

  std::vector<std::vector<ValueId>> elements(sequences);  // of each sequence, in the order of the turns
  const auto divide = [&](const std::vector<ValueId>& from) -> std::optional<Reason> {
    for (size_t i = 0; i < sequences; ++i) {
      const auto rank = static_cast<int64_t>(b.shape(from[i]).size());
      const int64_t axis = batched ? 0 : attribute_or(job.node, "scan_input_axes", i, 0);
      if (axis < -rank || axis >= rank)
        return Reason{fmt::format("scans along axis {} of {}", axis, to_string(b.value(from[i]).type())), "export the model again"};
      if (b.shape(from[i])[static_cast<size_t>(axis < 0 ? axis + rank : axis)] == 0)
        return Reason{"scans an empty sequence", "bind longer lengths with `shapes`"};
      elements[i] = slices(b, from[i], axis < 0 ? axis + rank : axis);
      if (attribute_or(job.node, batched ? "directions" : "scan_input_directions", i, 0) != 0)
        std::reverse(elements[i].begin(), elements[i].end());
      if (elements[i].size() != elements[0].size()) return Reason{"its sequences have different lengths", "export the model again"};
    }
    return std::nullopt;
  };
  const auto run = [&](std::vector<Meaning> inputs, std::vector<ValueId>& results) -> std::optional<Reason> {
    if (static_cast<int64_t>(elements[0].size() * body.nodes.size()) > kMaxUnrolled)
      return Reason{fmt::format("repeats a body of {} nodes {} times, which is too large a graph", body.nodes.size(), elements[0].size()),
                    "bind shorter lengths with `shapes`"};
    std::vector<Meaning> outputs;
    std::vector<std::vector<ValueId>> stacks(rows);
    results.clear();
    for (size_t turn = 0; turn < elements[0].size(); ++turn) {
      for (size_t i = 0; i < sequences; ++i) inputs[states + i] = {.value = elements[i][turn]};
      if (!go_through(job, body, inputs, outputs)) return std::nullopt;
      std::copy_n(outputs.begin(), states, inputs.begin());
      for (size_t row = 0; row < rows; ++row) stacks[row].push_back(outputs[states + row].value);
      for (const Meaning& output : outputs) job.tainted |= output.tainted;
    }
    for (size_t i = 0; i < states; ++i) results.push_back(inputs[i].value);
    for (size_t row = 0; row < rows; ++row) {
      const auto rank = static_cast<int64_t>(b.shape(stacks[row][0]).size()) + 1;
      const int64_t axis = batched ? 0 : attribute_or(job.node, "scan_output_axes", row, 0);
      if (axis < -rank || axis >= rank) return Reason{fmt::format("stacks along axis {} of {}", axis, rank), "export the model again"};
      if (!batched && attribute_or(job.node, "scan_output_directions", row, 0) != 0) std::reverse(stacks[row].begin(), stacks[row].end());
      results.push_back(stack(b, stacks[row], axis < 0 ? axis + rank : axis));
    }
    return std::nullopt;
  };

  std::vector<ValueId> results;
  if (!batched) {
    std::vector<ValueId> from;
    for (size_t i = 0; i < sequences; ++i) from.push_back(job.inputs[states + i].value);
    if (auto reason = divide(from)) return reason;
    if (auto reason = run(job.inputs, results)) return reason;
  } else {
    std::vector<std::vector<ValueId>> samples;  // of each input
    for (size_t i = first; i < job.inputs.size(); ++i) {
      const Shape& shape = b.shape(job.inputs[i].value);
      if (shape.empty() || shape[0] == 0 || shape[0] != b.shape(job.inputs[first].value)[0])
        return Reason{"its inputs have no batch in front", "export the model again"};
      samples.push_back(slices(b, job.inputs[i].value, 0));
    }
    std::vector<std::vector<ValueId>> of_samples(body.outputs.size());
    for (size_t sample = 0; sample < samples[0].size(); ++sample) {
      std::vector<Meaning> inputs;
      std::vector<ValueId> from;
      for (const std::vector<ValueId>& input : samples) inputs.push_back({.value = input[sample]});
      for (size_t i = 0; i < sequences; ++i) from.push_back(inputs[states + i].value);
      if (auto reason = divide(from)) return reason;
      if (auto reason = run(inputs, results)) return reason;
      if (results.empty()) break;
      for (size_t i = 0; i < results.size(); ++i) of_samples[i].push_back(results[i]);
    }
    if (!results.empty()) {
      for (size_t i = 0; i < results.size(); ++i) results[i] = stack(b, of_samples[i], 0);
    }
  }
  for (size_t i = 0; i < results.size() && i < job.node.outputs.size(); ++i) bind(job, i, {.value = results[i], .tainted = job.tainted});
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

// The position that an input gives, which may count from the end; `ends` positions there are.
std::optional<Reason> Walk::position(const Job& job, size_t input, size_t ends, int64_t& at) const {
  if (auto reason = integer(job, input, "the position in its sequence", at)) return reason;
  if (at < 0) at += static_cast<int64_t>(ends);
  if (at < 0 || at >= static_cast<int64_t>(ends))
    return Reason{fmt::format("asks for a position outside a sequence of {}", job.inputs[0].sequence->size()), "export the model again"};
  return std::nullopt;
}

std::optional<Reason> Walk::sequence_at(Job& job) {
  if (!job.inputs.at(0).sequence) return kNoSequence;
  int64_t at = 0;
  if (auto reason = position(job, 1, job.inputs[0].sequence->size(), at)) return reason;
  bind(job, 0, (*job.inputs[0].sequence)[static_cast<size_t>(at)]);
  return std::nullopt;
}

// SequenceInsert(sequence, tensor, position) and SequenceErase(sequence, position); by default at the end.
std::optional<Reason> Walk::change_sequence(Job& job) {
  if (!job.inputs.at(0).sequence) return kNoSequence;
  std::vector<Meaning> elements = *job.inputs[0].sequence;
  const bool inserts = job.node.op_type == "SequenceInsert";
  const size_t where = inserts ? 2 : 1;
  auto at = static_cast<int64_t>(elements.size()) - (inserts ? 0 : 1);
  if (!inserts && elements.empty()) return Reason{"takes an element from an empty sequence", "export the model again"};
  if (job.has(where)) {
    // Counted from the end, the place to insert is one before that element.
    if (auto reason = integer(job, where, "the position in its sequence", at)) return reason;
    const auto size = static_cast<int64_t>(elements.size());
    if (at < 0) at += size;
    if (at < 0 || at > size - (inserts ? 0 : 1))
      return Reason{fmt::format("asks for a position outside a sequence of {}", size), "export the model again"};
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
  const auto rank = static_cast<int64_t>(b.shape(from).size());
  int64_t axis = job.node.attributes.get("axis", int64_t{0});
  if (axis < -rank || axis >= rank)
    return Reason{fmt::format("splits along axis {} of {}", axis, to_string(b.value(from).type())), "export the model again"};
  if (axis < 0) axis += rank;
  const int64_t length = b.shape(from)[static_cast<size_t>(axis)];
  std::vector<ValueId> parts;
  if (!job.has(1) && length > 0 && job.node.attributes.get("keepdims", int64_t{1}) == 0) {
    parts = slices(b, from, axis);
  } else {
    std::vector<int64_t> sizes(static_cast<size_t>(length), 1);
    if (job.has(1)) {
      const Tensor* const tensor = known(job, 1);
      if (!tensor) return unknown_because(graph_, "how it is split", job.inputs[1].value);
      sizes = tensor->to_int64();
      if (tensor->shape.empty() && sizes[0] > 0) {
        const int64_t size = sizes[0];
        sizes.assign(static_cast<size_t>(length / size), size);
        if (length % size != 0) sizes.push_back(length % size);
      }
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
  std::vector<ValueId> values;
  for (const Meaning& element : *job.inputs[0].sequence) {
    if (element.value == kNone) return Reason{"joins what are no tensors", "export the model with tensors"};
    values.push_back(element.value);
    job.tainted |= element.tainted;
  }
  if (values.empty()) return Reason{"joins an empty sequence", "export the model without it"};
  Builder b = builder(job);
  const bool stacks = job.node.attributes.get("new_axis", int64_t{0}) != 0;
  const auto rank = static_cast<int64_t>(b.shape(values[0]).size()) + (stacks ? 1 : 0);
  int64_t axis = job.node.attributes.get("axis", int64_t{0});
  if (axis < -rank || axis >= rank) return Reason{fmt::format("joins along axis {} of {}", axis, rank), "export the model again"};
  if (axis < 0) axis += rank;
  const ValueId joined = stacks ? stack(b, values, axis) : values.size() == 1 ? values[0] : b.emit("Concat", values, {{"axis", axis}});
  bind(job, 0, {.value = joined, .tainted = job.tainted});
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

}  // namespace ort_train::importing
