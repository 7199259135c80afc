// Loop::Training, a call of train(): steps until the last one, held-out losses that don't get better any more, request_stop(), a callback
// that throws, or a log that can't be written. Then the run is saved, the new model and the reports of the end are written, and the summary
// is made.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>

#include "frontend/check_options.h"
#include "frontend/event_file.h"
#include "frontend/log.h"
#include "frontend/loop.h"
#include "frontend/memory.h"
#include "frontend/save_tensors.h"
#include "frontend/step_times.h"
#include "graph/error.h"

namespace ort_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAveraged = 100;  // losses
constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? kNoLoss : sum / static_cast<double>(values.size());
}

// How many losses stand for the beginning and the end of a run: a tenth, a hundred at most.
size_t averaged(int64_t steps) { return std::clamp<size_t>(static_cast<size_t>(steps) / 10, 1, kAveraged); }

void remember(RunState& state, double loss) {
  if (!std::isfinite(loss)) return;  // of a skipped step
  if (state.first_losses.size() < kAveraged) state.first_losses.push_back(loss);
  if (state.last_losses.size() == kAveraged) state.last_losses.erase(state.last_losses.begin());
  state.last_losses.push_back(loss);
}

}  // namespace

class Loop::Training {
 public:
  explicit Training(Loop& loop)
      : loop_(loop),
        state_(loop.state_),
        options_(loop.options_),
        log_(options_.log_file, state_.step, /*last_follows=*/!state_.held_out.log_line.empty()),
        events_(event_folder(options_), state_.step + (state_.held_out.log_line.empty() ? 1 : 0)),
        seconds_before_(state_.seconds),
        saved_step_(loop.folder_.start().is_resumed() ? state_.step : -1),
        saves_gradients_(!options_.save_gradients.empty()) {
    summary_.eval_loss = kNoLoss;
  }

  Summary run();

 private:
  bool goes_on() const { return !loop_.stop_.load(std::memory_order_relaxed) && !thrown_ && log_failure().empty(); }
  // Of a step: in the log and for TensorBoard.
  void log_step(const std::string& line, std::optional<double> eval_loss = std::nullopt);
  std::string log_failure() const {
    return log_.failure() + (log_.failure().empty() || events_.failure().empty() ? "" : "; ") + events_.failure();
  }
  // Calls a callback. What one throws is kept, and the run saved, before anybody is told of it.
  template <typename Report> void tell(const std::function<void(const Report&)>& callback, const Report& report);
  void tell(const std::string& text) { tell(loop_.callbacks_.on_note, text); }

  // Whether the run is over, whatever else may end it.
  bool is_done() const { return state_.step >= total_steps() || ends_early(); }
  bool ends_early() const {
    return options_.early_stopping_patience > 0 && state_.held_out.without_better >= options_.early_stopping_patience;
  }

  void begin();
  [[noreturn]] void leave(const Error& problem);

  // A step, in this order.
  void step();
  UpdateNumbers update_numbers() const;
  StepResult run_step(int64_t step, const StepBatches& batches, const UpdateNumbers& update);
  void keep_gradients(int64_t step, bool is_skipped);
  StepReport report_of(int64_t step, const StepResult& result, const UpdateNumbers& update, const StepBatches& batches) const;
  void settle_loss_scale(const StepReport& report, const StepResult& result);  // throws Error(diverged)
  void advance(const StepBatches& batches, double loss);
  void record(const StepReport& report);
  void save_where_due();
  void evaluate_and_log(const std::string& line);
  std::optional<double> evaluate();

  bool is_due(int64_t every, const std::string& strategy) const;
  bool evaluates_now() const;
  bool save(const SaveOptions& how);  // false where it failed, and may
  void check_best();
  void keep_best(const HeldOutState& before);

  // The end.
  void finish();
  void take_best();
  void write_reports();
  void tell_of_skipped_steps();
  void summarize();
  void tell_of_prediction() const;

