#include "frontend/data_set.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "frontend/file.h"
#include "frontend/npz.h"
#include "frontend/safetensors.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/utf8.h"

namespace ort_train {
namespace {

// A row of tokens that is cut into samples of equal length; what is left over at the end is not used.
class Row : public DataSet {
 public:
  bool is_row() const override { return true; }

  void cut(int64_t sample_length) override {
    length_ = sample_length;
    samples_ = tokens_ / sample_length;
    if (samples_ == 0)
      throw error(ErrorCode::data, "{}: has {} {}, fewer than one sample of {}: shorten `seq_length`", path(), tokens_, unit_,
                  sample_length);
    fields_ = {{.name = "input_ids", .element = Element::int64, .shape = {sample_length}}};
  }

 protected:
  using DataSet::DataSet;
  int64_t tokens_ = 0, length_ = 0;
  const char* unit_ = "tokens";
};

class TokenFile : public Row {
 public:
  TokenFile(const std::string& path, int64_t width) : Row(path), width_(width) {
    const int64_t size = file_.size();
    if (size % width != 0) {
      throw error(ErrorCode::data, "{}: has {} bytes, which is no whole number of {}-byte tokens: is `token_type` right?", path, size,
                  width);
    }
    tokens_ = size / width;
  }

  void read(size_t, int64_t sample, std::span<std::byte> to) override {
    // Into the upper part of the place, then widened from its front.
    const size_t packed = static_cast<size_t>(length_ * width_);
    const auto source = to.last(packed);
    file_.read(sample * length_ * width_, source);
    for (int64_t i = 0; i < length_; ++i) {
      uint32_t token = 0;
      std::memcpy(&token, source.data() + i * width_, static_cast<size_t>(width_));
      const int64_t wide = token;
      std::memcpy(to.data() + 8 * i, &wide, 8);
    }
  }

 private:
  int64_t width_;
};

class TextFile : public Row {
 public:
  TextFile(const std::string& path, const Vocabulary& vocabulary) : Row(path), vocabulary_(vocabulary) {
    unit_ = "characters";
    bytes_ = file_.size();
    int64_t line = 1;
    std::string buffer;
    for (int64_t at = 0; at < bytes_;) {
      fetch(at, kBuffer, buffer);
      std::string_view text(buffer);
      char32_t character;
      int length = 0;
      while (!text.empty() && (length = decode_utf8(text, character)) > 0) {
        if (tokens_ % kStride == 0) offsets_.push_back(at);
        if (vocabulary.id_of(character) < 0) {
          throw error(ErrorCode::data, "{}: line {}: the character '{}' (U+{:04X}) is not in {}", path, line,
                      onnx::printable(std::string(text.substr(0, static_cast<size_t>(length)))), static_cast<uint32_t>(character),
                      vocabulary.path());
        }
        if (character == U'\n') ++line;
        ++tokens_;
        at += length;
        text.remove_prefix(static_cast<size_t>(length));
      }
      const bool whole = static_cast<int64_t>(at + static_cast<int64_t>(text.size())) == bytes_;
      if (!text.empty() && (length < 0 || whole)) throw error(ErrorCode::data, "{}: line {}: is not UTF-8 text", path, line);
    }
  }

  void read(size_t, int64_t sample, std::span<std::byte> to) override {
    const int64_t first = sample * length_, skip = first % kStride;
    const int64_t begin = offsets_[static_cast<size_t>(first / kStride)];
    const size_t after = static_cast<size_t>((first + length_ + kStride - 1) / kStride);
    const int64_t end = after < offsets_.size() ? offsets_[after] : bytes_;
    fetch(begin, end - begin, buffer_);
    std::string_view text(buffer_);
    for (int64_t i = -skip; i < length_; ++i) {
      char32_t character;
      const int taken = decode_utf8(text, character);
      const int64_t id = taken > 0 ? vocabulary_.id_of(character) : -1;
      if (id < 0) throw error(ErrorCode::data, "{}: was changed while it was read", path());
      text.remove_prefix(static_cast<size_t>(taken));
      if (i >= 0) std::memcpy(to.data() + 8 * i, &id, 8);
    }
  }

  int64_t memory_bytes() const override { return static_cast<int64_t>(offsets_.capacity() * sizeof(int64_t)); }

  std::string content_hash() const override {
    const std::string both = DataSet::content_hash() + hex16(hash_file(File::open(vocabulary_.path())));
    return hex16(hash_bytes(std::as_bytes(std::span(both))));
  }

 private:
  static constexpr int64_t kStride = 4096;  // characters
  static constexpr int64_t kBuffer = int64_t{256} << 10;

  void fetch(int64_t at, int64_t bytes, std::string& buffer) const {
    buffer.resize(static_cast<size_t>(std::min(bytes, bytes_ - at)));
    file_.read(at, std::as_writable_bytes(std::span(buffer)));
  }

