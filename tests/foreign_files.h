// What another tool keeps in an output folder under names like ours: the checkpoints of Hugging Face's Trainer and what lies beside them,
// and a look at all of it.

#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace ort_train {

inline void write_trainer_checkpoint(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt",
                           "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json", "training_args.bin"})
    std::ofstream(folder / name) << folder.filename().string() << "'s " << name;
}

// Everything below a folder that has a name of `names`: path -> contents, "/" for a folder, "-> TARGET" for a link.
inline std::map<std::string, std::string> contents_of(const std::filesystem::path& folder, const std::vector<std::string>& names) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> contents;
  const auto add = [&](const fs::path& path) {
    std::string& text = contents[path.lexically_relative(folder).string()];
    if (fs::is_symlink(path)) {
      text = "-> " + fs::read_symlink(path).string();
    } else if (fs::is_directory(path)) {
      text = "/";
    } else if (fs::exists(path)) {
      std::ifstream file(path, std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
    } else {
      text = "nothing";
    }
  };
  for (const std::string& name : names) {
    add(folder / name);
    if (fs::is_symlink(folder / name) || !fs::is_directory(folder / name)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder / name)) add(entry.path());
  }
  return contents;
}

}  // namespace ort_train
