// Steps: data in, one run of an entry or several, numbers out; and what happens between steps.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>

#include "exec/loss_scale.h"
#include "exec/random.h"
#include "frontend/budget.h"
#include "frontend/export.h"
#include "frontend/file.h"
#include "frontend/memory.h"
#include "frontend/shuffle.h"
#include "frontend/trainer_impl.h"
#include "graph/error.h"
#include "offload/calibration.h"

namespace ort_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAveraged = 100;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size());
}

// How many losses stand for the beginning and the end of a run: a tenth, a hundred at most.
size_t averaged(int64_t steps) { return std::clamp<size_t>(static_cast<size_t>(steps) / 10, 1, kAveraged); }

// Of one batch: what its graph says, and what its labels count. `batch_weight`: of a mean that the model says itself.
void add_losses(LossMeans& means, const std::vector<JobLoss>& losses, std::span<const double> labels,
                const std::function<float(ValueId)>& scalar, double batch_weight = 1) {
  for (size_t i = 0; i < losses.size(); ++i) {
    const double weight = losses[i].counted == Counted::batches ? batch_weight : 1;
    means.sums[i] += static_cast<double>(scalar(losses[i].sum)) * weight;
    if (losses[i].count != kNone) require(scalar(losses[i].count) == static_cast<float>(labels[i]), "labels were counted differently");
  }
}

void remember(RunState& state, double loss) {
  if (!std::isfinite(loss)) return;  // of a skipped step
  if (state.first_losses.size() < kAveraged) state.first_losses.push_back(loss);
  if (state.last_losses.size() == kAveraged) state.last_losses.erase(state.last_losses.begin());
  state.last_losses.push_back(loss);
}

}  // namespace

std::span<std::byte> Trainer::Impl::place(size_t entry, ValueId value) const {
  const auto& places = program.entries[entry].value_places;
  if (value >= places.size() || places[value].bytes == 0) return {};  // nobody reads it
  return executor->input(entry, value);
}

