#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "graph/autodiff.h"
#include "graph/onnx/writer.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/cost.h"
#include "passes/pack_weights.h"
#include "passes/split_logits.h"
#include "passes/split_weights.h"

namespace ort_train {

bool run_pass(const char* name, Graph& graph, const PassOptions& options, const std::function<bool()>& pass) {
  if (std::find(options.skip.begin(), options.skip.end(), name) != options.skip.end()) return false;
  const auto start = std::chrono::steady_clock::now();
  const bool changed = pass();
  graph.verify(name);
  if (options.on_pass) options.on_pass(name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), changed);
  if (const auto dump = options.dump_after.find(name); dump != options.dump_after.end()) write_graph(graph, dump->second);
  return changed;
}

std::vector<std::string> names_of_outputs(const Graph& graph) {
  std::vector<std::string> names;
  for (const ValueId output : graph.outputs) names.push_back(graph.output_name(output));
  return names;
}

void rename_outputs(Graph& graph, const std::vector<std::string>& names) {
  std::set<ValueId> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    ValueId& output = graph.outputs[i];
    if (graph.value(output).producer == kNone || !taken.insert(output).second) {
      output = Builder(graph).named(names[i]).emit("Reshape", {output}, {{"shape", graph.value(output).shape}});
      taken.insert(output);
    }
    graph.name_output(output, names[i]);
  }
}

void optimize_forward(Graph& forward, const PassOptions& options) {
  const std::vector<std::string> names = names_of_outputs(forward);
  const auto run = [&](const char* name, Pass pass) { run_pass(name, forward, options, [&] { return pass(forward, options); }); };
  run("simplify", simplify);                      // first: the fusions know products with flags and biases, not what exporters spell out
  run("fuse_normalization", fuse_normalization);  // before fuse_gelu: its Mul and Add are not a GELU's
  run("fuse_gelu", fuse_gelu);
  run("fuse_attention", fuse_attention);
  run("simplify_again", simplify);          // fuse_attention leaves transposes that meet others
  run("store_base", store_base);            // before mixed_precision, which has products read what is stored
  run("mixed_precision", mixed_precision);  // after the fusions: what is one node needs no Casts inside; before gradients: they cast back
  run("mark_quantized_state", mark_quantized_state);  // like mark_parts it asks what the uses of a weight are
  run("mark_parts", mark_parts);                      // last
  rename_outputs(forward, names);
}

namespace {

void fuse(EntryGraph& job, const PassOptions& options) {  // after all that looks for nodes, or makes gradients
  run_pass("fuse_elementwise", job.graph, options, [&] { return fuse_elementwise(job, options); });
}

// Behind all that makes or changes nodes by what they mean.
void divide(EntryGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients, const PassOptions& options) {
  run_pass("split_weights", job.graph, options, [&] { return split_weights(job, gradients); });
  run_pass("split_logits", job.graph, options, [&] { return split_logits(job.graph); });
  run_pass("pack_weights", job.graph, options, [&] { return pack_weights(job, gradients, options); });
}
void divide(EntryGraph& job, const PassOptions& options) {
  std::map<ValueId, std::vector<ValueId>> none;
  divide(job, none, options);
}

void add_losses(EntryGraph& job, const LossSpec& spec) {
  job.losses = build_losses(job.graph, spec);
  job.graph.outputs.clear();
  for (const JobLoss& loss : job.losses) {
    job.graph.outputs.push_back(loss.sum);
    if (loss.count != kNone) job.graph.outputs.push_back(loss.count);
  }
}

// Inputs for what the gradient of each loss's sum starts from, and what it is, with the loss scale.
std::vector<Seed> add_seeds(EntryGraph& job, const OptimizerSpec& optimizer) {
  std::vector<Seed> seeds;
  if (optimizer.loss_scaling) job.loss_scale = add_loss_scale(job.graph, optimizer, kLossScaleInput);
  Builder builder(job.graph, Stage::backward);
  builder.named("loss scale");
  for (size_t i = 0; i < job.losses.size(); ++i) {
    JobLoss& loss = job.losses[i];
    const std::string name = i == 0 ? kInverseCountInput : fmt::format("{}.{}", kInverseCountInput, i);
    loss.inverse_count = job.graph.add_value({.name = name, .dtype = job.graph.value(loss.sum).dtype, .kind = ValueKind::input});
    job.graph.inputs.push_back(loss.inverse_count);
    ValueId of_loss = loss.inverse_count;
    if (optimizer.loss_scaling) of_loss = builder.emit("Mul", {of_loss, builder.cast(job.loss_scale, builder.dtype(of_loss))});
    seeds.push_back({.value = loss.sum, .gradient = of_loss});
  }
  return seeds;
}

}  // namespace

