// Zip as in PKWARE's APPNOTE 6.3: end record, its 64-bit form, central directory, local headers.

#include "frontend/npz.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "graph/error.h"

namespace ort_train {
namespace {

constexpr int64_t kEndRecord = 22, kEnd64Locator = 20, kEnd64Record = 56, kCentralHeader = 46, kLocalHeader = 30;
constexpr int64_t kDirectoryLimit = int64_t{64} << 20;
constexpr int64_t kNpyHeaderLimit = int64_t{1} << 20;

template <typename T> T number_at(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string in_quotes(std::string_view name) { return fmt::format("'{}'", name.substr(0, 200)); }

class Inflater {  // raw deflate, as zip has it
 public:
  Inflater(const File& file, const NpyArray& array) : file_(file), array_(array), input_(size_t{64} << 10) {
    require(inflateInit2(&stream_, -MAX_WBITS) == Z_OK, "zlib does not start");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // The next bytes; fewer than asked at the end.
  size_t read(std::span<std::byte> to) {
    size_t done = 0;
    while (done < to.size() && !ended_) {
      if (stream_.avail_in == 0) {
        const size_t more = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(input_.size()), array_.packed_bytes - taken_));
        if (more == 0) throw failed("ends early");
        file_.read(array_.packed_offset + taken_, std::span(input_).first(more));
        taken_ += static_cast<int64_t>(more);
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(more);
      }
      const size_t room = std::min<size_t>(to.size() - done, size_t{1} << 30);
      stream_.next_out = reinterpret_cast<Bytef*>(to.data() + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      done += room - stream_.avail_out;
      if (result == Z_STREAM_END)
        ended_ = true;
      else if (result != Z_OK && result != Z_BUF_ERROR)
        throw failed("is damaged");
    }
    return done;
  }

 private:
  Error failed(const char* how) const {
    return error(ErrorCode::data, "{}: the compressed array {} {}", file_.path(), in_quotes(array_.name), how);
  }

  const File& file_;
  const NpyArray& array_;
  std::vector<std::byte> input_;
  z_stream stream_{};
  int64_t taken_ = 0;
  bool ended_ = false;
};

// Thrown and caught here: an array that is whole, and of a kind that can't be read.
struct Unreadable {
  std::string why;
};

// The text of a .npy header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyHeader {
 public:
  NpyHeader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  void parse(NpyArray& array) {
    bool has_type = false, has_order = false, has_shape = false, fortran = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted_text();
      expect(':');
      if (key == "descr" && !has_type) {
        array.element = type(quoted_text());
        has_type = true;
      } else if (key == "fortran_order" && !has_order) {
        fortran = boolean();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        array.shape = tuple();
        has_shape = true;
      } else {
        throw refuse("it has the unknown or doubled key " + in_quotes(key));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip();
    if (at_ != text_.size()) throw refuse("text follows its header");
    if (!has_type || !has_order || !has_shape) throw refuse("descr, fortran_order or shape is missing");
    if (fortran && array.shape.size() > 1) throw Unreadable{"it is in Fortran order: save numpy.ascontiguousarray(array)"};
  }

  Error refuse(const std::string& why) const { return error(ErrorCode::data, "{}: {}", where_, why); }

 private:
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw refuse(fmt::format("'{}' is missing in its header", c));
  }
  std::string_view quoted_text() {
    skip();
    if (at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"')) {
      const size_t end = text_.find(text_[at_], at_ + 1);
      if (end != std::string_view::npos) {
        const std::string_view result = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return result;
      }
    }
    if (at_ < text_.size() && text_[at_] == '[') throw Unreadable{"structured types can't be read"};
    throw refuse("a text is missing in its header");
  }
  bool boolean() {
    skip();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    throw refuse("fortran_order is neither True nor False");
  }
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!take(')')) {
      skip();
      int64_t dim = 0;
      const auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), dim);
      if (code != std::errc() || dim < 0 || shape.size() >= kMaxRank) throw refuse("its shape is not a tuple of sizes");
      at_ = static_cast<size_t>(end - text_.data());
      shape.push_back(dim);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }
  Element type(std::string_view text) const {
    constexpr std::pair<std::string_view, Element> types[] = {{"f2", Element::float16}, {"f4", Element::float32}, {"f8", Element::float64},
                                                              {"i1", Element::int8},    {"i2", Element::int16},   {"i4", Element::int32},
                                                              {"i8", Element::int64},   {"u1", Element::uint8},   {"u2", Element::uint16},
                                                              {"u4", Element::uint32},  {"u8", Element::uint64},  {"b1", Element::boolean}};
    if (text.size() == 3 && (text[0] == '<' || text[0] == '|' || text[0] == '=')) {
      for (const auto& [name, element] : types) {
        if (text.substr(1) == name && (text[0] != '|' || size_of(element) == 1)) return element;
      }
    }
    if (!text.empty() && text[0] == '>') throw Unreadable{"it is big-endian: save array.astype(array.dtype.newbyteorder('<'))"};
    throw Unreadable{"its type " + in_quotes(text) + " can't be read: integers, booleans and floats of 16 to 64 bits can"};
  }

  std::string_view text_, where_;
  size_t at_ = 0;
};