  std::string why_not_finite(const StepResult& result, int64_t step) const;  // empty: all is finite
  bool scales_loss() const { return loop_.job_.model.scaling.is_on(); }
  const JobData& data() const { return loop_.job_.data; }
  int64_t total_steps() const { return data().total_steps; }

  Loop& loop_;
  RunState& state_;
  const Options& options_;
  StepLog log_;
  EventFile events_;
  Summary summary_;
  const Clock::time_point begin_ = Clock::now();
  const double seconds_before_;
  int64_t saved_step_;      // of the newest checkpoint
  bool has_saved_ = false;  // it is from this call
  bool is_saving_ = false;
  bool saves_gradients_;
  std::optional<int64_t> weights_step_;  // of the weights that were taken at the end
  std::string report_failure_;           // why a report of the end isn't there
  std::exception_ptr thrown_;            // by a callback
  StepTimes times_;
};

Summary Loop::train() {
  if (trained_) throw error(ErrorCode::usage, "this trainer has trained already: make another one, with resume to go on");
  struct UnderWay {
    Loop& loop;
    bool goes_on = false;  // with another plan
    ~UnderWay() {
      loop.training_ = false;
      loop.folder_.close();
      if (!goes_on) loop.stop_.store(false, std::memory_order_relaxed);  // it has been seen to
    }
  };
  training_ = true;
  UnderWay under_way{*this};
  StepLog::refuse_foreign(options_.log_file);
  folder_.open();
  if (preparation_ == Preparation::done) folder_.check_newest();  // an earlier call has read the weights
  try {
    prepare();
  } catch (const LibrariesOverBudget&) {
    under_way.goes_on = true;
    throw;
  }
  folder_.number_run(state_);
  folder_.make_room(runtime_, state_);
  Training training(*this);
  trained_ = true;
  return training.run();
}

Summary Loop::Training::run() {
  try {
    begin();
    while (!is_done() && goes_on()) step();
  } catch (const Error& problem) {
    leave(problem);
  }
  summary_.seconds = seconds_since(begin_);
  finish();
  summarize();
  log_.summary(summary_);
  const std::string failure = log_failure() + (log_failure().empty() || report_failure_.empty() ? "" : "; ") + report_failure_;
  if (failure.empty()) return summary_;
  if (!summary_.stopped) throw error(ErrorCode::io, "{}; all steps are done, and the result is in {}", failure, summary_.model_path);
  throw error(ErrorCode::io, "{}; after step {} of {}, the run is saved in {}: go on with `resume` when that can be written", failure,
              state_.step, total_steps(), loop_.folder_.last_checkpoint());
}

// What a resumed run does before its first step: the evaluation that was due after the last one, which was saved before it. It is part of
// the run: schedules, early stopping and the log see what they see in an uninterrupted one.
void Loop::Training::begin() {
  check_best();
  HeldOutState& held_out = state_.held_out;
  // Checkpoints of earlier versions say only up to where the schedule has seen the loss.
  const bool was_unseen = !held_out.lowest && held_out.without_better == 0 && loop_.job_.schedule.follows_loss() &&
                          options_.eval_strategy != kEachEpoch && state_.step > state_.schedule.step && state_.step < total_steps() &&
                          state_.step % data().eval_steps == 0;
  held_out.is_due = (held_out.is_due || was_unseen) && evaluates_now();
  const std::string line = held_out.log_line;
  if (held_out.is_due)
    evaluate_and_log(line);
  else if (!line.empty())
    log_step(line);
  if (!held_out.is_due) held_out.log_line.clear();
}

