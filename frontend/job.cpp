#include "frontend/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "exec/kernel.h"
#include "frontend/check_options.h"
#include "frontend/loss_options.h"
#include "frontend/parameter_groups.h"
#include "frontend/safetensors.h"
#include "frontend/shuffle.h"
#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/rounding.h"
#include "passes/cost.h"
#include "passes/pack_weights.h"

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

void add_entry(EntrySet& set, JobEntry entry) {
  require(set.entries.empty() || entry.built.slices == set.entries[0].built.slices, "entries that divide or pack weights differently");
  set.entries.push_back(std::move(entry));
}

void add_joined(EntrySet& set, const std::string& name, size_t of) {
  JobEntry entry = set.entries[of];
  entry.name = name;
  entry.joined = true;
  add_entry(set, std::move(entry));
}

// "evaluate-remainder-128"
std::string named(const std::string& name, const JobEntry& like) {
  return name + (like.remainder ? "-remainder" : "") + (like.length > 0 ? fmt::format("-{}", like.length) : "");
}

}  // namespace

Job::Job(const Options& options_, const RunStart& start, int64_t part_bytes, const KernelTable* kernels, Workers& workers,
         std::function<void(const std::string&)> note)
    : options(options_),
      optimizer(make_optimizer(options.optim, options.optim_args)),
      adapting(adapter_settings(options)),
      workers_(workers),
      note_(std::move(note)),
      start_(start) {
  const Declared model = declared(options.model, control_net(options));
  data = open_data(options.data, options.model, options.token_type);
  binding = bind_inputs(model, options, *data.train);
  attached_ = attachments(options);
  for (const Attachment& other : attached_) bind_attachment(other, model, *data.train, binding);
  if (data.valid && data.valid->is_row()) data.valid->cut(binding.sequence);
  passes_ = {.skip = options.skip_passes,
             .part_bytes = part_bytes,
             .optimizer = optimizer,
             .base = base_type(options),
             .kernels = kernels,
             .folder = make_folder(workers_)};
  if (options.detect_anomaly) passes_.skip.emplace_back("fuse_elementwise");  // each op is looked at by itself
  divide_samples();
  settle_lengths();
  settle_schedule();
}

void Job::divide_samples() {
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
    note_(fmt::format("the last {} of {} samples are held out", held_out, train_range.count + held_out));
  }
  if (train_range.count < binding.batch) {
    if (binding.batch_is_fixed) {
      throw error(ErrorCode::data, "{}: has {} samples, fewer than the batch of {} that the model's file fixes", data.train->path(),
                  train_range.count, binding.batch);
    }
    note_(fmt::format("the batch is {}: the data has no more samples", train_range.count));
    binding.batch = train_range.count;
  }
  if (const int64_t left_out = train_range.count - batching(train_range).usable(); left_out > 0) {
    note_(fmt::format("the model's file fixes the batch at {}: {} of {} samples are left out in each epoch", binding.batch, left_out,
                      train_range.count));
  }
  total_steps = options.max_steps;
  if (total_steps > 0) return;
  const double steps = std::ceil(options.num_train_epochs * static_cast<double>(steps_of_epoch(0)));
  if (!(steps <= static_cast<double>(kMostSteps)))
    throw error(ErrorCode::usage, "`num_train_epochs` {}: {:.3g} steps are more than can be counted", options.num_train_epochs, steps);
  total_steps = static_cast<int64_t>(steps);
}

int64_t Job::steps_of_epoch(int64_t index) const {
  const Batching all = batching(train_range);
  const int64_t left = all.usable() - std::min(index, all.usable()) / all.batch * all.batch;
  return divided_up(divided_up(left, all.batch), options.gradient_accumulation_steps);
}

// A run that is resumed, perhaps with other settings, may begin anywhere in an epoch.
bool Job::ends_an_epoch() const {
  return total_steps >= steps_of_epoch(0) || std::any_of(start_.cursors.begin(), start_.cursors.end(), [&](const RunStart::Cursor& cursor) {
           return total_steps - cursor.step >= steps_of_epoch(cursor.index);
         });
}

