#include "frontend/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/checkpoint_folder.h"
#include "frontend/checkpoint_parts.h"
#include "frontend/checkpoint_slots.h"
#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "graph/error.h"

namespace ort_train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Writes one file of tensors; returns what the manifest says of it.
Json write_tensors(const std::string& path, const std::vector<StateTensor>& tensors) {
  std::vector<SafetensorsWriter::Tensor> header;
  for (const StateTensor& tensor : tensors) {
    const TensorType type = stored_as(tensor.type);
    header.push_back({.name = tensor.name, .element = element_of(type.dtype), .shape = type.shape});
  }
  File file = File::create(path);
  SafetensorsWriter writer(file, header, {{"format", "pt"}});
  Json hashes = Json::object();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> bytes = tensors[i].bytes(/*overwrite=*/false);
    writer.write(i, bytes);
    hashes[tensors[i].name] = hex16(hash_bytes(bytes));
  }
  file.sync();
  return {{"bytes", writer.size()}, {"tensors", hashes}};
}

void read_tensors(const std::string& path, const Json& manifest, const Json& parts, const std::vector<StateTensor>& tensors) {
  if (!exists(path)) throw corrupt(path, "is missing");
  const File file = File::open(path);
  if (file.size() != manifest.at("bytes").get<int64_t>())
    throw corrupt(path, fmt::format("has {} bytes, {} were written", file.size(), manifest.at("bytes").get<int64_t>()));
  const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::corrupt);
  const Json& hashes = manifest.at("tensors");
  StoredTensors stored(parts);
  for (const SafetensorsEntry& entry : header.entries) {
    if (!hashes.contains(entry.name)) throw corrupt(path, fmt::format("of its tensor '{}' no checksum is known", entry.name));
    const auto compare = [&entry, wanted = hashes.at(entry.name).get<std::string>()](uint64_t hash) {
      if (hex16(hash) != wanted) throw error(ErrorCode::corrupt, "tensor '{}' fails its checksum", entry.name);
    };
    StoredTensor tensor;
    tensor.type = fmt::format("{} {}", to_string(entry.element), to_string(entry.shape));
    tensor.bytes = entry.bytes;
    tensor.read = [&, compare](std::span<std::byte> to) {
      file.read(entry.offset, to);
      compare(hash_bytes(to));
    };
    tensor.check = [&, compare] { compare(hash_range(file, entry.offset, entry.bytes)); };
    tensor.read_range = [&](int64_t from, std::span<std::byte> to) { file.read(entry.offset + from, to); };
    stored.add(entry.name, std::move(tensor));
  }
  try {
    for (const StateTensor& tensor : tensors) stored.load(tensor);
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::corrupt) throw;
    throw corrupt(path, problem.what());
  }
}

Json to_json(const ScheduleState& state) {
  return {{"step", state.step},
          {"best", state.best ? Json(*state.best) : Json(nullptr)},
          {"bad", state.bad},
          {"cooldown", state.cooldown},
          {"reductions", state.reductions}};
}

Json to_json(const HeldOutState& state) {
  return {{"best", state.best ? Json(*state.best) : Json(nullptr)},
          {"best_step", state.best_step},
          {"lowest", state.lowest ? Json(*state.lowest) : Json(nullptr)},
          {"without_better", state.without_better},
          {"is_due", state.is_due},
          {"log_line", state.log_line}};
}

Json to_json(const RunState& state) {
  return {{"run", state.run},
          {"step", state.step},
          {"epoch", state.epoch},
          {"index", state.index},
          {"tokens", state.tokens},
          {"seconds", state.seconds},
          {"first_losses", state.first_losses},
          {"last_losses", state.last_losses},
          {"schedule", to_json(state.schedule)},
          {"held_out", to_json(state.held_out)},
          {"loss_scale",
           {{"scale", state.loss_scale.scale},
            {"finite_steps", state.loss_scale.finite_steps},
            {"skipped", state.loss_scale.skipped},
            {"skipped_in_row", state.loss_scale.skipped_in_row}}}};
}

