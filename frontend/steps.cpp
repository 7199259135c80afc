#include "frontend/steps.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "exec/loss_scale.h"
#include "exec/random.h"
#include "frontend/save_tensors.h"
#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

// Whether a node changes what a checkpoint has: a weight, optimizer state or a running statistic.
bool changes_state(const Graph& graph, const Node& node) {
  return std::any_of(node.op->writes.begin(), node.op->writes.end(), [&](const Alias& write) {
    const ValueId written = node.inputs[static_cast<size_t>(write.input)];
    if (written == kNone) return false;
    const ValueKind kind = graph.value(written).kind;
    return kind == ValueKind::parameter || kind == ValueKind::optimizer_state;
  });
}

// Of each entry the first instruction that does; as many as it has where none does.
std::vector<size_t> first_changes(const PlannedJob& planned) {
  std::vector<size_t> first;
  for (size_t entry = 0; entry < planned.program.entries.size(); ++entry) {
    const Graph& graph = planned.set.entries[entry].built.graph;
    const std::vector<Instruction>& code = planned.program.entries[entry].code;
    const auto found = std::find_if(code.begin(), code.end(), [&](const Instruction& instruction) {
      return !is_copy(instruction) && changes_state(graph, graph.node(instruction.node));
    });
    first.push_back(static_cast<size_t>(found - code.begin()));
  }
  return first;
}

}  // namespace

Steps::Steps(const Job& job, const PlannedJob& planned, Runtime& runtime)
    : job_(job),
      planned_(planned),
      runtime_(runtime),
      feeds_(job.data.feeds(planned.set, job.graphs.losses)),
      first_changes_(first_changes(planned)) {}

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

// An entry of a step makes the update that was deferred, if one was; before another runs, apply_deferred() has.
bool Steps::run(size_t index, const std::atomic<bool>* until) {
  const EntryGraph& entry = planned_.set.entries[index].built;
  require(!deferred_ || !entry.deferred_scalars.empty(), "a deferred update would be lost");
  runtime_.check_usable();
  if (deferred_) set_update(index, entry.deferred_scalars, entry.deferred_loss_scale, *deferred_);
  running_ = index;
  const bool is_complete = runtime_.run(index, until);
  running_.reset();
  if (!is_complete) return false;
  deferred_.reset();
  if (entry.role.kind == EntryKind::train || entry.role.kind == EntryKind::update) {
    has_begun_ = true;
    has_changed_state_ = has_changed_state_ || changes_state(index);
  }
  return true;
}

void Steps::apply_deferred() {
  if (!deferred_) return;
  run(static_cast<size_t>(planned_.set.find({.kind = EntryKind::update})));
  end_step();  // that one
}

// --- after a failure --------------------------------------------------------------------------------------------------------------------

// Before a step's first entry, or while the batches of a later one are read, weights are as the step before left them, unless an entry has
// changed them: of an accumulating step those do that have live BatchNorms, or begin with the update that the last step deferred and make
// some of this one's at once. (That of the last step alone would be no harm, but which it was isn't looked at.)
//
// Within an entry the order of its instructions decides: an update runs as early as in the backward pass, or forward before its weight's
// first use. A sample that can't be used (more elements than a selection has places for) is found by the node that reads it. What else
// fails there, such as the disk, is no ground to trust what memory holds; and an update that is still deferred can't be made any more.
bool Steps::are_whole(const Error& failure) const {
  if (has_changed_state_) return false;
  if (!running_) return true;
  const int32_t at = runtime_.failed_instruction();
  const bool is_before = !changes_state(*running_) || (at >= 0 && static_cast<size_t>(at) < first_changes_[*running_]);
  return failure.code() == ErrorCode::data && !deferred_ && is_before;
}

Feed::Places Steps::places(size_t index) const {
  return [this, index](ValueId value) { return runtime_.place(index, value); };
}

std::function<float(ValueId)> Steps::scalars(size_t index) const {
  return [this, index](ValueId value) { return runtime_.scalar(index, value); };
}

// --- inputs -----------------------------------------------------------------------------------------------------------------------------