// Fills in what the .npy header says. `read(offset, to)` gives bytes of the unpacked member and returns how many there are.
template <typename Read> void read_npy_header(const std::string& where, int64_t member_bytes, NpyArray& array, Read read) {
  const auto refuse = [&](const char* why) { return error(ErrorCode::data, "{}: {}", where, why); };
  std::byte front[12];
  if (member_bytes < 12 || read(0, std::span(front)) != 12) throw refuse("it is shorter than a .npy header");
  if (std::memcmp(front, "\x93NUMPY", 6) != 0) throw refuse("it is not a .npy array");
  const int version = static_cast<int>(front[6]);
  if (version < 1 || version > 3) throw refuse("its .npy version is not 1, 2 or 3");
  const int64_t prefix = version == 1 ? 10 : 12;
  const int64_t length = version == 1 ? number_at<uint16_t>(front, 8) : number_at<uint32_t>(front, 8);
  if (length > kNpyHeaderLimit || prefix + length > member_bytes) throw refuse("its .npy header is longer than the array or than 1 MB");
  std::vector<std::byte> text(static_cast<size_t>(length));
  if (read(prefix, std::span(text)) != text.size()) throw refuse("it ends inside its .npy header");
  try {
    NpyHeader({reinterpret_cast<const char*>(text.data()), text.size()}, where).parse(array);
  } catch (const Unreadable& problem) {
    array.unreadable = fmt::format("{}: {}", where, problem.why);
    array.shape.clear();
    return;
  }
  const std::optional<int64_t> bytes = bytes_of(size_of(array.element), array.shape);
  array.header_bytes = prefix + length;
  if (!bytes || *bytes != member_bytes - array.header_bytes) {
    throw error(ErrorCode::data, "{}: it has {} bytes of elements, not those of {} {}", where, member_bytes - array.header_bytes,
                to_string(array.element), to_string(array.shape));
  }
  array.bytes = *bytes;
}

struct Directory {
  int64_t offset = 0, bytes = 0, entries = 0;
};

