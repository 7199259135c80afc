#include "frontend/checkpoint_slots.h"

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

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
      tensors[tensor.name] = {{"type", to_string(tensor.type)},
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
                             .slots = tensor.at("slots").get<std::array<int64_t, 2>>(),
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

void read_slots(const std::string& path, const SlotTable& table, const Json& json, const CheckpointContent& content, bool in_place) {
  const SlotReader reader(path, table);
  for (const auto* list : {&content.weights, &content.optimizer}) {
    for (const StateTensor& tensor : *list) {
      const SlotEntry* const entry = table.find(tensor.name);
      if (entry == nullptr) throw error(ErrorCode::corrupt, "it has no tensor '{}'", tensor.name);
      const std::string type = json.at("tensors").at(tensor.name).at("type");
      if (type != to_string(tensor.type) || entry->bytes != tensor.type.bytes())
        throw error(ErrorCode::corrupt, "its tensor '{}' is {}, not {}", tensor.name, type, to_string(tensor.type));
      if (in_place && tensor.on_disk) {
        reader.check(*entry);
        continue;
      }
      reader.read(*entry, tensor.bytes(/*overwrite=*/true));
      tensor.changed();
    }
  }
}

bool refers_to_state(const std::string& output_dir, const std::string& id) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const std::string manifest = (entry.path() / kManifest).string();
    if (checkpoint_name(entry.path().string()).empty() || !exists(manifest)) continue;
    try {
      // One that is damaged may be restored by someone: what counts is that it names the file.
      if (read_small_file(manifest, kManifestLimit).find("\"" + id + "\"") != std::string::npos) return true;
    } catch (const Error&) {  // one that can't be read may name it
      return true;
    }
  }
  return false;
}

void release_state(const std::string& output_dir, const SlotTable& table) {
  remove_state_file(table.path, table.id, [&](const std::string& owner) {
    return refers_to_state(output_dir, table.id) || (!owner.empty() && refers_to_state(owner, table.id));
  });
}

}  // namespace ort_train
