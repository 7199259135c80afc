// A call of train(): steps until the last one, request_stop(), a callback that throws, or a log that can't be written.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>

#include "frontend/export.h"
#include "frontend/file.h"
#include "frontend/log.h"
#include "frontend/loop.h"
#include "frontend/memory.h"
#include "frontend/save_tensors.h"
#include "graph/error.h"
#include "offload/calibration.h"

namespace ort_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAveraged = 100;
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
        log_(options_.log_file, state_.step),
        seconds_before_(state_.seconds),
        first_step_(state_.step),
        saved_step_(loop.start_.is_resumed() ? state_.step : -1),
        saves_gradients_(!options_.save_gradients.empty()) {
    summary_.eval_loss = kNoLoss;
    last_times_.reserve(kAveraged);
  }

  Summary run();

 private:
  // What a step took.
  struct Timed {
    double seconds = 0;                       // the whole step
    double computing_ms = 0, waiting_ms = 0;  // parts of it
  };

  bool goes_on() const { return !loop_.stop_.load(std::memory_order_relaxed) && !thrown_ && log_.failure().empty(); }
  template <typename Report> void tell(const std::function<void(const Report&)>& callback, const Report& report);
  void tell(const std::string& text) { tell(loop_.callbacks_.on_note, text); }
  void step();
  UpdateNumbers update_numbers() const;
  StepResult run_step(int64_t step, const StepBatches& batches, const UpdateNumbers& update);
  void keep_gradients(int64_t step, bool is_skipped);
  StepReport report_of(int64_t step, const StepResult& result, const UpdateNumbers& update, const StepBatches& batches) const;
  double evaluate();
  void finish();
  void write_reports();
  void tell_of_skipped_steps();
  void summarize();
  void tell_of_prediction() const;

  Loop& loop_;
  RunState& state_;
  const Options& options_;
  StepLog log_;
  Summary summary_;
  const Clock::time_point begin_ = Clock::now();
  const double seconds_before_;
  const int64_t first_step_;
  int64_t saved_step_;
  bool saves_gradients_;
  std::string report_failure_;  // why a report of the end isn't there
  std::exception_ptr thrown_;   // by a callback: the run is saved before anybody is told
  Timed last_;
  Timed sum_;
  std::vector<double> last_times_;  // the ring of the last steps' milliseconds
};

Summary Loop::train() {
  if (trained_) throw error(ErrorCode::usage, "this trainer has trained already: make another one, with resume to go on");
  struct UnderWay {
    Loop& loop;
    bool goes_on = false;  // with another plan
    ~UnderWay() {
      loop.training_ = false;
      loop.lock_.reset();
      if (!goes_on) loop.stop_.store(false, std::memory_order_relaxed);  // it has been seen to
    }
  };
  training_ = true;
  UnderWay under_way{*this};
  make_folders(options_.output_dir);
  lock_.emplace(options_.output_dir);
  if (options_.adapter_only)
    check_adapter_output(options_.output_dir);
  else
    check_output(job_.info, options_.output_dir);
  check_output_dir(options_, start_, job_.total_steps);
  remove_checkpoint_leftovers(options_.output_dir);
  check_newest();
  try {
    prepare();
  } catch (const LibrariesOverBudget&) {
    under_way.goes_on = true;
    throw;
  }
  if (start_.is_resumed() && !start_.is_branch)
    remove_superseded(options_.output_dir, checkpoint_, static_cast<size_t>(kept_checkpoints(options_, /*in_slots=*/true)));
  check_space();
  Training training(*this);
  trained_ = true;
  return training.run();
}

// A call before this one may have read the checkpoint while another process went on from it.
void Loop::check_newest() const {
  if (preparation_ != Preparation::done || !start_.is_resumed() || start_.is_branch) return;
  if (const std::vector<std::string> newer = checkpoints_newer_than(options_.output_dir, checkpoint_); !newer.empty())
    throw error(ErrorCode::usage, "{}: another process has trained since {} was read, and left {}: make another trainer",
                options_.output_dir, checkpoint_, newer.front());
}

