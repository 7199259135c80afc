#include "frontend/job_model.h"

#include <fmt/format.h>

#include <set>

#include "exec/kernel.h"
#include "frontend/attach_model.h"
#include "frontend/export.h"
#include "frontend/parameter_groups.h"
#include "frontend/safetensors.h"
#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/op_def.h"
#include "passes/cost.h"

namespace ort_train {
namespace {

// All that stands in the way, at once.
void refuse_obstacles(const Imported& imported) {
  std::string list;
  int64_t count = 0;
  for (const Obstacle& obstacle : imported.obstacles) {
    if (!obstacle.blocks) continue;
    list += fmt::format("{}{}: {}{}", count++ ? "; " : "", obstacle.node, obstacle.reason,
                        obstacle.hint.empty() ? "" : " (" + obstacle.hint + ")");
  }
  if (count > 0)
    throw error(ErrorCode::unsupported, "{} {} in the way of training: {}", count, count == 1 ? "node stands" : "nodes stand", list);
}

// Checkpoints are safetensors files, with weights and the optimizer's state by the names of weights.
void refuse_state_names(const Graph& graph, const Optimizer& optimizer) {
  for (const ValueId id : graph.parameters()) {
    if (!is_tensor_name(graph.value(id).name))
      throw error(ErrorCode::unsupported,
                  "a checkpoint can't have a weight named '{}', which is not UTF-8 or is reserved by safetensors: rename it in the model",
                  onnx::printable(graph.value(id).name));
    if (!graph.value(id).trainable) continue;
    for (const StateDef& state : optimizer.states(graph.value(id))) {
      const std::string name = graph.value(id).name + std::string(state.suffix);
      if (graph.find_value(name) != kNone)
        throw error(ErrorCode::unsupported, "'{}' is a name in the model that the optimizer's state of '{}' has to have: rename it", name,
                    graph.value(id).name);
    }
  }
}

// An adapter's files have nothing but adapters.
void refuse_others(const Graph& graph, const std::vector<Adapter>& adapters) {
  std::set<std::string> own;
  for (const Adapter& adapter : adapters) own.merge(adapter.trained());
  for (const ValueId id : graph.parameters()) {
    if (graph.value(id).trainable && !own.contains(graph.value(id).name))
      throw error(ErrorCode::usage, "`adapter_only` writes adapters alone, and '{}' is trained, too: leave it out, to get the whole model",
                  graph.value(id).name);
  }
  if (!live_layers(graph).empty())
    throw error(ErrorCode::usage,
                "`adapter_only` writes adapters alone, and live BatchNormalization changes its statistics, too: leave it out, or let "
                "`batch_norm` be frozen");
}

}  // namespace

JobModel::JobModel(const ModelContext& context) : context_(context), options_(context.options), note_(context.note) {
  passes_ = {.skip = options_.skip_passes,
             .part_bytes = context.part_bytes,
             .optimizer = context.optimizer,
             .refuses_idle_rules = false,
             .base = base_type(options_),
             .kernels = context.kernels,
             .folder = make_folder(context.workers)};
  if (options_.detect_anomaly) passes_.skip.emplace_back("fuse_elementwise");  // each op is looked at by itself
}

void JobModel::read() { main_forward_graph(); }

PassOptions JobModel::first_passes() {
  PassOptions passes = passes_;
  passes.refuses_idle_rules = true;  // a remainder's graph may lack what they fit
  passes.dump_after = options_.dump_after;
  passes.on_pass = [this](const std::string& pass, double, bool) { passes_run_.push_back(pass); };
  return passes;
}

// --- forward graphs ---------------------------------------------------------------------------------------------------------------------

const Graph& JobModel::forward_graph(int64_t batch, int64_t length) {
  auto found = forwards_.find({batch, length});
  if (found == forwards_.end()) found = forwards_.emplace(std::pair(batch, length), make_forward_graph(batch, length)).first;
  return found->second;
}

const Graph& JobModel::main_forward_graph() { return forward_graph(context_.data.binding.batch, context_.data.longest()); }

Graph JobModel::make_forward_graph(int64_t batch, int64_t length) {
  const bool is_first = !is_read_;
  const AdapterSettings& adapting = context_.adapting;
  const Binding& binding = context_.data.binding;
  const BatchShape shape{.binding = binding, .samples = batch, .length = length > 0 ? length : binding.sequence};
  const ImportOptions import = binding.import_options(batch, shape.length, options_);
  Imported imported = import_for(import, length);
  passes_.read = outputs_read_of(imported.graph, import.outputs);
  if (is_first) settle_types(imported);
  if (passes_.base) choose_base(imported, options_, passes_);
  if (adapting.is_on()) adapters = adapt(imported, adapting, is_first ? first_passes() : passes_);
  for (const Weight& weight : imported.weights) {
    if (!weight.is_constant) passes_.own.insert(weight.parameter);
    if (!weight.fresh && is_half(weight.places.at(0).dtype)) passes_.in_file[weight.parameter] = weight.places[0].dtype;
  }
  groups = assign_groups(imported, options_);
  output_count = imported.graph.outputs.size();
  for (const Attachment& other : context_.data.attached)
    attach_model(imported, other, shape, import, *context_.data.sets.train, context_.workers);
  if (is_first) adopt(imported);
  optimize_forward(imported.graph, is_first ? first_passes() : passes_);
  if (is_first) {
    product_type = half_products_of(imported.graph);
    note_where_gradients_stop(imported.graph);
  }
  for (Weight& weight : weights) {
    if (const ValueId id = imported.graph.find_value(weight.parameter); id != kNone) weight.dtype = imported.graph.value(id).dtype;
  }
  return std::move(imported.graph);
}

Imported JobModel::import_for(const ImportOptions& import, int64_t length) const try {
  Imported imported = import_model(options_.model, import, context_.workers);
  refuse_obstacles(imported);
  return imported;
} catch (const Error& problem) {
  if (length == 0 || length == context_.data.binding.sequence) throw;
  throw error(problem.code(),
              "`length_buckets` {}: the model can't be cut to samples of that length, which its exporter may have fixed: {}", length,
              problem.what());
}

// --- what the first import settles for all ----------------------------------------------------------------------------------------------

void JobModel::settle_types(const Imported& imported) {
  types = number_types(options_, imported.info.low);
  scaling = LossScaling(options_, types.low == DType::float16);
  passes_.precision = types.low;
  passes_.low_weights = types.low_weights;
  passes_.autocast = types.autocast;
}

// Takes over the weights, and what the file says of itself.
void JobModel::adopt(Imported& imported) {
  check_and_report(imported);
  weights = std::move(imported.weights);
  info = std::move(imported.info);
  remember_contents(info);
  is_read_ = true;
}

void JobModel::check_and_report(const Imported& imported) {
  refuse_state_names(imported.graph, context_.optimizer);
  group_reports = describe_groups(imported.graph, groups, context_.schedule.learning_rate, options_.weight_decay);
  for (const std::string& text : imported.info.notes) note_(text);
  if (context_.adapting.is_on()) note_(adapters_note(imported, adapters, context_.adapting));
  if (options_.adapter_only) refuse_others(imported.graph, adapters);
  if (options_.gradient_accumulation_steps > 1 && !live_layers(imported.graph).empty())
    note_("with gradient accumulation live BatchNormalization sees each micro-batch by itself: a step is not that of one large batch");
}

// Tells which weights have no influence on the loss, and which nodes let no gradient through.
void JobModel::note_where_gradients_stop(const Graph& graph) const {
  std::vector<ValueId> read;  // by losses
  for (const size_t place : passes_.read) read.push_back(graph.outputs.at(place));
  if (const std::string unreached = unreached_in_words(graph, find_unreached(graph, read), "the loss"); !unreached.empty())
    note_(unreached);
  const std::vector<NodeId> steps = find_steps(graph, read);
  if (steps.empty()) return;
  note_(fmt::format("{} ({}{}) {}, whose derivative is zero: gradients go around {}",
                    steps.size() == 1 ? "a node" : fmt::format("{} nodes", steps.size()), describe(graph, steps[0]),
                    steps.size() == 1 ? "" : ", …", steps.size() == 1 ? "is a step function" : "are step functions",
                    steps.size() == 1 ? "it" : "them"));
}

}  // namespace ort_train
