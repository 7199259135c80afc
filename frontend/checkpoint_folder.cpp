#include "frontend/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/file.h"

namespace ort_train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kFormat = 2;
constexpr const char* kProgram = "ort-train";
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kMarkerText =
    "ort-train wrote this folder: a checkpoint of a training run. It removes the files that it wrote here when newer checkpoints have\n"
    "taken their place, and keeps away from folders that have neither this file nor a manifest (state.json) of its own.\n";

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The step of "checkpoint-N", as we write it: no sign, no zeros before it.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (bad != std::errc() || end != name.data() + name.size() || step < 0 || std::to_string(step) != name) return std::nullopt;
  return step;
}

// The prefix of a name that one of ours may have, and its step.
struct Name {
  std::string_view prefix;
  int64_t step = 0;
};
std::optional<Name> parse(std::string_view name) {
  for (const std::string_view prefix : {kReplaced, kRemoved, kWritten, std::string_view()}) {  // the longest first
    if (!name.starts_with(prefix)) continue;
    if (const auto step = step_of(name.substr(prefix.size()))) return Name{.prefix = prefix, .step = *step};
  }
  return std::nullopt;
}

bool is_folder(const fs::path& path) {
  std::error_code code;
  return fs::symlink_status(path, code).type() == fs::file_type::directory;
}

bool is_empty_folder(const fs::path& path) {
  std::error_code code;
  return is_folder(path) && fs::is_empty(path, code) && !code;
}

// JSON that is not nested without end, for nlohmann writes it by recursion; discarded where it isn't that.
Json parse_shallow(const std::string& text) {
  constexpr int kDeepest = 32;
  bool deep = false;
  Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        deep |= depth > kDeepest;
        return !deep;
      },
      /*allow_exceptions=*/false);
  return deep ? Json(Json::value_t::discarded) : json;
}

// The manifest's body if it is of our shape and has the right checksum, whatever its format.
Json read_body(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifest).string();
  if (!exists(path)) throw corrupt(path, "is missing");
  Json json = parse_shallow(read_small_file(path, kManifestLimit));
  if (!json.is_object() || !json.contains("body") || !json["body"].is_object() || !json.contains("xxh3") || !json["xxh3"].is_string())
    throw corrupt(path, "is not a manifest");
  const std::string body = dump(json["body"]);
  if (hex16(hash_bytes(std::as_bytes(std::span(body)))) != json["xxh3"].get<std::string>()) throw corrupt(path, "fails its checksum");
  return std::move(json["body"]);
}

constexpr std::string_view kOurFiles[] = {kStateLink, kWeightsFile, kOptimizerFile, kManifest, kMarkerFile};

bool has_other_files(const fs::path& folder) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (std::find(std::begin(kOurFiles), std::end(kOurFiles), name) == std::end(kOurFiles)) return true;
  }
  return false;
}

template <typename Body> void each_name(const std::string& output_dir, Body&& body) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const std::string file = entry.path().filename().string();
    if (const auto name = parse(file)) body(entry.path(), *name);
  }
}

int64_t bytes_in(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().filename() == kStateLink) continue;  // of the state file
    const auto size = entry.file_size(code);
    if (!code) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

}  // namespace

Error corrupt(const std::string& path, const std::string& why) { return error(ErrorCode::corrupt, "{}: {}", path, why); }

std::string checkpoint_path_of(const std::string& output_dir, int64_t step) {
  return (fs::path(output_dir) / (std::string(kPrefix) + std::to_string(step))).string();
}

std::string with_prefix(const std::string& path, std::string_view prefix) {
  return (fs::path(folder_of(path)) / (std::string(prefix) + fs::path(path).filename().string())).string();
}

