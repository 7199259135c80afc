#include "frontend/job_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "frontend/check_options.h"
#include "frontend/controlnet.h"
#include "frontend/loss_options.h"
#include "frontend/sample_source.h"
#include "frontend/shuffle.h"
#include "graph/error.h"
#include "graph/rounding.h"

namespace ort_train {
namespace {

ValidFile wanted_valid(const Options& options) {
  if (evaluates(options)) return ValidFile::needed;
  return options.evaluates_on_request ? ValidFile::optional : ValidFile::ignored;
}

// The array of tokens: 'input_ids', else the only one of whole numbers that feeds the model; empty where there is none.
std::string token_array(const DataSet& data, const Binding& binding) {
  if (data.field("input_ids") != nullptr) return "input_ids";
  std::set<std::string> whole;
  for (const FedInput& fed : binding.fed) {
    const bool is_beside_tokens = fed.input == kLengthField || fed.input == "position_ids" || fed.input == "token_type_ids";
    if (!is_beside_tokens && !is_float(data.field(fed.field)->element)) whole.insert(fed.field);
  }
  return whole.size() == 1 ? *whole.begin() : std::string();
}

// How long samples of tokens have to be: as `seq_length` says, else as the model's file or `shapes` do; 0: nothing says.
int64_t length_of_tokens(const Options& options, const Declared& model) {
  if (options.seq_length > 0) return options.seq_length;
  for (const DeclaredInput& input : model.inputs) {
    if (input.name != "input_ids" || input.dims.size() != 2) continue;
    if (const auto asked = asked_size(input, 1, options.shapes)) return std::max<int64_t>(0, *asked);
  }
  return 0;
}

// A language model's inputs are filled in with ones where no sample has padding.
LineOptions line_options(const Options& options, const Declared& model, const std::vector<LossTerm>& terms) {
  LineOptions lines{.labels = {},
                    .length = length_of_tokens(options, model),
                    .always_masks = options.task != "causal-lm" || !options.length_buckets.empty()};
  for (const LossTerm& term : terms) {
    const LabelKind kind = loss_named(term.kind).labels;
    const bool is_classes = kind == LabelKind::classes || kind == LabelKind::sequences;
    if (kind != LabelKind::none) lines.labels.emplace(term.labels[0], is_classes ? term.ignore_index : 0);
  }
  return lines;
}

}  // namespace

JobData::JobData(const Options& options, const RunStart& start, const Note& note)
    : options_(options), start_(start), note_(note), terms_(parse_losses(options).terms) {
  const Declared model = declared(options.model, control_net(options));
  sets = options.train_samples
             ? source_data_sets(options)
             : open_data(options.data, options.model, options.token_type, wanted_valid(options), line_options(options, model, terms_));
  binding = bind_inputs(model, options, *sets.train);
  tokens_ = token_array(*sets.train, binding);
  attached = attachments(options);
  for (const Attachment& other : attached) bind_attachment(other, model, *sets.train, binding);
  settle_labels();
  sets.train->use(arrays_used());
  settle_valid();
  note_lengths();
  divide_samples();
  count_steps();
  settle_lengths();
}

// --- which arrays -----------------------------------------------------------------------------------------------------------------------

// Whether a term's labels are the tokens, shifted: for text and token files, unless the user named others; for arrays only where the data
// have no label array and the user named none.
std::vector<bool> JobData::find_token_labels(const DataSet& data) const {
  const bool is_causal = options_.task == "causal-lm";
  const std::string usual = Options{}.labels;
  std::vector<bool> result;
  for (const LossTerm& term : terms_) {
    const bool is_of_tokens = is_causal && loss_named(term.kind).labels == LabelKind::classes;
    const bool is_named = term.has_own_labels || options_.labels != usual;
    if (!is_of_tokens)
      result.push_back(false);
    else if (data.is_row())
      result.push_back(!is_named || term.labels[0] == usual);
    else
      result.push_back(!is_named && !tokens_.empty() && data.field(term.labels[0]) == nullptr);
  }
  return result;
}

void JobData::settle_labels() {
  const DataSet& data = *sets.train;
  labels_are_tokens_ = find_token_labels(data);
  if (data.is_row() || std::find(labels_are_tokens_.begin(), labels_are_tokens_.end(), true) == labels_are_tokens_.end()) return;
  const Field *mask = data.field(kLengthField), *tokens = data.field(tokens_);
  ignores_padding_ = mask != nullptr && mask->shape.size() == 1 && !tokens->shape.empty() && mask->shape[0] == tokens->shape[0];
  note_(fmt::format("labels are '{}', shifted{}", tokens_,
                    ignores_padding_ ? fmt::format("; labels of padded positions don't count ('{}')", kLengthField) : ""));
}

std::set<std::string> JobData::arrays_used() const {
  std::set<std::string> names;
  for (const FedInput& fed : binding.fed) names.insert(fed.field);
  for (size_t i = 0; i < terms_.size(); ++i) {
    if (labels_are_tokens_[i])
      names.insert(tokens_);
    else if (loss_named(terms_[i].kind).labels != LabelKind::none)
      names.insert(terms_[i].labels.begin(), terms_[i].labels.end());
  }
  if (ignores_padding_ || !options_.length_buckets.empty()) names.insert(kLengthField);
  return names;
}

// Where nobody evaluates in the course of the run, a validation file that doesn't fit is none.
void JobData::settle_valid() {
  no_valid = sets.valid_problem;
  if (!sets.valid) return;
  try {
    check_valid(*sets.valid);
  } catch (const Error& problem) {
    if (evaluates(options_)) throw;
    no_valid = problem.what();
    sets.valid.reset();
  }
}

void JobData::note_lengths() const {
  for (const DataSet* data : {sets.train.get(), sets.valid.get()}) {
    if (data == nullptr) continue;
    if (const std::string text = data->note(); !text.empty()) note_(text);
  }
}

void JobData::check_valid(DataSet& valid) const {
  const DataSet& train = *sets.train;
  if (valid.is_row()) valid.cut(binding.sequence);
  const std::vector<bool> are_tokens = find_token_labels(valid);
  for (size_t i = 0; i < terms_.size(); ++i) {
    if (are_tokens[i] == labels_are_tokens_[i]) continue;
    throw error(ErrorCode::data, "{}: has {} array '{}' for the labels, {} has {}: give it to both, or to none", valid.name(),
                are_tokens[i] ? "no" : "an", terms_[i].labels[0], train.name(), are_tokens[i] ? "one" : "none");
  }
  valid.use(arrays_used());
  for (const std::string& name : arrays_used()) {
    const Field *ours = train.field(name), *theirs = valid.field(name);
    if (ours == nullptr) continue;  // the feed says so
    if (theirs == nullptr) throw error(ErrorCode::data, "{}: has no array '{}', which {} has", valid.name(), name, train.name());
    const bool is_alike = is_float(theirs->element) == is_float(ours->element) || valid.has_plain_numbers() || train.has_plain_numbers();
    const bool is_fed = std::any_of(binding.fed.begin(), binding.fed.end(), [&](const FedInput& fed) { return fed.field == name; });
    const bool is_shaped =
        is_fed ? theirs->shape == ours->shape : without_ones(theirs->shape) == without_ones(ours->shape);  // labels' ones may vary
    if (!is_shaped || !is_alike)
      throw error(ErrorCode::data, "{}: array '{}' has samples of {} {}, in {} they are {} {}", valid.name(), name,
                  to_string(theirs->element), to_string(theirs->shape), train.name(), to_string(ours->element), to_string(ours->shape));
  }
  if (binding.batch_is_fixed && valid.samples() < binding.batch)
    throw error(ErrorCode::data, "{}: has {} samples, fewer than the batch of {} that the model's file fixes", valid.name(),
                valid.samples(), binding.batch);
}

// --- which samples ----------------------------------------------------------------------------------------------------------------------

void JobData::divide_samples() {
  train_samples = {.data = sets.train.get(), .begin = 0, .count = sets.train->samples()};
  if (sets.valid)
    valid_samples = {.data = sets.valid.get(), .begin = 0, .count = sets.valid->samples()};
  else if (evaluates(options_))
    hold_out();
  if (train_samples.count < binding.batch) {
    if (binding.batch_is_fixed) {
      const int64_t held_out = sets.train->samples() - train_samples.count;
      throw error(ErrorCode::data, "{}: has {} samples{}, fewer than the batch of {} that the model's file fixes", sets.train->name(),
                  train_samples.count, held_out > 0 ? fmt::format(" beside the {} that are held out", held_out) : "", binding.batch);
    }
    note_(fmt::format("the batch is {}: the data has no more samples", train_samples.count));
    binding.batch = train_samples.count;
  }
  note_left_out(train_samples, "samples", "epoch");
  if (valid_samples.data != nullptr) note_left_out(valid_samples, "held-out samples", "evaluation");
}

// Takes the samples at the end of the only file.
void JobData::hold_out() {
  const int64_t all = train_samples.count;
  const auto held_out = static_cast<int64_t>(std::ceil(static_cast<double>(all) * options_.validation_split));
  if (held_out == 0 || held_out >= all) {
    throw error(ErrorCode::data,
                "{}: of its {} samples, none is left to evaluate or to train on: change `validation_split`, or give a folder with train "
                "and valid",
                sets.train->name(), all);
  }
  if (binding.batch_is_fixed && held_out < binding.batch) {
    throw error(
        ErrorCode::data,
        "{}: {} of its {} samples are held out, fewer than the batch of {} that the model's file fixes: raise `validation_split`, or "
        "give a folder with train and valid",
        sets.train->name(), held_out, all, binding.batch);
  }
  train_samples.count -= held_out;
  valid_samples = {.data = sets.train.get(), .begin = train_samples.count, .count = held_out};
  note_(fmt::format("the last {} of {} samples are held out", held_out, all));
}

void JobData::note_left_out(const SampleRange& range, const char* what, const char* when) const {
  const int64_t left_out = range.count - batching(range).usable();
  if (left_out == 0) return;
  note_(fmt::format("the model's file fixes the batch at {}: {} of {} {} are left out in each {}", binding.batch, left_out, range.count,
                    what, when));
}

void JobData::count_steps() {
  const int64_t of_epoch = steps_of_epoch(0);
  eval_steps = options_.eval_strategy == kEachEpoch ? of_epoch : options_.eval_steps;
  save_steps = options_.save_strategy == kEachEpoch ? of_epoch : options_.save_strategy == kNever ? 0 : options_.save_steps;
  total_steps = options_.max_steps;
  if (total_steps > 0) return;
  const double steps = std::ceil(options_.num_train_epochs * static_cast<double>(of_epoch));
  if (!(steps <= static_cast<double>(kMostSteps)))
    throw error(ErrorCode::usage, "`num_train_epochs` {}: {:.3g} steps are more than can be counted", options_.num_train_epochs, steps);
  total_steps = static_cast<int64_t>(steps);
}

int64_t JobData::steps_of_epoch(int64_t index) const {
  const Batching all = batching(train_samples);
  const int64_t left = all.usable() - std::min(index, all.usable()) / all.batch * all.batch;
  return divided_up(divided_up(left, all.batch), options_.gradient_accumulation_steps);
}

// A run that is resumed, perhaps with other settings, may begin anywhere in an epoch.
bool JobData::ends_an_epoch() const {
  return total_steps >= steps_of_epoch(0) || std::any_of(start_.cursors.begin(), start_.cursors.end(), [&](const RunStart::Cursor& cursor) {
           return total_steps - cursor.step >= steps_of_epoch(cursor.index);
         });
}

// --- batches ----------------------------------------------------------------------------------------------------------------------------

Batch JobData::batch_of(const SampleRange& range, std::vector<int64_t> samples) const {
  Batch batch{.samples = std::move(samples)};
  if (lengths.empty()) return batch;
  int64_t needed = 0;  // by the longest sample
  for (const int64_t sample : batch.samples) needed = std::max(needed, length_of(range, sample));
  for (const LengthReport& of : lengths) batch.length = of.length >= needed ? of.length : batch.length;
  return batch;
}

// By the last number of its mask other than 0; as long as can be where there is none.
int64_t JobData::length_of(const SampleRange& range, int64_t sample) const {
  const auto field = static_cast<size_t>(range.data->find(kLengthField));
  const Field& mask = range.data->fields()[field];
  std::vector<std::byte> bytes(static_cast<size_t>(mask.bytes()));
  range.data->read(field, sample, bytes);
  int64_t length = 0;
  for (int64_t i = 0; i < mask.shape[0]; ++i) {
    const int sign = sign_at(mask.element, bytes, i);
    if (sign != 0) length = i + 1;
    if (sign < 0 && is_float(mask.element))
      throw error(ErrorCode::data,
                  "{}: sample {}: array '{}' has negative numbers, as a mask that is added to scores, where 0 is no padding; "
                  "`length_buckets` need one of ones, and zeros for padding",
                  range.data->name(), sample, kLengthField);
  }
  return length > 0 ? length : mask.shape[0];
}

// How often batches have each length: in the first epoch, or the beginning of it.
void JobData::settle_lengths() {
  if (options_.length_buckets.empty()) return;
  std::set<int64_t, std::greater<>> all(options_.length_buckets.begin(), options_.length_buckets.end());
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
  sets.train->unload();  // until the plan is made
}

StepBatches JobData::batches_of_step(int64_t epoch, int64_t index) const {
  const int64_t usable = batching(train_samples).usable();
  if (index >= usable) return batches_of_step(epoch + 1, 0);
  const Shuffle shuffle(options_.seed, epoch, train_samples.count);
  StepBatches step{.epoch = epoch, .index = index};
  while (static_cast<int64_t>(step.batches.size()) < options_.gradient_accumulation_steps && step.index < usable) {
    std::vector<int64_t> batch;
    for (; static_cast<int64_t>(batch.size()) < binding.batch && step.index < usable; ++step.index) {
      batch.push_back(train_samples.begin + (options_.shuffle ? shuffle(step.index) : step.index));
    }
    const Batch& added = step.batches.emplace_back(batch_of(train_samples, std::move(batch)));
    const int64_t length = added.length > 0 ? added.length : std::max<int64_t>(1, binding.sequence);
    step.tokens += static_cast<int64_t>(added.samples.size()) * length;
  }
  if (step.index >= usable) {  // a step never crosses the end of an epoch
    ++step.epoch;
    step.index = 0;
  }
  return step;
}

// --- in memory --------------------------------------------------------------------------------------------------------------------------

std::vector<std::unique_ptr<Feed>> JobData::feeds(const EntrySet& set, const LossSpec& losses) const {
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
                          .field = labels_are_tokens_.at(i) ? tokens_ : losses.terms[i].labels.at(at),
                          .loss = i,
                          .causal = options_.task == "causal-lm" && loss.kind == LabelKind::classes,
                          .kind = is_length ? LabelKind::numbers : loss.kind,
                          .counts = loss.counted == Counted::labels,
                          .class_count = loss.classes,
                          .class_weights = loss.class_weights,
                          .ignore_index = loss.ignore_index,
                          .mask = labels_are_tokens_.at(i) && ignores_padding_ ? kLengthField : ""});
      }
    }
    const SampleRange& range = kind == EntryKind::train ? train_samples : valid_samples;
    feeds.push_back(std::make_unique<Feed>(*range.data, entry.built.graph, binding, labels, entry.length));
  }
  return feeds;
}

int64_t JobData::memory_bytes() const { return sets.train->memory_bytes() + (sets.valid ? sets.valid->memory_bytes() : 0); }

int64_t JobData::unpacked_bytes() const { return sets.train->unpacked_bytes() + (sets.valid ? sets.valid->unpacked_bytes() : 0); }

void JobData::load() {
  sets.train->load();
  if (sets.valid) sets.valid->load();
}

}  // namespace ort_train
