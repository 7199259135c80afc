#include "frontend/output_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "frontend/file.h"
#include "graph/error.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kMarker = ".ort-train-model.json";
constexpr int64_t kMarkerLimit = int64_t{1} << 20;

// {"model.onnx": [{"bytes", "modified", "xxh3"}, ...]}: what each file may be and still be ours. During an export there are two.
Json read_marker(const std::string& output_dir) {
  const std::string path = (fs::path(output_dir) / kMarker).string();
  if (!exists(path)) return Json::object();
  const Json json = Json::parse(read_small_file(path, kMarkerLimit), nullptr, /*allow_exceptions=*/false);
  Json marker = Json::object();  // without what isn't as it was written
  if (!json.is_object()) return marker;
  for (const auto& [name, entries] : json.items()) {
    if (!entries.is_array()) continue;
    for (const Json& entry : entries) {
      const auto has = [&](const char* key, bool (Json::*is)() const) { return entry.contains(key) && (entry.at(key).*is)(); };
      const bool is_entry = entry.is_object() && has("bytes", &Json::is_number_integer) && has("modified", &Json::is_number_integer) &&
                            has("xxh3", &Json::is_string);
      if (is_entry) marker[name].push_back(entry);
    }
  }
  return marker;
}

void write_marker(const std::string& output_dir, const Json& marker) {
  replace_file((fs::path(output_dir) / kMarker).string(), marker.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool is_ours(const Json& marker, const std::string& folder, const std::string& name) {
  const auto known = marker.find(name);
  if (known == marker.end()) return false;
  const File written = File::open((fs::path(folder) / name).string());
  const FileStamp now = written.stamp();
  std::string hash;
  for (const Json& entry : *known) {
    if (entry.at("bytes").get<int64_t>() != now.bytes) continue;
    if (entry.at("modified").get<int64_t>() == now.modified) return true;
    if (hash.empty()) hash = hex16(hash_file(written));  // a copy, or touched: the content decides
    if (entry.at("xxh3").get<std::string>() == hash) return true;
  }
  return false;
}

}  // namespace

OutputFiles::OutputFiles(std::string folder, std::vector<std::string> names) : folder_(std::move(folder)), names_(std::move(names)) {
  const Json marker = read_marker(folder_);
  for (const std::string& name : names_) {
    const std::string path = (fs::path(folder_) / name).string();
    if (exists(path) && !is_ours(marker, folder_, name))
      throw error(ErrorCode::usage, "{}: is there already and was not written by ort-train: move it away or choose another `output_dir`",
                  path);
  }
}

void OutputFiles::publish(std::vector<NewFile>& written) const {
  Json marker = read_marker(folder_), now = marker;
  // Both the old and the new files are ours while they change places.
  for (size_t i = 0; i < names_.size(); ++i) {
    const FileStamp is = written[i].file().stamp();
    const Json entry = {{"bytes", is.bytes}, {"modified", is.modified}, {"xxh3", hex16(hash_file(written[i].file()))}};
    now[names_[i]] = {entry};
    marker[names_[i]].push_back(entry);
  }
  write_marker(folder_, marker);
  for (size_t i = names_.size(); i-- > 0;) written[i].publish();
  write_marker(folder_, now);
}

}  // namespace ort_train
