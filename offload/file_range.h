// FileRange: a piece of a file, and reading it straight to where it will live.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ort_train {

struct FileRange {
  std::string path;
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const FileRange&) const = default;
};

// pread until done; checks the length. Throws Error(io) naming the file, where and how much is missing. `to.size()` must be range.bytes.
void read_range(const FileRange& range, std::span<std::byte> to);
// pwrite until done, into an existing file.
void write_range(const FileRange& range, std::span<const std::byte> from);

}  // namespace ort_train