ScheduleState schedule_of(const Json& json) {
  ScheduleState state;
  json.at("step").get_to(state.step);
  if (const Json& best = json.at("best"); !best.is_null()) state.best = best.get<double>();
  json.at("bad").get_to(state.bad);
  json.at("cooldown").get_to(state.cooldown);
  json.at("reductions").get_to(state.reductions);
  if (state.step < 0 || state.bad < 0 || state.cooldown < 0 || state.reductions < 0)
    throw error(ErrorCode::corrupt, "a schedule that counts below 0");
  return state;
}

HeldOutState held_out_of(const Json& json, int64_t step) {
  HeldOutState state;
  if (const Json& best = json.at("best"); !best.is_null()) state.best = best.get<double>();
  json.at("best_step").get_to(state.best_step);
  state.lowest = state.best;  // older ones say no more
  if (const auto lowest = json.find("lowest"); lowest != json.end() && !lowest->is_null()) state.lowest = lowest->get<double>();
  json.at("without_better").get_to(state.without_better);
  json.at("is_due").get_to(state.is_due);
  json.at("log_line").get_to(state.log_line);
  if (state.best_step < 0 || state.best_step > step || state.without_better < 0 || (state.best_step > 0) != state.best.has_value() ||
      (state.best && *state.lowest > *state.best))
    throw error(ErrorCode::corrupt, "evaluations that can't have been");
  return state;
}

RunState state_of(const Json& json) {
  RunState state;
  json.at("run").get_to(state.run);
  json.at("step").get_to(state.step);
  json.at("epoch").get_to(state.epoch);
  json.at("index").get_to(state.index);
  json.at("tokens").get_to(state.tokens);
  json.at("seconds").get_to(state.seconds);
  json.at("first_losses").get_to(state.first_losses);
  json.at("last_losses").get_to(state.last_losses);
  if (const auto schedule = json.find("schedule"); schedule != json.end()) state.schedule = schedule_of(*schedule);
  if (state.step < 0 || state.epoch < 0 || state.index < 0) throw error(ErrorCode::corrupt, "a negative step");
  if (const auto held_out = json.find("held_out"); held_out != json.end()) state.held_out = held_out_of(*held_out, state.step);
  if (const auto found = json.find("loss_scale"); found != json.end()) {  // older ones have none
    LossScaleState& of = state.loss_scale;
    found->at("scale").get_to(of.scale);
    found->at("finite_steps").get_to(of.finite_steps);
    found->at("skipped").get_to(of.skipped);
    found->at("skipped_in_row").get_to(of.skipped_in_row);
    if (!(of.scale >= 0 && std::isfinite(of.scale)) || of.finite_steps < 0 || of.skipped_in_row < 0 || of.skipped < of.skipped_in_row ||
        of.skipped > state.step)
      throw error(ErrorCode::corrupt, "a loss scale that can't be");
  }
  return state;
}

// Throws Error(usage) unless the same weights stay as they are, and are the same. (Older checkpoints have all weights.)
void check_unchanged(const std::string& folder, const Json& manifest, const CheckpointContent& content) {
  const auto found = manifest.find("unchanged");
  if (found == manifest.end()) return;
  const auto then = found->get<std::map<std::string, std::string>>();
  const std::string same = "give it the same model and the same `batch_norm`";
  for (const auto& [name, sum] : content.unchanged) {
    const auto before = then.find(name);
    if (before == then.end())
      throw error(ErrorCode::usage, "{}: was saved by a run that changed '{}', which stays as it is in this one: {}", folder, name, same);
    if (before->second != sum)
      throw error(ErrorCode::usage, "{}: was saved by a run whose model had another '{}', which isn't trained: {}", folder, name, same);
  }
  for (const auto& [name, sum] : then) {
    if (!content.unchanged.contains(name))
      throw error(ErrorCode::usage, "{}: was saved by a run in which '{}' stayed as it is; this one changes it: {}", folder, name, same);
  }
}

// What a folder's manifest has under that name, by `of`; none where it can't be read.
template <typename Of> auto read_from_manifest(const std::string& folder, const char* name, const Of& of) {
  std::optional<decltype(of(Json()))> result;
  try {
    result = of(read_manifest(folder).at(name));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
  }
  return result;
}
// The table of a folder whose tensors are in a state file, if it can be read.
std::optional<SlotTable> table_in(const std::string& folder) { return read_from_manifest(folder, "slots", slots_of); }