  const Vocabulary& vocabulary_;
  int64_t bytes_ = 0;
  std::vector<int64_t> offsets_;  // of every kStride-th character
  std::string buffer_;
};

class ArrayFile : public DataSet {
 public:
  explicit ArrayFile(const std::string& path) : DataSet(path) {
    if (path.ends_with(".npz")) {
      arrays_ = read_npz_directory(file_);
    } else {
      for (SafetensorsEntry& entry : read_safetensors_header(file_, ErrorCode::data).entries) {
        NpyArray& array = arrays_.emplace_back();
        array.name = std::move(entry.name);
        array.element = entry.element;
        array.shape = std::move(entry.shape);
        array.bytes = entry.bytes;
        array.offset = entry.offset;
      }
    }
    if (arrays_.empty()) throw error(ErrorCode::data, "{}: holds no arrays", path);
    for (const NpyArray& array : arrays_) {
      if (array.shape.empty())
        throw error(ErrorCode::data, "{}: array '{}' is a single number; its first axis should be the samples", path, array.name);
      if (array.shape[0] != arrays_[0].shape[0]) {
        throw error(ErrorCode::data, "{}: array '{}' has {} samples, '{}' has {}", path, arrays_[0].name, arrays_[0].shape[0], array.name,
                    array.shape[0]);
      }
      fields_.push_back({.name = array.name, .element = array.element, .shape = Shape(array.shape.begin() + 1, array.shape.end())});
    }
    samples_ = arrays_[0].shape[0];
    if (samples_ == 0) throw error(ErrorCode::data, "{}: has no samples", path);
    unpacked_.resize(arrays_.size());
  }

  void read(size_t field, int64_t sample, std::span<std::byte> to) override {
    const NpyArray& array = arrays_[field];
    const int64_t bytes = static_cast<int64_t>(to.size());
    if (!array.deflated) return file_.read(array.offset + sample * bytes, to);
    load(field);
    std::memcpy(to.data(), unpacked_[field].data() + sample * bytes, to.size());
  }

  int64_t memory_bytes() const override {
    int64_t bytes = 0;
    for (const NpyArray& array : arrays_) bytes += array.deflated ? array.bytes : 0;
    return bytes;
  }

  void load() override {
    for (size_t i = 0; i < arrays_.size(); ++i) load(i);
  }
  void unload() override { unpacked_.assign(arrays_.size(), {}); }

 private:
  void load(size_t field) {
    if (arrays_[field].deflated && unpacked_[field].empty()) unpacked_[field] = unpack(file_, arrays_[field]);
  }

  std::vector<NpyArray> arrays_;
  std::vector<std::vector<std::byte>> unpacked_;
};

constexpr const char* kEndings[] = {".txt", ".bin", ".npz", ".safetensors"};

std::unique_ptr<DataSet> open_file(const std::string& path, const std::string& model, const std::string& token_type,
                                   std::unique_ptr<Vocabulary>& vocabulary) {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending == ".txt") {
    if (!vocabulary) vocabulary = std::make_unique<Vocabulary>(Vocabulary::beside(model));
    return std::make_unique<TextFile>(path, *vocabulary);
  }
  if (ending == ".bin") return std::make_unique<TokenFile>(path, token_type == "uint32" ? 4 : 2);
  if (ending == ".npz" || ending == ".safetensors") return std::make_unique<ArrayFile>(path);
  throw error(ErrorCode::data, "{}: data is .txt, .bin, .npz or .safetensors, or a folder with train and valid of one of these", path);
}

// The one file of a folder that has one of these stems.
std::optional<std::string> find_in_folder(const std::string& folder, std::initializer_list<const char*> stems) {
  std::optional<std::string> found;
  for (const char* stem : stems) {
    for (const char* ending : kEndings) {
      const std::string path = (std::filesystem::path(folder) / (std::string(stem) + ending)).string();
      if (!exists(path)) continue;
      if (found) throw error(ErrorCode::data, "{} and {} are both there: keep one", *found, path);
      found = path;
    }
  }
  return found;
}

}  // namespace

int DataSet::find(std::string_view field) const {
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].name == field) return static_cast<int>(i);
  }
  return -1;
}

bool DataSet::was_written_to() const { return !file_.stamp().has_content_of(opened_); }

std::string DataSets::content_hash() const {
  return valid ? fmt::format("{} {}", train->content_hash(), valid->content_hash()) : train->content_hash();
}

bool DataSets::was_written_to() const { return train->was_written_to() || (valid && valid->was_written_to()); }

DataSets open_data(const std::string& path, const std::string& model, const std::string& token_type) {
  if (token_type != "uint16" && token_type != "uint32")
    throw error(ErrorCode::usage, "`token_type` {} is not known: uint16 or uint32", token_type);
  if (!exists(path)) throw error(ErrorCode::data, "{}: there is no such file or folder", path);
  DataSets sets;
  std::error_code code;
  if (!std::filesystem::is_directory(path, code)) {
    sets.train = open_file(path, model, token_type, sets.vocabulary);
    return sets;
  }
  const auto train = find_in_folder(path, {"train"}), valid = find_in_folder(path, {"valid", "val", "validation"});
  if (!train) throw error(ErrorCode::data, "{}: the folder has no train.txt, train.bin, train.npz or train.safetensors", path);
  sets.train = open_file(*train, model, token_type, sets.vocabulary);
  if (valid) sets.valid = open_file(*valid, model, token_type, sets.vocabulary);
  if (valid && sets.valid->is_row() != sets.train->is_row()) {
    throw error(ErrorCode::data, "{} and {}: one holds arrays, the other a text or tokens: give both in the same form", *train, *valid);
  }
  return sets;
}

}  // namespace ort_train