void Steps::set_scalar(size_t index, ValueId input, float number) {
  const auto to = input == kNone ? std::span<std::byte>() : runtime_.place(index, input);
  if (!to.empty()) std::memcpy(to.data(), &number, sizeof(number));
}

void Steps::set_update(size_t index, const std::vector<ValueId>& scalars, ValueId loss_scale, const UpdateNumbers& update) {
  set_scalar(index, loss_scale, update.loss_scale);
  for (size_t group = 0; group < scalars.size(); ++group) {
    std::vector<float> numbers = job_.optimizer.scalars(update.t, update.learning_rates.at(group));
    if (job_.model.types.low_weights)
      numbers.insert(numbers.end(), {static_cast<float>(update.t / kStepLow), static_cast<float>(update.t % kStepLow)});
    const auto to = runtime_.place(index, scalars[group]);
    if (!to.empty()) std::memcpy(to.data(), numbers.data(), to.size());
  }
}

// Each loss's gradient begins with its weight / number of counted labels; of a mean that the model outputs with its samples' share of it.
void Steps::set_loss_gradients(size_t index, const LossMeans& means, int64_t samples, float loss_scale) {
  const EntryGraph& entry = planned_.set.entries[index].built;
  for (size_t i = 0; i < entry.losses.size(); ++i) {
    const JobLoss& loss = entry.losses[i];
    const double counted = means.counted[i];
    set_scalar(index, loss.inverse_count, counted > 0 ? static_cast<float>(loss.weight * weight_of_sum(loss, samples) / counted) : 0.0f);
  }
  set_scalar(index, entry.loss_scale, loss_scale);
}

// --- a step -----------------------------------------------------------------------------------------------------------------------------

StepResult Steps::step(std::span<const Batch> batches, int64_t number, const UpdateNumbers& update, bool save) {
  running_.reset();  // by an evaluation that failed in a callback, which went on
  LossMeans means = count_labels(batches);
  size_t last = 0;    // the entry that ran last
  int64_t first = 0;  // samples of the step before this batch
  std::span<const Batch> left = batches;
  const auto together = static_cast<size_t>(planned_.set.strategy.joined_batches);
  const auto is_full = [&](const Batch& batch) { return static_cast<int64_t>(batch.samples.size()) == job_.data.binding.batch; };
  for (; together > 1 && left.size() >= together; left = left.subspan(together)) {
    const auto joined = left.first(together);
    if (!std::all_of(joined.begin(), joined.end(), is_full)) break;
    last = run_joined(joined, number, first, update.loss_scale, means);
    first += static_cast<int64_t>(together) * job_.data.binding.batch;
  }
  for (const Batch& batch : left) {
    last = run_batch(batch, number, first, update, means);
    first += static_cast<int64_t>(batch.samples.size());
  }
  return finish_step(last, update, save, means);
}

// What the losses of a step are divided by. Of labels that are counted, with one micro-batch its entry's feed counts them itself.
LossMeans Steps::count_labels(std::span<const Batch> batches) {
  LossMeans means(planned_.set.entries[0].built.losses);
  for (const Batch& batch : batches) {
    size_t index = 0;
    const JobEntry& entry = entry_for(train_entry(), batch, &index);
    means.count_batch(entry.built.losses, std::ssize(batch.samples));
    if (planned_.set.micro_batches > 1) feeds_[index]->count(batch.samples, means.counted);
  }
  return means;
}

size_t Steps::run_batch(const Batch& batch, int64_t number, int64_t first, const UpdateNumbers& update, LossMeans& means) {
  size_t index = 0;
  const EntryGraph& entry = entry_for(train_entry(), batch, &index).built;
  std::vector<double> here(means.counted.size());
  feeds_[index]->fill(batch.samples, places(index), here);
  if (planned_.set.micro_batches == 1) means.add_labels(here);
  set_loss_gradients(index, means, std::ssize(batch.samples), update.loss_scale);
  runtime_.set_random(index, number, first, std::ssize(batch.samples));
  set_update(index, entry.scalars, entry.loss_scale, update);
  run(index);
  means.add_losses(entry.losses, std::ssize(batch.samples), here, scalars(index));
  return index;
}