Batch Job::batch_of(const SampleRange& range, std::vector<int64_t> samples) const {
  Batch batch{.samples = std::move(samples)};
  if (lengths.empty()) return batch;
  const auto field = static_cast<size_t>(range.data->find(kLengthField));
  const Field& mask = range.data->fields()[field];
  std::vector<std::byte> bytes(static_cast<size_t>(mask.bytes()));
  int64_t longest = 0;
  for (const int64_t sample : batch.samples) {
    range.data->read(field, sample, bytes);
    const auto last = std::find_if(bytes.rbegin(), bytes.rend(), [](std::byte byte) { return byte != std::byte{0}; });
    longest = std::max(longest, divided_up(bytes.rend() - last, size_of(mask.element)));
  }
  for (const LengthReport& of : lengths) batch.length = of.length >= longest ? of.length : batch.length;
  return batch;
}

// How often batches have each length: in the first epoch, or the beginning of it.
void Job::settle_lengths() {
  if (options.length_buckets.empty()) return;
  if (const DataSet* const valid = data.valid.get(); valid != nullptr) {
    const int field = valid->find(kLengthField);
    if (field < 0 || valid->fields()[static_cast<size_t>(field)].shape != Shape{binding.sequence})
      throw error(ErrorCode::data, "{}: has no array '{}' of samples of {}, as the data to train on", valid->path(), kLengthField,
                  binding.sequence);
  }
  std::set<int64_t, std::greater<>> all(options.length_buckets.begin(), options.length_buckets.end());
  all.insert(binding.sequence);
  for (const int64_t length : all) lengths.push_back({.length = length});
  constexpr int64_t kEnough = 1000;
  int64_t batches = 0;
  StepBatches at;
  do {
    at = batches_of_step(at.epoch, at.index);
    for (const Batch& batch : at.batches) {
      for (LengthReport& of : lengths) of.share += of.length == batch.length ? 1 : 0;
      ++batches;
    }
  } while (at.epoch == 0 && batches < kEnough);
  for (LengthReport& of : lengths) of.share /= static_cast<double>(batches);
  data.train->unload();  // until the plan is made
}

// The learning rates, once it is known how long the job is and how large its batches are.
void Job::settle_schedule() {
  schedule = make_schedule(options.lr_scheduler_type, options.lr_scheduler_kwargs);
  double rate = options.learning_rate;
  if (!options.scale_lr.empty()) {
    const int64_t samples = binding.batch * options.gradient_accumulation_steps;
    const double k = static_cast<double>(samples) / static_cast<double>(options.base_batch_size);
    rate *= options.scale_lr == "linear" ? k : std::sqrt(k);
    note_(fmt::format("the learning rate is {:.6g}: `learning_rate` {} for a step of {} samples, by `scale_lr` {} for one of {}", rate,
                      options.learning_rate, options.base_batch_size, options.scale_lr, samples));
  }
  schedule.begin(rate, options.warmup_steps, total_steps);
  if (!schedule.def->warms_up && options.warmup_steps > 0)
    note_(
        fmt::format("`lr_scheduler_type` {} has no warm-up: `warmup_steps` {} changes nothing", schedule.def->name, options.warmup_steps));
  else if (options.warmup_steps >= total_steps)
    note_(fmt::format("`warmup_steps` {} of {}: the run ends before the learning rate has reached `learning_rate`", options.warmup_steps,
                      total_steps));
  if (optimizer.learning_rate(1, /*scheduled=*/0) != 0)
    note_(
        "the optimizer sets the learning rate itself: `learning_rate`, `lr_scheduler_type`, `warmup_steps` and the rates of groups of "
        "weights change nothing");
}

// --- graphs -----------------------------------------------------------------------------------------------------------------------------

