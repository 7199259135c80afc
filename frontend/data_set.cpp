#include "frontend/data_set.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "frontend/file.h"
#include "frontend/json_lines.h"
#include "frontend/npz.h"
#include "frontend/safetensors.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/utf8.h"

namespace ort_train {
namespace {

// A row of tokens that is cut into samples of equal length; what is left over at the end is not used.
class Row : public FileData {
 public:
  bool is_row() const override { return true; }

  void cut(int64_t sample_length) override {
    length_ = sample_length;
    samples_ = tokens_ / sample_length;
    if (samples_ == 0)
      throw error(ErrorCode::data, "{}: has {} {}, fewer than one sample of {}: shorten `seq_length`", name(), tokens_, unit_,
                  sample_length);
    fields_ = {{.name = "input_ids", .element = Element::int64, .shape = {sample_length}}};
  }

 protected:
  using FileData::FileData;
  int64_t tokens_ = 0, length_ = 0;
  const char* unit_ = "tokens";
};

// Whole numbers one after the other.
class NumberRow : public Row {
 public:
  void read(size_t, int64_t sample, std::span<std::byte> to) override {
    // Into the upper part of the place, then widened from its front.
    const int64_t width = size_of(element_);
    const auto source = to.last(static_cast<size_t>(length_ * width));
    file_.read(begin_ + sample * length_ * width, source);
    if (element_ == Element::int64) return;
    if (const int64_t bad = convert(element_, source, DType::int64, to); bad >= 0)
      throw error(ErrorCode::data, "{}: token {} is no int64", name(), sample * length_ + bad);
  }

 protected:
  using Row::Row;
  int64_t begin_ = 0;  // byte in the file
  Element element_ = Element::uint16;
};

// The header of llm.c's token files: 256 numbers of int32, of which the first says what file it is, the second its version, the third how
// many tokens follow (github.com/karpathy/llm.c, dev/data/data_common.py).
struct ShardHeader {
  int32_t magic = 0, version = 0, tokens = 0;
};
constexpr int64_t kShardHeader = 256 * sizeof(int32_t);
struct ShardKind {
  int32_t magic, version;
  Element element;
};
constexpr ShardKind kShardKinds[] = {{20240520, 1, Element::uint16}, {20240801, 7, Element::uint32}};
constexpr int32_t kShardOfChoices = 20240522;  // HellaSwag's

class TokenFile : public NumberRow {
 public:
  TokenFile(const std::string& path, Element element) : NumberRow(path) {
    element_ = element;
    const int64_t size = file_.size();
    if (read_shard_header(size)) return;
    const int64_t width = size_of(element_);
    if (size % width != 0) {
      throw error(ErrorCode::data, "{}: has {} bytes, which is no whole number of {}-byte tokens: is `token_type` right?", path, size,
                  width);
    }
    tokens_ = size / width;
  }

