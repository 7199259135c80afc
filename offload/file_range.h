// FileRange: a piece of a file, and reading it straight to where it will live.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "offload/file_system.h"

namespace ort_train {

struct FileRange {
  std::string path{};
  int64_t offset = 0;
  int64_t bytes = 0;
  // Where `path` begins with "root/": what follows was named by a model file, so it is opened beneath root, through no link.
  std::string root{};
  bool operator==(const FileRange&) const = default;
};

// The file that it is in, opened as `root` asks for.
File open_range(const FileRange& range);
// All of it. Throws Error(io) naming the file, where and how much is missing. `to.size()` must be range.bytes.
void read_range(const FileRange& range, std::span<std::byte> to);

}  // namespace ort_train