Directory find_directory(const File& file, int64_t size) {
  const auto refuse = [&](const char* why) { return error(ErrorCode::data, "{}: not a valid .npz file: {}", file.path(), why); };
  if (size < kEndRecord) throw refuse("it is shorter than a zip archive");
  const int64_t tail_bytes = std::min<int64_t>(size, kEndRecord + 65535);
  std::vector<std::byte> tail(static_cast<size_t>(tail_bytes));
  file.read(size - tail_bytes, tail);
  int64_t at = tail_bytes - kEndRecord;
  while (at >= 0 && number_at<uint32_t>(tail, static_cast<size_t>(at)) != 0x06054b50) --at;
  if (at < 0) throw refuse("it has no end record");
  const auto record = std::span(tail).subspan(static_cast<size_t>(at));
  Directory directory{
      .offset = number_at<uint32_t>(record, 16), .bytes = number_at<uint32_t>(record, 12), .entries = number_at<uint16_t>(record, 10)};
  const int64_t end = size - tail_bytes + at;
  if (directory.offset == 0xffffffff || directory.bytes == 0xffffffff || directory.entries == 0xffff) {
    std::byte locator[kEnd64Locator], record64[kEnd64Record];
    if (end < kEnd64Locator) throw refuse("its 64-bit end record is missing");
    file.read(end - kEnd64Locator, locator);
    const uint64_t where = number_at<uint64_t>(locator, 8);
    if (number_at<uint32_t>(locator, 0) == 0x07064b50 && where <= static_cast<uint64_t>(size - kEnd64Record)) {
      file.read(static_cast<int64_t>(where), record64);
      if (number_at<uint32_t>(record64, 0) != 0x06064b50) throw refuse("its 64-bit end record is damaged");
      directory = {.offset = number_at<int64_t>(record64, 48),
                   .bytes = number_at<int64_t>(record64, 40),
                   .entries = number_at<int64_t>(record64, 32)};
    }
  }
  if (directory.offset < 0 || directory.bytes < 0 || directory.bytes > kDirectoryLimit || directory.offset > end - directory.bytes ||
      directory.entries < 0 || directory.entries > directory.bytes / kCentralHeader) {
    throw refuse("its directory lies outside the file");
  }
  return directory;
}

struct Member {
  std::string name;
  int method = 0, flags = 0;
  uint32_t crc = 0;
  int64_t packed = 0, unpacked = 0, header = 0;
};

// Sizes that don't fit 32 bits stand in the extra field 1, in this order, only those that don't.
void read_extra64(std::span<const std::byte> extra, Member& member) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const size_t id = number_at<uint16_t>(extra, at), length = number_at<uint16_t>(extra, at + 2);
    if (at + 4 + length > extra.size()) return;
    if (id == 1) {
      size_t field = at + 4;
      for (int64_t* value : {&member.unpacked, &member.packed, &member.header}) {
        if (*value != 0xffffffff || field + 8 > at + 4 + length) continue;
        *value = number_at<int64_t>(extra, field);
        field += 8;
      }
    }
    at += 4 + length;
  }
}

std::optional<NpyArray> read_member(const File& file, const Member& member, int64_t directory) {
  const std::string where = fmt::format("{}: array {}", file.path(), in_quotes(member.name));
  const auto refuse = [&](const char* why) { return error(ErrorCode::data, "{}: {}", where, why); };
  if (!member.name.ends_with(".npy")) return std::nullopt;
  NpyArray array;
  array.name = member.name.substr(0, member.name.size() - 4);
  if (member.flags & 1) array.unreadable = where + ": it is encrypted";
  if (member.method != 0 && member.method != 8)
    array.unreadable = where + ": it is compressed in another way than deflate: use numpy.savez or numpy.savez_compressed";
  if (!array.unreadable.empty()) return array;
  if (member.header < 0 || member.header > directory - kLocalHeader || member.packed < 0 || member.unpacked < 0)
    throw refuse("it lies outside the file");
  std::byte local[kLocalHeader];
  file.read(member.header, local);
  if (number_at<uint32_t>(local, 0) != 0x04034b50) throw refuse("its local header is damaged");
  const int64_t data = member.header + kLocalHeader + number_at<uint16_t>(local, 26) + number_at<uint16_t>(local, 28);
  if (data > directory || member.packed > directory - data) throw refuse("it lies outside the file");
  // A byte of deflate gives 1032 at most, so nothing has to be inflated, nor room made for it, to see that more is claimed.
  constexpr int64_t kMostFromByte = 1032;
  const bool possible = member.method == 0 ? member.unpacked == member.packed : member.unpacked / kMostFromByte <= member.packed;
  if (!possible) throw refuse("its two sizes disagree");

  array.deflated = member.method == 8;
  array.packed_offset = data;
  array.packed_bytes = member.packed;
  array.crc = member.crc;
  if (array.deflated) {
    Inflater inflater(file, array);
    int64_t position = 0;
    std::byte kept[12];  // the header's length decides where its text begins, two bytes back perhaps
    read_npy_header(where, member.unpacked, array, [&](int64_t offset, std::span<std::byte> to) {
      size_t done = 0;
      if (position == 0) {
        position = 12;
        done = inflater.read(kept);
        std::copy_n(kept, std::min(done, to.size()), to.begin());
        return done;
      }
      for (; offset < position && done < to.size(); ++offset) to[done++] = kept[offset];
      return done + inflater.read(to.subspan(done));
    });
  } else {
    read_npy_header(where, member.unpacked, array, [&](int64_t offset, std::span<std::byte> to) {
      file.read(data + offset, to);
      return to.size();
    });
    array.offset = data + array.header_bytes;
  }
  return array;
}

}  // namespace