// The losses, with what the data say of their labels.
LossSpec Job::loss_spec() const {
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

OptimizerSpec Job::optimizer_spec(const StepStrategy& strategy) const {
  return {.optimizer = optimizer,
          .weight_decay = options.weight_decay,
          .groups = groups,
          .max_grad_norm = options.max_grad_norm,
          .clip_per_layer = options.clip_per_layer,
          .loss_scaling = scaling.is_on(),
          .rounds = options.bf16_full,
          .seed = options.seed,
          .accumulate = options.gradient_accumulation_steps > 1,
          .deferred = strategy.is_deferred()};
}

// What is read of the model once, whatever the batch.
void Job::check_and_report_model(const Imported& imported) {
  refuse_state_names(imported.graph, optimizer);
  group_reports = describe_groups(imported.graph, groups, schedule.learning_rate, options.weight_decay);
  for (const std::string& text : imported.info.notes) note_(text);
  if (adapting.is_on()) note_(adapters_note(imported, adapters, adapting));
  if (options.adapter_only) refuse_others(imported.graph, adapters);
  if (options.gradient_accumulation_steps > 1 && !live_layers(imported.graph).empty())
    note_("with gradient accumulation live BatchNormalization sees each micro-batch by itself: a step is not that of one large batch");
}

void Job::settle_types(const Imported& imported) {
  types = number_types(options, imported.info.low);
  scaling = LossScaling(options, types.low == DType::float16);
  passes_.precision = types.low;
  passes_.low_weights = types.low_weights;
  passes_.autocast = types.autocast;
}

Imported Job::import_for(const ImportOptions& import, int64_t length) const try {
  Imported imported = import_model(options.model, import, workers_);
  refuse_obstacles(imported);
  return imported;
} catch (const Error& problem) {
  if (length == 0 || length == binding.sequence) throw;
  throw error(problem.code(),
              "`length_buckets` {}: the model can't be cut to samples of that length, which its exporter may have fixed: {}", length,
              problem.what());
}

// Those of the first graph of all, which is written out where that is asked for.
PassOptions Job::first_passes() {
  PassOptions passes = passes_;
  passes.dump_after = options.dump_after;
  passes.on_pass = [this](const std::string& pass, double, bool) { ran_.push_back(pass); };
  return passes;
}

const Graph& Job::forward_graph(int64_t batch, int64_t length) {
  auto found = forwards_.find({batch, length});
  if (found == forwards_.end()) found = forwards_.emplace(std::pair(batch, length), make_forward_graph(batch, length)).first;
  return found->second;
}

// What gradients don't get to, or through.
void Job::note_where_gradients_stop(const Graph& graph) const {
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

// What the first import sets for all: the weights, and what the file says of itself.
void Job::adopt_model(Imported& imported) {
  check_and_report_model(imported);
  weights = std::move(imported.weights);
  info = std::move(imported.info);
  model_read_ = true;
}

Graph Job::make_forward_graph(int64_t batch, int64_t length) {
  const bool is_first = !model_read_;
  const BatchShape shape{.binding = binding, .samples = batch, .length = length > 0 ? length : binding.sequence};
  const ImportOptions import = binding.import_options(batch, shape.length, options);
  Imported imported = import_for(import, length);
  passes_.read = outputs_read_of(imported.graph, import.outputs);
  if (is_first) settle_types(imported);
  if (passes_.base) choose_base(imported, options, passes_);
  if (adapting.is_on()) adapters = adapt(imported, adapting, is_first ? first_passes() : passes_);
  for (const Weight& weight : imported.weights) {
    passes_.own.insert(weight.parameter);
    if (!weight.fresh && is_half(weight.places.at(0).dtype)) passes_.in_file[weight.parameter] = weight.places[0].dtype;
  }
  groups = assign_groups(imported, options);
  model_outputs_ = imported.graph.outputs.size();
  for (const Attachment& other : attached_) attach_model(imported, other, shape, import, *data.train, workers_);
  if (is_first) adopt_model(imported);
  optimize_forward(imported.graph, is_first ? first_passes() : passes_);
  if (is_first) {
    products = half_products_of(imported.graph);
    note_where_gradients_stop(imported.graph);
  }
  for (Weight& weight : weights) {
    if (const ValueId id = imported.graph.find_value(weight.parameter); id != kNone) weight.dtype = imported.graph.value(id).dtype;
  }
  return std::move(imported.graph);
}

bool Job::has_weights_used_late() const {
  const Graph& main = forwards_.at({binding.batch, lengths.empty() ? 0 : binding.sequence});
  const std::set<std::string> soon = used_soon(main);
  const std::vector<ValueId> parameters = main.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](ValueId id) { return main.value(id).trainable && !soon.contains(main.value(id).name); });
}

