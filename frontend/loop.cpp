#include "frontend/loop.h"

#include <fmt/format.h>

#include "frontend/load_run.h"
#include "graph/error.h"

namespace ort_train {

Loop::Loop(const Job& job, const PlannedJob& planned, Runtime& runtime, RunFolder& folder, const PlanReport& report,
           const Callbacks& callbacks, std::atomic<bool>& stop)
    : job_(job),
      options_(job.options),
      planned_(planned),
      runtime_(runtime),
      folder_(folder),
      report_(report),
      callbacks_(callbacks),
      stop_(stop),
      steps_(job, planned, runtime) {}

void Loop::note(const std::string& text) const {
  if (callbacks_.on_note) callbacks_.on_note(text);
}

// --- the beginning ----------------------------------------------------------------------------------------------------------------------

void Loop::prepare() {
  if (preparation_ == Preparation::done) return;
  runtime_.check_usable();
  if (preparation_ == Preparation::under_way)
    throw error(ErrorCode::usage, "a callback can't use a trainer whose weights are being read: wait until the call returns");
  preparation_ = Preparation::under_way;
  const auto give_up = [&](const std::string& why) {
    runtime_.fail(why);
    runtime_.release();
  };
  try {
    runtime_.allocate();
    state_ = load_run(job_, folder_, runtime_, [this](const std::string& text) { note(text); });
    job_.model.scaling.begin(state_.loss_scale);
    if (options_.detect_anomaly) {
      anomalies_ = std::make_unique<AnomalyWatch>(planned_.set.graphs(), job_.model.scaling.is_on());
      runtime_.watch(anomalies_.get());
    }
    runtime_.end_loading();
  } catch (const std::exception& problem) {
    give_up(problem.what());
    throw;
  } catch (...) {
    give_up("an exception interrupted its preparation");
    throw;
  }
  preparation_ = Preparation::done;
}

void Loop::prepare_to_read_weights() {
  prepare();
  if (anomalies_) anomalies_->set_place(fmt::format("after step {}", state_.step));
  steps_.apply_deferred();
}

// --- what only reads --------------------------------------------------------------------------------------------------------------------

EvalReport Loop::evaluate() {
  if (!job_.data.no_valid.empty()) throw error(ErrorCode::data, "there is no held-out data to evaluate on: {}", job_.data.no_valid);
  if (job_.data.valid_samples.data == nullptr) {
    throw error(ErrorCode::usage, "there is no held-out data to evaluate on: give `eval_steps`, or a folder with train and valid as data");
  }
  prepare_to_read_weights();
  const Evaluated evaluated = steps_.evaluate(stop_);
  return {.step = state_.step, .loss = evaluated.loss, .batches = evaluated.batches};
}

std::string Loop::sample(const Continuation& wanted) {
  if (!job_.data.sets.vocabulary) throw error(ErrorCode::usage, "writing text needs a job whose `data` is a .txt file");
  if (!job_.graphs.text_output) throw Error(ErrorCode::unsupported, job_.graphs.no_text);
  prepare_to_read_weights();
  return sample_text(job_, planned_.set, runtime_, wanted, stop_);
}

std::map<std::string, std::vector<float>> Loop::predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                        const std::map<std::string, std::vector<float>>& reals) {
  if (options_.predict_batch_size == 0) throw error(ErrorCode::usage, "predictions were not planned: set predict_batch_size");
  prepare_to_read_weights();
  return predict_batch(job_.data.binding, planned_.set, runtime_, integers, reals);
}

// --- saving -----------------------------------------------------------------------------------------------------------------------------

Loop::SaveOutcome Loop::save(const SaveOptions& how) {
  if (!how.although_failed) runtime_.check_usable();
  SaveOutcome outcome;
  const auto tell_later = [&](std::string text) {  // callbacks may throw
    if (!text.empty()) outcome.notes.push_back(std::move(text));
  };
  tell_later(folder_.reclaim(state_.run));
  tell_later(note_changed_data());
  steps_.apply_deferred();
  StateFile* const slots = how.in_own_files ? nullptr : runtime_.fill_slots();
  const bool in_slots = how.in_own_files ? runtime_.has_state_file() : slots != nullptr;
  try {
    folder_.save(runtime_, slots, state_, folder_.kept(state_, in_slots, how.ends_run));
  } catch (const Error& problem) {
    // A state file whose slots were not published takes no more writes, so the steps of such a run can't go on.
    if (!how.may_fail || slots != nullptr || problem.code() != ErrorCode::io) throw;
    outcome.failure = problem.what();
  }
  tell_later(folder_.note_links(slots));
  return outcome;
}

void Loop::load_best() {
  try {
    steps_.apply_deferred();
    folder_.load_best(runtime_, state_);
  } catch (const Error& problem) {
    runtime_.fail(problem.what());
    throw error(problem.code(),
                "the weights of the lowest held-out loss, after step {}, can't be loaded: {}; the run is saved in {}: with `resume` and "
                "without `load_best_model_at_end` it ends with the weights of its last step",
                state_.held_out.best_step, problem.what(), folder_.last_checkpoint());
  }
}

// Samples are read where the data's file has them, step by step, so that others come if somebody writes to it meanwhile.
std::string Loop::note_changed_data() {
  if (data_has_changed_) return {};
  const DataSets& data = job_.data.sets;
  try {
    if (!data.was_written_to() || data.content_hash() == runtime_.content().settings.at(kDataHashSetting)) return {};
  } catch (const Error& problem) {  // it has become shorter, or is gone: the step that reads beyond its end says so
    data_has_changed_ = true;
    return fmt::format("{} (while the run reads its data)", problem.what());
  }
  data_has_changed_ = true;
  return fmt::format("{}: was written to during the run: samples read now or recently may differ from those at its start", data.name);
}

std::string Loop::last_save() const {
  const std::string& last = folder_.last_checkpoint();
  return last.empty() ? "nothing was saved before" : "the last good state is " + last + " (`resume`)";
}

Error Loop::error_with_last_save(ErrorCode code, int64_t step, const std::string& why) const {
  return error(code, "step {}: {}; {}", step, why, last_save());
}

}  // namespace ort_train
