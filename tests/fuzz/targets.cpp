#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "graph/error.h"
#include "tests/fuzz/fuzz.h"

namespace ort_train::fuzz {

const std::vector<Target>& targets() {
  static const auto& list = *new std::vector<Target>{
      {.name = "model", .run = fuzz_model, .longest = 8192},
      {.name = "nodes", .run = fuzz_nodes, .longest = 512},
      {.name = "npz", .run = fuzz_npz},
      {.name = "safetensors", .run = fuzz_safetensors},
      {.name = "checkpoint", .run = fuzz_checkpoint},
      {.name = "json_lines", .run = fuzz_json_lines},
      {.name = "vocabulary", .run = fuzz_vocabulary},
      {.name = "profile", .run = fuzz_profile},
  };
  return list;
}

const Target* find_target(std::string_view name) {
  for (const Target& target : targets()) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

void run(const Target& target, Bytes bytes) {
  try {
    target.run(bytes);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::internal) throw std::logic_error(e.what());
  } catch (const std::exception& e) {
    throw std::logic_error(std::string("left as another exception than Error: ") + e.what());
  }
}

const std::string& folder() {
  struct Temporary {
    Temporary() {
      std::error_code code;
      const bool memory = std::filesystem::is_directory("/dev/shm", code);
      path = (memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) / "ort-train-fuzz-XXXXXX";
      if (!::mkdtemp(path.data())) throw std::runtime_error("no temporary folder");
    }
    ~Temporary() {
      std::error_code code;
      std::filesystem::remove_all(path, code);
    }
    std::string path;
  };
  static const Temporary temporary;
  return temporary.path;
}

std::string write(const std::string& name, Bytes bytes) {
  std::string path = folder() + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace ort_train::fuzz