float Trainer::Impl::scalar(size_t entry, ValueId value) const {
  float number = 0;
  const auto bytes = executor->bytes(entry, value);
  require(bytes.size() >= sizeof(number), "a scalar that is none");
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

JobEntry& Trainer::Impl::entry_for(EntryWanted wanted, size_t samples, size_t* index) const {
  int found = find_entry(wanted);
  if (found < 0 || entries[static_cast<size_t>(found)]->batch != static_cast<int64_t>(samples)) {
    wanted.remainder = true;
    found = find_entry(wanted);
  }
  require(found >= 0 && entries[static_cast<size_t>(found)]->batch == static_cast<int64_t>(samples), "no entry point for a batch");
  *index = static_cast<size_t>(found);
  return *entries[*index];
}

bool Trainer::Impl::run_entry(size_t index, const std::atomic<bool>* until) {
  const JobGraph& job = entries[index]->job;
  check_usable();
  require(!pending || !job.pending_scalars.empty(), "an update that waits would be lost");
  if (pending) set_update(index, job.pending_scalars, job.pending_loss_scale, *pending);
  try {
    if (!executor->run(index, until)) return false;
  } catch (const std::exception& problem) {
    const auto& nodes = job.graph.order();
    if (std::any_of(nodes.begin(), nodes.end(), [&](NodeId id) { return !job.graph.node(id).op->writes.empty(); }))
      fail(fmt::format("a step ended half way: {}", problem.what()));
    throw;
  }
  pending.reset();
  const std::vector<Instruction>& code = program.entries[index].code;
  const RunTimes& times = executor->times(index);
  for (size_t i = 0; i < code.size(); ++i) {
    if (!is_copy(code[i])) spent.computing += times.seconds[i] * 1e3;
  }
  spent.waiting += times.waiting * 1e3;
  return true;
}

void Trainer::Impl::flush() {
  if (!pending) return;
  run_entry(static_cast<size_t>(find_entry({.kind = EntryKind::update})));
}

void Trainer::Impl::set_number(size_t index, ValueId input, float number) {
  const auto to = input == kNone ? std::span<std::byte>() : place(index, input);
  if (!to.empty()) std::memcpy(to.data(), &number, sizeof(number));
}

void Trainer::Impl::set_update(size_t index, const std::vector<ValueId>& scalars, ValueId loss_scale, const UpdateNumbers& update) {
  set_number(index, loss_scale, update.loss_scale);
  for (size_t group = 0; group < scalars.size(); ++group) {
    std::vector<float> numbers = optimizer.scalars(update.t, update.learning_rates.at(group));
    if (types.low_weights)
      numbers.insert(numbers.end(), {static_cast<float>(update.t / kStepLow), static_cast<float>(update.t % kStepLow)});
    const auto to = place(index, scalars[group]);
    if (!to.empty()) std::memcpy(to.data(), numbers.data(), to.size());
  }
}

// Where this run's random numbers are found: exec/random.h.
void Trainer::Impl::set_random(size_t index, ValueId input, int64_t step, int64_t first, int64_t samples) {
  const auto to = input == kNone ? std::span<std::byte>() : place(index, input);
  if (to.empty()) return;
  const std::array<int64_t, kRandomNumbers> numbers{static_cast<int64_t>(options.seed), step, first, samples};
  std::memcpy(to.data(), numbers.data(), to.size());
}

Window Trainer::Impl::next_window(int64_t epoch, int64_t index) const {
  const int64_t samples = train_range.count;
  const int64_t usable = binding.batch_is_fixed ? samples / binding.batch * binding.batch : samples;
  if (index >= usable) return next_window(epoch + 1, 0);
  const Shuffle shuffle(options.seed, epoch, samples);
  Window window{.batches = {}, .epoch = epoch, .index = index, .samples = 0};
  while (static_cast<int64_t>(window.batches.size()) < options.gradient_accumulation_steps && window.index < usable) {
    std::vector<int64_t>& batch = window.batches.emplace_back();
    for (; static_cast<int64_t>(batch.size()) < binding.batch && window.index < usable; ++window.index) {
      batch.push_back(train_range.begin + (options.shuffle ? shuffle(window.index) : window.index));
    }
    window.samples += static_cast<int64_t>(batch.size());
  }
  if (window.index >= usable) {  // a window never crosses the end of an epoch
    ++window.epoch;
    window.index = 0;
  }
  return window;
}

StepResult Trainer::Impl::run_step(const Window& window, int64_t step, const UpdateNumbers& update, bool save) {
  const bool accumulate = options.gradient_accumulation_steps > 1;
  const auto wanted = [&] { return EntryWanted{.kind = EntryKind::train, .completes_update = pending.has_value()}; };
  StepResult result;
  size_t index = 0;
  LossMeans means(entries[0]->job.losses);
  for (const auto& batch : window.batches) means.count_batch(static_cast<int64_t>(batch.size()), 1);
  if (accumulate) {
    for (const auto& batch : window.batches) entry_for(wanted(), batch.size(), &index).feed->count(batch, means.counted);
  }
  int64_t first = 0;  // samples of the window before this batch
  std::span<const std::vector<int64_t>> left = window.batches;
  const auto full = [&](const std::vector<int64_t>& batch) { return static_cast<int64_t>(batch.size()) == binding.batch; };
  for (const auto many = static_cast<size_t>(together); many > 1 && left.size() >= many; left = left.subspan(many)) {
    const auto batches = left.first(many);
    if (!std::all_of(batches.begin(), batches.end(), full)) break;
    EntryWanted joined = wanted();
    joined.joined = true;
    index = static_cast<size_t>(find_entry(joined));
    run_together(index, batches, step, first, means, update.loss_scale);
    first += together * binding.batch;
  }
  for (const auto& batch : left) {
    JobEntry& entry = entry_for(wanted(), batch.size(), &index);
    std::vector<double> here(means.counted.size());
    entry.feed->fill(
        batch, [&](ValueId value) { return place(index, value); }, here);
    if (!accumulate) means.add_labels(here);
    set_seed(index, entry, means, update.loss_scale);
    set_random(index, entry.job.graph.find_value(kRandomInput), step, first, static_cast<int64_t>(batch.size()));
    first += static_cast<int64_t>(batch.size());
    set_update(index, entry.job.scalars, entry.job.loss_scale, update);
    run_entry(index);
    add_losses(means, entry.job.losses, here, [&](ValueId value) { return scalar(index, value); });
  }
  const bool used_up = accumulate && !deferred;  // the update clears the sums
  if (save && used_up) save_gradients(index, *entries[index], update.loss_scale);
  if (deferred) {
    pending = update;
  } else if (accumulate) {
    index = static_cast<size_t>(find_entry({.kind = EntryKind::update}));
    set_update(index, entries[index]->job.scalars, entries[index]->job.loss_scale, update);
    run_entry(index);
  }
  result.grad_norm = static_cast<double>(unscaled_norm(scalar(index, entries[index]->job.grad_norm), update.loss_scale));
  if (save && !used_up) save_gradients(index, *entries[index], update.loss_scale);  // after the norm: it may use the memory
  result.loss = means.loss();
  result.counts = means.counts();
  return result;
}

void Trainer::Impl::run_together(size_t index, std::span<const std::vector<int64_t>> batches, int64_t step, int64_t first, LossMeans& means,
                                 float loss_scale) {
  const JobEntry& entry = *entries[index];
  Feed& feed = *entries[0]->feed;  // one micro-batch's
  const ValueId random = entry.job.graph.find_value(kRandomInput);
  std::vector<std::vector<double>> here(batches.size(), std::vector<double>(means.counted.size()));
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto samples = static_cast<int64_t>(batches[i].size());
    feed.fill(
        batches[i], [&](ValueId value) { return place(index, entry.together[i][value]); }, here[i]);
    if (random != kNone) set_random(index, entry.together[i][random], step, first + static_cast<int64_t>(i) * samples, samples);
  }
  set_seed(index, entry, means, loss_scale);
  run_entry(index);
  for (size_t i = 0; i < batches.size(); ++i)
    add_losses(means, entry.job.losses, here[i], [&](ValueId value) { return scalar(index, entry.together[i][value]); });
}

