#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/importer.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "graph/names.h"
#include "graph/onnx/schema.h"
#include "graph/op_def.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kMaxNodes = 1'000'000;              // visited, bodies of functions and branches included
constexpr int kMaxDepth = 32;                         // of functions in functions
constexpr int64_t kMaxGivenBytes = 1 << 16;           // constants that the standard's shape rules may look at
constexpr uint32_t kBehindDraws = uint32_t{1} << 29;  // in the ordinal of a Dropout behind a node that draws under its own

// "[Resize 'up'] mode=cubic has no kernel" -> "mode=cubic has no kernel": the node is named beside it. Never empty.
std::string without_prefix(const std::string& message) {
  const size_t end = message.find("] ");
  const std::string rest = message.starts_with('[') && end != std::string::npos ? message.substr(end + 2) : message;
  return rest.empty() ? "is not supported" : rest;
}

Reason why_not(const onnx::NodeDef& node, int opset, const FoundForm& form) {
  const std::string& op = node.op_type;
  if (opset == 0) {
    return {fmt::format("comes from the operator set '{}', which the model does not import", node.domain), "export the model again"};
  }
  if (op.find("QuantizeLinear") != std::string::npos || op.find("Integer") != std::string::npos || op.find("NBits") != std::string::npos ||
      op.starts_with("QLinear")) {
    return {"is quantized; integers can't be trained", "take the model from before quantization"};
  }
  if (form.oldest > opset) {
    return {fmt::format("is of opset {}; it is supported from opset {}", opset, form.oldest),
            fmt::format("export again with opset_version={} or newer, or convert with onnx.version_converter", form.oldest)};
  }
  if (node.domain == "com.microsoft")
    return {"is an operator of ONNX Runtime's graph optimizer that is not supported", "export without ONNX Runtime's graph optimization"};
  if (!node.domain.empty()) {
    return {fmt::format("is an operator of '{}', and the model has no function for it", node.domain),
            "export it as a function of standard operators"};
  }
  if (onnx::since_version(node.domain, op, opset) == 0) {
    const int since = onnx::since_version(node.domain, op, onnx::newest_opset());
    return {fmt::format("is no operator of opset {}", opset),
            since > opset ? fmt::format("export again with opset_version={} or newer", since) : "export the model again"};
  }
  return {"is not supported", "replace it by other operators before exporting, or cut the model before it"};
}

// As the user knows it: a node without a name by its first output that has one.
std::string name_of(const onnx::NodeDef& node) {
  if (!node.name.empty()) return node.name;
  const auto named = std::find_if(node.outputs.begin(), node.outputs.end(), [](const std::string& output) { return !output.empty(); });
  return named == node.outputs.end() ? std::string() : *named;
}

}  // namespace

FoundForm find_form(const std::string& domain, const std::string& op_type, int opset) {
  static const auto& table = *new std::unordered_map<std::string, std::vector<FoundForm>>([] {
    std::unordered_map<std::string, std::vector<FoundForm>> forms;
    for (const OpDef* op : all_ops()) {
      for (const OnnxForm& form : op->onnx) forms[fmt::format("{}::{}", form.domain, form.name)].push_back({op, &form, form.since});
    }
    return forms;
  }());
  FoundForm found;
  const auto forms = table.find(domain + "::" + op_type);
  if (forms == table.end()) return found;
  for (const FoundForm& form : forms->second) {
    if (form.form->since <= opset && (!found.form || form.form->since > found.form->since)) found.op = form.op, found.form = form.form;
    found.oldest = found.oldest == 0 ? form.oldest : std::min(found.oldest, form.oldest);
  }
  return found;
}

Walk::Walk(const onnx::ModelDef& model, Graph& graph, TensorFiles& files, WeightTable& weights, const BoundInputs& inputs, Folder folder)
    : model_(model),
      graph_(graph),
      files_(files),
      weights_(weights),
      inputs_(inputs),
      folder_(std::move(folder)),
      selections_(graph, placeholders) {}

Meaning* Walk::Scope::find(const std::string& name) {
  for (Scope* scope = this; scope; scope = scope->outer) {
    if (const auto found = scope->names.find(name); found != scope->names.end()) return &found->second;
  }
  return nullptr;
}

