#include "frontend/job_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "frontend/check_options.h"
#include "frontend/controlnet.h"
#include "frontend/shuffle.h"
#include "graph/error.h"
#include "graph/rounding.h"

namespace ort_train {

JobData::JobData(const Options& options, const RunStart& start, const Note& note) : options_(options), start_(start), note_(note) {
  const Declared model = declared(options.model, control_net(options));
  sets = open_data(options.data, options.model, options.token_type);
  binding = bind_inputs(model, options, *sets.train);
  attached = attachments(options);
  for (const Attachment& other : attached) bind_attachment(other, model, *sets.train, binding);
  if (sets.valid && sets.valid->is_row()) sets.valid->cut(binding.sequence);
  divide_samples();
  count_steps();
  settle_lengths();
}

// --- which samples ----------------------------------------------------------------------------------------------------------------------

void JobData::divide_samples() {
  train_samples = {.data = sets.train.get(), .begin = 0, .count = sets.train->samples()};
  if (sets.valid) {
    valid_samples = {.data = sets.valid.get(), .begin = 0, .count = sets.valid->samples()};
  } else if (options_.eval_steps > 0) {
    const int64_t held_out = static_cast<int64_t>(std::ceil(static_cast<double>(train_samples.count) * options_.validation_split));
    if (held_out == 0 || held_out >= train_samples.count) {
      throw error(ErrorCode::data,
                  "{}: of its {} samples, none is left to evaluate or to train on: change `validation_split`, or give a folder with train "
                  "and valid",
                  sets.train->path(), train_samples.count);
    }
    train_samples.count -= held_out;
    valid_samples = {.data = sets.train.get(), .begin = train_samples.count, .count = held_out};
    note_(fmt::format("the last {} of {} samples are held out", held_out, train_samples.count + held_out));
  }
  if (train_samples.count < binding.batch) {
    if (binding.batch_is_fixed) {
      throw error(ErrorCode::data, "{}: has {} samples, fewer than the batch of {} that the model's file fixes", sets.train->path(),
                  train_samples.count, binding.batch);
    }
    note_(fmt::format("the batch is {}: the data has no more samples", train_samples.count));
    binding.batch = train_samples.count;
  }
  if (const int64_t left_out = train_samples.count - batching(train_samples).usable(); left_out > 0) {
    note_(fmt::format("the model's file fixes the batch at {}: {} of {} samples are left out in each epoch", binding.batch, left_out,
                      train_samples.count));
  }
}

void JobData::count_steps() {
  total_steps = options_.max_steps;
  if (total_steps > 0) return;
  const double steps = std::ceil(options_.num_train_epochs * static_cast<double>(steps_of_epoch(0)));
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
  const auto field = static_cast<size_t>(range.data->find(kLengthField));
  const Field& mask = range.data->fields()[field];
  std::vector<std::byte> bytes(static_cast<size_t>(mask.bytes()));
  int64_t needed = 0;  // by the longest sample
  for (const int64_t sample : batch.samples) {
    range.data->read(field, sample, bytes);
    const auto last = std::find_if(bytes.rbegin(), bytes.rend(), [](std::byte byte) { return byte != std::byte{0}; });
    needed = std::max(needed, divided_up(bytes.rend() - last, size_of(mask.element)));
  }
  for (const LengthReport& of : lengths) batch.length = of.length >= needed ? of.length : batch.length;
  return batch;
}

// How often batches have each length: in the first epoch, or the beginning of it.
void JobData::settle_lengths() {
  if (options_.length_buckets.empty()) return;
  if (const DataSet* const valid = sets.valid.get(); valid != nullptr) {
    const int field = valid->find(kLengthField);
    if (field < 0 || valid->fields()[static_cast<size_t>(field)].shape != Shape{binding.sequence})
      throw error(ErrorCode::data, "{}: has no array '{}' of samples of {}, as the data to train on", valid->path(), kLengthField,
                  binding.sequence);
  }
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
                          .field = losses.terms[i].labels.at(at),
                          .loss = i,
                          .causal = options_.task == "causal-lm" && loss.kind == LabelKind::classes,
                          .kind = is_length ? LabelKind::numbers : loss.kind,
                          .counts = loss.counted == Counted::labels,
                          .class_count = loss.classes,
                          .class_weights = loss.class_weights,
                          .ignore_index = loss.ignore_index});
      }
    }
    const SampleRange& range = kind == EntryKind::train ? train_samples : valid_samples;
    feeds.push_back(std::make_unique<Feed>(*range.data, entry.built.graph, binding, labels, entry.length));
  }
  return feeds;
}

int64_t JobData::memory_bytes() const { return sets.train->memory_bytes() + (sets.valid ? sets.valid->memory_bytes() : 0); }

void JobData::load() {
  sets.train->load();
  if (sets.valid) sets.valid->load();
}

}  // namespace ort_train
