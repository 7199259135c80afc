// Files for tests: a folder that goes with its test, small writers of the formats that are read.

#pragma once

#include <stdlib.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ort_train {

struct TestFolder {
  explicit TestFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "ort-train-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  std::filesystem::path path;
};

// What stands in a folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <typename T> std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T> std::string bytes_of(T value) { return {reinterpret_cast<const char*>(&value), sizeof(T)}; }

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } behind the magic number, padded as NumPy does.
inline std::string npy(const std::string& description, const std::string& elements, int version = 1) {
  std::string text = description;
  const size_t prefix = version == 1 ? 10 : 12;
  while ((prefix + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string result("\x93NUMPY", 6);
  result += static_cast<char>(version);
  result += '\0';
  result += version == 1 ? bytes_of(static_cast<uint16_t>(text.size())) : bytes_of(static_cast<uint32_t>(text.size()));
  return result + text + elements;
}

inline std::string npy_description(const std::string& type, const std::string& shape) {
  return "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

struct ZipMember {
  std::string name, content;
  bool deflate = false;
};

inline std::string zip(const std::vector<ZipMember>& members) {
  std::string file, directory;
  for (const ZipMember& member : members) {
    std::string packed = member.content;
    if (member.deflate) {
      z_stream stream{};
      deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
      packed.resize(deflateBound(&stream, member.content.size()));
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(member.content.data()));
      stream.avail_in = static_cast<uInt>(member.content.size());
      stream.next_out = reinterpret_cast<Bytef*>(packed.data());
      stream.avail_out = static_cast<uInt>(packed.size());
      deflate(&stream, Z_FINISH);
      packed.resize(stream.total_out);
      deflateEnd(&stream);
    }
    const uint32_t crc = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(member.content.data()), member.content.size()));
    const std::string common = bytes_of(uint16_t{20}) + bytes_of(uint16_t{0}) + bytes_of(static_cast<uint16_t>(member.deflate ? 8 : 0)) +
                               std::string(4, '\0') + bytes_of(crc) + bytes_of(static_cast<uint32_t>(packed.size())) +
                               bytes_of(static_cast<uint32_t>(member.content.size())) +
                               bytes_of(static_cast<uint16_t>(member.name.size())) + bytes_of(uint16_t{0});
    directory += std::string("PK\1\2") + bytes_of(uint16_t{20}) + common + std::string(10, '\0') +
                 bytes_of(static_cast<uint32_t>(file.size())) + member.name;
    file += std::string("PK\3\4") + common + member.name + packed;
  }
  const size_t count = members.size(), start = file.size();
  return file + directory + std::string("PK\5\6") + std::string(4, '\0') + bytes_of(static_cast<uint16_t>(count)) +
         bytes_of(static_cast<uint16_t>(count)) + bytes_of(static_cast<uint32_t>(directory.size())) +
         bytes_of(static_cast<uint32_t>(start)) + std::string(2, '\0');
}

// A safetensors file from its JSON header and data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  return bytes_of(static_cast<uint64_t>(header.size())) + header + data;
}

}  // namespace ort_train