const Meaning& Walk::output(const std::string& name) const {
  const auto found = main_.names.find(name);
  if (found == main_.names.end()) throw error(ErrorCode::unsupported, "nothing gives the model's output '{}'", name);
  return found->second;
}

const Meaning* Walk::find(const std::string& name) const {
  const auto found = main_.names.find(name);
  return found == main_.names.end() ? nullptr : &found->second;
}

void Walk::run(const ImportOptions& options) {
  const Uses uses = find_uses(model_.graph.nodes, output_names(model_.graph), model_.opsets);
  options_ = &options;
  selections_.limit(options.selects);
  const auto check_mode = [](const std::string& mode) {
    if (mode != "model" && mode != "live" && mode != "frozen")
      throw error(ErrorCode::usage, "`batch_norm` {}: is not known: model, live or frozen, or NODE=live for some nodes", mode);
  };
  check_mode(options.batch_norm);
  for (const auto& [pattern, mode] : options.batch_norm_nodes) check_mode(mode);
  top_ = model_.graph.nodes.size();
  weights_.check_overlaps(model_);
  add_inputs(options);
  add_tensors(model_.graph, uses, main_);
  list(model_.graph.nodes, main_, {.opsets = model_.opsets, .uses = uses});
  check_modes();
  finish_dropout();
  selections_.finish();
  for (const std::string& note : selections_.notes()) weights_.note(note);
  leave_untaken();
  weights_.finish(model_);
  // An output may be an initializer that no node reads.
  for (const onnx::ValueDef& value : model_.graph.outputs) {
    const auto found = main_.names.find(value.name);
    if (found == main_.names.end() || found->second.value != kNone || !found->second.tensor) continue;
    found->second.value = graph_.add_constant(files_.read(*found->second.tensor), value.name);
  }
  for (const onnx::ValueDef& value : model_.graph.outputs) {
    const auto meaning = main_.names.find(value.name);
    if (meaning == main_.names.end() || meaning->second.value == kNone) continue;
    if (const auto [node, reason] = selections_.of_output(meaning->second.value); node != nullptr) {
      found.push_back({{.node = fmt::format("output '{}'", value.name),
                        .reason = reason,
                        .hint = fmt::format("take the loss in the model, before exporting it; where the number is always the same, say so "
                                            "(`selects` {}=COUNT)",
                                            *node)},
                       top_,
                       value.name});
    }
  }
}

void Walk::add_inputs(const ImportOptions& options) {
  const std::set<std::string> initializers = initializer_names(model_.graph);
  for (size_t i = 0; i < model_.graph.inputs.size(); ++i) {
    const onnx::ValueDef& input = model_.graph.inputs[i];
    if (initializers.contains(input.name)) continue;
    Meaning meaning;
    if (const auto bound = options.bound_inputs.find(input.name); bound != options.bound_inputs.end()) {
      meaning.value = graph_.add_constant(files_.widened(bound->second), input.name);
    } else if (inputs_.types[i]) {
      const DType dtype = inputs_.types[i]->dtype;
      meaning.value = graph_.add_value({.name = input.name,
                                        .dtype = files_.widens() ? compute_type(dtype) : dtype,
                                        .shape = inputs_.types[i]->shape,
                                        .kind = ValueKind::input});
      graph_.inputs.push_back(meaning.value);
    } else {
      found.push_back({{.node = fmt::format("input '{}'", input.name),
                        .reason = fmt::format("is {}, which is not supported", input.type),
                        .hint = "cut the model behind it"},
                       top_,
                       input.name});
    }
    if (!main_.names.emplace(input.name, meaning).second) throw error(ErrorCode::unsupported, "the model has two inputs '{}'", input.name);
  }
}

// A graph's weights and its other initializers, which are read when a node asks for them.
void Walk::add_tensors(const onnx::GraphDef& graph, const Uses& uses, Scope& scope) {
  for (auto& [name, meaning] : weights_.add(graph, uses, &scope == &main_)) scope.names.insert_or_assign(name, std::move(meaning));
  for (const onnx::TensorDef& tensor : graph.initializers) scope.names.emplace(tensor.name, Meaning{.tensor = &tensor});
  for (const std::string& name : graph.sparse_initializers) {
    scope.names.insert_or_assign(name, Meaning{});
    found.push_back({{.node = fmt::format("initializer '{}'", name),
                      .reason = "is sparse, which is not supported",
                      .hint = "store it as a dense tensor"},
                     top_,
                     name});
  }
}