// False where something of ours can't be removed; the next one to put things in order tries again.
bool remove_with_state(const std::string& output_dir, const std::string& folder) {
  const std::optional<SlotTable> table = table_in(folder);
  if (!remove_file(fs::path(folder) / kStateLink) && errno != ENOENT) return false;
  if (table) release_state(output_dir, *table);
  return remove_our_files(folder);  // last: what is killed before it is done again
}

// Renames first: a crash leaves a leftover, never half a checkpoint under its name.
void remove_checkpoint(const std::string& path) {
  const std::string temporary = with_prefix(path, kRemoved);
  if (!rename_file(path, temporary)) return;  // the name is taken: the checkpoint stays
  if (remove_with_state(folder_of(path), temporary) && exists(temporary)) rename_file(temporary, path);  // somebody's files are in it
}

struct Candidate {
  int64_t run = -1;  // unknown: the manifest can't be read
  CheckpointFolder folder;
  Json manifest;
};

// In the order in which they are tried: the latest run first, of that the largest step.
std::vector<Candidate> find_candidates(const std::vector<CheckpointFolder>& folders,
                                       const std::function<void(const CheckpointFolder&, const std::string& why, ErrorCode)>& broken) {
  std::vector<Candidate> found;
  for (const CheckpointFolder& folder : folders) {
    Candidate candidate{.folder = folder, .manifest = {}};
    try {
      candidate.manifest = read_manifest(folder.path);
      candidate.manifest.at("state").at("run").get_to(candidate.run);
      if (candidate.run < 0) throw error(ErrorCode::corrupt, "its manifest names no run");
    } catch (const Error& problem) {
      broken(folder, problem.what(), problem.code());
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& problem) {
      broken(folder, problem.what(), ErrorCode::corrupt);
    }
    found.push_back(std::move(candidate));
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.run > b.run; });
  return found;
}

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code code;
  return fs::equivalent(a, b, code);
}

// The checkpoints before `path` that refer to its state file, the newest first.
std::vector<std::pair<std::string, SlotTable>> sharing_state_before(const std::string& output_dir, const std::string& path) {
  std::vector<std::pair<std::string, SlotTable>> found;
  const std::optional<SlotTable> table = table_in(path);
  bool before = false;
  for (const auto& [step, other] : find_checkpoints(output_dir)) {
    if (before && table) {
      std::optional<SlotTable> of = table_in(other);
      if (of && of->id == table->id) found.emplace_back(other, std::move(*of));
    }
    before |= is_same_folder(other, path);
  }
  return found;
}

// Keeps `saved`, which is new, the best, and the newest of this run before them. Once there are as many as are kept, or the run has ended,
// all others go: those of earlier runs, and those of this run's later steps, which were skipped as damaged when it was resumed.
void prune_checkpoints(const std::string& output_dir, const std::string& saved, const RunState& state, const KeptCheckpoints& kept) {
  const std::string best = kept.best_step > 0 ? checkpoint_path_of(output_dir, kept.best_step) : saved;
  const bool has_best = best != saved && is_our_checkpoint(best) && is_of_run(best, state.run);
  const size_t count = std::max<size_t>(kept.count, has_best ? 2 : 1);
  size_t own = has_best ? 2 : 1;
  std::vector<std::string> others;
  for (const auto& [step, path] : find_checkpoints(output_dir)) {
    if (path == saved || (has_best && path == best)) continue;
    if (!is_of_run(path, state.run) || step > state.step)
      others.push_back(path);
    else if (++own > count)
      remove_checkpoint(path);
  }
  if (own < count && !kept.ends_run) return;
  for (const std::string& path : others) remove_checkpoint(path);
}

}  // namespace

int64_t next_run(const std::string& output_dir) {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  int64_t newest = 0;
  for (const Candidate& candidate : find_candidates(find_checkpoints(output_dir, /*replaced=*/true), [](const auto&...) {}))
    newest = std::max(newest, candidate.run);
  return std::max(now, newest < std::numeric_limits<int64_t>::max() ? newest + 1 : newest);
}

std::vector<std::string> checkpoints_newer_than(const std::string& output_dir, const std::string& path) {
  std::vector<std::string> newer;
  for (const Candidate& candidate : find_candidates(find_checkpoints(output_dir, /*replaced=*/true), [](const auto&...) {})) {
    if (!path.empty() && is_same_folder(candidate.folder.path, path)) break;
    newer.push_back(candidate.folder.path);
  }
  return newer;
}