// An Error ends the run. What it has computed since the last checkpoint is saved first, unless the step that failed may have changed some
// of it: updates are made as early as in the backward pass. A device that was lost takes the run with it, and weights that have diverged
// are not worth keeping.
void Loop::Training::leave(const Error& problem) {
  if (problem.code() == ErrorCode::device || problem.code() == ErrorCode::internal)
    throw loop_.error_with_last_save(problem.code(), state_.step + 1, problem.what());
  if (is_saving_ || problem.code() == ErrorCode::diverged || state_.step == 0) throw;
  std::string failure;
  if (saved_step_ != state_.step && data().save_steps > 0 && loop_.steps_.are_whole(problem)) {
    try {
      save({.although_failed = true});
    } catch (const std::exception& another) {
      failure = fmt::format("; the run can't be saved after step {}, either: {}", state_.step, another.what());
    }
  }
  if (loop_.steps_.has_begun()) loop_.runtime_.fail(fmt::format("a step ended half way: {}", problem.what()));
  if (saved_step_ == state_.step)
    throw error(problem.code(), "{}; the run is saved after step {} of {} in {}: go on with `resume` when that is put right",
                problem.what(), state_.step, total_steps(), loop_.folder_.last_checkpoint());
  throw error(problem.code(), "{}{}; {}", problem.what(), failure, loop_.last_save());
}

template <typename Report> void Loop::Training::tell(const std::function<void(const Report&)>& callback, const Report& report) {
  try {
    if (callback) callback(report);
  } catch (...) {
    if (!thrown_) thrown_ = std::current_exception();
  }
}

// --- a step -----------------------------------------------------------------------------------------------------------------------------

void Loop::Training::step() {
  const int64_t step = state_.step + 1;
  const UpdateNumbers update = update_numbers();
  const StepBatches batches = loop_.job_.data.batches_of_step(state_.epoch, state_.index);
  const StepResult result = run_step(step, batches, update);
  const std::string anomaly = loop_.anomalies_ ? loop_.anomalies_->take() : std::string();
  const StepReport report = report_of(step, result, update, batches);
  keep_gradients(step, report.skipped);
  settle_loss_scale(report, result);
  advance(batches, result.loss);
  if (report.skipped && !anomaly.empty()) tell(fmt::format("step {} is skipped: {}", step, anomaly));
  if (!result.any_label_counted) tell(fmt::format("step {}: all of its labels are ignored, so its gradients are zero", step));
  tell(loop_.callbacks_.on_step, report);
  record(report);
}

UpdateNumbers Loop::Training::update_numbers() const {
  const Job& job = loop_.job_;
  const int64_t updates = state_.update_of(state_.step);  // made before this one
  UpdateNumbers update{.t = updates + 1, .loss_scale = scales_loss() ? state_.loss_scale.scale : 1.0f};
  for (const ParameterGroup& group : job.model.groups)
    update.learning_rates.push_back(job.schedule.at(updates, group.rate(job.schedule.learning_rate), state_.schedule));
  return update;
}

StepResult Loop::Training::run_step(int64_t step, const StepBatches& batches, const UpdateNumbers& update) {
  const auto start = Clock::now();
  SpillDisk* const disk = loop_.runtime_.disk();
  Runtime::Spent& spent = loop_.runtime_.spent();
  spent = {};
  const int64_t read = disk ? disk->bytes_read() : 0, written = disk ? disk->bytes_written() : 0;
  if (loop_.anomalies_) loop_.anomalies_->set_place(fmt::format("step {}", step));
  loop_.runtime_.begin_step(step, /*is_last=*/step == total_steps());
  const StepResult result = loop_.steps_.step(batches.batches, step, update, saves_gradients_);
  loop_.runtime_.end_step(/*is_last=*/step == total_steps());
  times_.add({.seconds = seconds_since(start), .computing_ms = spent.computing, .waiting_ms = spent.waiting});
  if (disk) {
    summary_.read_per_step = disk->bytes_read() - read;
    summary_.written_per_step = disk->bytes_written() - written;
  }
  return result;
}

// Gradients of a skipped step aren't finite: then the next step writes its own in their place.
void Loop::Training::keep_gradients(int64_t step, bool is_skipped) {
  if (saves_gradients_ && !is_skipped) tell(fmt::format("wrote the gradients of step {} to {}", step, options_.save_gradients));
  saves_gradients_ = saves_gradients_ && is_skipped;
}

