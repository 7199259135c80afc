// FileRange: a piece of a file, and reading it straight to where it will live.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ort_train {

struct FileRange {
  std::string path{};
  int64_t offset = 0;
  int64_t bytes = 0;
  // Where `path` begins with "root/": what follows was named by a model file, so it is opened beneath root, through no link.
  std::string root{};
  bool operator==(const FileRange&) const = default;
};

// pread until done; checks the length. Throws Error(io) naming the file, where and how much is missing. `to.size()` must be range.bytes.
void read_range(const FileRange& range, std::span<std::byte> to);
// pwrite until done, into an existing file.
void write_range(const FileRange& range, std::span<const std::byte> from);

// A regular file, open for reading. Reading is thread-safe.
class FileReader {
 public:
  // `root` as in FileRange. Throws Error(io), also for folders, devices, and beneath a root for links and files with several names.
  explicit FileReader(std::string path, const std::string& root = {});
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened
  void read(int64_t offset, std::span<std::byte> to) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace ort_train
