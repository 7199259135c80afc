#include "frontend/vocabulary.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "frontend/file.h"
#include "graph/error.h"
#include "graph/utf8.h"

namespace ort_train {
namespace {

constexpr int64_t kFileLimit = int64_t{16} << 20;
constexpr int64_t kTokenLimit = 1'000'000;

}  // namespace

Vocabulary Vocabulary::beside(const std::string& model) {
  const std::filesystem::path path(model);
  const std::string own = (path.parent_path() / (path.stem().string() + ".vocab.json")).string();
  const std::string shared = (path.parent_path() / "vocab.json").string();
  if (exists(own)) return read(own);
  if (exists(shared)) return read(shared);
  throw error(ErrorCode::data,
              "text needs a vocabulary: write {} with {{\"tokens\": [\"a\", \"b\", ...]}}, the characters in order of their ids", own);
}

Vocabulary Vocabulary::read(const std::string& path) {
  Vocabulary vocabulary;
  vocabulary.path_ = path;
  std::fill(std::begin(vocabulary.ascii_), std::end(vocabulary.ascii_), -1);
  const auto refuse = [&](const std::string& why) {
    return error(ErrorCode::data, "{}: {}; it should be {{\"tokens\": [\"a\", \"b\", ...]}} or {{\"a\": 0, \"b\": 1, ...}}", path, why);
  };
  const nlohmann::json json = nlohmann::json::parse(read_small_file(path, kFileLimit), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw refuse("is not a JSON object");
  const auto tokens = json.find("tokens");
  if (tokens != json.end() && tokens->is_array()) {
    int64_t id = 0;
    for (const auto& token : *tokens) {
      if (!token.is_string()) throw refuse(fmt::format("token {} is not a text", id));
      vocabulary.add(token.get<std::string>(), id++);
    }
  } else {
    for (const auto& [token, id] : json.items()) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kTokenLimit) {
        throw refuse(fmt::format("'{}' has no id between 0 and {}", token, kTokenLimit - 1));
      }
      vocabulary.add(token, id.get<int64_t>());
    }
  }
  if (vocabulary.tokens_.empty()) throw refuse("has no tokens");
  return vocabulary;
}

void Vocabulary::add(const std::string& token, int64_t id) {
  if (token.empty()) return;  // a placeholder: an id without a text
  if (static_cast<int64_t>(tokens_.size()) <= id) tokens_.resize(static_cast<size_t>(id) + 1);
  if (!tokens_[static_cast<size_t>(id)].empty()) throw error(ErrorCode::data, "{}: id {} comes twice", path_, id);
  tokens_[static_cast<size_t>(id)] = token;
  char32_t character = 0;
  if (decode_utf8(token, character) != static_cast<int>(token.size())) return;
  if (id_of(character) >= 0) throw error(ErrorCode::data, "{}: the character '{}' comes twice", path_, token);
  if (character < 128)
    ascii_[character] = id;
  else
    others_.emplace(character, id);
}

std::string Vocabulary::text_of(int64_t id) const { return id >= 0 && id < size() ? tokens_[static_cast<size_t>(id)] : ""; }

}  // namespace ort_train