 private:
  // Where it has such a header, that says what the tokens are, and where.
  bool read_shard_header(int64_t size) {
    ShardHeader header;
    if (size < static_cast<int64_t>(sizeof(header))) return false;
    file_.read(0, std::as_writable_bytes(std::span(&header, 1)));
    if (header.magic == kShardOfChoices)
      throw error(ErrorCode::data, "{}: has the header of llm.c's files of questions with several answers: it is no row of tokens", name());
    const auto kind =
        std::find_if(std::begin(kShardKinds), std::end(kShardKinds), [&](const ShardKind& known) { return known.magic == header.magic; });
    if (kind == std::end(kShardKinds)) return false;
    if (header.version != kind->version)
      throw error(ErrorCode::data, "{}: has the header of a token file of llm.c ({}) in version {}; version {} is known", name(),
                  header.magic, header.version, kind->version);
    if (header.tokens < 0 || size - kShardHeader != header.tokens * size_of(kind->element))
      throw error(ErrorCode::data,
                  "{}: its header, that of a token file of llm.c, says {} tokens of {}, which are {} bytes, but {} bytes follow it", name(),
                  header.tokens, to_string(kind->element), header.tokens * size_of(kind->element),
                  std::max<int64_t>(size - kShardHeader, 0));
    element_ = kind->element;
    begin_ = kShardHeader;
    tokens_ = header.tokens;
    return true;
  }
};

// A .npy file: one array, which has no name.
class TokenArray : public NumberRow {
 public:
  explicit TokenArray(const std::string& path) : NumberRow(path) {
    const NpyArray array = read_npy(file_);
    if (array.shape.size() != 1 || !converts(array.element, DType::int64) || array.element == Element::boolean)
      throw error(ErrorCode::data,
                  "{}: is one array of {} {}: tokens are whole numbers with one axis, and other arrays need names, those of the model's "
                  "inputs (numpy.savez)",
                  path, to_string(array.element), to_string(array.shape));
    element_ = array.element;
    begin_ = array.offset;
    tokens_ = array.shape[0];
  }
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
      if (id < 0) throw error(ErrorCode::data, "{}: was changed while it was read", name());
      text.remove_prefix(static_cast<size_t>(taken));
      if (i >= 0) std::memcpy(to.data() + 8 * i, &id, 8);
    }
  }

  int64_t memory_bytes() const override { return static_cast<int64_t>(offsets_.capacity() * sizeof(int64_t)); }

  std::string content_hash() const override {
    const std::string both = FileData::content_hash() + hex16(hash_file(File::open(vocabulary_.path())));
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

class ArrayFile : public FileData {
 public:
  explicit ArrayFile(const std::string& path) : FileData(path) {
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
      Field& field = fields_.emplace_back(Field{.name = array.name, .element = array.element, .shape = {}});
      if (!array.unreadable.empty())
        field.unusable = array.unreadable;
      else if (array.shape.empty())
        field.unusable = fmt::format("{}: array '{}' is a single number; its first axis should be the samples", path, array.name);
      else
        field.shape = array.shape.from(1);
    }
    for (const Field& field : fields_) used_.push_back(field.unusable.empty());
    const auto first = std::find(used_.begin(), used_.end(), true);  // until it is known which are needed
    if (first != used_.end()) samples_ = arrays_[static_cast<size_t>(first - used_.begin())].shape[0];
    unpacked_.resize(arrays_.size());
  }

  void use(const std::set<std::string>& fields) override {
    const NpyArray* first = nullptr;
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const NpyArray& array = arrays_[i];
      used_[i] = fields.contains(array.name);
      if (!used_[i]) continue;
      find(array.name);  // refuses one that is unusable
      if (first == nullptr) first = &array;
      if (array.shape[0] != first->shape[0]) {
        throw error(ErrorCode::data, "{}: array '{}' has {} samples, '{}' has {}", name(), first->name, first->shape[0], array.name,
                    array.shape[0]);
      }
    }
    if (first == nullptr) return;
    samples_ = first->shape[0];
    if (samples_ == 0) throw error(ErrorCode::data, "{}: has no samples", name());
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
    for (size_t i = 0; i < arrays_.size(); ++i) bytes += used_[i] && arrays_[i].deflated ? arrays_[i].bytes : 0;
    return bytes;
  }
  int64_t unpacked_bytes() const override { return memory_bytes(); }

  void load() override {
    for (size_t i = 0; i < arrays_.size(); ++i) {
      if (used_[i]) load(i);
    }
  }
  void unload() override { unpacked_.assign(arrays_.size(), {}); }

 private:
  void load(size_t field) {
    if (arrays_[field].deflated && unpacked_[field].empty()) unpacked_[field] = unpack(file_, arrays_[field]);
  }

  std::vector<NpyArray> arrays_;  // by field
  std::vector<bool> used_;        // the same: what can be used, until use() says what is
  std::vector<std::vector<std::byte>> unpacked_;
};

constexpr const char* kEndings[] = {".txt", ".bin", ".npy", ".npz", ".safetensors", ".jsonl", ".ndjson"};

