// Vocabulary: which character is which token, from a small JSON file beside the model.
//
// MODEL.vocab.json, else vocab.json in the model's folder: {"tokens": ["a", "b", ...]} in order of ids, or {"a": 0, "b": 1, ...}.
// Tokens of several characters can't come out of a text, but can be written by sample().

#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ort_train {

class Vocabulary {
 public:
  // Throws Error(data) where there is none, saying what to write.
  static Vocabulary beside(const std::string& model);
  static Vocabulary read(const std::string& path);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // -1 for a character without a token.
  int64_t id_of(char32_t character) const {
    if (character < 128) return ascii_[character];
    const auto found = others_.find(character);
    return found == others_.end() ? -1 : found->second;
  }
  std::string text_of(int64_t id) const;  // empty for an id without one
  const std::string& path() const { return path_; }

 private:
  void add(const std::string& token, int64_t id);
  std::string path_;
  std::vector<std::string> tokens_;
  int64_t ascii_[128];
  std::unordered_map<char32_t, int64_t> others_;
};

}  // namespace ort_train