// A batch's own statistics need several values a channel.
void Job::check_live_layers(const Graph& forward, int64_t batch) const {
  for (const NodeId id : live_layers(forward)) {
    const Node& node = forward.node(id);
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

// Deferred: "train" makes the update that a step before it deferred, "train-first" has none before it. `like`: has all but the graph.
void Job::add_train(EntrySet& set, const JobEntry& like, const OptimizerSpec& update, const PassOptions& passes) {
  const Graph& graph = forward_graph(like.batch, like.length);
  check_live_layers(graph, like.batch);
  JobEntry entry = like, deferred = like;
  entry.built = build_train_graph(graph, losses, update, passes);
  if (update.deferred) {
    deferred.built = build_deferred_graph(entry.built, update, passes);
    deferred.name = named("train", like);
    add_entry(set, std::move(deferred));
  }
  entry.name = named(update.deferred ? "train-first" : "train", like);
  add_entry(set, std::move(entry));
}

void Job::add_evaluate(EntrySet& set, const LengthReport& length) {
  if (valid_range.data == nullptr) return;
  const int64_t full = valid_range.count / binding.batch, rest = batching(valid_range).remainder();
  if (full == 0 && binding.batch_is_fixed) {
    throw error(ErrorCode::data, "{}: has {} samples, fewer than the batch of {} that the model's file fixes", valid_range.data->path(),
                valid_range.count, binding.batch);
  }
  const auto add = [&](int64_t batch, bool is_remainder) {
    JobEntry entry{.batch = batch, .length = length.length, .share = length.share, .remainder = is_remainder};
    entry.name = named("evaluate", entry);
    entry.built = build_evaluate_graph(forward_graph(batch, length.length), losses, passes_);
    add_entry(set, std::move(entry));
  };
  if (full > 0) add(binding.batch, /*is_remainder=*/false);
  if (rest > 0 && (options.eval_batches == 0 || options.eval_batches > full)) add(rest, /*is_remainder=*/true);
}

void Job::add_predict(EntrySet& set) {
  if (options.predict_batch_size == 0 && !data.vocabulary) return;
  const int64_t batch = binding.batch_is_fixed ? binding.batch : options.predict_batch_size > 0 ? options.predict_batch_size : 1;
  if (options.predict_batch_size > 0 && options.predict_batch_size != batch) {
    throw error(ErrorCode::usage, "a prediction for {} samples is wanted, the model's file fixes the batch at {}",
                options.predict_batch_size, batch);
  }
  const int64_t length = lengths.empty() ? 0 : binding.sequence;
  add_entry(set, {.name = "predict", .built = build_predict_graph(forward_graph(batch, length), model_outputs_, passes_), .batch = batch});
}

// The passes whose graphs are to be written have run, or come with the plan.
void Job::check_dumps() const {
  for (const auto& [pass, file] : options.dump_after) {
    const bool comes = pass == "recompute" || pass == "micro_batches" || pass == "early_updates";
    if (!comes && std::find(ran_.begin(), ran_.end(), pass) == ran_.end())
      throw error(ErrorCode::usage, "`dump_after` {}: no such pass ran; these did: {}", pass, fmt::join(ran_, ", "));
  }
}

EntrySet Job::entries(const StepStrategy& strategy) {
  EntrySet set{.strategy = strategy, .micro_batches = options.gradient_accumulation_steps};
  const bool is_first = !std::exchange(has_entries_, true);
  const std::vector<LengthReport> all = lengths.empty() ? std::vector{LengthReport{.share = 1}} : lengths;
  losses = loss_spec();
  const Graph& main = forward_graph(binding.batch, all.front().length);
  if (is_first) {
    for (const std::string& text : loss_notes(main, losses)) note_(text);
    for (const Attachment& other : attached_)
      note_(fmt::format("{} {}: its weights stay as they are", other.is_loss ? "the loss is" : "the teacher is", other.path));
  }
  OptimizerSpec update = optimizer_spec(strategy);
  if (strategy.defer == Deferral::most) update.at_once = used_soon(main);  // the same weights for every shape: they share the sums
  if (!packs_) packs_ = options.clip_per_layer ? Packs{} : choose_packs(main, losses, optimizer);  // a pack has one norm
  passes_.packs = *packs_;
  const PassOptions first = is_first ? first_passes() : passes_;
  for (const LengthReport& length : all)
    add_train(set, {.batch = binding.batch, .length = length.length, .share = length.share}, update, set.entries.empty() ? first : passes_);
  if (is_first) check_dumps();
  const int64_t remainder = batching(train_range).remainder();
  if (remainder > 0 && ends_an_epoch()) {
    for (const LengthReport& length : all)
      add_train(set, {.batch = remainder, .length = length.length, .share = length.share, .remainder = true}, update, passes_);
  }
  if (update.accumulate || update.deferred) {
    const int source = set.find({.kind = EntryKind::train});
    add_entry(set, {.name = "update", .built = build_update_graph(set.entries[static_cast<size_t>(source)].built, update, passes_)});
  }
  for (const LengthReport& length : all) add_evaluate(set, length);
  add_predict(set);
  if (strategy.joined_batches > 1) {
    add_joined(set, "train-together", 0);
    if (update.deferred) add_joined(set, "train-first-together", static_cast<size_t>(set.find({.kind = EntryKind::train})));
  }
  return set;
}

// --- data -------------------------------------------------------------------------------------------------------------------------------

std::vector<std::unique_ptr<Feed>> Job::feeds(const EntrySet& set) const {
  std::vector<std::unique_ptr<Feed>> feeds;
  for (const JobEntry& entry : set.entries) {
    const EntryKind kind = entry.built.role.kind;
    const bool is_fed = !entry.joined && (kind == EntryKind::train || kind == EntryKind::evaluate);
    if (!is_fed) {
      feeds.push_back(nullptr);
      continue;
    }
    std::vector<LabelSpec> labels;
    for (size_t i = 0; i < entry.built.losses.size(); ++i) {
      const JobLoss& loss = entry.built.losses[i];
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
    const SampleRange& range = kind == EntryKind::train ? train_range : valid_range;
    feeds.push_back(std::make_unique<Feed>(*range.data, entry.built.graph, binding, labels, entry.length));
  }
  return feeds;
}

int64_t Job::data_bytes() const { return data.train->memory_bytes() + (data.valid ? data.valid->memory_bytes() : 0); }

StepBatches Job::batches_of_step(int64_t epoch, int64_t index) const {
  const int64_t usable = batching(train_range).usable();
  if (index >= usable) return batches_of_step(epoch + 1, 0);
  const Shuffle shuffle(options.seed, epoch, train_range.count);
  StepBatches window{.epoch = epoch, .index = index};
  while (static_cast<int64_t>(window.batches.size()) < options.gradient_accumulation_steps && window.index < usable) {
    std::vector<int64_t> batch;
    for (; static_cast<int64_t>(batch.size()) < binding.batch && window.index < usable; ++window.index) {
      batch.push_back(train_range.begin + (options.shuffle ? shuffle(window.index) : window.index));
    }
    const Batch& added = window.batches.emplace_back(batch_of(train_range, std::move(batch)));
    const int64_t length = added.length > 0 ? added.length : std::max<int64_t>(1, binding.sequence);
    window.tokens += static_cast<int64_t>(added.samples.size()) * length;
  }
  if (window.index >= usable) {  // a window never crosses the end of an epoch
    ++window.epoch;
    window.index = 0;
  }
  return window;
}

}  // namespace ort_train