StepReport Loop::Training::report_of(int64_t step, const StepResult& result, const UpdateNumbers& update,
                                     const StepBatches& batches) const {
  const Job& job = loop_.job_;
  const PlanReport& plan = loop_.report_;
  int64_t samples = 0;  // the last step of an epoch may have fewer
  for (const Batch& batch : batches.batches) samples += static_cast<int64_t>(batch.samples.size());
  const double of_a_whole_step =
      static_cast<double>(samples) / static_cast<double>(job.data.binding.batch * options_.gradient_accumulation_steps);
  const auto steps_left = static_cast<double>(total_steps() - step);
  return {.step = step,
          .total_steps = total_steps(),
          .loss = result.loss,
          .grad_norm = result.grad_norm,
          .learning_rate = job.optimizer.learning_rate(update.t, update.learning_rates[0]),
          .milliseconds = times_.last().seconds * 1e3,
          .loss_scale = scales_loss() ? static_cast<double>(update.loss_scale) : 0,
          .skipped = scales_loss() && !std::isfinite(result.grad_norm),
          .computing_milliseconds = times_.last().computing_ms,
          .waiting_milliseconds = times_.last().waiting_ms,
          .tokens_per_second = static_cast<double>(batches.tokens) / times_.last().seconds,
          .peak_share = plan.machine_flops > 0 ? of_a_whole_step * plan.flops_per_step / times_.last().seconds / plan.machine_flops : 0,
          .resident_bytes = loop_.callbacks_.on_step ? process_memory().resident : 0,
          .seconds_left = times_.mean().seconds * steps_left,
          .epoch = static_cast<double>(batches.epoch) +
                   static_cast<double>(batches.index) / static_cast<double>(job.data.batching(job.data.train_samples).usable())};
}

void Loop::Training::settle_loss_scale(const StepReport& report, const StepResult& result) {
  LossScaleState scale = state_.loss_scale;
  std::string wrong = loop_.job_.model.scaling.update(scale, std::isfinite(result.grad_norm));
  if (!report.skipped) wrong = why_not_finite(result, report.step);
  if (!wrong.empty()) {
    log_step(StepLog::line_of(report));
    throw loop_.error_with_last_save(ErrorCode::diverged, report.step, wrong);
  }
  state_.loss_scale = scale;
}

std::string Loop::Training::why_not_finite(const StepResult& result, int64_t step) const {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return {};
  const char* what_to_do = "lower `learning_rate`, or warm up longer";
  if (loop_.job_.model.types.low == DType::float16 && !scales_loss() && std::isfinite(result.loss))
    what_to_do = "float16 holds no number beyond 65504: let `loss_scale` be dynamic, or use `bf16`";
  else if (step == 1)
    what_to_do = "nothing has been learned yet, so it comes from the data, the model's weights, or numbers too large for `bf16` or `fp16`";
  const auto text = [](double x) { return std::isnan(x) ? "nan" : fmt::format("{}", x); };  // without its sign
  return fmt::format("the loss is {}, the gradient norm {}: {} (`detect_anomaly` names the first node that makes such numbers)",
                     text(result.loss), text(result.grad_norm), what_to_do);
}

void Loop::Training::advance(const StepBatches& batches, double loss) {
  ++state_.step;
  state_.epoch = batches.epoch;
  state_.index = batches.index;
  state_.tokens += batches.tokens;
  state_.seconds = seconds_before_ + seconds_since(begin_);
  remember(state_, loss);
  state_.held_out.is_due = evaluates_now();
  loop_.steps_.end_step();
}

// After a step: what comes every so many of them, or after each epoch, which a resumed run may divide into another number of steps.
bool Loop::Training::is_due(int64_t every, const std::string& strategy) const {
  return every > 0 && (strategy == kEachEpoch ? state_.index == 0 : state_.step % every == 0);
}

bool Loop::Training::evaluates_now() const {
  const bool is_last = state_.step == total_steps();
  return data().eval_steps > 0 && state_.step <= total_steps() && (is_last || is_due(data().eval_steps, options_.eval_strategy));
}

