// From options to the graphs of a job's entries. What memory they get: trainer_plan.cpp.

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "frontend/check_options.h"
#include "frontend/file.h"
#include "frontend/loss_options.h"
#include "frontend/parameter_groups.h"
#include "frontend/trainer_impl.h"
#include "graph/error.h"
#include "passes/build.h"
#include "passes/pack_weights.h"

namespace ort_train {
namespace {

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Checkpoints have the optimizer's state by the names of weights.
void refuse_state_names(const Graph& graph, const Optimizer& optimizer) {
  for (const ValueId id : graph.parameters()) {
    if (!graph.value(id).trainable) continue;
    for (const StateDef& state : optimizer.states(graph.value(id))) {
      const std::string name = graph.value(id).name + std::string(state.suffix);
      if (graph.find_value(name) != kNone)
        throw error(ErrorCode::unsupported, "'{}' is a name in the model that the optimizer's state of '{}' has to have: rename it", name,
                    graph.value(id).name);
    }
  }
}

}  // namespace

const Options& Trainer::Impl::checked(const Options& options) {
  check_options(options);
  if (options.data.empty()) throw error(ErrorCode::usage, "no data is given: `data` is a file or a folder");
  return options;
}

OptimizerSpec Trainer::Impl::optimizer_spec(Deferral defer) const {
  return {.optimizer = optimizer,
          .weight_decay = options.weight_decay,
          .groups = groups,
          .max_grad_norm = options.max_grad_norm,
          .clip_per_layer = options.clip_per_layer,
          .loss_scaling = scaling.is_on(),
          .rounds = options.bf16_full,
          .seed = options.seed,
          .accumulate = options.gradient_accumulation_steps > 1,
          .deferred = defer != Deferral::none};
}

// The losses, with what the data say of their labels.
LossSpec Trainer::Impl::loss_spec() const {
  LossSpec spec = parse_losses(options);
  for (LossTerm& term : spec.terms) {
    if (loss_named(term.kind).labels != LabelKind::sequences) continue;
    const int field = data.train->find(term.labels[0]);
    if (field < 0) continue;  // the feed says so
    const Shape& sample = data.train->fields()[static_cast<size_t>(field)].shape;
    if (sample.size() != 1)
      throw error(ErrorCode::data, "{}: array '{}' has samples of shape {}; `loss` {} reads a row of labels", data.train->path(),
                  term.labels[0], to_string(sample), term.kind);
    term.longest = sample[0];
  }
  return spec;
}

int Trainer::Impl::find_entry(const EntryWanted& wanted) const {
  for (size_t i = 0; i < entries.size(); ++i) {
    const JobEntry& entry = *entries[i];
    const bool trains = wanted.kind == EntryKind::train;
    if (entry.job.role.kind == wanted.kind && entry.joined == wanted.joined && entry.remainder == wanted.remainder &&
        (!trains || entry.job.role.completes_update == wanted.completes_update))
      return static_cast<int>(i);
  }
  return -1;
}

void Trainer::Impl::divide_samples() {
  train_range = {.data = data.train.get(), .begin = 0, .count = data.train->samples()};
  if (data.valid) {
    valid_range = {.data = data.valid.get(), .begin = 0, .count = data.valid->samples()};
  } else if (options.eval_steps > 0) {
    const int64_t held_out = static_cast<int64_t>(std::ceil(static_cast<double>(train_range.count) * options.validation_split));
    if (held_out == 0 || held_out >= train_range.count) {
      throw error(ErrorCode::data,
                  "{}: of its {} samples, none is left to evaluate or to train on: change `validation_split`, or give a folder with train "
                  "and valid",
                  data.train->path(), train_range.count);
    }
    train_range.count -= held_out;
    valid_range = {.data = data.train.get(), .begin = train_range.count, .count = held_out};
    note(fmt::format("the last {} of {} samples are held out", held_out, train_range.count + held_out));
  }
  if (train_range.count < binding.batch) {
    if (binding.batch_is_fixed) {
      throw error(ErrorCode::data, "{}: has {} samples, fewer than the batch of {} that the model's file fixes", data.train->path(),
                  train_range.count, binding.batch);
    }
    note(fmt::format("the batch is {}: the data has no more samples", train_range.count));
    binding.batch = train_range.count;
  }
  const int64_t remainder = train_range.count % binding.batch;
  if (remainder > 0 && binding.batch_is_fixed) {
    note(fmt::format("the model's file fixes the batch at {}: {} of {} samples are left out in each epoch", binding.batch, remainder,
                     train_range.count));
  }
  const int64_t batches = train_range.count / binding.batch + (remainder > 0 && !binding.batch_is_fixed ? 1 : 0);
  const int64_t steps = divided_up(batches, options.gradient_accumulation_steps);  // an epoch
  total_steps =
      options.max_steps > 0 ? options.max_steps : static_cast<int64_t>(std::ceil(options.num_train_epochs * static_cast<double>(steps)));
}

// The learning rates, once it is known how long the job is and how large its batches are.
void Trainer::Impl::settle_schedule() {
  schedule = make_schedule(options.lr_scheduler_type, options.lr_scheduler_kwargs);
  double rate = options.learning_rate;
  if (!options.scale_lr.empty()) {
    const int64_t samples = binding.batch * options.gradient_accumulation_steps;
    const double k = static_cast<double>(samples) / static_cast<double>(options.base_batch_size);
    rate *= options.scale_lr == "linear" ? k : std::sqrt(k);
    note(fmt::format("the learning rate is {:.6g}: `learning_rate` {} for a step of {} samples, by `scale_lr` {} for one of {}", rate,
                     options.learning_rate, options.base_batch_size, options.scale_lr, samples));
  }
  schedule.begin(rate, options.warmup_steps, total_steps);
  if (!schedule.def->warms_up && options.warmup_steps > 0)
    note(fmt::format("`lr_scheduler_type` {} has no warm-up: `warmup_steps` {} changes nothing", schedule.def->name, options.warmup_steps));
  if (optimizer.learning_rate(1, /*scheduled=*/0) != 0)
    note("the optimizer sets the learning rate itself: `learning_rate`, `lr_scheduler_type` and `warmup_steps` change nothing");
}

JobEntry& Trainer::Impl::add_entry(const std::string& name, JobGraph job, int64_t batch, SampleRange* range) {
  entries.push_back(std::make_unique<JobEntry>());
  JobEntry& entry = *entries.back();
  entry.name = name;
  entry.job = std::move(job);
  require(entry.job.slices == entries[0]->job.slices, "entries that divide or pack weights differently");  // what is loaded and written
  entry.batch = batch;
  if (range != nullptr) {
    std::vector<LabelSpec> labels;
    for (size_t i = 0; i < entry.job.losses.size(); ++i) {
      const JobLoss& loss = entry.job.losses[i];
      for (size_t at = 0; at < loss.labels.size(); ++at) {
        const bool is_length = loss.kind == LabelKind::sequences && at == 1;
        labels.push_back({.value = loss.labels[at],
                          .field = losses.terms[i].labels.at(at),
                          .loss = i,
                          .causal = options.task == "causal-lm" && loss.kind == LabelKind::classes,
                          .kind = is_length ? LabelKind::numbers : loss.kind,
                          .counts = loss.counted == Counted::labels,
                          .class_count = loss.classes,
                          .class_weights = loss.class_weights,
                          .ignore_index = loss.ignore_index});
      }
    }
    entry.feed = std::make_unique<Feed>(*range->data, entry.job.graph, binding, labels);
  }
  return entry;
}

void Trainer::Impl::build_entries(Deferral defer) {
  entries.clear();
  deferred = defer != Deferral::none;
  PassOptions quiet{.skip = options.skip_passes,
                    .dump_after = {},
                    .on_pass = nullptr,
                    .part_bytes = on.part_bytes,
                    .optimizer = optimizer,
                    .packs = {},
                    .folder = make_folder(workers)};
  PassOptions first = quiet;
  const bool is_first_build = !model_read;
  if (is_first_build) first.dump_after = options.dump_after;
  std::vector<std::string> passes;
  first.on_pass = [&](const std::string& pass, double, bool) { passes.push_back(pass); };
  losses = loss_spec();
  // One import for each batch size.
  const auto forward = [&](int64_t batch) -> const Graph& {
    if (const auto found = forwards.find(batch); found != forwards.end()) return found->second;
    Imported imported = import_model(options.model, binding.import_options(batch, options), workers);
    refuse_obstacles(imported);
    groups = assign_groups(imported, options);
    model_outputs = imported.graph.outputs.size();
    for (const Attachment& other : attached)
      attach_model(imported, other, batch, binding.import_options(batch, options), *data.train, workers);
    const bool is_first = forwards.empty();
    if (is_first && !model_read) {
      refuse_state_names(imported.graph, optimizer);
      report_groups = describe_groups(imported.graph, groups, schedule.learning_rate, options.weight_decay);
      weights = std::move(imported.weights);
      info = std::move(imported.info);
      for (const std::string& text : info.notes) note(text);
      const auto& nodes = imported.graph.order();
      const auto is_live = [&](NodeId id) { return imported.graph.node(id).op->traits.statistics == Statistics::batch; };
      if (options.gradient_accumulation_steps > 1 && std::any_of(nodes.begin(), nodes.end(), is_live))
        note("with gradient accumulation live BatchNormalization sees each micro-batch by itself: a step is not that of one large batch");
      types = number_types(options, info.low);
      scaling = LossScaling(options, types.low == DType::float16);
      model_read = true;
    }
    first.precision = quiet.precision = types.low;
    first.low_weights = quiet.low_weights = types.low_weights;
    first.autocast = quiet.autocast = types.autocast;
    optimize_forward(imported.graph, is_first ? first : quiet);
    for (Weight& weight : weights) {
      if (const ValueId id = imported.graph.find_value(weight.parameter); id != kNone) weight.dtype = imported.graph.value(id).dtype;
    }
    return forwards.emplace(batch, std::move(imported.graph)).first->second;
  };

  const Graph& main = forward(binding.batch);
  if (is_first_build) {
    for (const std::string& text : loss_notes(main, losses)) note(text);
    for (const Attachment& other : attached)
      note(fmt::format("{} {}: its weights stay as they are", other.is_loss ? "the loss is" : "the teacher is", other.path));
  }
  OptimizerSpec update = optimizer_spec(defer);
  if (defer == Deferral::most) update.at_once = used_soon(main);  // the same weights for every batch size: they share the sums
  if (!packs) packs = options.clip_per_layer ? Packs{} : choose_packs(main, losses, optimizer);  // a pack has one norm
  first.packs = quiet.packs = *packs;
  const bool flexible = !binding.batch_is_fixed;
  const int64_t remainder = train_range.count % binding.batch;
  const int64_t epoch_steps = divided_up(divided_up(train_range.count, binding.batch), options.gradient_accumulation_steps);
  // Deferred: "train" makes the update that a step before it left behind, "train-first" has none before it.
  const auto add_train = [&](const Graph& graph, int64_t batch, bool is_remainder, const PassOptions& passes_of) {
    check_live_layers(graph, batch);
    JobGraph train = build_train_graph(graph, losses, update, passes_of);
    const std::string suffix = is_remainder ? "-remainder" : "";
    if (deferred) add_entry("train" + suffix, build_pending_graph(train, update, passes_of), batch, &train_range).remainder = is_remainder;
    add_entry((deferred ? "train-first" : "train") + suffix, std::move(train), batch, &train_range).remainder = is_remainder;
  };
  add_train(main, binding.batch, false, first);
  for (const auto& [pass, file] : options.dump_after) {
    if (!is_first_build || pass == "recompute" || pass == "micro_batches" || pass == "early_updates" ||
        std::find(passes.begin(), passes.end(), pass) != passes.end())
      continue;  // that one comes with the plan
    throw error(ErrorCode::usage, "`dump_after` {}: no such pass ran; these did: {}", pass, fmt::join(passes, ", "));
  }
  if (flexible && remainder > 0 && total_steps >= epoch_steps) {
    add_train(forward(remainder), remainder, true, quiet);
  }
  if (update.accumulate || deferred) {
    const int source = find_entry({.kind = EntryKind::train});
    add_entry("update", build_update_graph(entries[static_cast<size_t>(source)]->job, update, quiet), 0, nullptr);
  }
  if (valid_range.data != nullptr) {
    const int64_t full = valid_range.count / binding.batch, rest = valid_range.count % binding.batch;
    if (full == 0 && !flexible) {
      throw error(ErrorCode::data, "{}: has {} samples, fewer than the batch of {} that the model's file fixes", valid_range.data->path(),
                  valid_range.count, binding.batch);
    }
    if (full > 0) add_entry("evaluate", build_evaluate_graph(main, losses, quiet), binding.batch, &valid_range);
    if (rest > 0 && flexible && (options.eval_batches == 0 || options.eval_batches > full)) {
      add_entry("evaluate-remainder", build_evaluate_graph(forward(rest), losses, quiet), rest, &valid_range).remainder = true;
    }
  }
  if (options.predict_batch_size > 0 || data.vocabulary) {
    const int64_t batch = !flexible ? binding.batch : options.predict_batch_size > 0 ? options.predict_batch_size : 1;
    if (options.predict_batch_size > 0 && options.predict_batch_size != batch) {
      throw error(ErrorCode::usage, "a prediction for {} samples is wanted, the model's file fixes the batch at {}",
                  options.predict_batch_size, batch);
    }
    add_entry("predict", build_predict_graph(forward(batch), model_outputs, quiet), batch, nullptr);
  }
}

// A batch's own statistics need several values a channel.
void Trainer::Impl::check_live_layers(const Graph& forward, int64_t batch) const {
  for (NodeId id : forward.order()) {
    const Node& node = forward.node(id);
    if (node.op->traits.statistics != Statistics::batch) continue;
    const int64_t channels = element_count(forward.value(node.inputs[1]).shape),
                  elements = element_count(forward.value(node.inputs[0]).shape);
    if (elements > channels) continue;
    throw error(
        ErrorCode::usage,
        "[BatchNormalization '{}'] a batch of {} gives it one value a channel{}: a live layer needs several (another `batch_size`, or "
        "`batch_norm` frozen)",
        node.name, batch, batch == binding.batch ? "" : ", as the last of an epoch here");
  }
}

// How many micro-batches may share a graph: a divisor of the step's, as long as planning takes seconds.
int64_t Trainer::Impl::most_together() const {
  constexpr int64_t kMostNodes = 20'000;
  const auto nodes = static_cast<int64_t>(entries[0]->job.graph.order().size());
  int64_t most = options.gradient_accumulation_steps;
  while (most > 1 && (most * nodes > kMostNodes || options.gradient_accumulation_steps % most != 0)) --most;
  return most;
}

// `count` micro-batches go together; a step's rest goes one by one.
void Trainer::Impl::add_together(int64_t count) {
  together = count;
  add_entry("train-together", entries[0]->job, binding.batch, nullptr).joined = true;
  if (!deferred) return;
  const int first = find_entry({.kind = EntryKind::train});
  add_entry("train-first-together", entries[static_cast<size_t>(first)]->job, binding.batch, nullptr).joined = true;
}

void Trainer::Impl::build() {
  const auto start = std::chrono::steady_clock::now();
  choose_start();
  const Declared model = declared(options.model);
  data = open_data(options.data, options.model, options.token_type);
  binding = bind_inputs(model, options, *data.train);
  attached = attachments(options);
  for (const Attachment& other : attached) bind_attachment(other, model, *data.train, binding);
  if (data.valid && data.valid->is_row()) data.valid->cut(binding.sequence);
  divide_samples();
  settle_schedule();
  build_entries(Deferral::none);
  if (options.micro_batches == "vertical" && most_together() > 1) add_together(most_together());
  plan_memory();
  if (together == 1 && options.dump_after.count("micro_batches") > 0)
    throw error(ErrorCode::usage, "`dump_after` micro_batches: this job's micro-batches go one after the other (`micro_batches` vertical)");
  describe(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace ort_train
