#include "frontend/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "graph/utf8.h"

namespace ort_train {
namespace {

using Json = nlohmann::json;

constexpr int64_t kHeaderLimit = 100'000'000;

constexpr std::pair<std::string_view, Element> kTypes[] = {
    {"F16", Element::float16}, {"BF16", Element::bfloat16}, {"F32", Element::float32}, {"F64", Element::float64}, {"I8", Element::int8},
    {"I16", Element::int16},   {"I32", Element::int32},     {"I64", Element::int64},   {"U8", Element::uint8},    {"U16", Element::uint16},
    {"U32", Element::uint32},  {"U64", Element::uint64},    {"BOOL", Element::boolean}};

std::optional<Element> element_named(std::string_view name) {
  for (const auto& [text, element] : kTypes) {
    if (text == name) return element;
  }
  return std::nullopt;
}

std::string_view name_of(Element element) {
  for (const auto& [text, known] : kTypes) {
    if (known == element) return text;
  }
  return "";
}

// Reads {name: {"dtype": text, "shape": [numbers], "data_offsets": [begin, end]}, "__metadata__": {text: text}} and nothing else.
class Reader : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return fail("a null"); }
  bool boolean(bool) override { return fail("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return fail("a fractional number"); }
  bool binary(binary_t&) override { return fail("binary data"); }
  bool number_integer(number_integer_t value) override {
    return value < 0 ? fail("a negative number") : number(static_cast<uint64_t>(value));
  }
  bool number_unsigned(number_unsigned_t value) override { return number(value); }

  bool string(string_t& value) override {
    if (metadata_ && depth_ == 2) {
      header.metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || key_ != "dtype") return fail("a text where none belongs");
    const auto element = element_named(value);
    if (!element) return fail("the unknown type '" + value + "'");
    header.entries.back().element = *element;
    has_type_ = true;
    return true;
  }

  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ > 2 || in_array_) return fail("nested objects");
    if (depth_ == 2 && !metadata_) {
      header.entries.emplace_back().name = tensor_;
      has_type_ = has_shape_ = false;
      offsets_.clear();
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (depth_ == 1) {
      if (!names_.insert(value).second) return fail("the name '" + value + "' twice");
      metadata_ = value == "__metadata__";
      tensor_ = value;
    } else if (!metadata_ && value != "dtype" && value != "shape" && value != "data_offsets") {
      return fail("the unknown key '" + value + "'");
    }
    return true;
  }

  bool end_object() override {
    if (--depth_ == 1 && !metadata_) {
      if (!has_type_ || !has_shape_ || offsets_.size() != 2 || offsets_[1] < offsets_[0])
        return fail("the incomplete tensor '" + tensor_ + "'");
      header.entries.back().offset = offsets_[0];
      header.entries.back().bytes = offsets_[1] - offsets_[0];
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || metadata_ || in_array_ || key_ == "dtype") return fail("an array where none belongs");
    in_array_ = true;
    if (key_ == "shape") has_shape_ = true;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail("what is not JSON at byte " + std::to_string(position));
  }

 private:
  bool fail(const std::string& what) {
    if (problem.empty()) problem = what;
    return false;
  }

  bool number(uint64_t value) {
    if (!in_array_ || value > static_cast<uint64_t>(INT64_MAX)) return fail("a number where none belongs");
    std::vector<int64_t>& list = key_ == "shape" ? static_cast<std::vector<int64_t>&>(header.entries.back().shape) : offsets_;
    if (list.size() >= kMaxRank) return fail("more dimensions than a tensor has");
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  std::set<std::string> names_;
  std::string key_, tensor_;
  std::vector<int64_t> offsets_;
  int depth_ = 0;
  bool metadata_ = false, in_array_ = false, has_type_ = false, has_shape_ = false;
};

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

SafetensorsHeader read_safetensors_header(const File& file, ErrorCode code) {
  const auto refuse = [&](const std::string& why) { return error(code, "{}: not a valid safetensors file: {}", file.path(), why); };
  const int64_t size = file.size();
  uint64_t length = 0;
  if (size < 8) throw refuse(fmt::format("it has {} bytes", size));
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<uint64_t>(kHeaderLimit)) throw refuse(fmt::format("its header has {} bytes, more than 100 MB", length));
  if (static_cast<int64_t>(length) > size - 8) throw refuse(fmt::format("its header of {} bytes ends beyond the file's {}", length, size));
  Reader reader;
  {
    std::string text(length, '\0');
    file.read(8, std::as_writable_bytes(std::span(text)));
    if (text.empty() || text[0] != '{') throw refuse("its header does not begin with '{'");
    if (!Json::sax_parse(text, &reader)) throw refuse("its header has " + reader.problem);
  }
  SafetensorsHeader header = std::move(reader.header);
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;  // empty tensors before the one that shares their place
  });
  const int64_t start = 8 + static_cast<int64_t>(length), data = size - start;
  int64_t expected = 0;
  for (SafetensorsEntry& entry : header.entries) {
    const std::optional<int64_t> wanted = bytes_of(size_of(entry.element), entry.shape);
    if (!wanted || *wanted != entry.bytes) {
      throw refuse(fmt::format("tensor '{}' has {} bytes, not those of {} {}", entry.name, entry.bytes, to_string(entry.element),
                               to_string(entry.shape)));
    }
    if (entry.offset != expected)
      throw refuse(fmt::format("tensor '{}' begins at {}, not at {} where the one before ends", entry.name, entry.offset, expected));
    if (entry.bytes > data - entry.offset) throw refuse(fmt::format("tensor '{}' ends beyond the file", entry.name));
    expected += entry.bytes;
    entry.offset += start;
  }
  if (expected != data) throw refuse(fmt::format("{} bytes follow its last tensor", data - expected));
  return header;
}

bool is_tensor_name(std::string_view name) {
  if (name == "__metadata__") return false;
  char32_t character;
  for (int length; !name.empty(); name.remove_prefix(static_cast<size_t>(length))) {
    length = decode_utf8(name, character);
    if (length <= 0) return false;
  }
  return true;
}

SafetensorsWriter::SafetensorsWriter(File& file, const std::vector<Tensor>& tensors, const std::map<std::string, std::string>& metadata)
    : file_(file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t bytes = element_count(tensor.shape) * size_of(tensor.element);
    header[tensor.name] = {{"dtype", name_of(tensor.element)}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    places_.emplace_back(end, bytes);
    end += bytes;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors at multiples of eight, as the reference library writes them
  const uint64_t length = text.size();
  const int64_t start = 8 + static_cast<int64_t>(length);
  for (auto& place : places_) place.first += start;
  size_ = start + end;
  file_.reserve(size_);
  file_.write(0, std::as_bytes(std::span(&length, 1)));
  file_.write(8, std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(size_t tensor, std::span<const std::byte> bytes, int64_t offset) {
  const auto [start, size] = places_.at(tensor);
  require(offset >= 0 && offset + static_cast<int64_t>(bytes.size()) <= size, "a tensor is written beyond its place");
  file_.write(start + offset, bytes);
}

}  // namespace ort_train