void Trainer::Impl::set_seed(size_t index, const JobEntry& entry, const LossMeans& means, float loss_scale) {
  for (size_t i = 0; i < entry.job.losses.size(); ++i) {
    const double counted = means.counted[i];
    set_number(index, entry.job.losses[i].inverse_count, counted > 0 ? static_cast<float>(entry.job.losses[i].weight / counted) : 0.0f);
  }
  set_number(index, entry.job.loss_scale, loss_scale);
}

std::string Trainer::Impl::why_not_finite(const StepResult& result) const {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return {};
  const char* const what_to_do = types.low == DType::float16 && !scaling.is_on() && std::isfinite(result.loss)
                                     ? "float16 holds no number beyond 65504: let `loss_scale` be dynamic, or use `bf16`"
                                     : "lower `learning_rate`, or warm up longer";
  return fmt::format("the loss is {}, the gradient norm {}: {}", result.loss, result.grad_norm, what_to_do);
}

Error Trainer::Impl::diverged(int64_t step, const std::string& why) const {
  return error(ErrorCode::diverged, "step {}: {}; {}", step, why,
               checkpoint_path.empty() ? "nothing was saved before" : "the last good state is " + checkpoint_path + " (`resume`)");
}

EvalReport Trainer::Impl::evaluate() {
  if (valid_range.data == nullptr) {
    throw error(ErrorCode::usage, "there is no held-out data to evaluate on: give `eval_steps`, or a folder with train and valid as data");
  }
  settle();
  EvalReport result{.step = state.step, .loss = std::numeric_limits<double>::quiet_NaN(), .batches = 0};
  LossMeans means(entries[0]->job.losses);
  const int64_t usable = binding.batch_is_fixed ? valid_range.count / binding.batch * binding.batch : valid_range.count;
  for (int64_t at = 0; at < usable && (options.eval_batches == 0 || result.batches < options.eval_batches); ++result.batches) {
    std::vector<int64_t> batch;
    for (; static_cast<int64_t>(batch.size()) < binding.batch && at < usable; ++at) batch.push_back(valid_range.begin + at);
    size_t index = 0;
    JobEntry& entry = entry_for({.kind = EntryKind::evaluate}, batch.size(), &index);
    std::vector<double> here(means.counted.size());
    entry.feed->fill(
        batch, [&](ValueId value) { return place(index, value); }, here);
    if (!run_entry(index, &stop)) return result;
    // The mean of a model's own loss is weighted by samples, so that a short last batch counts for what it is.
    const auto samples = static_cast<int64_t>(batch.size());
    means.count_batch(samples, static_cast<double>(samples));
    means.add_labels(here);
    add_losses(
        means, entry.job.losses, here, [&](ValueId value) { return scalar(index, value); }, static_cast<double>(samples));
  }
  if (means.counts()) result.loss = means.loss();
  return result;
}

