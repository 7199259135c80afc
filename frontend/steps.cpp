#include "frontend/steps.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "exec/loss_scale.h"
#include "exec/random.h"
#include "frontend/save_tensors.h"
#include "graph/error.h"

namespace ort_train {

Steps::Steps(const Job& job, const PlannedJob& planned, Runtime& runtime)
    : job_(job), planned_(planned), runtime_(runtime), feeds_(job.feeds(planned.set)) {}

const JobEntry& Steps::entry_for(EntryWanted wanted, const Batch& batch, size_t* index) const {
  const EntrySet& set = planned_.set;
  const auto samples = static_cast<int64_t>(batch.samples.size());
  wanted.length = batch.length;
  int found = set.find(wanted);
  if (found < 0 || set.entries[static_cast<size_t>(found)].batch != samples) {
    wanted.remainder = true;
    found = set.find(wanted);
  }
  require(found >= 0 && set.entries[static_cast<size_t>(found)].batch == samples, "no entry point for a batch");
  *index = static_cast<size_t>(found);
  return set.entries[*index];
}

// An entry of a step makes the update that waits, if one does; before another runs, flush() has.
bool Steps::run(size_t index, const std::atomic<bool>* until) {
  const JobGraph& job = planned_.set.entries[index].job;
  require(!pending_ || !job.pending_scalars.empty(), "an update that waits would be lost");
  runtime_.check_usable();
  if (pending_) set_update(index, job.pending_scalars, job.pending_loss_scale, *pending_);
  if (!runtime_.run(index, until)) return false;
  pending_.reset();
  return true;
}

void Steps::flush() {
  if (pending_) run(static_cast<size_t>(planned_.set.find({.kind = EntryKind::update})));
}

Feed::Places Steps::places(size_t index) const {
  return [this, index](ValueId value) { return runtime_.place(index, value); };
}

std::function<float(ValueId)> Steps::scalars(size_t index) const {
  return [this, index](ValueId value) { return runtime_.scalar(index, value); };
}

// --- inputs -----------------------------------------------------------------------------------------------------------------------------

void Steps::set_number(size_t index, ValueId input, float number) {
  const auto to = input == kNone ? std::span<std::byte>() : runtime_.place(index, input);
  if (!to.empty()) std::memcpy(to.data(), &number, sizeof(number));
}

void Steps::set_update(size_t index, const std::vector<ValueId>& scalars, ValueId loss_scale, const UpdateNumbers& update) {
  set_number(index, loss_scale, update.loss_scale);
  for (size_t group = 0; group < scalars.size(); ++group) {
    std::vector<float> numbers = job_.optimizer.scalars(update.t, update.learning_rates.at(group));
    if (job_.types.low_weights)
      numbers.insert(numbers.end(), {static_cast<float>(update.t / kStepLow), static_cast<float>(update.t % kStepLow)});
    const auto to = runtime_.place(index, scalars[group]);
    if (!to.empty()) std::memcpy(to.data(), numbers.data(), to.size());
  }
}

// Where this run's random numbers are found: exec/random.h.
void Steps::set_random(size_t index, ValueId input, int64_t number, int64_t first, int64_t samples) {
  const auto to = input == kNone ? std::span<std::byte>() : runtime_.place(index, input);
  if (to.empty()) return;
  const std::array<int64_t, kRandomNumbers> numbers{static_cast<int64_t>(job_.options.seed), number, first, samples};
  std::memcpy(to.data(), numbers.data(), to.size());
}

// What the losses' gradients begin with.
void Steps::set_seed(size_t index, const LossMeans& means, float loss_scale) {
  const JobGraph& job = planned_.set.entries[index].job;
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const double counted = means.counted[i];
    set_number(index, job.losses[i].inverse_count, counted > 0 ? static_cast<float>(job.losses[i].weight / counted) : 0.0f);
  }
  set_number(index, job.loss_scale, loss_scale);
}

// --- a step -----------------------------------------------------------------------------------------------------------------------------