std::set<std::string> used_soon(const Graph& forward, double share) {
  double all = 0;
  std::map<ValueId, double> first;  // seconds before the first use
  for (const NodeId id : forward.order()) {
    const Node& node = forward.node(id);
    for (const ValueId input : node.inputs) {
      if (input != kNone && forward.value(input).kind == ValueKind::parameter) first.emplace(input, all);
    }
    all += nominal_seconds(forward, node);
  }
  std::set<std::string> soon;
  for (const auto& [parameter, seconds] : first) {
    if (seconds < share * all) soon.insert(forward.value(parameter).name);
  }
  return soon;
}

EntryGraph build_predict_graph(const Graph& forward, size_t outputs, const PassOptions& options) {
  EntryGraph job{.graph = forward};
  job.graph.outputs.resize(outputs);
  job.graph.name = "predict";
  job.role = {.kind = EntryKind::predict};
  job.outputs = job.graph.outputs;
  run_pass("predict", job.graph, options, [&] {
    const bool left = leave_training(job.graph, options), removed = job.graph.remove_dead_nodes();
    const auto readers = job.graph.readers();
    const size_t unread = std::erase_if(job.graph.inputs, [&](ValueId input) {  // what only a loss has read
      return readers[input].empty() && std::find(job.outputs.begin(), job.outputs.end(), input) == job.outputs.end();
    });
    return left || removed || unread > 0;
  });
  divide(job, options);
  fuse(job, options);
  return job;
}

EntryGraph build_evaluate_graph(const Graph& forward, const LossSpec& loss, const PassOptions& options) {
  EntryGraph job{.graph = forward};
  job.graph.name = "evaluate";
  job.role = {.kind = EntryKind::evaluate};
  job.outputs = forward.outputs;
  run_pass("evaluate_loss", job.graph, options, [&] {
    leave_training(job.graph, options);
    add_losses(job, loss);
    return job.graph.remove_dead_nodes() || true;
  });
  divide(job, options);
  fuse(job, options);
  return job;
}

