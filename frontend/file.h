// File: one open file, and the few operations on files that must survive a crash.
//
// Every failure is an Error(io) that names the file. Reads and writes go on after a signal or a short transfer until done; a failed fsync
// is never tried again. A File belongs to one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ort_train {

class File {
 public:
  static File open(const std::string& path);    // for reading; regular files only
  static File create(const std::string& path);  // for writing, emptied
  static File update(const std::string& path);  // for writing in place
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const;
  void read(int64_t offset, std::span<std::byte> to) const;
  void write(int64_t offset, std::span<const std::byte> from);
  void reserve(int64_t bytes);  // takes the space on disk now, so that a full disk shows before any work
  void sync();

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

// Keeps a second run out of a folder, by a lock on FOLDER/.ort-train-lock that ends with its owner.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);  // throws Error(usage) where another run has it
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

// Makes renames and new names in a folder survive a power loss.
void sync_folder(const std::string& folder);
// Renames over `to`, and syncs the folder that holds it.
void rename_synced(const std::string& from, const std::string& to);
// Writes beside `path`, syncs, renames over it: readers see the old text or the new.
void replace_file(const std::string& path, std::string_view text);
// A whole small file; Error(io) above `limit` bytes.
std::string read_small_file(const std::string& path, int64_t limit);
void make_folders(const std::string& path);
bool exists(const std::string& path);
// The folder that a path lies in, "." where it names none.
std::string folder_of(const std::string& path);

// xxh3-64 as 16 hex digits.
std::string hex16(uint64_t hash);
uint64_t hash_bytes(std::span<const std::byte> bytes);
// Through a small buffer.
uint64_t hash_range(const File& file, int64_t offset, int64_t bytes);
uint64_t hash_file(const File& file);

}  // namespace ort_train
