#include "frontend/json_lines.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "graph/error.h"
#include "graph/onnx/reader.h"

namespace ort_train {

// What stands behind a key.
struct LineValue {
  std::string key{};
  Shape shape{};  // of lists; empty: one number
  bool has_fractions = false;
  bool is_text = false;   // or has text in it
  std::string problem{};  // why it can't be numbers, as the end of a sentence
};

namespace {

constexpr int64_t kLinesApart = 16;                    // lines
constexpr int64_t kScanned = int64_t{256} << 10;       // bytes at a time
constexpr int64_t kFetched = int64_t{64} << 10;        // the same, of samples
constexpr int64_t kMostLineBytes = int64_t{64} << 20;  // bytes
constexpr size_t kMostKeys = 1000;
constexpr size_t kMostAxes = 8;
constexpr size_t kShownText = 60;  // characters of what comes from the file

constexpr const char* kTokens = "input_ids";
constexpr const char* kMask = "attention_mask";
constexpr std::string_view kBesideTokens[] = {kMask, "token_type_ids", "position_ids"};
constexpr const char* kOfDecoder = "decoder_input_ids";
// What data sets call the text that is to be learned.
constexpr std::string_view kTexts[] = {"text",     "prompt", "completion", "messages", "conversations", "instruction", "input",  "output",
                                       "question", "answer", "response",   "content",  "chosen",        "rejected",    "system", "query"};

bool has_name(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string in_short(const std::string& text) { return onnx::printable(text.substr(0, kShownText)); }

// Of one line: either what stands behind each key, or the numbers behind one.
class LineParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<LineValue> values{};  // the first `count` are those of the line
  size_t count = 0;
  std::string problem{};     // why it is no such line, as the end of a sentence
  int64_t longest_text = 0;  // bytes, of all lines
  bool has_misfits = false;  // read_numbers(): a number with a fraction, where whole ones are wanted
  bool has_wanted = false;   // read_numbers(): the wanted ones are complete
  const LineValue& wanted() const { return values[count - 1]; }

  bool parse(std::string_view line) {
    begin(line);
    return run(line);
  }

  // Puts the numbers behind `key` to `to`, as many as there is place for. False where the line is no such object.
  bool read_numbers(std::string_view line, const std::string& key, Element element, std::span<std::byte> to) {
    begin(line);
    key_ = &key;
    to_ = to;
    element_ = element;
    run(line);
    return has_wanted;
  }

  bool start_object(std::size_t) override {
    if (!in_object_) return in_object_ = true;
    if (depth_++ == 0) return refuse("is an object, where numbers are wanted", /*is_text=*/true);
    return refuse("has objects in it, where numbers are wanted", /*is_text=*/true);
  }
  bool end_object() override {
    if (depth_ == 0) return true;  // of the line
    --depth_;
    return end_value();
  }
  bool key(string_t& name) override {
    longest_text = std::max(longest_text, static_cast<int64_t>(name.size()));
    if (depth_ > 0) return true;  // in an object that can't be used
    if (count == kMostKeys) return fail(fmt::format("has more than {} keys", kMostKeys));
    if (count == values.size()) values.emplace_back();
    LineValue& value = values[count++];
    value.key = name;
    value.shape.clear();
    value.has_fractions = value.is_text = false;
    value.problem.clear();
    is_refused_ = false;
    elements_ = 0;
    leaf_ = kNoLeaf;
    is_wanted_ = key_ != nullptr && name == *key_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (!in_object_) return fail("is a list; a line is an object such as {\"input_ids\": [5, 9, 2]}");
    const size_t level = depth_++;
    if (is_refused_) return true;
    if (level == kMostAxes) return refuse(fmt::format("has lists more than {} deep", kMostAxes));
    if (level >= leaf_) return refuse("has numbers and lists side by side");
    lengths_[level] = 0;
    return true;
  }
  bool end_array() override {
    const size_t level = --depth_;
    if (!is_refused_) {
      Shape& shape = value().shape;
      const int64_t length = lengths_[level];
      if (shape.size() <= level) shape.resize(level + 1);
      if (length == 0)
        refuse("has an empty list");
      else if (shape[level] != 0 && shape[level] != length)
        refuse(fmt::format("has lists of {} and of {} elements inside one sample", shape[level], length));
      else
        shape[level] = length;
      if (level > 0) ++lengths_[level - 1];
    }
    return end_value();
  }

  bool null() override { return in_object_ ? refuse("is null or has a null, where numbers are wanted") && end_value() : not_an_object(); }
  bool boolean(bool truth) override { return whole(truth ? 1 : 0); }
  bool number_integer(number_integer_t number) override { return whole(number); }
  bool number_unsigned(number_unsigned_t number) override {
    if (number <= static_cast<uint64_t>(INT64_MAX)) return whole(static_cast<int64_t>(number));
    return in_object_ ? refuse(fmt::format("has {}, which int64 can't hold", number)) && end_value() : not_an_object();
  }
  bool number_float(number_float_t number, const string_t& text) override {
    if (!in_object_) return not_an_object();
    if (text.find_first_of(".eE") == std::string::npos)
      return refuse(fmt::format("has {}, which int64 can't hold", in_short(text))) && end_value();
    const auto single = static_cast<float>(number);
    if (!std::isfinite(single)) return refuse(fmt::format("has {}, which float32 can't hold", in_short(text))) && end_value();
    if (add_leaf()) {
      value().has_fractions = true;
      has_misfits = has_misfits || (is_wanted_ && element_ == Element::int64);
      put(single, Element::float32);
    }
    return end_value();
  }
  bool string(string_t& text) override {
    longest_text = std::max(longest_text, static_cast<int64_t>(text.size()));
    return in_object_ ? refuse("is text, where numbers are wanted", /*is_text=*/true) && end_value() : not_an_object();
  }
  bool binary(binary_t&) override { return fail("has binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& why) override {
    constexpr int kNumberOverflow = 406;
    const size_t at = std::min(position, line_.size());
    const char last = at > 0 ? line_[at - 1] : '\0';
    if (why.id == kNumberOverflow) return fail(fmt::format("has a number that is too large: see its character {}", at));
    if (last == 'N' || last == 'I') return fail(fmt::format("has NaN or Infinity at its character {}, which JSON doesn't know", at));
    return fail(fmt::format("is not JSON: see its character {}", at));
  }

 private:
  static constexpr size_t kNoLeaf = kMostAxes + 1;

  LineValue& value() { return values[count - 1]; }
  bool fail(std::string why) {
    if (problem.empty()) problem = std::move(why);
    return false;
  }
  bool not_an_object() { return fail("is no object; a line is one such as {\"input_ids\": [5, 9, 2]}"); }
  // The rest of the value is gone through without a look. Always true: other keys may be all right.
  bool refuse(std::string why, bool is_text = false) {
    value().is_text = value().is_text || is_text;
    if (is_refused_) return true;
    is_refused_ = true;
    value().problem = std::move(why);
    return true;
  }

  void begin(std::string_view line) {
    line_ = line;
    count = 0;
    problem.clear();
    key_ = nullptr;
    in_object_ = has_misfits = has_wanted = false;
    depth_ = 0;
  }
  bool run(std::string_view line) {
    if (const size_t zero = line.find('\0'); zero != std::string_view::npos)  // which would count as the line's end
      return fail(fmt::format("is not JSON: see its character {}", zero + 1));
    return nlohmann::json::sax_parse(line.data(), line.data() + line.size(), this);
  }

  // What has ended may be a whole value; after the wanted one the rest of the line doesn't matter.
  bool end_value() {
    if (depth_ > 0 || !is_wanted_) return true;
    has_wanted = true;
    return false;
  }
  // Counts a number; false where it isn't to be looked at.
  bool add_leaf() {
    if (is_refused_) return false;
    if (leaf_ == kNoLeaf) leaf_ = depth_;
    if (leaf_ != depth_) {
      refuse("has numbers and lists side by side");
      return false;
    }
    if (depth_ > 0) ++lengths_[depth_ - 1];
    return true;
  }
  bool whole(int64_t number) {
    if (!in_object_) return not_an_object();
    if (add_leaf()) {
      if (element_ == Element::int64)
        put(number, Element::int64);
      else
        put(static_cast<float>(number), Element::float32);
    }
    return end_value();
  }
  template <typename T> void put(T number, Element element) {
    const size_t at = static_cast<size_t>(elements_++) * sizeof(T);
    if (is_wanted_ && element == element_ && at + sizeof(T) <= to_.size()) std::memcpy(to_.data() + at, &number, sizeof(T));
  }

  std::string_view line_{};
  const std::string* key_ = nullptr;  // of the wanted numbers
  std::span<std::byte> to_{};
  Element element_ = Element::int64;
  bool in_object_ = false, is_refused_ = false, is_wanted_ = false;
  size_t depth_ = 0;              // of lists and objects, behind a key
  size_t leaf_ = kNoLeaf;         // that of its numbers
  int64_t lengths_[kMostAxes]{};  // of the lists that are open
  int64_t elements_ = 0;
};

// "numbers of shape [3, 2]"
std::string described(const Shape& shape) { return shape.empty() ? "one number" : "numbers of shape " + to_string(shape); }

// The axes behind the first.
bool same_inside(const Shape& a, const Shape& b) {
  return a.size() == b.size() && (a.empty() || std::equal(a.begin() + 1, a.end(), b.begin() + 1));
}

int64_t elements_inside(const Shape& shape) { return shape.empty() ? 1 : element_count(Shape(shape.begin() + 1, shape.end())); }

}  // namespace

JsonLines::JsonLines(const std::string& path, LineOptions options) : FileData(path), options_(std::move(options)) {
  scan();
  if (samples_ == 0) throw error(ErrorCode::data, "{}: has no samples", path);
  refuse_text();
  settle(nullptr);
}

// --- what the lines have ----------------------------------------------------------------------------------------------------------------

void JsonLines::scan() {
  bytes_ = file_.size();
  LineParser parser;
  int64_t blank = 0;  // the first blank line
  const auto add = [&](int64_t offset, std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      if (blank == 0) blank = samples_ + 1;
      return;
    }
    if (blank != 0) throw error(ErrorCode::data, "{}: line {}: is blank; only the last ones may be", name(), blank);
    if (!parser.parse(line)) throw error(ErrorCode::data, "{}: line {}: {}", name(), samples_ + 1, parser.problem);
    if (samples_ % kLinesApart == 0) offsets_.push_back(offset);
    longest_line_ = std::max(longest_line_, static_cast<int64_t>(line.size()));
    add_line(parser.values, parser.count);
  };
  std::string text;  // from byte `begin` of the file on: a line that has no end yet
  int64_t begin = 0;
  for (int64_t at = 0; at < bytes_;) {
    const size_t before = text.size(), piece = static_cast<size_t>(std::min(kScanned, bytes_ - at));
    text.resize(before + piece);
    file_.read(at, std::as_writable_bytes(std::span(text)).last(piece));
    at += static_cast<int64_t>(piece);
    size_t start = 0;
    for (size_t end = text.find('\n', before); end != std::string::npos; end = text.find('\n', start)) {
      add(begin + static_cast<int64_t>(start), std::string_view(text).substr(start, end - start));
      start = end + 1;
    }
    text.erase(0, start);
    begin += static_cast<int64_t>(start);
    if (static_cast<int64_t>(text.size()) > kMostLineBytes)
      throw error(ErrorCode::data, "{}: line {}: is longer than 64 MiB", name(), samples_ + 1);
  }
  if (!text.empty()) add(begin, text);
  offsets_.shrink_to_fit();
  longest_text_ = parser.longest_text;
}

void JsonLines::add_line(const std::vector<LineValue>& values, size_t count) {
  const int64_t line = ++samples_;
  for (size_t i = 0; i < count; ++i) {
    Column& column = columns_[column_of(values[i].key, i)];
    if (column.line == line) throw error(ErrorCode::data, "{}: line {}: has '{}' twice", name(), line, in_short(column.name));
    column.line = line;
    add_value(column, values[i]);
  }
  for (Column& column : columns_) {
    if (count == columns_.size()) break;
    if (column.line != line && column.unusable.empty())
      column.unusable = fmt::format("{}: line {}: has no '{}', which line 1 has", name(), line, in_short(column.name));
  }
  compare_lengths();
}

// Keys mostly come in the same order.
size_t JsonLines::column_of(const std::string& key, size_t place) {
  if (place < columns_.size() && columns_[place].name == key) return place;
  const auto [found, is_new] = by_name_.emplace(key, columns_.size());
  if (!is_new) return found->second;
  if (columns_.size() == kMostKeys)
    throw error(ErrorCode::data, "{}: line {}: its keys and those before are more than {}", name(), samples_, kMostKeys);
  Column& column = columns_.emplace_back(Column{.name = key});
  if (samples_ > 1) column.unusable = fmt::format("{}: line {}: has '{}', which line 1 doesn't have", name(), samples_, in_short(key));
  return columns_.size() - 1;
}

void JsonLines::add_value(Column& column, const LineValue& value) {
  column.here = value.shape.empty() ? 0 : value.shape[0];
  if (!column.unusable.empty()) return;
  if (!value.problem.empty()) {
    const bool is_known = value.is_text && has_name(kTexts, column.name);
    column.unusable =
        fmt::format("{}: line {}: '{}' {}", name(), samples_, in_short(column.name),
                    is_known ? "is text; models/tokenize_text.py makes token ids of it with the model's own tokenizer" : value.problem);
    return;
  }
  if (samples_ == 1) {
    column.shape = value.shape;
    column.shortest = column.longest = column.here;
  } else if (!same_inside(value.shape, column.shape)) {
    column.unusable = fmt::format("{}: line {}: '{}' has {}, in line 1 it has {}; only the first axis may differ", name(), samples_,
                                  in_short(column.name), described(value.shape), described(column.shape));
  }
  column.shortest = std::min(column.shortest, column.here);
  column.longest = std::max(column.longest, column.here);
  column.has_fractions = column.has_fractions || value.has_fractions;
}

void JsonLines::compare_lengths() {
  const Column* tokens = list_named(kTokens);
  if (tokens == nullptr) return;
  if (options_.length > 0 && tokens->here > options_.length) ++cut_;
  for (Column& column : columns_) {
    if (column.here == tokens->here || column.unlike_line != 0 || !column.is_list()) continue;
    column.unlike_line = samples_;
    column.unlike = column.here;
    column.unlike_tokens = tokens->here;
  }
}

// A file of texts, where there is nothing else that could be learned.
void JsonLines::refuse_text() const {
  const auto is = [&](auto what) { return std::find_if(columns_.begin(), columns_.end(), what); };
  if (columns_.empty())
    throw error(ErrorCode::data, "{}: line 1: has no keys; it is an object such as {{\"input_ids\": [5, 9, 2]}}", name());
  const auto text = is([](const Column& column) { return !column.unusable.empty() && has_name(kTexts, column.name); });
  const bool has_lists = is([](const Column& column) { return column.is_list(); }) != columns_.end();
  if (text != columns_.end() && !has_lists) throw Error(ErrorCode::data, text->unusable);
  const bool has_numbers = is([](const Column& column) { return column.unusable.empty(); }) != columns_.end();
  if (!has_numbers) throw Error(ErrorCode::data, columns_[0].unusable);
}

// --- fields -----------------------------------------------------------------------------------------------------------------------------

const JsonLines::Column* JsonLines::list_named(std::string_view name) const {
  for (const Column& column : columns_) {
    if (column.name == name) return column.is_list() ? &column : nullptr;
  }
  return nullptr;
}

// Of models with an encoder and a decoder: what the decoder reads and learns has a length of its own.
bool JsonLines::is_of_decoder(const std::string& name) const {
  return list_named(kOfDecoder) != nullptr && (name.starts_with("decoder_") || options_.labels.contains(name));
}

void JsonLines::match(JsonLines& a, JsonLines& b) {
  a.settle(&b);
  b.settle(&a);
}

void JsonLines::settle(const JsonLines* beside) {
  const Column* tokens = list_named(kTokens);
  const Column* others = beside != nullptr ? beside->list_named(kTokens) : nullptr;
  int64_t length = options_.length;
  if (tokens != nullptr && length == 0) length = std::max(tokens->longest, others != nullptr ? others->longest : 0);
  fields_.clear();
  for (Column& column : columns_) {
    Field field{.name = column.name, .element = column.has_fractions ? Element::float32 : Element::int64, .shape = column.shape};
    if (column.is_list()) settle_length(column, beside, tokens != nullptr ? length : 0, field);
    field.unusable = column.unusable;
    fields_.push_back(std::move(field));
  }
  if (tokens == nullptr || by_name_.contains(kMask)) return;
  const bool is_padded = tokens->shortest < length || (others != nullptr && others->shortest < length);
  if (is_padded || options_.always_masks) fields_.push_back({.name = kMask, .element = Element::int64, .shape = {length}});
}

// `tokens`: how long samples of tokens are; 0: there are none.
void JsonLines::settle_length(Column& column, const JsonLines* beside, int64_t tokens, Field& field) const {
  const Column* other = beside != nullptr ? beside->list_named(column.name) : nullptr;
  const bool varies = column.varies() || (other != nullptr && other->varies());
  const bool is_beside_tokens = has_name(kBesideTokens, column.name);
  int64_t length = varies && other != nullptr ? std::max(column.longest, other->longest) : column.longest;
  if (tokens > 0 && column.unlike_line == 0) {
    if (column.name == kTokens || is_beside_tokens || varies || options_.labels.contains(column.name)) length = tokens;
  } else if (tokens > 0 && (is_beside_tokens || (varies && !is_of_decoder(column.name)))) {
    column.unusable = fmt::format("{}: line {}: '{}' has {} elements, '{}' has {}", name(), column.unlike_line, in_short(column.name),
                                  column.unlike, kTokens, column.unlike_tokens);
    return;
  }
  field.shape[0] = length;
  field.is_padded = column.shortest < length;
}

void JsonLines::use(const std::set<std::string>& fields) {
  for (const std::string& name : fields) find(name);  // refuses one that is unusable
}

std::string JsonLines::note() const {
  const Column* tokens = list_named(kTokens);
  if (tokens == nullptr) return {};
  const int64_t length = fields_[static_cast<size_t>(tokens - columns_.data())].shape[0];
  if (cut_ > 0) return fmt::format("{}: {} of {} samples are longer than {} tokens, and are cut to it", name(), cut_, samples_, length);
  if (tokens->shortest == length) return {};
  return fmt::format("{}: samples have {} to {} tokens, and are padded to {}", name(), tokens->shortest, tokens->longest, length);
}

// --- samples ----------------------------------------------------------------------------------------------------------------------------

Error JsonLines::changed() const { return error(ErrorCode::data, "{}: was changed while it was read", name()); }

std::string_view JsonLines::line_at(int64_t sample) {
  const size_t block = static_cast<size_t>(sample / kLinesApart);
  const int64_t end = block + 1 < offsets_.size() ? offsets_[block + 1] : bytes_;
  int64_t at = offsets_[block];  // what buffer_ begins with
  const auto fetch = [&](int64_t bytes) {
    buffer_.resize(static_cast<size_t>(std::min(bytes, end - at)));
    file_.read(at, std::as_writable_bytes(std::span(buffer_)));
  };
  const auto is_at_end = [&] { return at + static_cast<int64_t>(buffer_.size()) == end; };
  fetch(kFetched);
  size_t start = 0;
  for (int64_t before = sample % kLinesApart; before > 0;) {
    const size_t newline = buffer_.find('\n', start);
    if (newline != std::string::npos) {
      start = newline + 1;
      --before;
      continue;
    }
    if (is_at_end()) throw changed();
    at += static_cast<int64_t>(buffer_.size());
    start = 0;
    fetch(kFetched);
  }
  size_t newline = buffer_.find('\n', start);
  if (newline == std::string::npos && !is_at_end()) {
    at += static_cast<int64_t>(start);
    start = 0;
    fetch(longest_line_ + 1);
    newline = buffer_.find('\n');
    if (newline == std::string::npos && !is_at_end()) throw changed();
  }
  return std::string_view(buffer_).substr(start, newline == std::string::npos ? newline : newline - start);
}

void JsonLines::read(size_t field, int64_t sample, std::span<std::byte> to) {
  const Field& wanted = fields_[field];
  const bool is_mask = field == columns_.size();
  const Column& column = is_mask ? *list_named(kTokens) : columns_[field];
  LineParser parser;
  if (!parser.read_numbers(line_at(sample), column.name, wanted.element, is_mask ? std::span<std::byte>() : to)) throw changed();
  const LineValue& value = parser.wanted();
  if (!value.problem.empty() || (parser.has_misfits && !is_mask) || !same_inside(value.shape, column.shape)) throw changed();
  if (value.shape.empty()) return;
  if (value.shape[0] < column.shortest || value.shape[0] > column.longest) throw changed();
  const int64_t kept = std::min(value.shape[0], wanted.shape[0]);
  const auto fill = [&](int64_t from, int64_t until, auto number) {
    for (int64_t i = from; i < until; ++i) std::memcpy(to.data() + i * static_cast<int64_t>(sizeof(number)), &number, sizeof(number));
  };
  const int64_t elements = static_cast<int64_t>(to.size()) / size_of(wanted.element), inside = elements_inside(value.shape);
  if (is_mask) fill(0, kept, int64_t{1});
  if (wanted.element == Element::float32) return fill(kept * inside, elements, 0.0f);
  const auto labels = options_.labels.find(wanted.name);
  fill(kept * (is_mask ? 1 : inside), elements, labels != options_.labels.end() ? labels->second : int64_t{0});
}

// The lexer keeps a text twice while it reads it, in places that double.
int64_t JsonLines::memory_bytes() const {
  return static_cast<int64_t>(offsets_.capacity() * sizeof(int64_t)) + std::max(kFetched, longest_line_ + 1) + 4 * longest_text_;
}

}  // namespace ort_train
