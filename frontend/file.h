// What the front end adds to the file system (offload/file_system.h): hashes of files, and the lock of an output folder.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "offload/file_system.h"

namespace ort_train {

// Keeps a second run out of a folder, by a lock on FOLDER/.ort-train-lock that ends with its owner.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);  // throws Error(usage) where another run has it
  ~FolderLock();                                   // also where a child process has inherited the file, and never in that child
  FolderLock(const FolderLock&) = delete;
  // False once the folder has been moved or removed, so that another run may lock one of its name.
  bool is_in_place() const { return file_.has_its_name(); }

 private:
  File file_;
  int process_;  // the owner
};

// xxh3-64 as 16 hex digits.
std::string hex16(uint64_t hash);
uint64_t hash_bytes(std::span<const std::byte> bytes);
// Through a small buffer.
uint64_t hash_range(const File& file, int64_t offset, int64_t bytes);
uint64_t hash_file(const File& file);
// Of a larger file only of its size and of 64 pieces of 1 MiB, evenly spread from its beginning to its end.
inline constexpr int64_t kMostHashed = int64_t{64} << 20;
uint64_t hash_sampled(const File& file);

}  // namespace ort_train
