#include "frontend/checkpoint_slots.h"

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "frontend/checkpoint_folder.h"
#include "frontend/checkpoint_parts.h"
#include "frontend/file.h"
#include "graph/error.h"

namespace ort_train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

uint64_t number_of(const std::string& hex) {
  uint64_t number = 0;
  const auto [end, bad] = std::from_chars(hex.data(), hex.data() + hex.size(), number, 16);
  if (bad != std::errc() || end != hex.data() + hex.size()) throw error(ErrorCode::corrupt, "'{}' is no checksum", hex);
  return number;
}

}  // namespace

Json slots_to_json(const SlotTable& table, const CheckpointContent& content) {
  Json tensors = Json::object();
  for (const auto* list : {&content.weights, &content.optimizer}) {
    for (const StateTensor& tensor : *list) {
      const SlotEntry* const entry = table.find(tensor.name);
      require(entry != nullptr && entry->bytes == tensor.type.bytes(), "a tensor of the run that has no slots in its state file");
      tensors[tensor.name] = {{"type", type_text(tensor.type)},
                              {"bytes", entry->bytes},
                              {"slots", entry->slots},
                              {"current", entry->current},
                              {"xxh3", hex16(entry->sum)}};
    }
  }
  return {{"path", table.path}, {"id", table.id}, {"bytes", table.bytes}, {"tensors", std::move(tensors)}};
}

SlotTable slots_of(const Json& json) {
  SlotTable table{.path = json.at("path"), .id = json.at("id"), .bytes = json.at("bytes"), .entries = {}};
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    table.entries.push_back({.name = name,
                             .bytes = tensor.at("bytes"),
                             .slots = tensor.at("slots").get<std::vector<int64_t>>(),
                             .current = tensor.at("current"),
                             .sum = number_of(tensor.at("xxh3").get<std::string>())});
  }
  check_table(table);
  return table;
}

std::string find_state_file(const SlotTable& table, const std::string& checkpoint, const std::string& nvme_path) {
  std::vector<std::string> places{(fs::path(checkpoint) / kStateLink).string(), table.path};
  if (!nvme_path.empty()) places.push_back((fs::path(nvme_path) / fs::path(table.path).filename()).string());
  for (const std::string& place : places) {
    if (read_state_header(place).id == table.id) return place;
  }
  return exists(places.front()) ? places.front() : table.path;  // whoever opens it says what is wrong
}

void read_slots(const std::string& path, const SlotTable& table, const Json& json, const Json& parts, const CheckpointContent& content,
                bool in_place) {
  const SlotReader reader(path, table);
  StoredTensors stored(parts);
  for (const SlotEntry& entry : table.entries) {
    StoredTensor tensor;
    json.at("tensors").at(entry.name).at("type").get_to(tensor.type);
    tensor.bytes = entry.bytes;
    tensor.read = [&](std::span<std::byte> to) { reader.read(entry, to); };
    tensor.check = [&] { reader.check(entry); };
    tensor.read_range = [&](int64_t from, std::span<std::byte> to) { reader.read_range(entry, from, to); };
    stored.add(entry.name, std::move(tensor));
  }
  for (const auto* list : {&content.weights, &content.optimizer}) {
    for (const StateTensor& tensor : *list) {
      if (in_place && tensor.on_disk) {
        stored.check_type(tensor);
        reader.check(*table.find(tensor.name));
      } else {
        stored.load(tensor);
      }
    }
  }
}

bool refers_to_state(const std::string& output_dir, const std::string& id) {
  std::error_code code;
  fs::directory_iterator entry(output_dir, code);
  for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
    const std::string manifest = (entry->path() / kManifest).string();
    if (checkpoint_name(entry->path().string()).empty() || !exists(manifest)) continue;
    try {
      // One that is damaged may be restored by someone: what counts is that it names the file.
      if (read_small_file(manifest, kManifestLimit).find("\"" + id + "\"") != std::string::npos) return true;
    } catch (const Error&) {  // one that can't be read may name it
      return true;
    }
  }
  return code && code != std::errc::no_such_file_or_directory && code != std::errc::not_a_directory;
}

void release_state(const std::string& output_dir, const SlotTable& table) {
  remove_state_file(table.path, table.id, [&](const std::string& owner) {
    return refers_to_state(output_dir, table.id) || (!owner.empty() && refers_to_state(owner, table.id));
  });
}

}  // namespace ort_train
