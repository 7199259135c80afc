#include "frontend/loop.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "frontend/checkpoint.h"
#include "frontend/checkpoint_folder.h"
#include "frontend/file.h"
#include "graph/error.h"
#include "offload/file_system.h"

namespace ort_train {

namespace {

// What isn't there is at its default.
std::string differences(const std::map<std::string, std::string>& now, const std::map<std::string, std::string>& then) {
  std::map<std::string, std::string> all = then;
  all.insert(now.begin(), now.end());
  const auto shown = [](const std::map<std::string, std::string>& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() || found->second.empty() ? std::string("none") : found->second;
  };
  std::string text;
  for (const auto& [name, either] : all) {
    const std::string is = shown(now, name), was = shown(then, name);
    if (is != was) text += fmt::format("{}{} {} instead of {}", text.empty() ? "" : ", ", name, is, was);
  }
  return text;
}

}  // namespace

Loop::Loop(const Job& job, PlannedJob& planned, Runtime& runtime, const PlanReport& report, const RunStart& start,
           const Callbacks& callbacks, std::atomic<bool>& stop)
    : job_(job),
      options_(job.options),
      planned_(planned),
      runtime_(runtime),
      report_(report),
      start_(start),
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
    begin();
  } catch (const std::exception& problem) {
    give_up(problem.what());
    throw;
  } catch (...) {
    give_up("an exception interrupted its preparation");
    throw;
  }
  preparation_ = Preparation::done;
}

void Loop::begin() {
  runtime_.allocate();
  state_.run = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (start_.is_resumed()) {
    resume();
  } else {
    runtime_.open_files(start_, {});
    runtime_.load_weights(Runtime::Weights::all);
  }
  job_.scaling.begin(state_.loss_scale);
  if (options_.detect_anomaly) {
    anomalies_ = std::make_unique<AnomalyWatch>(planned_.set.graphs(), job_.scaling.is_on());
    runtime_.watch(anomalies_.get());
  }
  runtime_.end_loading();
}

void Loop::resume() {
  const CheckpointContent& content = runtime_.content();
  const Loaded loaded = load_checkpoint(
      options_.output_dir, content, [&](const std::string& text) { note(text); }, options_.nvme_path,
      [&](const SlotTable* table, const std::string& path, const std::string& folder) {
        SavedSlots saved{.table = table, .path = path};
        const auto kept = static_cast<size_t>(kept_checkpoints(options_, /*in_slots=*/true));
        if (table != nullptr) saved.before = tables_before(options_.output_dir, folder, kept);
        const bool in_place = runtime_.open_files(start_, saved);
        runtime_.load_weights(Runtime::Weights::unchanged);
        return in_place;
      },
      start_.is_named ? start_.checkpoint : std::string());
  std::map<std::string, std::string> settings = content.settings, saved = loaded.settings;
  // Checkpoints of earlier versions have none.
  const auto hash = settings.extract(kDataHashSetting), saved_hash = saved.extract(kDataHashSetting);
  if (saved_hash && saved_hash.mapped() != hash.mapped() && saved["data"] == settings["data"]) {
    note(fmt::format("{}: holds other data than when the run was saved: from here on the run differs from an uninterrupted one",
                     options_.data));
  }
  if (const std::string changed = differences(settings, saved); !changed.empty())
    note(fmt::format("from here on the run differs from the one that was saved: {}", changed));
  const int64_t run = state_.run;
  state_ = loaded.state;
  if (start_.is_branch) state_.run = run;  // the newest from here on, whatever else is in the folder
  checkpoint_ = loaded.path;
  if (state_.index >= job_.train_range.count) {  // the data has become smaller
    ++state_.epoch;
    state_.index = 0;
  }
  if (const int64_t again = state_.index % job_.binding.batch; again > 0) {  // batches are counted from the epoch's beginning
    state_.index -= again;
    note(fmt::format("the batch size has changed: {} sample{} of this epoch {} used again", again, again == 1 ? "" : "s",
                     again == 1 ? "is" : "are"));
  }
  note(fmt::format("resumed from {} after step {}", loaded.path, state_.step));
}

void Loop::prepare_to_read_weights() {
  prepare();
  if (anomalies_) anomalies_->set_place(fmt::format("after step {}", state_.step));
  steps_.apply_deferred();
}

// --- what only reads --------------------------------------------------------------------------------------------------------------------

EvalReport Loop::evaluate() {
  if (job_.valid_range.data == nullptr) {
    throw error(ErrorCode::usage, "there is no held-out data to evaluate on: give `eval_steps`, or a folder with train and valid as data");
  }
  prepare_to_read_weights();
  const Evaluated evaluated = steps_.evaluate(stop_);
  return {.step = state_.step, .loss = evaluated.loss, .batches = evaluated.batches};
}

std::string Loop::sample(const Continuation& wanted) {
  if (!job_.data.vocabulary) throw error(ErrorCode::usage, "writing text needs a job whose `data` is a .txt file");
  prepare_to_read_weights();
  return sample_text(job_, planned_.set, runtime_, wanted, stop_);
}

std::map<std::string, std::vector<float>> Loop::predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                        const std::map<std::string, std::vector<float>>& reals) {
  if (options_.predict_batch_size == 0) throw error(ErrorCode::usage, "predictions were not planned: set predict_batch_size");
  prepare_to_read_weights();
  return predict_batch(job_.binding, planned_.set, runtime_, integers, reals);
}

// --- between steps ----------------------------------------------------------------------------------------------------------------------

