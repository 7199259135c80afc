#include "frontend/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "frontend/adapters.h"
#include "frontend/checkpoint_folder.h"
#include "frontend/export.h"
#include "graph/error.h"
#include "offload/file_system.h"

namespace ort_train {
namespace {

// "a, b and c", of many the first few.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i >= kShown && i + 1 < names.size()) return text + fmt::format(" and {} more", names.size() - i);
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

}  // namespace

// --- the checkpoint that the run goes on from -------------------------------------------------------------------------------------------

Loaded RunFolder::load(Runtime& runtime, const Note& note) {
  const auto open_state = [&](const SlotTable* table, const std::string& path, const std::string& folder) {
    SavedSlots saved{.table = table, .path = path};
    const auto kept = static_cast<size_t>(kept_checkpoints(options_, /*in_slots=*/true));
    if (table != nullptr) saved.before = tables_before(options_.output_dir, folder, kept);
    const bool in_place = runtime.open_files(start_, saved);
    runtime.load_weights(Runtime::Weights::unchanged);
    return in_place;
  };
  Loaded loaded = load_checkpoint(options_.output_dir, runtime.content(), note, options_.nvme_path, open_state,
                                  start_.is_named ? start_.checkpoint : std::string());
  last_checkpoint_ = loaded.path;
  return loaded;
}

// A call before train() may have read the checkpoint while another process went on from it.
void RunFolder::check_newest() const {
  if (!start_.is_resumed() || start_.is_branch) return;
  if (const std::vector<std::string> newer = checkpoints_newer_than(options_.output_dir, last_checkpoint_); !newer.empty())
    throw error(ErrorCode::usage, "{}: another process has trained since {} was read, and left {}: make another trainer",
                options_.output_dir, last_checkpoint_, newer.front());
}

// --- training ---------------------------------------------------------------------------------------------------------------------------

void RunFolder::open() {
  make_folders(options_.output_dir);
  lock_.emplace(options_.output_dir);
  if (options_.adapter_only)
    check_adapter_output(options_.output_dir);
  else
    check_output(job_.model.info, options_.output_dir);
  check_replaced();
  remove_checkpoint_leftovers(options_.output_dir);
}

// Before anything is changed there.
void RunFolder::check_replaced() const {
  // What earlier runs have left is replaced only where the user says so. A run that is resumed goes on with its own.
  if (!options_.overwrite && (!start_.is_resumed() || start_.is_branch)) {
    std::vector<std::string> replaced;
    for (const std::string& path : checkpoints_newer_than(options_.output_dir, start_.checkpoint))
      replaced.push_back(std::filesystem::path(path).filename().string());
    // That it is ours is known by now.
    const std::filesystem::path result = options_.adapter_only ? "adapter_model.safetensors" : "model.onnx";
    if (exists((std::filesystem::path(options_.output_dir) / result).string())) replaced.push_back(result.string());
    if (!replaced.empty()) {
      throw error(ErrorCode::usage,
                  "{}: has {} of an earlier run: go on from there (`resume`), replace {} (`overwrite`), or choose another `output_dir`",
                  options_.output_dir, listed(replaced), replaced.size() == 1 ? "it" : "them");
    }
  }
  const int64_t last = job_.data.total_steps;
  int64_t first = start_.is_resumed() ? last : 0;
  for (const CheckpointFolder& folder : find_checkpoints(options_.output_dir)) first = std::min(first, folder.step);
  if (start_.is_named) first = 0;
  refuse_foreign_names(options_.output_dir, first, last);
}

void RunFolder::number_run(RunState& state) const {
  if (!start_.is_resumed() || start_.is_branch) state.run = next_run(options_.output_dir);
}

void RunFolder::make_room(const Runtime& runtime, const RunState& state) const {
  if (start_.is_resumed() && !start_.is_branch)
    remove_superseded(options_.output_dir, last_checkpoint_, static_cast<size_t>(kept_checkpoints(options_, /*in_slots=*/true)));
  check_space(runtime, state);
}

void RunFolder::check_space(const Runtime& runtime, const RunState& state) const {
  const std::optional<int64_t> free = free_bytes(options_.output_dir);
  if (!free) return;
  const bool in_slots = runtime.has_state_file(), keeps_best = options_.load_best_model_at_end;
  const int64_t limit = kept_checkpoints(options_, in_slots), kept = keeps_best && !in_slots ? std::max<int64_t>(limit, 2) : limit;
  const int64_t each = checkpoint_bytes(runtime.content(), in_slots);
  const int64_t model = options_.adapter_only ? adapter_bytes(job_.model.adapters, job_.model.weights) : export_bytes(job_.model.info);
  const int64_t total = job_.data.total_steps;
  const int64_t every = job_.data.save_steps > 0 ? job_.data.save_steps : total;
  int64_t saves = state.step >= total ? 0 : total / every - state.step / every + (total % every != 0 ? 1 : 0);
  if (keeps_best && !in_slots && state.step < total) saves += total / job_.data.eval_steps - state.step / job_.data.eval_steps;
  const CheckpointsThere there = checkpoints_there(options_.output_dir, state.run);
  int64_t wanted = space_needed(each, kept, saves, std::min(there.own, kept), there.others_bytes, model);
  std::string best;
  if (keeps_best && in_slots && state.step < total) {  // written out as a whole, the next one while the last is there
    const int64_t whole = checkpoint_bytes(runtime.content());
    wanted += whole * (has_best(runtime, state) ? 1 : 2);
    best = fmt::format(", that of the lowest held-out loss takes {}", whole);
  }
  if (*free >= wanted) return;
  throw error(
      ErrorCode::io,
      "{}: the disk has {} bytes left, and this run needs {}: its checkpoints take {} bytes each, of which {} are kept and one more is "
      "there while it is written{}, and what is written at the end takes {}: free some, keep fewer (`save_total_limit`), or choose another "
      "`output_dir`",
      options_.output_dir, *free, wanted, each, kept, best, model);
}

// --- saving -----------------------------------------------------------------------------------------------------------------------------

std::string RunFolder::reclaim(int64_t run) {
  if (!lock_ || lock_->is_in_place()) return {};
  lock_.reset();
  make_folders(options_.output_dir);
  lock_.emplace(options_.output_dir);
  for (const CheckpointFolder& folder : find_checkpoints(options_.output_dir)) {
    if (!is_of_run(folder.path, run))
      throw error(
          ErrorCode::io,
          "'{}' was moved or removed while this run wrote into it, and another run has saved {} there since: what this one has saved "
          "is where the folder is now",
          options_.output_dir, folder.path);
  }
  return fmt::format("'{}' was moved or removed while this run wrote into it: it goes on in a new folder of that name",
                     options_.output_dir);
}

void RunFolder::save(const Runtime& runtime, StateFile* slots, const RunState& state, const KeptCheckpoints& kept) {
  last_checkpoint_ = save_checkpoint(options_.output_dir, state, runtime.content(), kept, slots);
}

KeptCheckpoints RunFolder::kept(const RunState& state, bool in_slots, bool ends_run) const {
  return {.count = static_cast<size_t>(kept_checkpoints(options_, in_slots)),
          .best_step = options_.load_best_model_at_end ? state.held_out.best_step : 0,
          .ends_run = ends_run};
}

std::string RunFolder::note_links(const StateFile* slots) {
  if (slots == nullptr || has_noted_links_) return {};
  const std::vector<CheckpointFolder> found = find_checkpoints(options_.output_dir);
  const auto in_slots = std::count_if(found.begin(), found.end(), [](const CheckpointFolder& of) { return is_in_state_file(of.path); });
  if (slots->names() <= 1 + in_slots) return {};
  has_noted_links_ = true;
  return fmt::format(
      "a checkpoint was moved out of '{}', or hard-linked: its state is in the file that this run goes on writing, so the next steps "
      "overwrite it: copy checkpoints instead",
      options_.output_dir);
}

// --- the checkpoint of the lowest held-out loss -----------------------------------------------------------------------------------------

bool RunFolder::has_best(const Runtime& runtime, const RunState& state) const {
  if (state.held_out.best_step == 0) return false;
  const std::string path = checkpoint_path_of(options_.output_dir, state.held_out.best_step);
  return is_our_checkpoint(path) && is_of_run(path, state.run) && !(runtime.has_state_file() && is_in_state_file(path));
}

void RunFolder::load_best(const Runtime& runtime, const RunState& state) const {
  reload_checkpoint(checkpoint_path_of(options_.output_dir, state.held_out.best_step), state, runtime.content(), options_.nvme_path);
}

// --- the result -------------------------------------------------------------------------------------------------------------------------

std::string RunFolder::write_model(const Runtime& runtime) const {
  const JobModel& model = job_.model;
  const auto trained = [&](const std::string& name, const ByteSink& sink) { return runtime.read_parameter(name, sink); };
  if (options_.adapter_only)
    return export_adapter(model.adapters, job_.adapting, options_.task, model.weights, trained, options_.output_dir);
  std::vector<Weight> weights = model.weights;  // of the types in which they are handed over
  for (Weight& weight : weights) {
    if (runtime.is_unchanged(weight) && is_narrowed(weight)) weight.dtype = DType::float32;
  }
  std::erase_if(weights, [&](const Weight& weight) {  // stays as it is: written, it would be stored in another way
    const auto any = [&](const auto& is) { return std::any_of(weight.places.begin(), weight.places.end(), is); };
    return any([](const WeightPlace& place) { return place.integers != nullptr; }) &&
           !any([](const WeightPlace& place) { return place.added; }) && runtime.is_unchanged(weight) &&
           !is_merged(model.adapters, weight.parameter);
  });
  const auto originals = [&](const std::string& name, const ByteSink& sink) {
    return runtime.read_original(weight_named(model.weights, name), sink);
  };
  return export_model(model.info, weights, merged(model.adapters, job_.adapting.scale, weights, originals), options_.output_dir);
}

}  // namespace ort_train