bool is_taken(const std::string& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

bool is_our_checkpoint(const std::string& folder) {
  if (!is_folder(folder)) return false;
  std::error_code code;
  if (fs::symlink_status(fs::path(folder) / kMarkerFile, code).type() == fs::file_type::regular) return true;
  if (fs::symlink_status(fs::path(folder) / kManifest, code).type() != fs::file_type::regular) return false;
  try {
    const Json body = read_body(folder);
    return body.value("program", std::string(kProgram)) == kProgram && body.contains("format") && body.contains("model") &&
           body.contains("settings") && body.contains("state");
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // damaged, and without a marker: nobody knows whose it is
    return false;
  }
}

std::string checkpoint_name(const std::string& folder) {
  const fs::path path = folder;
  std::string name = path.filename().string();
  if (name.starts_with(kReplaced)) {
    name.erase(0, kReplaced.size());
    if (exists((path.parent_path() / name).string())) return {};
  }
  return step_of(name) ? name : std::string();
}

std::vector<CheckpointFolder> find_checkpoints(const std::string& output_dir, bool replaced) {
  std::vector<CheckpointFolder> found;
  each_name(output_dir, [&](const fs::path& path, const Name& name) {
    if (!name.prefix.empty() && !(replaced && name.prefix == kReplaced && !checkpoint_name(path.string()).empty())) return;
    if (is_our_checkpoint(path.string())) found.push_back({.step = name.step, .path = path.string()});
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step != b.step ? a.step > b.step : a.path > b.path; });
  return found;
}

Json read_manifest(const std::string& folder) {
  Json body = read_body(folder);
  if (body.value("format", 0) != kFormat)
    throw corrupt((fs::path(folder) / kManifest).string(),
                  fmt::format("has format {}, this version reads {}", body.value("format", 0), kFormat));
  return body;
}

void write_manifest(const std::string& folder, Json body) {
  body["format"] = kFormat;
  body["program"] = kProgram;
  const std::string text = dump(body);
  const std::string whole = fmt::format("{{\"body\":{},\"xxh3\":\"{}\"}}\n", text, hex16(hash_bytes(std::as_bytes(std::span(text)))));
  File file = File::create((fs::path(folder) / kManifest).string());
  file.write(0, std::as_bytes(std::span(whole)));
  file.sync();
}

void begin_folder(const std::string& folder) {
  make_folders(folder_of(folder));
  if (is_taken(folder))
    throw error(ErrorCode::io, "{}: was not written by ort-train, and a checkpoint needs the name: move it away", folder);
  make_folder(folder);
  try {
    File marker = File::create((fs::path(folder) / kMarkerFile).string());
    marker.write(0, std::as_bytes(std::span(kMarkerText)));
    marker.sync();
    sync_folder(folder);  // before anything else is in it: what a power loss leaves is recognised, too
  } catch (...) {
    remove_our_files(folder);
    throw;
  }
}

bool remove_our_files(const std::string& folder) {
  for (const std::string_view name : kOurFiles) {  // what says whose the folder is goes last
    if (!remove_file(fs::path(folder) / name) && errno != ENOENT) return false;
  }
  return remove_empty_folder(folder) || has_other_files(folder);
}

bool is_of_run(const std::string& folder, int64_t run) {
  try {
    return read_manifest(folder).at("state").at("run").get<int64_t>() == run;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

CheckpointsThere checkpoints_there(const std::string& output_dir, int64_t run) {
  CheckpointsThere there;
  for (const CheckpointFolder& folder : find_checkpoints(output_dir)) {
    if (is_of_run(folder.path, run))
      ++there.own;
    else
      there.others_bytes += bytes_in(folder.path);
  }
  return there;
}

void refuse_foreign_names(const std::string& output_dir, int64_t first, int64_t last) {
  std::vector<std::string> foreign;
  each_name(output_dir, [&](const fs::path& path, const Name& name) {
    if (name.step < first || name.step > last || (is_our_checkpoint(path.string()) && !has_other_files(path))) return;
    if (!name.prefix.empty() && is_empty_folder(path)) return;  // see find_leftovers()
    foreign.push_back(path.string());
  });
  if (foreign.empty()) return;
  throw error(ErrorCode::usage,
              "{}: was not written by ort-train, or holds files that were not, and this run, which may be stopped and saved after any step "
              "up to {}, may need the name: move it "
              "away, or choose another `output_dir`",
              *std::min_element(foreign.begin(), foreign.end()), last);
}

CheckpointLeftovers find_leftovers(const std::string& output_dir) {
  CheckpointLeftovers found;
  each_name(output_dir, [&](const fs::path& path, const Name& name) {
    if (name.prefix.empty()) return;
    // An empty one is from before its marker was written, or after it was removed; there is nothing in it that could be lost.
    if (!is_empty_folder(path) && !is_our_checkpoint(path.string())) return;
    const bool returns = name.prefix == kReplaced && !is_taken(checkpoint_path_of(output_dir, name.step)) && !is_empty_folder(path);
    (returns ? found.put_back : found.lost).push_back(path.string());
  });
  return found;
}

}  // namespace ort_train
