// File system: everything that this project does to files, apart from the disk engine's transfers.
//
// What a crash must not tear goes through here, so that one place decides how names are resolved, when data and names are on the drive, and
// what a failure is called. Every failure is an Error(io) that names the file. Transfers go on after a signal or a short count until done.
// A failed fsync is never tried again: the kernel may have dropped what it could not write.
//
// A name is on the drive only when the folder that holds it was synced: `make_folders`, `rename_synced` and `NewFile::publish` do so.
//
// A File belongs to one thread at a time, except for read(), which any number may call.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ort_train {

// What a system call's error number means. (The C library's strerror is not thread-safe.)
std::string reason(int code);

// Which file it is, and a state of it: a file that was written to since, or replaced, has another stamp.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0;
  int64_t modified = 0, changed = 0;  // nanoseconds; the second also moves with names and permissions
  bool operator==(const FileStamp&) const = default;
  std::pair<uint64_t, uint64_t> file() const { return {device, inode}; }  // the same for every name of one file
  // Whether it is the same file, and nobody has written to it in between; its names and permissions may have changed.
  bool has_content_of(const FileStamp& other) const { return file() == other.file() && bytes == other.bytes && modified == other.modified; }
};
// Of what the path leads to, through links; none where nothing can be looked at.
std::optional<FileStamp> stamp_of(const std::string& path);
// What the file system of that path has left for us; none where it doesn't say.
std::optional<int64_t> free_bytes(const std::string& path);
// Whether two paths lead to one file or folder.
bool same_file(const std::string& a, const std::string& b);

enum class Access { read, update };

class File {
 public:
  // A regular file.
  static File open(const std::string& path, Access access = Access::read);
  // The same for a path that begins with "root/", the rest of which comes from a file that we don't trust: through no symbolic link, never
  // upwards, and no file with several names.
  static File open_beneath(const std::string& path, const std::string& root);
  // A regular file that is no symbolic link; none, and `code` says why, where it can't be opened (EINVAL: no regular file).
  static std::optional<File> find(const std::string& path, Access access, int& code);
  // A new file: where something has that name already it is an error, never overwritten.
  static File create(const std::string& path);
  // A new file FOLDER/PREFIX + 16 hex digits. A lock (flock) on it tells others that its owner is alive; where the file system has no
  // locks, `locked` becomes their error number.
  static File create_numbered(const std::string& folder, std::string_view prefix, int& locked);
  // For reading and writing; made where it isn't there. Never a symbolic link.
  static File open_or_create(const std::string& path);

  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  FileStamp stamp() const;
  int64_t size() const;
  int64_t names() const;      // hard links
  int64_t held() const;       // bytes that it takes on the drive
  bool has_its_name() const;  // whether path() leads to this file still
  bool try_lock() const;      // flock, which ends with its owner; false: another has it, or the file system has none (errno)
  void unlock() const;

  void read(int64_t offset, std::span<std::byte> to) const;
  // Stops where the file ends, or with a failure's errno in `code`; returns how much there was.
  size_t read_up_to(int64_t offset, std::span<std::byte> to, int& code) const;
  void write(int64_t offset, std::span<const std::byte> from);
  // Takes the space on the drive now, so that a full one shows before any work. False where the file system can't (`code` is 0 then), or
  // has none left. The other form throws.
  bool reserve(int64_t bytes, int& code);
  bool reserve(int64_t bytes);
  void resize(int64_t bytes);
  // Gives the space of a range back; false where the file system can't.
  bool punch_hole(int64_t offset, int64_t bytes) noexcept;
  void sync();
  // Gives the file another name; false (errno) where that can't be.
  bool link_as(const std::string& path) const noexcept;
  // Removes the name, if it is still this file's; whether it was.
  bool remove_name() const noexcept;

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

// A file that takes the place of `path` as a whole: it is written under another name in the same folder, and renamed when it is complete.
// Readers see the old file or the new one. What isn't published is removed; what a killed process left, by the next NewFile there.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(NewFile&& other) noexcept;
  NewFile(const NewFile&) = delete;

  File& file() { return file_; }
  void publish();  // syncs the file, renames it, syncs the folder

 private:
  std::string path_;
  File file_;
  bool published_ = false;
};

// Makes new names, and names that are gone, survive a power loss.
void sync_folder(const std::string& folder);
// Renames over `to`, and syncs the folders of both.
void rename_synced(const std::string& from, const std::string& to);
// These three leave it to the caller whether a failure matters, and sync nothing; false (errno) where it can't be done.
bool rename_file(const std::string& from, const std::string& to) noexcept;
bool remove_file(const std::string& path) noexcept;
bool remove_empty_folder(const std::string& path) noexcept;
// Gives an existing file another name; false (errno) where that can't be.
bool link_file(const std::string& from, const std::string& to) noexcept;
// Writes a NewFile.
void replace_file(const std::string& path, std::string_view text);
// A whole small file; Error(io) above `limit` bytes.
std::string read_small_file(const std::string& path, int64_t limit);
// With its parents, each synced into the folder that holds it.
void make_folders(const std::string& path);
// One that isn't there yet, in a folder that is; not synced.
void make_folder(const std::string& path);
bool exists(const std::string& path);
// The folder that a path lies in, "." where it names none.
std::string folder_of(const std::string& path);

inline constexpr size_t kNameDigits = 16;  // behind a prefix
// Whether a name is PREFIX + 16 hex digits.
bool is_numbered(std::string_view name, std::string_view prefix);
// Removes this user's files of that prefix whose owners are dead, except those with several names and those that `needed` knows; returns
// the bytes that they held.
int64_t remove_numbered(const std::string& folder, std::string_view prefix, bool (*needed)(const File& file) = nullptr);

}  // namespace ort_train
