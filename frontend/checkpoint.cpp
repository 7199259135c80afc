#include "frontend/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/checkpoint_parts.h"
#include "frontend/checkpoint_slots.h"
#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "graph/error.h"

namespace ort_train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kFormat = 2;
constexpr size_t kKept = 2, kKeptInSlots = 1;
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kNew = ".tmp-", kOld = ".tmp-old-", kReplaced = ".tmp-replaced-";  // before that

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Writes one file of tensors; returns what the manifest says of it.
Json write_tensors(const std::string& path, const std::vector<StateTensor>& tensors) {
  std::vector<SafetensorsWriter::Tensor> header;
  for (const StateTensor& tensor : tensors)
    header.push_back({.name = tensor.name, .element = element_of(tensor.type.dtype), .shape = tensor.type.shape});
  SafetensorsWriter writer(path, header, {{"format", "pt"}});
  Json hashes = Json::object();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> bytes = tensors[i].bytes(/*overwrite=*/false);
    writer.write(i, bytes);
    hashes[tensors[i].name] = hex16(hash_bytes(bytes));
  }
  writer.sync();
  return {{"bytes", writer.size()}, {"tensors", hashes}};
}

Error corrupt(const std::string& path, const std::string& why) { return error(ErrorCode::corrupt, "{}: {}", path, why); }

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

Json to_json(const RunState& state) {
  return {{"run", state.run},
          {"step", state.step},
          {"epoch", state.epoch},
          {"index", state.index},
          {"seed", state.seed},
          {"tokens", state.tokens},
          {"seconds", state.seconds},
          {"first_losses", state.first_losses},
          {"last_losses", state.last_losses}};
}

RunState state_of(const Json& json) {
  RunState state;
  json.at("run").get_to(state.run);
  json.at("step").get_to(state.step);
  json.at("epoch").get_to(state.epoch);
  json.at("index").get_to(state.index);
  json.at("seed").get_to(state.seed);
  json.at("tokens").get_to(state.tokens);
  json.at("seconds").get_to(state.seconds);
  json.at("first_losses").get_to(state.first_losses);
  json.at("last_losses").get_to(state.last_losses);
  if (state.step < 0 || state.epoch < 0 || state.index < 0) throw error(ErrorCode::corrupt, "a negative step");
  return state;
}

Json read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifest).string();
  if (!exists(path)) throw corrupt(path, "is missing");
  const Json json = Json::parse(read_small_file(path, kManifestLimit), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("body") || !json.contains("xxh3") || !json["xxh3"].is_string())
    throw corrupt(path, "is not a manifest");
  const std::string body = dump(json["body"]);
  if (hex16(hash_bytes(std::as_bytes(std::span(body)))) != json["xxh3"].get<std::string>()) throw corrupt(path, "fails its checksum");
  if (json["body"].value("format", 0) != kFormat)
    throw corrupt(path, fmt::format("has format {}, this version reads {}", json["body"].value("format", 0), kFormat));
  return json["body"];
}