// A schedule that follows the loss sees an evaluation; not the one at the end, which a longer run doesn't have.
void Loop::report_to_schedule(const EvalReport& evaluated) {
  const bool was_ended = std::isnan(evaluated.loss) && stop_.load(std::memory_order_relaxed);
  if (!job_.schedule.follows_loss() || evaluated.step % options_.eval_steps != 0 || was_ended) return;
  job_.schedule.def->observe(job_.schedule, state_.schedule, evaluated.loss);
  state_.schedule.step = evaluated.step;
}

// Somebody may have moved or removed the output folder, and another run may have one of its name by now.
std::string Loop::reclaim_output_dir() {
  if (!lock_ || lock_->is_in_place()) return {};
  lock_.reset();
  make_folders(options_.output_dir);
  lock_.emplace(options_.output_dir);
  for (const CheckpointFolder& folder : find_checkpoints(options_.output_dir)) {
    if (!is_of_run(folder.path, state_.run))
      throw error(
          ErrorCode::io,
          "'{}' was moved or removed while this run wrote into it, and another run has saved {} there since: what this one has saved "
          "is where the folder is now",
          options_.output_dir, folder.path);
  }
  return fmt::format("'{}' was moved or removed while this run wrote into it: it goes on in a new folder of that name",
                     options_.output_dir);
}

// Samples are read where the data's file has them, step by step, so that others come if somebody writes to it meanwhile.
std::string Loop::check_data() {
  if (data_has_changed_) return {};
  try {
    if (!job_.data.was_written_to() || job_.data.content_hash() == runtime_.content().settings.at(kDataHashSetting)) return {};
  } catch (const Error& problem) {  // it has become shorter, or is gone: the step that reads beyond its end says so
    data_has_changed_ = true;
    return fmt::format("{} (while the run reads its data)", problem.what());
  }
  data_has_changed_ = true;
  return fmt::format("{}: was written to during the run: samples read now or recently may differ from those at its start", options_.data);
}

void Loop::save(bool note_it) {
  runtime_.check_usable();
  const std::string notes[] = {reclaim_output_dir(), check_data()};  // told once the run is saved: callbacks may throw
  steps_.apply_deferred();
  StateFile* const slots = runtime_.fill_slots();
  const auto kept = static_cast<size_t>(kept_checkpoints(options_, slots != nullptr));
  checkpoint_ = save_checkpoint(options_.output_dir, state_, runtime_.content(), kept, slots, /*ends_run=*/state_.step == job_.total_steps);
  for (const std::string& text : notes) {
    if (!text.empty()) note(text);
  }
  if (slots != nullptr && !has_told_of_links_ && slots->names() > 1 + std::ssize(find_checkpoints(options_.output_dir))) {
    has_told_of_links_ = true;
    note(fmt::format(
        "a checkpoint was moved out of '{}', or hard-linked: its state is in the file that this run goes on writing, so the next steps "
        "overwrite it: copy checkpoints instead",
        options_.output_dir));
  }
  if (note_it) note(fmt::format("saved {}", checkpoint_));
}

// Whether the output folder's disk has room for what the run will write there.
void Loop::check_space() const {
  const std::optional<int64_t> free = free_bytes(options_.output_dir);
  if (!free) return;
  const bool in_slots = runtime_.disk() != nullptr && runtime_.disk()->state() != nullptr;
  const int64_t kept = kept_checkpoints(options_, in_slots), each = checkpoint_bytes(runtime_.content(), in_slots);
  const int64_t model = export_bytes(job_.info), total = job_.total_steps;
  const int64_t every = options_.save_steps > 0 ? options_.save_steps : total;
  const int64_t saves = state_.step >= total ? 0 : total / every - state_.step / every + (total % every != 0 ? 1 : 0);
  const CheckpointsThere there = checkpoints_there(options_.output_dir, state_.run);
  const int64_t wanted = space_needed(each, kept, saves, std::min(there.own, kept), there.others_bytes, model);
  if (*free >= wanted) return;
  throw error(
      ErrorCode::io,
      "{}: the disk has {} bytes left, and this run needs {}: its checkpoints take {} bytes each, of which {} are kept and one more is "
      "there while it is written, and the new model takes {}: free some, keep fewer (`save_total_limit`), or choose another `output_dir`",
      options_.output_dir, *free, wanted, each, kept, model);
}

std::string Loop::why_not_finite(const StepResult& result, int64_t step) const {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return {};
  const char* what_to_do = "lower `learning_rate`, or warm up longer";
  if (job_.types.low == DType::float16 && !job_.scaling.is_on() && std::isfinite(result.loss))
    what_to_do = "float16 holds no number beyond 65504: let `loss_scale` be dynamic, or use `bf16`";
  else if (step == 1)
    what_to_do = "nothing has been learned yet, so it comes from the data, the model's weights, or numbers too large for `bf16` or `fp16`";
  const auto text = [](double x) { return std::isnan(x) ? "nan" : fmt::format("{}", x); };  // without its sign
  return fmt::format("the loss is {}, the gradient norm {}: {} (`detect_anomaly` names the first node that makes such numbers)",
                     text(result.loss), text(result.grad_norm), what_to_do);
}

Error Loop::error_with_last_save(ErrorCode code, int64_t step, const std::string& why) const {
  return error(code, "step {}: {}; {}", step, why,
               checkpoint_.empty() ? "nothing was saved before" : "the last good state is " + checkpoint_ + " (`resume`)");
}

}  // namespace ort_train