// The step's line in the log, its checkpoint and its evaluation, which comes last: held-out data that can't be used cost no step that was
// made. Who resumes from a checkpoint makes the evaluation anew (begin()), and adds it to the line, which the checkpoint has.
void Loop::Training::record(const StepReport& report) {
  const std::string line = StepLog::line_of(report);
  const bool evaluates = state_.held_out.is_due;
  state_.held_out.log_line = evaluates ? line : std::string();
  if (!evaluates) log_step(line);
  save_where_due();
  if (evaluates) evaluate_and_log(line);
}

void Loop::Training::log_step(const std::string& line, std::optional<double> eval_loss) {
  log_.step(line, eval_loss);
  if (events_.is_on()) events_.step(line, eval_loss, process_memory().resident);
}

// Also the last step, which finish() would save otherwise, before its evaluation.
void Loop::Training::save_where_due() {
  const bool is_last = state_.step == total_steps();
  const bool is_its_turn = is_due(data().save_steps, options_.save_strategy);
  if (is_its_turn || (is_last && state_.held_out.is_due)) save({.ends_run = is_last, .may_fail = !is_last});
}

// In between, a run whose state is in memory goes on without a checkpoint that can't be written: what was saved before is still there, the
// disk may have room again when the next one is due, and ending the run would lose what it has computed since.
bool Loop::Training::save(const SaveOptions& how) {
  is_saving_ = true;
  const SaveOutcome outcome = loop_.save(how);
  is_saving_ = false;
  if (outcome.failure.empty()) {
    saved_step_ = state_.step;
    has_saved_ = true;
  }
  for (const std::string& note : outcome.notes) tell(note);
  if (outcome.failure.empty())
    tell(fmt::format("saved {}", loop_.folder_.last_checkpoint()));
  else
    tell(fmt::format("step {} could not be saved: {}; the run goes on, and tries again when a checkpoint is due; {}", state_.step,
                     outcome.failure, loop_.last_save()));
  return outcome.failure.empty();
}

// `line`: of the step, for the log; empty: there is none.
void Loop::Training::evaluate_and_log(const std::string& line) {
  const HeldOutState before = state_.held_out;
  const auto log = [&](std::optional<double> loss) {
    if (!line.empty()) log_step(line, loss);
  };
  std::optional<double> loss;
  try {
    if (!thrown_) loss = evaluate();
  } catch (...) {
    log(std::nullopt);
    throw;
  }
  log(loss);
  if (loss) keep_best(before);
}

// The loss; none where it was ended. A schedule that follows the loss sees it, but not the one at the end, which a longer run doesn't have.
std::optional<double> Loop::Training::evaluate() {
  const EvalReport evaluated = loop_.evaluate();
  const Schedule& schedule = loop_.job_.schedule;
  if (std::isnan(evaluated.loss) && loop_.stop_.load(std::memory_order_relaxed)) return std::nullopt;
  if (schedule.follows_loss() && is_due(data().eval_steps, options_.eval_strategy)) {
    schedule.def->observe(schedule, state_.schedule, evaluated.loss);
    state_.schedule.step = evaluated.step;
  }
  state_.held_out.observe(evaluated.step, evaluated.loss, options_.early_stopping_threshold);
  state_.held_out.is_due = false;
  state_.held_out.log_line.clear();
  summary_.eval_loss = evaluated.loss;
  tell(loop_.callbacks_.on_eval, evaluated);
  return evaluated.loss;
}

// --- the lowest held-out loss -----------------------------------------------------------------------------------------------------------

// Whether the weights of the lowest loss so far are there, as a checkpoint that nothing overwrites: the slots of a state file are those of
// the newest checkpoints.
void Loop::Training::check_best() {
  HeldOutState& held_out = state_.held_out;
  if (!options_.load_best_model_at_end || held_out.best_step == 0) return;
  const bool is_here = held_out.best_step == state_.step;  // the run goes on from it
  if (is_here && is_done()) return;
  if (loop_.folder_.has_best(loop_.runtime_, state_)) return;
  if (is_here && save({.in_own_files = true, .may_fail = true})) return;
  tell(fmt::format("the checkpoint of the lowest held-out loss so far ({:.6g} after step {}) isn't in '{}': only later ones count",
                   held_out.best.value_or(kNoLoss), held_out.best_step, options_.output_dir));
  held_out.best.reset();
  held_out.best_step = 0;
}

