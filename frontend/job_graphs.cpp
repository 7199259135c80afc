#include "frontend/job_graphs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "frontend/loss_options.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/pack_weights.h"

namespace ort_train {
namespace {

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
std::string named(const std::string& name, const JobEntry& entry) {
  return name + (entry.remainder ? "-remainder" : "") + (entry.length > 0 ? fmt::format("-{}", entry.length) : "");
}

}  // namespace

EntrySet JobGraphs::entries(const StepStrategy& strategy) {
  EntrySet set{.strategy = strategy, .micro_batches = options_.gradient_accumulation_steps};
  const bool is_first = !packs_;
  const std::vector<LengthReport> lengths = data_.lengths.empty() ? std::vector{LengthReport{.share = 1}} : data_.lengths;
  if (is_first) losses = make_losses();
  const Graph& main = model_.main_forward_graph();
  if (is_first) {
    note_losses(main);
    settle_text(main);
  }
  OptimizerSpec update = optimizer_spec(strategy);
  if (strategy.defer == Deferral::most) update.at_once = used_soon(main);  // the same weights for every shape: they share the sums
  if (is_first) packs_ = options_.clip_per_layer ? Packs{} : choose_packs(main, losses, optimizer_);  // a pack has one norm
  for (const LengthReport& length : lengths) {
    add_train(set, {.batch = data_.binding.batch, .length = length.length, .share = length.share}, update, is_first && set.entries.empty());
  }
  if (is_first) check_dumps();
  const int64_t remainder = data_.batching(data_.train_samples).remainder();
  if (remainder > 0 && data_.ends_an_epoch()) {
    for (const LengthReport& length : lengths)
      add_train(set, {.batch = remainder, .length = length.length, .share = length.share, .remainder = true}, update);
  }
  if (update.accumulate || update.deferred) {
    const int source = set.find({.kind = EntryKind::train});
    add_entry(set, {.name = "update", .built = build_update_graph(set.entries[static_cast<size_t>(source)].built, update, passes())});
  }
  for (const LengthReport& length : lengths) add_evaluate(set, length);
  add_predict(set);
  if (strategy.joined_batches > 1) {
    add_joined(set, "train-together", 0);
    if (update.deferred) add_joined(set, "train-first-together", static_cast<size_t>(set.find({.kind = EntryKind::train})));
  }
  return set;
}

bool JobGraphs::has_weights_used_late() {
  const Graph& main = model_.main_forward_graph();
  const std::set<std::string> soon = used_soon(main);
  const std::vector<ValueId> parameters = main.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](ValueId id) { return main.value(id).trainable && !soon.contains(main.value(id).name); });
}

// --- losses and updates -----------------------------------------------------------------------------------------------------------------

// The losses, with what the data say of their labels.
LossSpec JobGraphs::make_losses() const {
  LossSpec spec = parse_losses(options_);
  const DataSet& train = *data_.sets.train;
  for (LossTerm& term : spec.terms) {
    if (loss_named(term.kind).labels != LabelKind::sequences) continue;
    const Field* field = train.field(term.labels[0]);
    if (field == nullptr) continue;  // the feed says so
    const Shape& sample = field->shape;
    if (sample.size() != 1)
      throw error(ErrorCode::data, "{}: array '{}' has samples of shape {}; `loss` {} reads a row of labels", train.name(), term.labels[0],
                  to_string(sample), term.kind);
    term.longest = sample[0];
  }
  return spec;
}

LossSpec JobGraphs::losses_of(int64_t batch) const {
  LossSpec spec = losses;
  spec.samples = batch;
  return spec;
}

void JobGraphs::note_losses(const Graph& forward) const {
  for (const std::string& text : loss_notes(forward, losses)) note_(text);
  for (const Attachment& other : data_.attached)
    note_(fmt::format("{} {}: its weights stay as they are", other.is_loss ? "the loss is" : "the teacher is", other.path));
}

// Of several outputs, that whose numbers are as many as the tokens of the vocabulary, else the first that has more.
void JobGraphs::settle_text(const Graph& forward) {
  if (!data_.sets.vocabulary) return;
  const Binding& binding = data_.binding;
  const int64_t tokens = data_.sets.vocabulary->size();
  for (const size_t place : model_.passes().read) {
    if (place >= model_.output_count) break;  // those of other models
    const TensorType type = forward.value(forward.outputs[place]).type();
    if (!is_floating(type.dtype) || type.shape.size() != 3 || type.shape[0] != binding.batch || type.shape[1] != binding.sequence) continue;
    if (type.shape[2] == tokens) {
      text_output = place;
      break;
    }
    if (type.shape[2] > tokens && !text_output) text_output = place;
  }
  if (text_output) return;
  no_text = fmt::format(
      "no text can be written with this model: no output that the loss reads has a number for each of the {} tokens "
      "of {} at each position",
      tokens, data_.sets.vocabulary->path());
  note_(no_text);
}