std::vector<SlotTable> tables_before(const std::string& output_dir, const std::string& path, size_t kept) {
  std::vector<SlotTable> tables;
  for (auto& [other, table] : sharing_state_before(output_dir, path)) {
    if (tables.size() + 1 < kept) tables.insert(tables.begin(), std::move(table));
  }
  return tables;
}

void remove_superseded(const std::string& output_dir, const std::string& path, size_t kept) {
  const auto sharing = sharing_state_before(output_dir, path);
  for (size_t i = kept - 1; i < sharing.size(); ++i) remove_checkpoint(sharing[i].first);
}

void remove_checkpoint_leftovers(const std::string& output_dir) {
  const CheckpointLeftovers found = find_leftovers(output_dir);
  for (const std::string& path : found.put_back)
    rename_file(path, fs::path(output_dir) / checkpoint_name(path));  // what was to replace it didn't get there
  for (const std::string& path : found.lost) remove_with_state(output_dir, path);
}

std::string save_checkpoint(const std::string& output_dir, const RunState& state, const CheckpointContent& content,
                            const KeptCheckpoints& kept, StateFile* slots) {
  const std::string path = checkpoint_path_of(output_dir, state.step), temporary = with_prefix(path, kWritten),
                    replaced = with_prefix(path, kReplaced);
  remove_checkpoint_leftovers(output_dir);
  if (is_taken(path) && !is_our_checkpoint(path))
    throw error(ErrorCode::io, "{}: was not written by ort-train, and stands where this run has to save: move it away", path);
  begin_folder(temporary);
  try {
    Json body = {{"model", content.model},
                 {"settings", content.settings},
                 {"state", to_json(state)},
                 {"parts", parts_to_json(content)},
                 {"unchanged", content.unchanged}};
    if (!content.algorithms.empty()) body["algorithms"] = content.algorithms;
    if (slots != nullptr) {
      body["slots"] = slots_to_json(slots->sync(), content);
    } else {
      for (const auto& [name, tensors] : {std::pair{kWeightsFile, &content.weights}, {kOptimizerFile, &content.optimizer}})
        body["files"][name] = write_tensors((fs::path(temporary) / name).string(), *tensors);
    }
    write_manifest(temporary, std::move(body));
    if (slots != nullptr) slots->name_for((fs::path(temporary) / kStateLink).string());  // after the manifest, which says whose it is
    sync_folder(temporary);
    if (exists(path)) rename_synced(path, replaced);  // of an earlier run, or broken
    rename_synced(temporary, path);
  } catch (...) {
    if (slots != nullptr && exists(temporary)) slots->withdrawn();
    remove_our_files(temporary);
    if (!exists(path)) rename_file(replaced, path);
    throw;
  }
  if (slots != nullptr) slots->published();
  if (exists(replaced)) remove_with_state(output_dir, replaced);
  prune_checkpoints(output_dir, path, state, kept);
  return path;
}

bool is_in_state_file(const std::string& folder) { return table_in(folder).has_value(); }

std::string state_id(const std::string& folder) {
  const std::optional<SlotTable> table = table_in(folder);
  return table ? table->id : std::string();
}

std::optional<RunState> saved_state(const std::string& folder) { return read_from_manifest(folder, "state", state_of); }

std::optional<Algorithms> saved_algorithms(const std::string& folder, const std::string& makes_products) {
  const auto of_products = [](const Json& settings) { return settings.value(kProductsSetting, std::string()); };
  const std::optional<std::string> products = read_from_manifest(folder, "settings", of_products);
  if (!products) return std::nullopt;
  if (*products != makes_products) return Algorithms{};
  return read_from_manifest(folder, "algorithms", [](const Json& json) { return json.get<Algorithms>(); }).value_or(Algorithms{});
}