StepResult Steps::step(const Window& window, int64_t number, const UpdateNumbers& update, bool save) {
  const EntrySet& set = planned_.set;
  const bool accumulate = set.micro_batches > 1;
  const auto wanted = [&] { return EntryWanted{.kind = EntryKind::train, .completes_update = pending_.has_value()}; };
  size_t index = 0;
  LossMeans means(set.entries[0].job.losses);
  for (const Batch& batch : window.batches) {
    const JobEntry& entry = entry_for(wanted(), batch, &index);
    means.count_batch(entry.job.losses, static_cast<int64_t>(batch.samples.size()), 1);
    if (accumulate) feeds_[index]->count(batch.samples, means.counted);
  }
  int64_t first = 0;  // samples of the window before this batch
  std::span<const Batch> left = window.batches;
  const auto is_full = [&](const Batch& batch) { return static_cast<int64_t>(batch.samples.size()) == job_.binding.batch; };
  for (const auto many = static_cast<size_t>(set.way.together); many > 1 && left.size() >= many; left = left.subspan(many)) {
    const auto batches = left.first(many);
    if (!std::all_of(batches.begin(), batches.end(), is_full)) break;
    EntryWanted joined = wanted();
    joined.joined = true;
    index = static_cast<size_t>(set.find(joined));
    run_together(index, batches, number, first, update.loss_scale, means);
    first += set.way.together * job_.binding.batch;
  }
  for (const Batch& batch : left) {
    entry_for(wanted(), batch, &index);
    run_batch(index, batch, number, first, update, means);
    first += static_cast<int64_t>(batch.samples.size());
  }
  const auto save_gradients = [&] { write_gradients(job_, planned_, runtime_, index, update.loss_scale); };
  const bool used_up = accumulate && !set.way.is_deferred();  // the update clears the sums
  if (save && used_up) save_gradients();
  if (set.way.is_deferred()) {
    pending_ = update;
  } else if (accumulate) {
    index = static_cast<size_t>(set.find({.kind = EntryKind::update}));
    set_update(index, set.entries[index].job.scalars, set.entries[index].job.loss_scale, update);
    run(index);
  }
  const float norm = runtime_.scalar(index, set.entries[index].job.grad_norm);
  if (save && !used_up) save_gradients();  // after the norm: it may use the memory
  return {.loss = means.loss(), .grad_norm = static_cast<double>(unscaled_norm(norm, update.loss_scale)), .counts = means.counts()};
}

void Steps::run_batch(size_t index, const Batch& batch, int64_t number, int64_t first, const UpdateNumbers& update, LossMeans& means) {
  const JobGraph& job = planned_.set.entries[index].job;
  std::vector<double> here(means.counted.size());
  feeds_[index]->fill(batch.samples, places(index), here);
  if (planned_.set.micro_batches == 1) means.add_labels(here);
  set_seed(index, means, update.loss_scale);
  set_random(index, job.graph.find_value(kRandomInput), number, first, static_cast<int64_t>(batch.samples.size()));
  set_update(index, job.scalars, job.loss_scale, update);
  run(index);
  means.add_losses(job.losses, here, scalars(index));
}

void Steps::run_together(size_t index, std::span<const Batch> batches, int64_t number, int64_t first, float loss_scale, LossMeans& means) {
  const JobEntry& entry = planned_.set.entries[index];
  Feed& feed = *feeds_[0];  // one micro-batch's
  const ValueId random = entry.job.graph.find_value(kRandomInput);
  std::vector<std::vector<double>> here(batches.size(), std::vector<double>(means.counted.size()));
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto samples = static_cast<int64_t>(batches[i].samples.size());
    feed.fill(
        batches[i].samples, [&](ValueId value) { return runtime_.place(index, entry.together[i][value]); }, here[i]);
    if (random != kNone) set_random(index, entry.together[i][random], number, first + static_cast<int64_t>(i) * samples, samples);
  }
  set_seed(index, means, loss_scale);
  run(index);
  for (size_t i = 0; i < batches.size(); ++i)
    means.add_losses(entry.job.losses, here[i], [&](ValueId value) { return runtime_.scalar(index, entry.together[i][value]); });
}

// --- an evaluation ----------------------------------------------------------------------------------------------------------------------

Evaluated Steps::evaluate(const std::atomic<bool>& stop) {
  const SampleRange& range = job_.valid_range;
  const int64_t batch_size = job_.binding.batch, most = job_.options.eval_batches;
  Evaluated result{.loss = std::numeric_limits<double>::quiet_NaN()};
  LossMeans means(planned_.set.entries[0].job.losses);
  const int64_t usable = job_.binding.batch_is_fixed ? range.count / batch_size * batch_size : range.count;
  for (int64_t at = 0; at < usable && (most == 0 || result.batches < most); ++result.batches) {
    std::vector<int64_t> taken;
    for (; static_cast<int64_t>(taken.size()) < batch_size && at < usable; ++at) taken.push_back(range.begin + at);
    const Batch batch = job_.batch_of(range, std::move(taken));
    size_t index = 0;
    const JobEntry& entry = entry_for({.kind = EntryKind::evaluate}, batch, &index);
    std::vector<double> here(means.counted.size());
    feeds_[index]->fill(batch.samples, places(index), here);
    if (!run(index, &stop)) return result;
    // The mean of a model's own loss is weighted by samples, so that a short last batch counts for what it is.
    const auto samples = static_cast<double>(batch.samples.size());
    means.count_batch(entry.job.losses, static_cast<int64_t>(batch.samples.size()), samples);
    means.add_labels(here);
    means.add_losses(entry.job.losses, here, scalars(index), samples);
  }
  if (means.counts()) result.loss = means.loss();
  return result;
}

}  // namespace ort_train