OptimizerSpec JobGraphs::optimizer_spec(const StepStrategy& strategy) const {
  return {.optimizer = optimizer_,
          .weight_decay = options_.weight_decay,
          .groups = model_.groups,
          .max_grad_norm = options_.max_grad_norm,
          .clip_per_layer = options_.clip_per_layer,
          .loss_scaling = model_.scaling.is_on(),
          .rounds = options_.bf16_full,
          .seed = options_.seed,
          .accumulate = options_.gradient_accumulation_steps > 1,
          .deferred = strategy.is_deferred()};
}

PassOptions JobGraphs::passes(bool is_first) const {
  PassOptions passes = is_first ? model_.first_passes() : model_.passes();
  passes.packs = packs_.value();
  return passes;
}

// --- entry points -----------------------------------------------------------------------------------------------------------------------

// Deferred: "train" makes the update that a step before it deferred, "train-first" has none before it.
void JobGraphs::add_train(EntrySet& set, const JobEntry& unbuilt, const OptimizerSpec& update, bool is_first) {
  const Graph& forward = model_.forward_graph(unbuilt.batch, unbuilt.length);
  check_live_layers(forward, unbuilt.batch);
  const PassOptions passes = this->passes(is_first);
  JobEntry entry = unbuilt, deferred = unbuilt;
  entry.built = build_train_graph(forward, losses_of(unbuilt.batch), update, passes);
  if (update.deferred) {
    deferred.built = build_deferred_graph(entry.built, update, passes);
    deferred.name = named("train", unbuilt);
    add_entry(set, std::move(deferred));
  }
  entry.name = named(update.deferred ? "train-first" : "train", unbuilt);
  add_entry(set, std::move(entry));
}

void JobGraphs::add_evaluate(EntrySet& set, const LengthReport& length) {
  const SampleRange& valid = data_.valid_samples;
  if (valid.data == nullptr) return;
  const Binding& binding = data_.binding;
  const int64_t full = valid.count / binding.batch, rest = data_.batching(valid).remainder();
  const auto add = [&](int64_t batch, bool is_remainder) {
    JobEntry entry{.batch = batch, .length = length.length, .share = length.share, .remainder = is_remainder};
    entry.name = named("evaluate", entry);
    const Graph& forward = model_.forward_graph(batch, length.length);
    entry.built = build_evaluate_graph(forward, losses_of(batch), passes());
    add_entry(set, std::move(entry));
  };
  if (full > 0) add(binding.batch, /*is_remainder=*/false);
  if (rest > 0 && (options_.eval_batches == 0 || options_.eval_batches > full)) add(rest, /*is_remainder=*/true);
}

void JobGraphs::add_predict(EntrySet& set) {
  if (options_.predict_batch_size == 0 && !text_output) return;
  const Binding& binding = data_.binding;
  const int64_t batch = binding.batch_is_fixed ? binding.batch : options_.predict_batch_size > 0 ? options_.predict_batch_size : 1;
  if (options_.predict_batch_size > 0 && options_.predict_batch_size != batch) {
    throw error(ErrorCode::usage, "a prediction for {} samples is wanted, the model's file fixes the batch at {}",
                options_.predict_batch_size, batch);
  }
  const Graph& forward = model_.forward_graph(batch, data_.longest());
  add_entry(set, {.name = "predict", .built = build_predict_graph(forward, model_.output_count, passes()), .batch = batch});
}

// --- checks -----------------------------------------------------------------------------------------------------------------------------

// A batch's own statistics need several values a channel.
void JobGraphs::check_live_layers(const Graph& forward, int64_t batch) const {
  for (const NodeId id : live_layers(forward)) {
    const Node& node = forward.node(id);
    const int64_t channels = element_count(forward.value(node.inputs[1]).shape),
                  elements = element_count(forward.value(node.inputs[0]).shape);
    if (elements > channels) continue;
    throw error(
        ErrorCode::usage,
        "[BatchNormalization '{}'] a batch of {} gives it one value a channel{}: a live layer needs several (another `batch_size`, or "
        "`batch_norm` frozen)",
        node.name, batch, batch == data_.binding.batch ? "" : ", as the last of an epoch here");
  }
}

// The passes whose graphs are to be written have run, or come with the plan.
void JobGraphs::check_dumps() const {
  const std::vector<std::string>& run = model_.passes_run();
  for (const auto& [pass, file] : options_.dump_after) {
    const bool comes = pass == "recompute" || pass == "micro_batches" || pass == "early_updates";
    if (!comes && std::find(run.begin(), run.end(), pass) == run.end())
      throw error(ErrorCode::usage, "`dump_after` {}: no such pass ran; these did: {}", pass, fmt::join(run, ", "));
  }
}

}  // namespace ort_train