namespace {

using Settings = std::map<std::string, std::string>;

std::string setting(const Settings& settings, const char* name) {
  const auto found = settings.find(name);
  return found == settings.end() ? std::string() : found->second;
}

// Whether the tensors of a checkpoint, of these settings and of the `model`, are those of the run. Throws Error(usage) that says what
// isn't.
void check_settings(const std::string& path, const Settings& saved, const std::string& model, const CheckpointContent& content) {
  const Settings& now = content.settings;
  const auto differs = [&](const char* name) { return setting(now, name) != setting(saved, name); };
  const auto shown = [](const Settings& settings, const char* name, const char* none, const char* some = "") {
    const std::string text = setting(settings, name);
    return text.empty() ? std::string(none) : some + text;
  };
  if (differs("adapters"))
    throw error(ErrorCode::usage,
                "{}: was saved with {}, not {}: give it the same adapters (`lora_rank`, `lora_target`, `use_dora`, `ia3_target`)", path,
                shown(saved, "adapters", "no adapters", "adapters of "), shown(now, "adapters", "none", "of "));
  if (differs("control"))
    throw error(ErrorCode::usage, "{}: was saved with {}, not {}: give it the same `control` and `control_input`", path,
                shown(saved, "control", "no copied blocks", "a copy of "), shown(now, "control", "none", "of "));
  if (differs("train_freeze"))
    throw error(ErrorCode::usage, "{}: was saved by a run that trains other tensors: give it the same `train` and `freeze`", path);
  if (differs("base_dtype"))
    throw error(ErrorCode::usage,
                "{}: was saved by a run whose frozen weights are stored as {}, not {}: give it the same `base_dtype` and `base_target`",
                path, shown(saved, "base_dtype", "they come"), shown(now, "base_dtype", "they come"));
  // Before the model: which weights are packed depends on the optimizer.
  if (now.contains("optim") && differs("optim"))
    throw error(ErrorCode::usage, "{}: was saved with `optim` {}, not {}: its optimizer state can't be used", path, setting(saved, "optim"),
                setting(now, "optim"));
  if (model == content.model) return;
  for (const char* name : {"param_groups", "layer_decay", "lora_plus_ratio"}) {  // so does it on the groups
    if (now.contains(name) && differs(name))
      throw error(
          ErrorCode::usage,
          "{}: was saved with `{}` {}, not {}: small weights of a group are one tensor there; give it the same groups (their learning "
          "rates and weight decays may be others)",
          path, name, shown(saved, name, "none"), shown(now, name, "none"));
  }
  for (const char* name : {"precision", "clip_per_layer"}) {  // and on the weights' types, and how their gradients are clipped
    if (now.contains(name) && differs(name) && !setting(saved, name).empty())
      throw error(ErrorCode::usage, "{}: was saved with `{}` {}, not {}: its tensors have other types, or are packed otherwise", path, name,
                  setting(saved, name), setting(now, name));
  }
  throw error(ErrorCode::usage, "{}: is the checkpoint of another model: its parameters have other names, types or shapes", path);
}

// The tensors of a checkpoint into the content's. prepare: BeforeLoad without the folder
template <typename Prepare>
void load_tensors(const Candidate& candidate, const CheckpointContent& content, const std::string& nvme_path, Prepare&& prepare) {
  const std::string& path = candidate.folder.path;
  const Json &manifest = candidate.manifest, &parts = manifest.at("parts");
  if (manifest.contains("slots")) {
    const Json& slots = manifest.at("slots");
    const SlotTable table = slots_of(slots);
    const std::string file = find_state_file(table, path, nvme_path);
    const bool in_place = prepare(&table, file);
    check_unchanged(path, manifest, content);
    return read_slots(file, table, slots, parts, content, in_place);
  }
  prepare(nullptr, std::string());
  check_unchanged(path, manifest, content);
  const Json& files = manifest.at("files");
  read_tensors((fs::path(path) / kWeightsFile).string(), files.at(kWeightsFile), parts, content.weights);
  read_tensors((fs::path(path) / kOptimizerFile).string(), files.at(kOptimizerFile), parts, content.optimizer);
}

}  // namespace