void Walk::list(const std::vector<onnx::NodeDef>& nodes, Scope& scope, const Site& site) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (&scope == &main_) top_ = i;
    const auto ordinal = static_cast<uint32_t>(visited_ + 1);
    const auto first = static_cast<NodeId>(graph_.node_count());
    node(nodes[i], scope, site);
    if (!site.caller && !options_->dropout.empty()) drop(nodes[i], ordinal, first, scope);
  }
}

// Puts the Dropout that the options want behind a node of the file, in place of one that is there. `first`: of the graph's nodes that this
// one has become.
void Walk::drop(const onnx::NodeDef& node, uint32_t ordinal, NodeId first, Scope& scope) {
  const std::string name = name_of(node);
  std::vector<size_t> fitting;  // patterns, of which the last counts
  for (size_t i = 0; i < options_->dropout.size(); ++i) {
    if (const std::string& pattern = options_->dropout[i].first; fits(pattern, name) || pattern == node.op_type) fitting.push_back(i);
  }
  if (fitting.empty() || node.outputs.empty()) return;
  Meaning* const meaning = scope.find(node.outputs[0]);
  if (meaning == nullptr || meaning->value == kNone || meaning->tainted || graph_.constant(meaning->value) != nullptr ||
      !is_floating(graph_.value(meaning->value).dtype))
    return;  // nothing to drop of
  for (const size_t i : fitting) dropped_[i];
  dropped_[fitting.back()].push_back(name);
  const NodeId producer = graph_.value(meaning->value).producer;
  if (producer != kNone && graph_.node(producer).op->name == "Dropout") {
    meaning->value = graph_.node(producer).inputs[0];
  } else {
    for (NodeId id = first; id < graph_.node_count(); ++id) {
      const Node& made = graph_.node(id);
      if (made.op != nullptr && made.op->random && made.ordinal == ordinal) ordinal |= kBehindDraws;
    }
  }
  constexpr int kOpset = 13;
  const FoundForm form = find_form("", "Dropout", kOpset);
  const auto ratio = static_cast<float>(options_->dropout[fitting.back()].second);
  const OnnxNode dropout{.op_type = "Dropout",
                         .name = name,
                         .opset = kOpset,
                         .attributes = {},
                         .inputs = {meaning->value, graph_.add_constant(scalar_tensor(ratio), "ratio"),
                                    graph_.add_constant(scalar_tensor(true), "training_mode")},
                         .outputs = 1};
  Lowering lowering(graph_, dropout);
  lowering.named(name, ordinal).folding(folder_);
  form.form->lower(lowering);
  selections_.follow();
  meaning->value = lowering.results()[0];
}

void Walk::finish_dropout() {
  for (size_t i = 0; i < options_->dropout.size(); ++i) {
    const auto& [pattern, ratio] = options_->dropout[i];
    const auto found = dropped_.find(i);
    if (found == dropped_.end()) {
      std::vector<std::string> names;
      for (const onnx::NodeDef& node : model_.graph.nodes) names.push_back(name_of(node));
      const std::vector<std::string> near = nearest_names(pattern, names, 3);
      throw error(ErrorCode::usage,
                  "`dropout` {}={}: fits no node that gives floating-point numbers; {} (the name of a node, a pattern with *, or an op)",
                  pattern, ratio, near.empty() ? "the model has none" : fmt::format("there are '{}'", fmt::join(near, "', '")));
    }
    if (found->second.empty()) continue;  // later patterns fit all of its nodes, too
    weights_.note(fmt::format("Dropout of {} behind {} node{} ('{}'{})", ratio, found->second.size(), found->second.size() == 1 ? "" : "s",
                              found->second[0], found->second.size() == 1 ? "" : ", …"));
  }
}