size_t Steps::run_joined(std::span<const Batch> batches, int64_t number, int64_t first, float loss_scale, LossMeans& means) {
  EntryWanted wanted = train_entry();
  wanted.joined = true;
  const auto index = static_cast<size_t>(planned_.set.find(wanted));
  const JobEntry& entry = planned_.set.entries[index];
  Feed& feed = *feeds_[0];  // one micro-batch's
  const ValueId random = entry.built.graph.find_value(kRandomInput);
  std::vector<std::vector<double>> here(batches.size(), std::vector<double>(means.counted.size()));
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto samples = static_cast<int64_t>(batches[i].samples.size());
    feed.fill(
        batches[i].samples, [&](ValueId value) { return runtime_.place(index, entry.values_of_batch[i][value]); }, here[i]);
    if (random != kNone)
      runtime_.set_random(index, number, first + static_cast<int64_t>(i) * samples, samples, entry.values_of_batch[i][random]);
  }
  set_loss_gradients(index, means, std::ssize(batches[0].samples), loss_scale);
  run(index);
  for (size_t i = 0; i < batches.size(); ++i)
    means.add_losses(entry.built.losses, std::ssize(batches[i].samples), here[i],
                     [&](ValueId value) { return runtime_.scalar(index, entry.values_of_batch[i][value]); });
  return index;
}

// Makes the update, or defers it, unless the entry that ran last has made it.
StepResult Steps::finish_step(size_t index, const UpdateNumbers& update, bool save, const LossMeans& means) {
  const EntrySet& set = planned_.set;
  const bool accumulate = set.micro_batches > 1;
  const auto save_gradients = [&] { write_gradients(job_, planned_, runtime_, index, update.loss_scale); };
  const bool used_up = accumulate && !set.strategy.is_deferred();  // the update clears the sums
  if (save && used_up) save_gradients();
  has_changed_state_ = true;  // or will have, when the update is made
  if (set.strategy.is_deferred()) {
    deferred_ = update;
  } else if (accumulate) {
    index = static_cast<size_t>(set.find({.kind = EntryKind::update}));
    set_update(index, set.entries[index].built.scalars, set.entries[index].built.loss_scale, update);
    run(index);
  }
  const float norm = runtime_.scalar(index, set.entries[index].built.grad_norm);
  if (save && !used_up) save_gradients();  // after the norm: it may use the memory
  return {
      .loss = means.loss(), .grad_norm = static_cast<double>(unscaled_norm(norm, update.loss_scale)), .any_label_counted = means.counts()};
}

// --- an evaluation ----------------------------------------------------------------------------------------------------------------------

Evaluated Steps::evaluate(const std::atomic<bool>& stop) {
  const SampleRange& range = job_.data.valid_samples;
  const int64_t batch_size = job_.data.binding.batch, limit = job_.options.eval_batches;  // limit 0: all batches
  Evaluated result{.loss = std::numeric_limits<double>::quiet_NaN()};
  LossMeans means(planned_.set.entries[0].built.losses);
  const int64_t usable = job_.data.batching(range).usable();
  for (int64_t at = 0; at < usable && (limit == 0 || result.batches < limit); ++result.batches) {
    const int64_t first = at;
    std::vector<int64_t> taken;
    for (; static_cast<int64_t>(taken.size()) < batch_size && at < usable; ++at) taken.push_back(range.begin + at);
    const Batch batch = job_.data.batch_of(range, std::move(taken));
    size_t index = 0;
    const JobEntry& entry = entry_for({.kind = EntryKind::evaluate}, batch, &index);
    std::vector<double> here(means.counted.size());
    feeds_[index]->fill(batch.samples, places(index), here);
    runtime_.set_random(index, /*step=*/0, first, std::ssize(batch.samples));
    if (!run(index, &stop)) return result;
    means.count_batch(entry.built.losses, std::ssize(batch.samples));
    means.add_labels(here);
    means.add_losses(entry.built.losses, std::ssize(batch.samples), here, scalars(index));
  }
  if (means.counts()) result.loss = means.loss();
  return result;
}

}  // namespace ort_train