// Not the evaluation at the end, which a longer run doesn't have.
void Trainer::Impl::observe(const EvalReport& evaluated) {
  const bool was_ended = std::isnan(evaluated.loss) && stop.load(std::memory_order_relaxed);
  if (!schedule.follows_loss() || evaluated.step % options.eval_steps != 0 || was_ended) return;
  schedule.def->observe(schedule, state.schedule, evaluated.loss);
  state.schedule.step = evaluated.step;
}

Summary Trainer::Impl::train() {
  if (trained) throw error(ErrorCode::usage, "this trainer has trained already: make another one, with resume to go on");
  trained = true;
  struct Training {
    Impl& trainer;
    ~Training() {
      trainer.training = false;
      trainer.stop.store(false, std::memory_order_relaxed);  // it has been seen to
    }
  };
  training = true;
  const Training under_way{*this};
  make_folders(options.output_dir);
  const FolderLock lock(options.output_dir);
  check_output(info, options.output_dir);
  check_output_dir();
  remove_checkpoint_leftovers(options.output_dir);
  prepare();
  if (is_resumed() && !is_branch)
    remove_superseded(options.output_dir, checkpoint_path, static_cast<size_t>(kept_checkpoints(/*in_slots=*/true)));
  check_space();
  StepLog log(options.log_file, state.step);

  Summary summary;
  summary.eval_loss = std::numeric_limits<double>::quiet_NaN();
  const auto begin = Clock::now();
  const double seconds_before = state.seconds;
  const int64_t first_step = state.step;
  int64_t saved_step = is_resumed() ? state.step : -1;
  bool saves_gradients = !options.save_gradients.empty();
  // What ends a run beside its last step and request_stop(): it is saved before anybody is told.
  std::exception_ptr thrown;  // by a callback
  const auto tell = [&](const auto& callback, const auto& report) {
    try {
      if (callback) callback(report);
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  };
  const auto goes_on = [&] { return !stop.load(std::memory_order_relaxed) && !thrown && log.failure().empty(); };
  const auto evaluate_now = [&] {
    const EvalReport evaluated = evaluate();
    observe(evaluated);
    if (std::isfinite(evaluated.loss)) {
      summary.eval_loss = evaluated.loss;
      tell(callbacks.on_eval, evaluated);
    }
    return evaluated.loss;
  };
  double step_seconds = 0, computing = 0, waiting = 0;
  std::vector<double> last_times;  // the ring of the last steps'
  last_times.reserve(kAveraged);
  // An evaluation that the schedule would have seen, but the run was interrupted before or in it.
  if (schedule.follows_loss() && state.step < total_steps && state.step > state.schedule.step && state.step % options.eval_steps == 0)
    evaluate_now();
  while (state.step < total_steps && goes_on()) {
    const auto start = Clock::now();
    spent = {};
    const int64_t step = state.step + 1;
    const int64_t updates = state.update_of(state.step);  // made before this one
    UpdateNumbers update{.t = updates + 1, .loss_scale = scaling.is_on() ? state.loss_scale.scale : 1.0f};
    for (const ParameterGroup& group : groups)
      update.learning_rates.push_back(schedule.at(updates, group.rate(schedule.learning_rate), state.schedule));
    const Window window = next_window(state.epoch, state.index);
    const int64_t read_before = disk ? disk->bytes_read() : 0, written_before = disk ? disk->bytes_written() : 0;
    if (anomalies) anomalies->set_place(fmt::format("step {}", step));
    const StepResult result = run_step(window, step, update, saves_gradients);
    const std::string found = anomalies ? anomalies->take() : std::string();
    const bool is_skipped = scaling.is_on() && !std::isfinite(result.grad_norm);
    if (saves_gradients && !is_skipped) note(fmt::format("wrote the gradients of step {} to {}", step, options.save_gradients));
    saves_gradients = saves_gradients && is_skipped;  // then those of the next step, in place of these
    const double seconds = seconds_since(start);
    if (disk) {
      summary.read_per_step = disk->bytes_read() - read_before;
      summary.written_per_step = disk->bytes_written() - written_before;
    }
    if (last_times.size() < kAveraged)
      last_times.push_back(seconds * 1e3);
    else
      last_times[static_cast<size_t>(step) % kAveraged] = seconds * 1e3;
    const int64_t tokens = window.samples * std::max<int64_t>(1, binding.sequence);
    step_seconds += seconds;
    computing += spent.computing;
    waiting += spent.waiting;
    StepReport step_report{.step = step,
                           .total_steps = total_steps,
                           .loss = result.loss,
                           .grad_norm = result.grad_norm,
                           .learning_rate = optimizer.learning_rate(update.t, update.learning_rates[0]),
                           .milliseconds = seconds * 1e3,
                           .loss_scale = scaling.is_on() ? static_cast<double>(update.loss_scale) : 0,
                           .skipped = is_skipped,
                           .computing_milliseconds = spent.computing,
                           .waiting_milliseconds = spent.waiting,
                           .tokens_per_second = static_cast<double>(tokens) / seconds,
                           .peak_share = device.rates.flops > 0 ? report.flops_per_step / seconds / device.rates.flops : 0,
                           .resident_bytes = callbacks.on_step ? process_memory().resident : 0,
                           .seconds_left = step_seconds / static_cast<double>(step - first_step) * static_cast<double>(total_steps - step)};
    LossScaleState scale = state.loss_scale;
    std::string wrong = scaling.update(scale, std::isfinite(result.grad_norm));
    if (!is_skipped) wrong = why_not_finite(result);
    if (!wrong.empty()) {
      log.step(step_report, summary.eval_loss);
      throw diverged(step, wrong);
    }
    state.loss_scale = scale;
    state.step = step;
    state.epoch = window.epoch;
    state.index = window.index;
    state.tokens += tokens;
    state.seconds = seconds_before + seconds_since(begin);
    remember(state, result.loss);
    if (is_skipped && !found.empty()) tell(callbacks.on_note, fmt::format("step {} is skipped: {}", step, found));
    if (!result.counts) tell(callbacks.on_note, fmt::format("step {}: none of its labels counts, so nothing was learned from it", step));
    tell(callbacks.on_step, step_report);
    double eval_loss = std::numeric_limits<double>::quiet_NaN();
    if (!thrown && options.eval_steps > 0 && (step % options.eval_steps == 0 || step == total_steps)) eval_loss = evaluate_now();
    log.step(step_report, eval_loss);
    if (options.save_steps > 0 && step % options.save_steps == 0) {
      save(/*note_it=*/false);
      saved_step = step;
      tell(callbacks.on_note, fmt::format("saved {}", checkpoint_path));
    }
  }
  summary.seconds = seconds_since(begin);
  summary.steps = state.step;
  summary.skipped_steps = state.loss_scale.skipped;
  summary.loss_scale = scaling.is_on() ? static_cast<double>(state.loss_scale.scale) : 0;
  summary.stopped = state.step < total_steps;
  if (summary.steps > 0 && summary.skipped_steps == summary.steps)
    note(
        fmt::format("all steps were skipped, so the weights are what they were: their gradients overflow with a loss scale of {:.3g} still",
                    summary.loss_scale));
  if (saves_gradients && state.step > first_step) {  // of a skipped step
    std::error_code ignored;
    std::filesystem::remove(options.save_gradients, ignored);
    note(fmt::format("no step had finite gradients, so {} isn't written", options.save_gradients));
  }
  if (saved_step != state.step) save(/*note_it=*/!thrown);
  if (thrown) std::rethrow_exception(thrown);
  if (!summary.stopped)
    summary.model_path = export_model(
        info, weights, [&](const std::string& name, const ByteSink& sink) { return read_parameter(name, sink); }, options.output_dir);
  if (!options.save_optimizer_state.empty()) save_optimizer_state();
  const size_t window = std::min(averaged(state.step), state.last_losses.size());
  summary.first_loss = mean(std::span(state.first_losses).first(std::min(window, state.first_losses.size())));
  summary.last_loss = mean(std::span(state.last_losses).last(window));
  if (state.step > first_step) {
    const auto steps = static_cast<double>(state.step - first_step);
    summary.milliseconds_per_step = step_seconds * 1e3 / steps;
    summary.computing_milliseconds = computing / steps;
    summary.waiting_milliseconds = waiting / steps;
  }
  summary.median_milliseconds = median(last_times);
  summary.predicted_milliseconds = report.predicted_milliseconds;
  constexpr double kFar = 1.5, kShort = 5;  // milliseconds: of less, most is not computing
  const double took = summary.median_milliseconds, predicted = summary.predicted_milliseconds;
  if (took > 0 && predicted > 0 && std::max(took, predicted) > std::max(kShort, kFar * std::min(took, predicted))) {
    note(took > predicted
             ? fmt::format("a step took {:.1f} times what was predicted: the machine is busier than when it was measured, or has "
                           "become slower (`recalibrate` measures it again)",
                           took / predicted)
             : fmt::format("a step took {:.2g} of what was predicted: the machine was busier when it was measured, or has "
                           "become faster (`recalibrate` measures it again)",
                           took / predicted));
  }
  summary.planned_read_per_step = report.disk_read_per_step;
  summary.planned_written_per_step = report.disk_written_per_step;
  summary.planned_peak_bytes = program.memory().bytes;
  summary.planned_disk_bytes = report.disk_bytes;
  if (disk) {
    summary.disk_bytes_read = disk->bytes_read();
    summary.disk_bytes_written = disk->bytes_written();
    summary.pinned_bytes = disk->pinned_bytes();
  }
  summary.measured_peak_bytes = executor->measured_peak_bytes();
  summary.weights_hash = weights_hash();
  summary.checkpoint_path = checkpoint_path;
  summary.minimum_budget_bytes = report.minimum_budget;
  summary.rss_peak_bytes = process_memory().peak;
  log.summary(summary);
  if (!log.failure().empty()) {
    throw error(ErrorCode::io, "{}; {}, the run is saved in {}{}", log.failure(),
                summary.stopped ? fmt::format("after step {} of {}", state.step, total_steps) : "all its steps are done", checkpoint_path,
                summary.stopped ? ": go on with `resume` when the log can be written" : "");
  }
  return summary;
}

}  // namespace ort_train