// Saves the step if its loss is the lowest, for the end of the run: unless that is here, or it is saved already. `before`: its evaluation.
void Loop::Training::keep_best(const HeldOutState& before) {
  HeldOutState& held_out = state_.held_out;
  if (!options_.load_best_model_at_end || held_out.best_step != state_.step || is_done()) return;
  if (saved_step_ == state_.step && loop_.folder_.has_best(loop_.runtime_, state_)) return;
  if (save({.in_own_files = true, .may_fail = true})) return;
  tell(fmt::format(
      "so the weights after step {}, of the lowest held-out loss so far, can't become the result: the lowest of the others counts",
      state_.step));
  held_out.best = before.best;  // which is still there
  held_out.best_step = before.best_step;
}

// --- the end ----------------------------------------------------------------------------------------------------------------------------

// Saves the run, throws what a callback has thrown, and writes the new model and the reports.
void Loop::Training::finish() {
  const bool lacks_evaluation = options_.load_best_model_at_end && state_.held_out.is_due;  // the last one, which was stopped
  summary_.stopped = !is_done() || lacks_evaluation;
  summary_.early_stopped = ends_early() && state_.step < total_steps();
  // A step that ends the run early was saved before its evaluation said so.
  if (saved_step_ != state_.step || (summary_.early_stopped && has_saved_)) save({.ends_run = is_done()});
  tell_of_skipped_steps();
  if (thrown_) std::rethrow_exception(thrown_);
  if (!summary_.stopped) {
    if (summary_.early_stopped)
      tell(fmt::format("the run ends early, after step {} of {}: {} evaluations without a better loss (`early_stopping_patience`)",
                       state_.step, total_steps(), state_.held_out.without_better));
    take_best();
    if (const std::string text = loop_.folder_.reclaim(state_.run); !text.empty()) tell(text);
    summary_.model_path = loop_.folder_.write_model(loop_.runtime_);
  }
  write_reports();
  if (thrown_) std::rethrow_exception(thrown_);
}

// Of the step with the lowest loss, where the user wants them. The checkpoint of the last step stays that to go on from.
void Loop::Training::take_best() {
  const HeldOutState& held_out = state_.held_out;
  if (!options_.load_best_model_at_end) return;
  if (held_out.best_step == 0) return tell("no held-out loss is the lowest, so the weights are those of the last step");
  if (held_out.best_step != state_.step) loop_.load_best();
  weights_step_ = held_out.best_step;
  tell(fmt::format("the held-out loss was lowest after step {}: {:.6g}; the weights are of that step", held_out.best_step, *held_out.best));
}

// A report that can't be written is told of at the end: the run is saved and its model is there by now.
void Loop::Training::write_reports() {
  const auto write = [&](const std::string& path, const std::string& what, const auto& body) {
    if (path.empty()) return;
    try {
      body();
    } catch (const Error& problem) {
      report_failure_ += (report_failure_.empty() ? "" : "; ") + std::string(problem.what());
      return;
    }
    loop_.note(fmt::format("wrote {} to {}", what, path));
  };
  write(options_.op_times, "the times of the ops", [&] { loop_.runtime_.write_op_times(); });
  if (RunTimeline* const timeline = loop_.runtime_.timeline(); timeline != nullptr && timeline->first_step() == 0)
    loop_.note(fmt::format("no step was made that `timeline` is of, so {} isn't written", options_.timeline));
  else if (timeline != nullptr)
    write(options_.timeline, fmt::format("the timeline of steps {} to {}", timeline->first_step(), timeline->last_step()),
          [&] { timeline->finish(); });
  const int64_t step = weights_step_.value_or(state_.step);
  write(options_.save_optimizer_state, fmt::format("the optimizer's state after step {}", step),
        [&] { write_optimizer_state(loop_.job_, loop_.planned_, loop_.runtime_.content(), step); });
}