// What opens one file.
struct Opener {
  const std::string& model;
  const std::string& token_type;
  const LineOptions& lines;

  std::unique_ptr<DataSet> open(const std::string& path, std::unique_ptr<Vocabulary>& vocabulary) const;
};

std::unique_ptr<DataSet> Opener::open(const std::string& path, std::unique_ptr<Vocabulary>& vocabulary) const {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending == ".txt") {
    if (!vocabulary) vocabulary = std::make_unique<Vocabulary>(Vocabulary::beside(model));
    return std::make_unique<TextFile>(path, *vocabulary);
  }
  if (ending == ".bin") return std::make_unique<TokenFile>(path, token_type == "uint32" ? Element::uint32 : Element::uint16);
  if (ending == ".npy") return std::make_unique<TokenArray>(path);
  if (ending == ".npz" || ending == ".safetensors") return std::make_unique<ArrayFile>(path);
  if (ending == ".jsonl" || ending == ".ndjson") return std::make_unique<JsonLines>(path, lines);
  throw error(ErrorCode::data,
              "{}: data is .txt, .bin, .npy, .npz, .safetensors or .jsonl, or a folder with train and valid of one of these", path);
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

void open_valid(DataSets& sets, const std::string& folder, const Opener& opener) {
  const auto file = find_in_folder(folder, {"valid", "val", "validation"});
  if (!file) return;
  std::unique_ptr<DataSet> valid = opener.open(*file, sets.vocabulary);
  if (valid->is_row() != sets.train->is_row()) {
    throw error(ErrorCode::data, "{} and {}: one holds arrays, the other a text or tokens: give both in the same form", sets.train->name(),
                *file);
  }
  auto* const lines = dynamic_cast<JsonLines*>(sets.train.get());
  auto* const valid_lines = dynamic_cast<JsonLines*>(valid.get());
  if (lines != nullptr && valid_lines != nullptr) JsonLines::match(*lines, *valid_lines);
  sets.valid = std::move(valid);
}

}  // namespace

int DataSet::find(std::string_view field) const {
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].name != field) continue;
    if (!fields_[i].unusable.empty()) throw Error(ErrorCode::data, fields_[i].unusable);
    return static_cast<int>(i);
  }
  return -1;
}

const Field* DataSet::field(std::string_view name) const {
  const int index = find(name);
  return index < 0 ? nullptr : &fields_[static_cast<size_t>(index)];
}

std::string DataSets::content_hash() const {
  return valid ? fmt::format("{} {}", train->content_hash(), valid->content_hash()) : train->content_hash();
}

bool DataSets::was_written_to() const { return train->was_written_to() || (valid && valid->was_written_to()); }

DataSets open_data(const std::string& path, const std::string& model, const std::string& token_type, ValidFile valid,
                   const LineOptions& lines) {
  if (token_type != "uint16" && token_type != "uint32")
    throw error(ErrorCode::usage, "`token_type` {} is not known: uint16 or uint32", token_type);
  if (!exists(path)) throw error(ErrorCode::data, "{}: there is no such file or folder", path);
  DataSets sets;
  sets.name = path;
  const Opener opener{.model = model, .token_type = token_type, .lines = lines};
  std::error_code code;
  if (!std::filesystem::is_directory(path, code)) {
    sets.train = opener.open(path, sets.vocabulary);
    return sets;
  }
  const auto train = find_in_folder(path, {"train"});
  if (!train)
    throw error(ErrorCode::data, "{}: the folder has no train.txt, train.bin, train.npy, train.npz, train.safetensors or train.jsonl",
                path);
  sets.train = opener.open(*train, sets.vocabulary);
  if (valid == ValidFile::ignored) return sets;
  try {
    open_valid(sets, path, opener);
  } catch (const Error& problem) {
    if (valid == ValidFile::needed) throw;
    sets.valid_problem = problem.what();
  }
  return sets;
}

}  // namespace ort_train