size_t Walk::wanted_outputs(const onnx::NodeDef& node, int opset, const Uses& uses) const {
  size_t wanted = node.outputs.size();
  const auto is_read = [&](const std::string& name) { return !name.empty() && uses.contains(name); };
  if (std::none_of(node.outputs.begin(), node.outputs.end(), is_read)) return 0;
  while (wanted > 1 && !is_read(node.outputs[wanted - 1]) && onnx::is_optional_output(node.domain, node.op_type, opset, wanted - 1))
    --wanted;
  return wanted;
}

void Walk::node(const onnx::NodeDef& node, Scope& scope, const Site& site) {
  if (++visited_ > kMaxNodes)
    throw error(ErrorCode::unsupported, "with the bodies of its functions the model has more than {} nodes", kMaxNodes);
  const auto opset = site.opsets.find(node.domain);
  Job job{.node = node,
          .scope = scope,
          .site = site,
          .name = name_of(node),
          .opset = opset == site.opsets.end() ? 0 : opset->second,
          .ordinal = static_cast<uint32_t>(visited_)};
  if (site.caller) job.name = *site.caller;
  if (node.domain.empty() && node.op_type == "BatchNormalization") note_layer(job.name);
  job.outputs = wanted_outputs(node, job.opset, site.uses);
  if (job.outputs == 0) return leave_unknown(job);  // nobody wants to know
  if (node.domain.empty() && node.op_type == "Constant") return constant(job);

  // Every node that can't be imported is found, also behind others that can't.
  const FoundForm form = find_form(node.domain, node.op_type, job.opset);
  const bool has_body = onnx::has_function_body(model_, node, site.opsets);
  const Control* const control = find_control(node);
  if (!form.form && !has_body && !control) {
    resolve_inputs(job);
    const auto [reason, hint] = why_not(node, job.opset, form);
    return fail(job, reason, hint);
  }
  if (const std::string wrong = onnx::violation(node, job.opset); !wrong.empty()) {
    resolve_inputs(job);
    return fail(job, fmt::format("is not a valid node: {}", wrong), "check the model with onnx.checker, and export it again");
  }
  // The forms were written for opset 28: what a newer one has added must not be overlooked.
  constexpr int kNewestForms = 28;
  if (form.form && node.domain.empty() && job.opset > kNewestForms) {
    if (const std::string newer = onnx::violation(node, kNewestForms); !newer.empty()) {
      resolve_inputs(job);
      return fail(job, fmt::format("uses what came after opset {}: {}", kNewestForms, newer),
                  fmt::format("export the model with opset {}", kNewestForms));
    }
  }
  if (!resolve_inputs(job)) return;
  if (job.unknown) {
    ++skipped;
    return leave_unknown(job);
  }
  if (control) {
    std::optional<Reason> why;
    try {
      why = run_control(job, *control);
      selections_.follow();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported || visited_ > kMaxNodes) throw;
      why = Reason{without_prefix(e.what()), "check the model with onnx.checker, or export it in another way"};
    }
    if (!why) return;
    return job.tainted ? leave_unknown(job) : fail(job, why->reason, why->hint);
  }
  if (!form.form) return expand(job);
  if (std::any_of(job.inputs.begin(), job.inputs.end(), [](const Meaning& input) { return input.sequence != nullptr; })) {
    if (node.op_type == "Identity") return bind(job, 0, job.inputs[0]);
    return fail(job, "reads a sequence of tensors where the standard has a tensor", "check the model with onnx.checker");
  }
  const std::string why = lower(job, *form.op, *form.form);
  if (why.empty()) return;
  if (job.tainted) {
    ++skipped;
    return leave_unknown(job);
  }
  if (!has_body || !expand_instead(job)) fail(job, why, std::string(form.op->hint));
}

// Where our own form of an op lacks something, its body may still do; if not, it is the form's complaint that is told.
bool Walk::expand_instead(Job& job) {
  const size_t found_before = found.size();
  expand(job);
  if (found.size() == found_before) return true;
  found.erase(found.begin() + static_cast<ptrdiff_t>(found_before), found.end());
  for (const std::string& name : job.node.outputs) job.scope.names.erase(name);
  return false;
}