void Loop::Training::tell_of_skipped_steps() {
  const int64_t skipped = state_.loss_scale.skipped;
  if (state_.step > 0 && skipped == state_.step)
    tell(fmt::format("all steps were skipped, so the weights are unchanged: gradients still overflow with a loss scale of {:.3g}",
                     scales_loss() ? static_cast<double>(state_.loss_scale.scale) : 0));
  if (!saves_gradients_ || times_.count() == 0) return;
  std::error_code ignored;
  std::filesystem::remove(options_.save_gradients, ignored);  // those of a skipped step
  tell(fmt::format("no step had finite gradients, so {} isn't written", options_.save_gradients));
}

void Loop::Training::summarize() {
  const PlanReport& plan = loop_.report_;
  summary_.steps = state_.step;
  summary_.skipped_steps = state_.loss_scale.skipped;
  summary_.best_eval_loss = state_.held_out.best.value_or(kNoLoss);
  summary_.best_step = state_.held_out.best_step;
  summary_.loss_scale = scales_loss() ? static_cast<double>(state_.loss_scale.scale) : 0;
  const size_t count = std::min(averaged(state_.step), state_.last_losses.size());
  summary_.first_loss = mean(std::span(state_.first_losses).first(std::min(count, state_.first_losses.size())));
  summary_.last_loss = mean(std::span(state_.last_losses).last(count));
  summary_.milliseconds_per_step = times_.mean().seconds * 1e3;
  summary_.computing_milliseconds = times_.mean().computing_ms;
  summary_.waiting_milliseconds = times_.mean().waiting_ms;
  summary_.median_milliseconds = times_.median_milliseconds();
  summary_.predicted_milliseconds = plan.predicted_milliseconds;
  tell_of_prediction();
  summary_.planned_read_per_step = plan.disk_read_per_step;
  summary_.planned_written_per_step = plan.disk_written_per_step;
  summary_.planned_peak_bytes = plan.arena_bytes;
  summary_.planned_disk_bytes = plan.disk_bytes;
  if (const SpillDisk* const disk = loop_.runtime_.disk()) {
    summary_.disk_bytes_read = disk->bytes_read();
    summary_.disk_bytes_written = disk->bytes_written();
    summary_.pinned_bytes = disk->pinned_bytes();
  }
  summary_.measured_peak_bytes = loop_.runtime_.measured_peak_bytes();
  if (!plan.device.empty()) {
    summary_.planned_device_bytes = plan.at_peak.total;
    summary_.measured_device_bytes = loop_.runtime_.used_device_bytes();
    summary_.planned_host_bytes = plan.host_bytes;
  }
  summary_.weights_hash = loop_.runtime_.weights_hash();
  summary_.checkpoint_path = loop_.folder_.last_checkpoint();
  summary_.minimum_budget_bytes = plan.minimum_budget;
  summary_.rss_peak_bytes = process_memory().peak;
}

// Where a step took much more or less than was predicted.
void Loop::Training::tell_of_prediction() const {
  constexpr double kFar = 1.5, kShort = 5;  // milliseconds: of less, most is not computing
  const double took = summary_.median_milliseconds, predicted = summary_.predicted_milliseconds;
  if (took <= 0 || predicted <= 0 || std::max(took, predicted) <= std::max(kShort, kFar * std::min(took, predicted))) return;
  loop_.note(took > predicted
                 ? fmt::format("a step took {:.1f} times what was predicted: the machine is busier than when it was measured, or has "
                               "become slower (`recalibrate` measures it again)",
                               took / predicted)
                 : fmt::format("a step took {:.2g} of what was predicted: the machine was busier when it was measured, or has "
                               "become faster (`recalibrate` measures it again)",
                               took / predicted));
}

}  // namespace ort_train