namespace {

// A tensor that lives across runs, of the type of `like` or of another one. The same name in every entry's graph: memory is matched by it.
ValueId add_state(Graph& graph, const std::string& name, const std::string& owner, ValueId like, DType dtype) {
  return graph.add_value({.name = name, .dtype = dtype, .shape = graph.value(like).shape, .kind = ValueKind::accumulator, .owner = owner});
}

// Emits a node that writes such a tensor.
ValueId emit_to_state(Builder& builder, std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {}) {
  const ValueId after = builder.emit(op, std::move(inputs), std::move(attributes));
  builder.graph().value(after).kind = ValueKind::accumulator;
  return after;
}

// Keeps `value` across runs; returns where.
ValueId keep(Builder& builder, const std::string& name, const std::string& owner, ValueId value) {
  const ValueId place = add_state(builder.graph(), name, owner, value, builder.dtype(value));
  emit_to_state(builder, "Store", {place, value});
  return place;
}

ValueId clear(Builder& builder, ValueId accumulator) { return emit_to_state(builder, "Clear", {accumulator}); }

void store_norm(EntryGraph& job, Stage stage) {
  Builder builder(job.graph, stage);
  emit_after(builder, job.grad_norm);
  const char* const norm = "ort_train.grad_norm";
  job.stored_norm = keep(builder.named(norm), norm, /*owner=*/{}, job.grad_norm);
}

// Adds a gradient to a sum; returns that. Where the node that makes it can add it itself, it never lies in memory.
ValueId add_to_sum(Graph& graph, const std::string& parameter, ValueId sum, ValueId gradient, bool is_read) {
  Builder builder(graph, Stage::backward);
  const NodeId maker = graph.value(gradient).producer;
  const Node node = maker == kNone ? Node{} : graph.node(maker);
  if (node.op && node.op->traits.accumulated && !is_read) {
    if (std::optional<PartNode> adds = node.op->traits.accumulated(graph, node, sum)) {
      builder.named(node.name, node.ordinal).before(maker);
      const ValueId after = emit_to_state(builder, adds->op, std::move(adds->inputs), std::move(adds->attributes));
      graph.remove_node(maker);
      return after;
    }
  }
  emit_after(builder.named(parameter), gradient);
  return emit_to_state(builder, "Accumulate", {sum, gradient});
}

// Each use's gradient is added to accumulators of its own, so that the order of the sums is fixed: over micro-batches (of a product, within
// each, over the blocks of its depth), then over uses.
// Deferred: the norm of the sums so far is stored; that of the last micro-batch is the step's.
void accumulate(EntryGraph& job, const std::map<ValueId, std::vector<ValueId>>& uses, bool deferred) {
  Graph& graph = job.graph;
  std::map<ValueId, int> times;  // a gradient may be that of several uses
  for (const auto& [parameter, gradients] : uses) {
    for (const ValueId gradient : gradients) ++times[gradient];
  }
  const auto readers = graph.readers();
  std::map<ValueId, std::vector<ValueId>> sums;
  for (const auto& [parameter, gradients] : uses) {
    const std::string owner = graph.value(parameter).name;
    for (size_t use = 0; use < gradients.size(); ++use) {
      const ValueId gradient = gradients[use];
      const std::string name = owner + (use == 0 ? ".grad" : fmt::format(".grad.use{}", use + 1));
      // Many numbers of 16 bits are added up in float32.
      const ValueId sum = add_state(graph, name, owner, gradient, compute_type(graph.value(gradient).dtype));
      job.accumulators[parameter].push_back(sum);
      sums[parameter].push_back(add_to_sum(graph, owner, sum, gradient, times.at(gradient) > 1 || !readers[gradient].empty()));
    }
  }
  if (!deferred) return;
  Builder norm(job.graph, Stage::update);
  for (const auto& [parameter, of] : sums) {
    emit_after(norm.named(job.graph.value(parameter).name), of);
    job.gradients[parameter] = add_up(norm, of);
  }
  build_norm(job, Stage::update);
  store_norm(job, Stage::update);
  job.graph.outputs.push_back(job.grad_norm);
}

StepNumbers numbers_of(const EntryGraph& job) {
  return {.norm = job.grad_norm, .scalars = job.scalars, .loss_scale = job.loss_scale, .squares = job.squares};
}

// A parameter's gradient, from those of its uses. Lookups come last: each adds to the sum of the others, where it is, instead of to zeros.
// What it was may serve another parameter, too; else it is dead.
ValueId sum_of_uses(Builder& builder, std::vector<ValueId> gradients) {
  const Graph& graph = builder.graph();
  const auto is_lookup = [&](ValueId gradient) {
    const NodeId by = graph.value(gradient).producer;
    return by != kNone && graph.node(by).op->name == "GatherGrad";
  };
  const auto lookups = std::stable_partition(gradients.begin(), gradients.end(), [&](ValueId gradient) { return !is_lookup(gradient); });
  const auto others = std::max(lookups, gradients.begin() + 1);
  ValueId sum = add_up(builder, {gradients.begin(), others});
  for (auto gradient = others; gradient != gradients.end(); ++gradient) {
    const Node lookup = graph.node(graph.value(*gradient).producer);
    sum = builder.emit("GatherGrad", {lookup.inputs[0], lookup.inputs[1], sum}, lookup.attributes);
  }
  return sum;
}

// The gradients and their norm, kept for a later run, but for those that are used at once.
void store(EntryGraph& job, const OptimizerSpec& optimizer) {
  std::set<std::string> soon = optimizer.at_once;
  for (const auto& [weight, slices] : job.slices) {
    if (!soon.contains(weight)) continue;
    for (const Slice& slice : slices) soon.insert(slice.name);
  }
  build_norm(job, Stage::backward);
  Builder builder(job.graph, Stage::backward);
  std::map<ValueId, ValueId> now;
  for (const auto& [parameter, gradient] : job.gradients) {
    if (soon.contains(job.graph.value(parameter).name)) {
      now[parameter] = gradient;
      continue;
    }
    const std::string owner = job.graph.value(parameter).name, name = owner + ".grad";
    emit_after(builder, gradient);
    job.accumulators[parameter] = {keep(builder.named(name), name, owner, gradient)};
  }
  store_norm(job, Stage::backward);
  if (now.empty()) return;
  job.scalars = add_scalars(job.graph, optimizer, kScalarsInput);
  build_update(job.graph, optimizer, now, numbers_of(job));
}

}  // namespace