// The inputs' values; constants are read now. False where that failed (and the node with it).
bool Walk::resolve_inputs(Job& job) {
  for (const std::string& name : job.node.inputs) {
    if (name.empty()) {
      job.inputs.push_back({.absent = true});
      continue;
    }
    Meaning* meaning = job.scope.find(name);
    if (!meaning) {
      throw error(ErrorCode::unsupported,
                  "[{} '{}'] reads '{}', which nothing before it gives: the model's nodes are not in order, or one is missing",
                  job.node.op_type, job.name, name);
    }
    if (!resolve(job, *meaning, name)) return false;
    job.inputs.push_back(*meaning);
    job.inputs.back().copies.clear();
    if (const auto copy = meaning->copies.find({top_, job.inputs.size() - 1}); &job.scope == &main_ && copy != meaning->copies.end()) {
      job.inputs.back().value = copy->second;
    }
    job.unknown |= meaning->unknown();
    job.tainted |= meaning->tainted;
  }
  return true;
}

bool Walk::resolve(Job& job, Meaning& meaning, const std::string& name) {
  if (meaning.value != kNone || !meaning.tensor) return true;
  try {
    meaning.value = graph_.add_constant(files_.read(*meaning.tensor), name);
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    job.unknown = true;
    fail(job, fmt::format("can't be read: {}", e.what()), "store its input as another type");
    return false;
  }
}