Summary Loop::Training::run() {
  const Schedule& schedule = loop_.job_.schedule;
  const int64_t total = loop_.job_.total_steps;
  // An evaluation that the schedule would have seen, but the run was interrupted before or in it.
  if (schedule.follows_loss() && state_.step < total && state_.step > state_.schedule.step && state_.step % options_.eval_steps == 0)
    evaluate();
  try {
    while (state_.step < total && goes_on()) step();
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::device) throw;
    throw loop_.error_with_last_save(ErrorCode::device, state_.step + 1, problem.what());  // a device that was lost takes the run with it
  }
  summary_.seconds = seconds_since(begin_);
  finish();
  summarize();
  log_.summary(summary_);
  const std::string failure = log_.failure() + (log_.failure().empty() || report_failure_.empty() ? "" : "; ") + report_failure_;
  if (failure.empty()) return summary_;
  if (!summary_.stopped) throw error(ErrorCode::io, "{}; all steps are done, and the result is in {}", failure, summary_.model_path);
  throw error(ErrorCode::io, "{}; after step {} of {}, the run is saved in {}: go on with `resume` when that can be written", failure,
              state_.step, total, loop_.checkpoint_);
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
  const LossScaling& scaling = loop_.job_.scaling;
  const int64_t step = state_.step + 1;
  const UpdateNumbers update = update_numbers();
  const StepBatches batches = loop_.job_.batches_of_step(state_.epoch, state_.index);
  const StepResult result = run_step(step, batches, update);
  const std::string anomaly = loop_.anomalies_ ? loop_.anomalies_->take() : std::string();
  const bool is_skipped = scaling.is_on() && !std::isfinite(result.grad_norm);
  keep_gradients(step, is_skipped);
  const StepReport report = report_of(step, result, update, batches);
  LossScaleState scale = state_.loss_scale;
  std::string wrong = scaling.update(scale, std::isfinite(result.grad_norm));
  if (!is_skipped) wrong = loop_.why_not_finite(result, step);
  if (!wrong.empty()) {
    log_.step(report, kNoLoss);
    throw loop_.error_with_last_save(ErrorCode::diverged, step, wrong);
  }
  state_.loss_scale = scale;
  state_.step = step;
  state_.epoch = batches.epoch;
  state_.index = batches.index;
  state_.tokens += batches.tokens;
  state_.seconds = seconds_before_ + seconds_since(begin_);
  remember(state_, result.loss);
  if (is_skipped && !anomaly.empty()) tell(fmt::format("step {} is skipped: {}", step, anomaly));
  if (!result.any_label_counted) tell(fmt::format("step {}: all of its labels are ignored, so its gradients are zero", step));
  tell(loop_.callbacks_.on_step, report);
  const bool evaluates = !thrown_ && options_.eval_steps > 0 && (step % options_.eval_steps == 0 || step == loop_.job_.total_steps);
  log_.step(report, evaluates ? evaluate() : kNoLoss);
  if (options_.save_steps > 0 && step % options_.save_steps == 0) {
    loop_.save(/*note_it=*/false);
    saved_step_ = step;
    tell(fmt::format("saved {}", loop_.checkpoint_));
  }
}

UpdateNumbers Loop::Training::update_numbers() const {
  const Job& job = loop_.job_;
  const int64_t updates = state_.update_of(state_.step);  // made before this one
  UpdateNumbers update{.t = updates + 1, .loss_scale = job.scaling.is_on() ? state_.loss_scale.scale : 1.0f};
  for (const ParameterGroup& group : job.groups)
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
  const StepResult result = loop_.steps_.step(batches, step, update, saves_gradients_);
  last_ = {.seconds = seconds_since(start), .computing_ms = spent.computing, .waiting_ms = spent.waiting};
  if (disk) {
    summary_.read_per_step = disk->bytes_read() - read;
    summary_.written_per_step = disk->bytes_written() - written;
  }
  sum_.seconds += last_.seconds;
  sum_.computing_ms += last_.computing_ms;
  sum_.waiting_ms += last_.waiting_ms;
  if (last_times_.size() < kAveraged)
    last_times_.push_back(last_.seconds * 1e3);
  else
    last_times_[static_cast<size_t>(step - first_step_ - 1) % kAveraged] = last_.seconds * 1e3;
  return result;
}

// Of a skipped step they aren't what was wanted: then those of the next one, in place of these.
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
      static_cast<double>(samples) / static_cast<double>(job.binding.batch * options_.gradient_accumulation_steps);
  const double steps_left = static_cast<double>(job.total_steps - step), steps_done = static_cast<double>(step - first_step_);
  return {.step = step,
          .total_steps = job.total_steps,
          .loss = result.loss,
          .grad_norm = result.grad_norm,
          .learning_rate = job.optimizer.learning_rate(update.t, update.learning_rates[0]),
          .milliseconds = last_.seconds * 1e3,
          .loss_scale = job.scaling.is_on() ? static_cast<double>(update.loss_scale) : 0,
          .skipped = job.scaling.is_on() && !std::isfinite(result.grad_norm),
          .computing_milliseconds = last_.computing_ms,
          .waiting_milliseconds = last_.waiting_ms,
          .tokens_per_second = static_cast<double>(batches.tokens) / last_.seconds,
          .peak_share = plan.machine_flops > 0 ? of_a_whole_step * plan.flops_per_step / last_.seconds / plan.machine_flops : 0,
          .resident_bytes = loop_.callbacks_.on_step ? process_memory().resident : 0,
          .seconds_left = sum_.seconds / steps_done * steps_left};
}