// Checkpoints' folders, the largest step first; `replaced`: also those that a killed run moved out of the way.
std::vector<std::pair<int64_t, std::string>> find_checkpoints(const std::string& output_dir, bool replaced = false) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const std::string name = checkpoint_name(entry.path().string());
    if (name.empty() || (!replaced && name != entry.path().filename())) continue;
    int64_t step = 0;
    const char* begin = name.data() + kPrefix.size();
    const auto [end, bad] = std::from_chars(begin, name.data() + name.size(), step);
    if (bad == std::errc() && end == name.data() + name.size() && step >= 0) found.emplace_back(step, entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

// The table of a folder whose tensors are in a state file, if it can be read.
std::optional<SlotTable> table_in(const std::string& folder) {
  try {
    return slots_of(read_manifest(folder).at("slots"));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string sibling(const std::string& path, std::string_view prefix) {
  return (fs::path(folder_of(path)) / (std::string(prefix) + fs::path(path).filename().string())).string();
}

void remove_with_state(const std::string& output_dir, const std::string& folder) {
  const std::optional<SlotTable> table = table_in(folder);
  std::error_code code;
  fs::remove(fs::path(folder) / kStateLink, code);
  if (table) release_state(output_dir, *table);
  fs::remove_all(folder, code);  // last: what is killed before it is done again
}

// Renames first: a crash leaves a leftover, never half a checkpoint under its name.
void remove_folder(const std::string& path) {
  const std::string output_dir = folder_of(path);
  const std::string temporary = sibling(path, kOld);
  std::error_code code;
  fs::remove_all(temporary, code);
  fs::rename(path, temporary, code);
  remove_with_state(output_dir, temporary);
}

// Keeps `saved`, which is new, and the newest of this run; those of earlier runs in the same folder go once this run has as many.
void prune(const std::string& output_dir, const std::string& saved, int64_t run, size_t kept) {
  size_t own = 1;
  std::vector<std::string> others;
  for (const auto& [step, path] : find_checkpoints(output_dir)) {
    if (path == saved) continue;
    bool mine = false;
    try {
      mine = read_manifest(path).at("state").at("run").get<int64_t>() == run;
    } catch (const std::exception&) {  // broken: nobody's
    }
    if (!mine)
      others.push_back(path);
    else if (++own > kept)
      remove_folder(path);
  }
  if (own < kept) return;
  for (const std::string& path : others) remove_folder(path);
}

}  // namespace

std::string checkpoint_name(const std::string& folder) {
  const fs::path path = folder;
  std::string name = path.filename().string();
  if (name.starts_with(kReplaced)) {
    name.erase(0, kReplaced.size());
    if (exists((path.parent_path() / name).string())) return {};
  }
  return name.starts_with(kPrefix) ? name : std::string();
}

int64_t saved_part_bytes(const std::string& output_dir) {
  const auto found = find_checkpoints(output_dir, /*replaced=*/true);
  try {
    return found.empty() ? 0 : read_manifest(found.front().second).at("part_bytes").get<int64_t>();
  } catch (const std::exception&) {  // whoever loads it says what is wrong
    return 0;
  }
}

void remove_superseded(const std::string& output_dir, const std::string& path) {
  const std::optional<SlotTable> table = table_in(path);
  bool before = false;
  for (const auto& [step, other] : find_checkpoints(output_dir)) {
    if (before && table && table_in(other).value_or(SlotTable{}).id == table->id) remove_folder(other);
    before |= other == path;
  }
}

void remove_checkpoint_leftovers(const std::string& output_dir) {
  std::error_code code;
  std::vector<std::string> leftovers;
  std::vector<std::pair<fs::path, fs::path>> kept;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const std::string name = entry.path().filename().string();
    for (const std::string_view prefix : {kNew, kOld, kReplaced}) {
      if (!name.starts_with(std::string(prefix) + std::string(kPrefix))) continue;
      const fs::path place = fs::path(output_dir) / name.substr(prefix.size());
      if (prefix == kReplaced && !exists(place.string()))
        kept.emplace_back(entry.path(), place);
      else
        leftovers.push_back(entry.path().string());
    }
  }
  for (const auto& [replaced, place] : kept) fs::rename(replaced, place, code);  // what was to replace it didn't get there
  for (const std::string& leftover : leftovers) remove_with_state(output_dir, leftover);
}

std::string save_checkpoint(const std::string& output_dir, const RunState& state, const CheckpointContent& content, StateFile* slots) {
  const std::string name = std::string(kPrefix) + std::to_string(state.step);
  const std::string path = (fs::path(output_dir) / name).string(), temporary = sibling(path, kNew), replaced = sibling(path, kReplaced);
  remove_checkpoint_leftovers(output_dir);
  try {
    make_folders(temporary);
    Json body = {{"format", kFormat},       {"model", content.model},          {"settings", content.settings},
                 {"state", to_json(state)}, {"parts", parts_to_json(content)}, {"part_bytes", content.part_bytes}};
    if (slots != nullptr) {
      body["slots"] = slots_to_json(slots->sync(), content);
    } else {
      body["files"]["weights.safetensors"] = write_tensors((fs::path(temporary) / "weights.safetensors").string(), content.weights);
      body["files"]["optimizer.safetensors"] = write_tensors((fs::path(temporary) / "optimizer.safetensors").string(), content.optimizer);
    }
    const std::string text = dump(body);
    {
      File manifest = File::create((fs::path(temporary) / kManifest).string());
      const std::string whole = fmt::format("{{\"body\":{},\"xxh3\":\"{}\"}}\n", text, hex16(hash_bytes(std::as_bytes(std::span(text)))));
      manifest.write(0, std::as_bytes(std::span(whole)));
      manifest.sync();
    }
    if (slots != nullptr) slots->name_for((fs::path(temporary) / kStateLink).string());  // behind the manifest, which says whose it is
    sync_folder(temporary);
    if (exists(path)) rename_synced(path, replaced);  // of an earlier run, or broken
    rename_synced(temporary, path);
  } catch (...) {
    std::error_code code;
    if (slots != nullptr && exists(temporary)) slots->withdrawn();
    fs::remove_all(temporary, code);
    if (!exists(path)) fs::rename(replaced, path, code);
    throw;
  }
  if (slots != nullptr) slots->published();
  if (exists(replaced)) remove_with_state(output_dir, replaced);
  prune(output_dir, path, state.run, slots != nullptr ? kKeptInSlots : kKept);
  return path;
}

Loaded load_checkpoint(const std::string& output_dir, const CheckpointContent& content, const Note& note, const std::string& nvme_path,
                       const BeforeLoad& before) {
  struct Candidate {
    int64_t run, step;
    std::string path;
    Json manifest;
  };
  std::vector<Candidate> candidates;
  std::string broken;                      // why the newest of them is
  ErrorCode failure = ErrorCode::corrupt;  // or io: perhaps it is whole, and the drive doesn't give it
  const auto skip = [&](const std::string& path, const std::string& why, ErrorCode code = ErrorCode::corrupt) {
    if (broken.empty()) {
      broken = path + ": " + why;
      failure = code;
    }
    note(fmt::format("{} is skipped: {}", path, why));
  };
  for (const auto& [step, path] : find_checkpoints(output_dir, /*replaced=*/true)) {
    try {
      Json manifest = read_manifest(path);
      const int64_t run = manifest.at("state").at("run").get<int64_t>();
      candidates.push_back({run, step, path, std::move(manifest)});
    } catch (const Error& problem) {
      skip(path, problem.what(), problem.code());
    } catch (const std::exception& problem) {
      skip(path, problem.what());
    }
  }
  if (candidates.empty() && broken.empty()) throw error(ErrorCode::usage, "{}: there is no checkpoint to resume from", output_dir);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.run > b.run; });  // the latest run first
  for (const Candidate& candidate : candidates) {
    Loaded loaded{.state = {}, .path = candidate.path, .settings = {}};
    bool preparing = false;
    const auto prepare = [&](const SlotTable* table, const std::string& file) {
      preparing = true;
      const bool in_place = before && before(table, file);
      preparing = false;
      return in_place;
    };
    try {
      candidate.manifest.at("settings").get_to(loaded.settings);
      const auto saved_with = [&](const char* name) { return loaded.settings.contains(name) ? loaded.settings.at(name) : std::string(); };
      if (candidate.manifest.at("model").get<std::string>() != content.model) {
        throw error(ErrorCode::usage, "{}: is the checkpoint of another model: its parameters have other names, types or shapes",
                    candidate.path);
      }
      if (const auto now = content.settings.find("optim"); now != content.settings.end() && now->second != saved_with("optim")) {
        throw error(ErrorCode::usage, "{}: was saved with --optim {}, not {}: its optimizer state can't be used", candidate.path,
                    saved_with("optim"), now->second);
      }
      loaded.state = state_of(candidate.manifest.at("state"));
      if (loaded.state.step != candidate.step) throw error(ErrorCode::corrupt, "its manifest is that of step {}", loaded.state.step);
      if (candidate.manifest.contains("slots")) {
        const Json& slots = candidate.manifest.at("slots");
        const SlotTable table = slots_of(slots);
        const std::string file = find_state_file(table, candidate.path, nvme_path);
        const bool in_place = prepare(&table, file);
        read_slots(file, table, slots, candidate.manifest.at("parts"), content, in_place);
        return loaded;
      }
      prepare(nullptr, {});
      const Json &files = candidate.manifest.at("files"), &parts = candidate.manifest.at("parts");
      read_tensors((fs::path(candidate.path) / "weights.safetensors").string(), files.at("weights.safetensors"), parts, content.weights);
      read_tensors((fs::path(candidate.path) / "optimizer.safetensors").string(), files.at("optimizer.safetensors"), parts,
                   content.optimizer);
      return loaded;
    } catch (const Error& problem) {
      if (problem.code() == ErrorCode::usage || (preparing && problem.code() != ErrorCode::corrupt)) throw;
      skip(candidate.path, problem.what(), problem.code());
    } catch (const std::exception& problem) {
      skip(candidate.path, problem.what());
    }
  }
  if (failure == ErrorCode::io) throw error(ErrorCode::io, "{}: none of its checkpoints can be read ({})", output_dir, broken);
  throw error(ErrorCode::corrupt, "{}: none of its checkpoints is whole, so there is nothing to resume from ({})", output_dir, broken);
}

int64_t checkpoint_bytes(const CheckpointContent& content, bool in_slots) {
  int64_t bytes = int64_t{1} << 20;
  for (const auto* list : {&content.weights, &content.optimizer}) {
    for (const StateTensor& tensor : *list) bytes += in_slots ? 512 : tensor.type.bytes() + 256;
  }
  return bytes;
}

}  // namespace ort_train