std::vector<NpyArray> read_npz_directory(const File& file) {
  const auto refuse = [&](const char* why) { return error(ErrorCode::data, "{}: not a valid .npz file: {}", file.path(), why); };
  const Directory directory = find_directory(file, file.size());
  std::vector<std::byte> bytes(static_cast<size_t>(directory.bytes));
  file.read(directory.offset, bytes);
  std::vector<NpyArray> arrays;
  std::set<std::string> names;
  int64_t packed = 0;  // each array has bytes of its own, or a small file could claim to hold any number of them
  size_t at = 0;
  for (int64_t i = 0; i < directory.entries; ++i) {
    if (bytes.size() - at < static_cast<size_t>(kCentralHeader)) throw refuse("its directory ends early");
    const auto entry = std::span(bytes).subspan(at);
    if (number_at<uint32_t>(entry, 0) != 0x02014b50) throw refuse("its directory is damaged");
    const size_t name = number_at<uint16_t>(entry, 28), extra = number_at<uint16_t>(entry, 30), comment = number_at<uint16_t>(entry, 32);
    const size_t total = static_cast<size_t>(kCentralHeader) + name + extra + comment;
    if (entry.size() < total) throw refuse("its directory ends early");
    Member member{.name = {reinterpret_cast<const char*>(entry.data()) + kCentralHeader, name},
                  .method = number_at<uint16_t>(entry, 10),
                  .flags = number_at<uint16_t>(entry, 8),
                  .crc = number_at<uint32_t>(entry, 16),
                  .packed = number_at<uint32_t>(entry, 20),
                  .unpacked = number_at<uint32_t>(entry, 24),
                  .header = number_at<uint32_t>(entry, 42)};
    read_extra64(entry.subspan(static_cast<size_t>(kCentralHeader) + name, extra), member);
    if (!names.insert(member.name).second) throw refuse("an array's name comes twice");
    if (auto array = read_member(file, member, directory.offset)) arrays.push_back(std::move(*array));
    if (member.packed < 0 || member.packed > directory.offset - packed) throw refuse("its arrays overlap, or lie outside the file");
    packed += member.packed;
    at += total;
  }
  return arrays;
}

NpyArray read_npy(const File& file) {
  NpyArray array;
  read_npy_header(file.path(), file.size(), array, [&](int64_t offset, std::span<std::byte> to) {
    file.read(offset, to);
    return to.size();
  });
  if (!array.unreadable.empty()) throw Error(ErrorCode::data, array.unreadable);
  array.offset = array.header_bytes;
  return array;
}

std::vector<std::byte> unpack(const File& file, const NpyArray& array) {
  const auto refuse = [&](const char* how) {
    return error(ErrorCode::data, "{}: the compressed array {} {}", file.path(), in_quotes(array.name), how);
  };
  if (!array.unreadable.empty()) throw Error(ErrorCode::data, array.unreadable);
  Inflater inflater(file, array);
  std::vector<std::byte> header(static_cast<size_t>(array.header_bytes)), elements(static_cast<size_t>(array.bytes));
  if (inflater.read(header) != header.size() || inflater.read(elements) != elements.size()) throw refuse("ends early");
  std::byte more;
  if (inflater.read({&more, 1}) != 0) throw refuse("is longer than it says");
  uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
  crc = crc32_z(crc, reinterpret_cast<const Bytef*>(elements.data()), elements.size());
  if (crc != array.crc) throw refuse("fails its checksum");
  return elements;
}

}  // namespace ort_train