void Walk::constant(Job& job) {
  const onnx::NodeDef& node = job.node;
  const std::string& name = node.outputs[0];
  const bool known = job.scope.names.contains(name) || (job.scope.in_body && job.scope.outer->names.contains(name));
  if (known) return;  // a weight, or a body's, which was read before
  const auto make = [&](Tensor tensor) { bind(job, 0, {.value = graph_.add_constant(std::move(tensor), name)}); };
  try {
    if (const auto value = node.tensors.find("value"); value != node.tensors.end()) {
      // The tensors of a function's body go with it; the model's own stay.
      if (job.site.caller) return make(files_.read(value->second));
      return bind(job, 0, {.tensor = &value->second});
    }
    if (node.attributes.has("value_float")) return make(scalar_tensor(node.attributes.get("value_float", 0.0f)));
    if (node.attributes.has("value_int")) return make(scalar_tensor(node.attributes.get("value_int", int64_t{0})));
    if (const Attribute* list = node.attributes.find("value_floats")) {
      const auto& values = std::get<std::vector<float>>(*list);
      return make(make_tensor({static_cast<int64_t>(values.size())}, values));
    }
    if (node.attributes.has("value_ints")) {
      const std::vector<int64_t> values = node.attributes.get("value_ints", std::vector<int64_t>{});
      return make(make_tensor({static_cast<int64_t>(values.size())}, values));
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    if (const auto* known = dynamic_cast<const Error*>(&e); known && known->code() == ErrorCode::io) throw;
    return fail(job, e.what(), "export the model again");
  }
  fail(job, "is text or a sparse tensor, which is not supported", "replace it before exporting");
}

// A node that stands for a function is its body, read at the body's own opsets.
void Walk::expand(Job& job) {
  if (job.site.depth >= kMaxDepth) return fail(job, "is a function that calls itself, or is nested too deep", "export the model again");
  std::vector<std::optional<TensorType>> types;
  for (const Meaning& input : job.inputs)
    types.push_back(input.value == kNone ? std::nullopt : std::optional(graph_.value(input.value).type()));
  std::optional<onnx::FunctionDef> body;
  try {
    body = onnx::function_body(model_, job.node, job.site.opsets, types);
  } catch (const Error& e) {
    return fail(job, e.what(), "export the model again");
  }
  if (!body) {
    const auto [reason, hint] = why_not(job.node, job.opset, {});
    return fail(job, reason, hint);
  }
  body->opsets.insert(job.site.opsets.begin(), job.site.opsets.end());  // for domains that the body does not mention
  const Uses uses = find_uses(body->nodes, body->outputs, body->opsets);
  Scope scope;
  for (size_t i = 0; i < body->inputs.size(); ++i) {
    scope.names.insert_or_assign(body->inputs[i], i < job.inputs.size() ? job.inputs[i] : Meaning{.absent = true});
  }
  list(body->nodes, scope, {.opsets = body->opsets, .uses = uses, .caller = &job.name, .depth = job.site.depth + 1});
  // The standard's own bodies have no tensors of the file, and those of a function are the same in each call.
  if (!job.node.domain.empty() && searched_functions_.insert({job.node.domain, job.node.op_type, job.node.overload}).second)
    collect_untaken(body->nodes);
  for (size_t i = 0; i < job.outputs; ++i) {
    if (job.node.outputs[i].empty()) continue;
    Meaning* meaning = i < body->outputs.size() ? scope.find(body->outputs[i]) : nullptr;
    if (!meaning) return fail(job, fmt::format("its body gives no output {}", i), "export the model again");
    bind(job, i, *meaning);
  }
}

// Whether a BatchNormalization node is live: as the file says (before opset 14 by its number of outputs), or the options.
bool Walk::is_live(const Job& job) {
  std::string mode = options_->batch_norm;
  for (size_t i = 0; i < options_->batch_norm_nodes.size(); ++i) {
    const auto& [pattern, wanted] = options_->batch_norm_nodes[i];
    if (fits(pattern, job.name)) mode = wanted;
  }
  if (mode != "model") return mode == "live";
  constexpr int kAttribute = 14;  // the opset from which on there is one
  const auto gives = [&](const std::string& name) { return &name != &job.node.outputs[0] && !name.empty(); };
  return job.opset < kAttribute ? std::any_of(job.node.outputs.begin(), job.node.outputs.end(), gives)
                                : job.node.attributes.get("training_mode", 0) != 0;
}

// Also of nodes that can't be imported, or that nobody reads.
void Walk::note_layer(const std::string& name) {
  layers_.push_back(name);
  for (size_t i = 0; i < options_->batch_norm_nodes.size(); ++i) {
    if (fits(options_->batch_norm_nodes[i].first, name)) fitting_.insert(i);
  }
}

// Throws where options name a layer that isn't there.
void Walk::check_modes() const {
  for (size_t i = 0; i < options_->batch_norm_nodes.size(); ++i) {
    if (fitting_.contains(i)) continue;
    constexpr size_t kShown = 4;
    throw error(ErrorCode::usage, "`batch_norm` {}={}: the model has no BatchNormalization node of that name; it has {}",
                options_->batch_norm_nodes[i].first, options_->batch_norm_nodes[i].second,
                layers_.empty() ? "none" : first_of(layers_, kShown));
  }
}

// Emits what a form makes of a node; returns why not where it can't.
std::string Walk::lower(Job& job, const OpDef& op, const OnnxForm& form) {
  OnnxNode node{.domain = job.node.domain,
                .op_type = job.node.op_type,
                .name = job.name,
                .opset = job.opset,
                .attributes = job.node.attributes,
                .inputs = {},
                .outputs = job.outputs};
  for (const Meaning& input : job.inputs) node.inputs.push_back(input.value);
  const size_t first_new = graph_.value_count();
  std::vector<ValueId> results;
  try {
    if (node.inputs.size() > form.inputs || node.outputs > form.outputs)
      throw error(ErrorCode::unsupported, "has {} inputs and {} outputs; {} and {} at most are known", node.inputs.size(), node.outputs,
                  form.inputs, form.outputs);
    if (!job.node.others.empty()) throw error(ErrorCode::unsupported, "its attribute '{}' is not supported", job.node.others[0]);
    for (const auto& [name, tensor] : job.node.tensors) node.attributes.set(name, files_.read(tensor));
    if (node.domain.empty() && node.op_type == "BatchNormalization") node.attributes.set("training_mode", int64_t{is_live(job)});
    const auto lower_form = [&](Lowering& lowering) {
      if (form.lower)
        form.lower(lowering);
      else
        lowering.pass_on(op.name, lowering.node.attributes);
    };
    Lowering lowering(graph_, node, files_.widens());
    lowering.named(job.name, job.ordinal).folding(folder_);
    if (!selections_.lower(node, lowering)) lower_form(lowering);
    results = lowering.results();
    selections_.follow(node, results, [&](const std::vector<ValueId>& inputs) {
      OnnxNode other = node;
      other.inputs = inputs;
      Lowering again(graph_, other, files_.widens());
      again.named(job.name, job.ordinal).folding(folder_);
      lower_form(again);
      return again.results();
    });
    for (ValueId result : results) {
      if (result != kNone) element_count(graph_.value(result).shape);
    }
  } catch (const std::exception& e) {
    if (const auto* known = dynamic_cast<const Error*>(&e); known && known->code() == ErrorCode::io) throw;
    if (dynamic_cast<const std::bad_alloc*>(&e)) return "needs more memory than there is";
    std::string why = without_prefix(e.what());
    for (const ValueId input : node.inputs) {
      const std::string* const selecting = input == kNone ? nullptr : selections_.selecting(input);
      if (selecting == nullptr || why.find("`selects`") != std::string::npos) continue;
      why += fmt::format(
          " ('{}' has as many elements as '{}' selects of a batch; where the number is always the same, `selects` {}=COUNT says so)",
          graph_.value(input).name, *selecting, *selecting);
    }
    return why;
  }
  for (size_t i = 0; i < job.outputs; ++i) {
    const std::string& name = job.node.outputs[i];
    const bool missing = i >= results.size() || results[i] == kNone;
    if (!name.empty() && missing && job.site.uses.contains(name)) return fmt::format("its output '{}' is not supported", name);
  }
  for (size_t i = 0; i < job.outputs; ++i) {
    const std::string& name = job.node.outputs[i];
    if (name.empty()) continue;
    if (i >= results.size() || results[i] == kNone) continue;
    if (!job.site.caller && results[i] >= first_new) graph_.rename(results[i], name);
    bind(job, i, {.value = results[i], .tainted = job.tainted});
  }
  return "";
}

void Walk::bind(Job& job, size_t output, Meaning meaning) {
  const std::string& name = job.node.outputs[output];
  if (name.empty()) return;
  if (!job.scope.names.emplace(name, std::move(meaning)).second) {
    throw error(ErrorCode::unsupported, "[{} '{}'] gives '{}', which something before it gives already", job.node.op_type, job.name, name);
  }
}

void Walk::leave_unknown(Job& job) {
  for (const std::string& name : job.node.outputs) {
    if (!name.empty()) job.scope.names.emplace(name, Meaning{});
  }
}

// Notes the obstacle. Where the outputs' types are known all the same, the walk goes on with placeholders.
void Walk::fail(Job& job, std::string reason, std::string hint) {
  if (job.site.caller) reason = fmt::format("{} in its body {}", job.node.op_type, reason);
  const std::string& op_type = job.site.caller ? model_.graph.nodes[top_].op_type : job.node.op_type;
  found.push_back({{.node = fmt::format("{} '{}'", op_type, job.name), .reason = std::move(reason), .hint = std::move(hint)}, top_, ""});
  std::vector<std::optional<TensorType>> types(job.node.outputs.size());
  if (!job.unknown && job.opset != 0 && job.inputs.size() == job.node.inputs.size()) {
    std::vector<std::optional<TensorType>> inputs;
    std::vector<const Tensor*> constants;
    for (const Meaning& input : job.inputs) {
      inputs.push_back(input.value == kNone ? std::nullopt : std::optional(graph_.value(input.value).type()));
      const Tensor* constant = graph_.constant(input.value);
      constants.push_back(constant && static_cast<int64_t>(constant->bytes.size()) <= kMaxGivenBytes ? constant : nullptr);
    }
    types = onnx::infer_outputs(job.node, job.opset, inputs, constants);
  }
  for (size_t i = 0; i < job.node.outputs.size(); ++i) {
    const std::string& name = job.node.outputs[i];
    if (name.empty()) continue;
    const auto declared = model_.graph.declared.find(name);
    if (!types[i] && !job.site.caller && declared != model_.graph.declared.end()) types[i] = bound_type(declared->second, inputs_.sizes);
    Meaning meaning;
    if (types[i]) {
      meaning = {.value = graph_.add_value({.name = name, .dtype = types[i]->dtype, .shape = types[i]->shape}), .tainted = true};
      placeholders.push_back(meaning.value);
    }
    job.scope.names.emplace(name, meaning);
  }
}

}  // namespace ort_train::importing