// NaN where it was ended.
double Loop::Training::evaluate() {
  const EvalReport evaluated = loop_.evaluate();
  loop_.report_to_schedule(evaluated);
  if (std::isfinite(evaluated.loss)) {
    summary_.eval_loss = evaluated.loss;
    tell(loop_.callbacks_.on_eval, evaluated);
  }
  return evaluated.loss;
}

// --- the end ----------------------------------------------------------------------------------------------------------------------------

// Saves what is to be saved, then tells of what a callback threw.
void Loop::Training::finish() {
  const Job& job = loop_.job_;
  summary_.stopped = state_.step < job.total_steps;
  if (saved_step_ != state_.step) loop_.save(/*note_it=*/!thrown_);
  tell_of_skipped_steps();
  if (thrown_) std::rethrow_exception(thrown_);
  const auto weight_bytes = [&](const std::string& name, const ByteSink& sink) { return loop_.runtime_.read_parameter(name, sink); };
  if (!summary_.stopped) {
    if (const std::string text = loop_.reclaim_output_dir(); !text.empty()) tell(text);
  }
  if (!summary_.stopped && options_.adapter_only) {
    summary_.model_path = export_adapter(job.adapters, job.adapting, options_.task, job.weights, weight_bytes, options_.output_dir);
  } else if (!summary_.stopped) {
    std::vector<Weight> weights = job.weights;  // of the types in which they are handed over
    for (Weight& weight : weights) {
      if (loop_.runtime_.is_unchanged(weight) && is_narrowed(weight)) weight.dtype = DType::float32;
    }
    const auto originals = [&](const std::string& name, const ByteSink& sink) {
      return loop_.runtime_.read_original(weight_named(job.weights, name), sink);
    };
    summary_.model_path =
        export_model(job.info, weights, merged(job.adapters, job.adapting.scale, weights, originals), options_.output_dir);
  }
  write_reports();
}

// One that can't be written hides nothing of what is done.
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
  write(options_.save_optimizer_state, fmt::format("the optimizer's state after step {}", state_.step),
        [&] { write_optimizer_state(loop_.job_, loop_.planned_, loop_.runtime_.content(), state_.step); });
}

void Loop::Training::tell_of_skipped_steps() {
  const int64_t skipped = state_.loss_scale.skipped;
  if (state_.step > 0 && skipped == state_.step)
    tell(fmt::format("all steps were skipped, so the weights are unchanged: gradients still overflow with a loss scale of {:.3g}",
                     loop_.job_.scaling.is_on() ? static_cast<double>(state_.loss_scale.scale) : 0));
  if (!saves_gradients_ || state_.step == first_step_) return;
  std::error_code ignored;
  std::filesystem::remove(options_.save_gradients, ignored);  // those of a skipped step
  tell(fmt::format("no step had finite gradients, so {} isn't written", options_.save_gradients));
}

void Loop::Training::summarize() {
  const PlanReport& plan = loop_.report_;
  summary_.steps = state_.step;
  summary_.skipped_steps = state_.loss_scale.skipped;
  summary_.loss_scale = loop_.job_.scaling.is_on() ? static_cast<double>(state_.loss_scale.scale) : 0;
  const size_t window = std::min(averaged(state_.step), state_.last_losses.size());
  summary_.first_loss = mean(std::span(state_.first_losses).first(std::min(window, state_.first_losses.size())));
  summary_.last_loss = mean(std::span(state_.last_losses).last(window));
  if (state_.step > first_step_) {
    const auto steps = static_cast<double>(state_.step - first_step_);
    summary_.milliseconds_per_step = sum_.seconds * 1e3 / steps;
    summary_.computing_milliseconds = sum_.computing_ms / steps;
    summary_.waiting_milliseconds = sum_.waiting_ms / steps;
  }
  summary_.median_milliseconds = median(last_times_);
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
  summary_.checkpoint_path = loop_.checkpoint_;
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
