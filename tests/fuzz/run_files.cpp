// What runs leave behind and read again: checkpoints and the profile of the machine.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "frontend/checkpoint.h"
#include "frontend/checkpoint_folder.h"
#include "frontend/checkpoint_slots.h"
#include "frontend/file.h"
#include "graph/error.h"
#include "offload/calibration.h"
#include "tests/fuzz/fuzz.h"
#include "tests/test_files.h"

namespace ort_train::fuzz {
namespace {

// Tensors of a run: four numbers each.
struct Run {
  std::vector<float> memory = std::vector<float>(8);
  CheckpointContent content;

  Run() {
    content.model = "m";
    for (size_t i = 0; i < 2; ++i) {
      const auto bytes = [this, i](bool) { return std::as_writable_bytes(std::span(memory).subspan(4 * i, 4)); };
      auto& list = i == 0 ? content.weights : content.optimizer;
      list.push_back({.name = i == 0 ? "w" : "w.exp_avg", .type = {DType::float32, {4}}, .bytes = bytes, .changed = [] {}});
    }
  }
};

}  // namespace

// The bytes are a manifest's body; its checksum is made to fit, or nothing behind that would ever be reached.
void fuzz_checkpoint(Bytes bytes) {
  namespace fs = std::filesystem;
  static const std::string checkpoints = [] {
    const std::string path = folder() + "/run/checkpoint-7";
    fs::create_directories(folder() + "/run");
    begin_folder(path);
    const std::string data(16, '\1');
    write("run/checkpoint-7/weights.safetensors", safetensors(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", data));
    write("run/checkpoint-7/optimizer.safetensors",
          safetensors(R"({"w.exp_avg":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", data));
    return folder() + "/run";
  }();
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const nlohmann::json body = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::string manifest = text;  // no JSON: as it is
  if (!body.is_discarded()) {
    const std::string dumped = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    manifest = "{\"body\":" + dumped + ",\"xxh3\":\"" + hex16(hash_bytes(std::as_bytes(std::span(dumped)))) + "\"}\n";
  }
  write(std::string("run/checkpoint-7/") + kManifest, manifest);
  if (body.is_object() && body.contains("slots")) {
    try {
      slots_of(body.at("slots"));
    } catch (const nlohmann::json::exception&) {  // load_checkpoint takes them for damage
    }
  }
  Run run;
  load_checkpoint(checkpoints, run.content, [](const std::string&) {});
}

// The bytes follow what says that the profile is of this machine and version.
void fuzz_profile(Bytes bytes) {
  static const std::string prefix = [] {
    const std::string path = folder() + "/empty.json";
    save_profile(path, {});
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(read_small_file(path, 1 << 20));
    json.erase("processor");
    json.erase("disks");
    std::string text = json.dump();
    text.back() = ',';
    return text;
  }();
  const std::string path = write("profile.json", prefix + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (const auto profile = load_profile(path)) {
    save_profile(path, *profile);
    if (load_profile(path) != profile) throw std::logic_error("a profile that was read is not what was saved of it");
  }
}

}  // namespace ort_train::fuzz