Loaded load_checkpoint(const std::string& output_dir, const CheckpointContent& content, const Note& note, const std::string& nvme_path,
                       const BeforeLoad& before, const std::string& only) {
  std::string broken;                      // why the newest of them is
  ErrorCode failure = ErrorCode::corrupt;  // or io: perhaps it is whole, and the drive doesn't give it
  std::string unread;                      // the newest checkpoint that the drive fails to read, and why
  int64_t unread_step = -1;
  const auto skip = [&](const CheckpointFolder& folder, const std::string& why, ErrorCode code) {
    const std::string what = folder.path + ": " + why;
    if (broken.empty()) {
      broken = what;
      failure = code;
    }
    if (code == ErrorCode::io && folder.step > unread_step) {
      unread = what;
      unread_step = folder.step;
    }
    note(fmt::format("{} is skipped: {}", folder.path, why));
  };
  std::vector<CheckpointFolder> folders;
  if (only.empty())
    folders = find_checkpoints(output_dir, /*replaced=*/true);
  else if (is_our_checkpoint(only))
    folders = {{.step = -1, .path = only}};
  const std::string& where = only.empty() ? output_dir : only;
  if (folders.empty()) throw error(ErrorCode::usage, "{}: there is no checkpoint to resume from", where);
  std::vector<Candidate> candidates = find_candidates(folders, skip);
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.run < 0; });
  for (const Candidate& candidate : candidates) {
    const std::string& path = candidate.folder.path;
    if (unread_step > candidate.folder.step)
      throw error(ErrorCode::io,
                  "{}; it may be whole: try again, or go on from an older one (`resume_from_checkpoint` {} with `overwrite`)", unread,
                  path);
    bool preparing = false;
    try {
      Loaded loaded{.state = {}, .path = path, .settings = candidate.manifest.at("settings").get<Settings>()};
      check_settings(path, loaded.settings, candidate.manifest.at("model").get<std::string>(), content);
      loaded.state = state_of(candidate.manifest.at("state"));
      if (loaded.state.step != candidate.folder.step && only.empty())
        throw error(ErrorCode::corrupt, "its manifest is that of step {}", loaded.state.step);
      load_tensors(candidate, content, nvme_path, [&](const SlotTable* table, const std::string& file) {
        preparing = true;
        const bool in_place = before && before(table, file, path);
        preparing = false;
        return in_place;
      });
      return loaded;
    } catch (const Error& problem) {
      if (problem.code() == ErrorCode::usage || (preparing && problem.code() != ErrorCode::corrupt)) throw;
      skip(candidate.folder, problem.what(), problem.code());
      if (problem.code() == ErrorCode::io) unread_step = std::numeric_limits<int64_t>::max();  // all that follow are older
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& problem) {
      if (preparing) throw;  // the system's, or a callback's
      skip(candidate.folder, problem.what(), ErrorCode::corrupt);
    }
  }
  if (failure == ErrorCode::io) throw error(ErrorCode::io, "{}: none of its checkpoints can be read ({})", where, broken);
  throw error(ErrorCode::corrupt, "{}: none of its checkpoints is whole, so there is nothing to resume from ({})", where, broken);
}

void reload_checkpoint(const std::string& folder, const RunState& of, const CheckpointContent& content, const std::string& nvme_path) {
  if (!is_our_checkpoint(folder)) throw error(ErrorCode::io, "{}: is not there any more, or is no checkpoint of ort-train", folder);
  try {
    const Candidate candidate{.folder = {.path = folder}, .manifest = read_manifest(folder)};
    if (!is_of_run(folder, of.run)) throw corrupt(folder, "is another run's");
    load_tensors(candidate, content, nvme_path, [](const SlotTable*, const std::string&) { return false; });
  } catch (const nlohmann::json::exception& problem) {
    throw corrupt(folder, problem.what());
  }
}

int64_t checkpoint_bytes(const CheckpointContent& content, bool in_slots) {
  int64_t bytes = int64_t{1} << 20;
  for (const auto* list : {&content.weights, &content.optimizer}) {
    for (const StateTensor& tensor : *list) bytes += in_slots ? 512 : tensor.type.bytes() + 256;
  }
  return bytes;
}

int64_t space_needed(int64_t bytes, int64_t kept, int64_t saves, int64_t own, int64_t others, int64_t last) {
  int64_t taken = 0, most = 0;
  for (int64_t i = 0; i < std::min(saves, kept + 2); ++i) {  // after that it repeats itself
    taken += bytes;
    most = std::max(most, taken);  // the new one is there before an old one goes
    for (++own; own > kept; --own) taken -= bytes;
    if (own < kept) continue;
    taken -= others;
    others = 0;
  }
  return std::max(most, taken + last);
}

}  // namespace ort_train