EntryGraph build_train_graph(const Graph& forward, const LossSpec& loss, const OptimizerSpec& optimizer, const PassOptions& options) {
  EntryGraph job{.graph = forward};
  job.graph.name = "train";
  job.role = {.leaves_update = optimizer.accumulate || optimizer.deferred, .adds_up = optimizer.accumulate};
  job.outputs = forward.outputs;
  const auto run = [&](const char* name, auto&& pass) {
    run_pass(name, job.graph, options, [&] {
      pass();
      return true;
    });
  };
  run("loss", [&] {
    add_losses(job, loss);
    job.graph.remove_dead_nodes();
  });
  std::map<ValueId, std::vector<ValueId>> uses;
  const std::vector<ValueId> results = job.graph.outputs;
  run("autodiff", [&] {  // after the fusions: fused nodes have better gradients than their parts
    uses = differentiate_uses(job.graph, add_seeds(job, optimizer));
    if (uses.empty()) throw error(ErrorCode::unsupported, "the loss depends on no trainable parameter of the model");
    // While they are outputs, simplifying keeps track of them.
    for (const auto& [parameter, gradients] : uses) job.graph.outputs.insert(job.graph.outputs.end(), gradients.begin(), gradients.end());
  });
  run("backward_simplify", [&] { simplify(job.graph, options); });  // transposes of weights go into the products' flags
  auto simplified = job.graph.outputs.begin() + static_cast<std::ptrdiff_t>(results.size());
  for (auto& [parameter, gradients] : uses) {
    for (ValueId& gradient : gradients) gradient = *simplified++;
  }
  job.graph.outputs = results;
  divide(job, uses, options);
  if (optimizer.accumulate) {
    run("accumulate", [&] { accumulate(job, uses, optimizer.deferred); });
    fuse(job, options);
    return job;
  }
  run("update", [&] {  // last: clipping needs every gradient
    for (const auto& [parameter, gradients] : uses) {
      Builder builder(job.graph, Stage::backward);
      builder.named(job.graph.value(parameter).name);
      job.gradients[parameter] = sum_of_uses(builder, gradients);
    }
    if (optimizer.deferred) {
      store(job, optimizer);
    } else {
      build_norm(job, Stage::backward);
      job.scalars = add_scalars(job.graph, optimizer, kScalarsInput);
      build_update(job.graph, optimizer, job.gradients, numbers_of(job));
    }
    job.graph.outputs.push_back(job.grad_norm);
    job.graph.remove_dead_nodes();  // lookups whose gradients are added elsewhere
  });
  fuse(job, options);
  return job;
}

EntryGraph build_deferred_graph(const EntryGraph& train, const OptimizerSpec& optimizer, const PassOptions& options) {
  EntryGraph job = train;
  job.graph.name = "train-deferred";
  job.role = {.completes_update = true, .leaves_update = true};  // what it adds up begins anew
  run_pass("deferred_update", job.graph, options, [&] {
    Graph& graph = job.graph;
    const auto readers = graph.readers();
    const auto first_reader = [&](ValueId parameter) { return readers[parameter].front(); };
    // Where a parameter's gradient is needed: by its own update, or what it takes part in because it is of the same weight: another part's
    // update, the norm.
    std::map<std::string, NodeId> first_of_weight;
    if (optimizer.optimizer.granularity() == Granularity::tensor || optimizer.clip_per_layer) {
      std::map<std::string, std::vector<NodeId>> uses_of_weight;
      for (const auto& [parameter, uses] : job.accumulators) {
        if (const std::string& whole = graph.value(parameter).whole; !whole.empty())
          uses_of_weight[whole].push_back(first_reader(parameter));
      }
      for (const auto& [whole, uses] : uses_of_weight) first_of_weight[whole] = first_in_order(graph, uses);
    }
    const auto first_needed = [&](ValueId parameter) {
      const auto found = first_of_weight.find(graph.value(parameter).whole);
      return found == first_of_weight.end() ? first_reader(parameter) : found->second;
    };
    Builder builder(graph, Stage::update);
    std::map<ValueId, ValueId> stored;
    for (const auto& [parameter, uses] : job.accumulators)
      stored[parameter] = add_up(builder.named(graph.value(parameter).name).before(first_needed(parameter)), uses);
    job.deferred_scalars = add_scalars(graph, optimizer, kDeferredScalarsInput);
    job.deferred_loss_scale = add_loss_scale(graph, optimizer, kDeferredLossScaleInput);
    const StepNumbers left{.norm = job.stored_norm, .scalars = job.deferred_scalars, .loss_scale = job.deferred_loss_scale};
    const auto updated = build_update(graph, optimizer, stored, left, first_reader);
    // From the update on, everything reads what it leaves.
    for (const auto& [parameter, result] : updated) {
      for (const NodeId reader : readers[parameter])
        std::replace(graph.node(reader).inputs.begin(), graph.node(reader).inputs.end(), parameter, result);
      std::replace(graph.outputs.begin(), graph.outputs.end(), parameter, result);
    }
    if (!optimizer.accumulate) return true;
    for (const auto& [parameter, uses] : job.accumulators) {  // the step's first micro-batch: what the last step left is used up
      for (const ValueId sum : uses) {
        const NodeId adds = readers[sum].front();
        const ValueId cleared = clear(builder.named(graph.value(parameter).name).before(adds), sum);
        std::vector<ValueId>& inputs = graph.node(adds).inputs;
        std::replace(inputs.begin(), inputs.end(), sum, cleared);
      }
    }
    return true;
  });
  return job;
}

EntryGraph build_update_graph(const EntryGraph& train, const OptimizerSpec& optimizer, const PassOptions& options) {
  EntryGraph job;
  job.graph.name = "update";
  job.role = {.kind = EntryKind::update, .completes_update = true};
  job.slices = train.slices;
  run_pass("update", job.graph, options, [&] {
    Builder builder(job.graph, Stage::update);
    std::vector<ValueId> all;
    for (ValueId parameter : train.graph.parameters()) {  // all of them: same ids in, same order out
      const ValueId copy = job.graph.add_value(train.graph.value(parameter));
      const auto found = train.accumulators.find(parameter);
      if (found == train.accumulators.end()) continue;
      builder.named(job.graph.value(copy).name);
      std::vector<ValueId>& uses = job.accumulators[copy];
      for (ValueId accumulator : found->second) uses.push_back(job.graph.add_value(train.graph.value(accumulator)));
      all.insert(all.end(), uses.begin(), uses.end());
      job.gradients[copy] = add_up(builder, uses);
    }
    if (optimizer.deferred) {
      job.stored_norm = job.graph.add_value(train.graph.value(train.stored_norm));
      job.deferred_scalars = add_scalars(job.graph, optimizer, kDeferredScalarsInput);
      job.deferred_loss_scale = add_loss_scale(job.graph, optimizer, kDeferredLossScaleInput);
      build_update(job.graph, optimizer, job.gradients,
                   {.norm = job.stored_norm, .scalars = job.deferred_scalars, .loss_scale = job.deferred_loss_scale});
    } else {
      build_norm(job, Stage::update);
      job.scalars = add_scalars(job.graph, optimizer, kScalarsInput);
      job.loss_scale = add_loss_scale(job.graph, optimizer, kLossScaleInput);
      build_update(job.graph, optimizer, job.gradients, numbers_of(job));
      job.graph.outputs = {job.grad_norm};
    }
    if (!optimizer.accumulate) return true;
    for (ValueId accumulator : all) clear(builder.named(job.graph.value(accumulator).name), accumulator);
    return true;
  });
  return job;
}

}  // namespace ort_train
