#include "frontend/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "graph/error.h"

namespace ort_train {
namespace {

constexpr size_t kPiece = size_t{64} << 20;  // Linux moves at most 2 GiB a call; smaller pieces notice a full disk sooner

Error failed(const std::string& path, const char* what, int number) {
  return error(ErrorCode::io, "{}: {} failed: {}", path, what, std::strerror(number));
}

int opened(const std::string& path, int flags, const char* what) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) throw error(ErrorCode::io, "{}: can't be {}: {}", path, what, std::strerror(errno));
  return descriptor;
}

}  // namespace

File File::open(const std::string& path) {
  File file(path, opened(path, O_RDONLY | O_NONBLOCK, "opened"));  // O_NONBLOCK: a pipe must not make us wait
  struct stat status;
  if (::fstat(file.descriptor_, &status) != 0) throw failed(path, "fstat", errno);
  if (!S_ISREG(status.st_mode)) throw error(ErrorCode::io, "{}: is not a regular file", path);
  return file;
}

File File::create(const std::string& path) { return File(path, opened(path, O_RDWR | O_CREAT | O_TRUNC, "created")); }

File File::update(const std::string& path) { return File(path, opened(path, O_RDWR, "opened for writing")); }

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

int64_t File::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) throw failed(path_, "fstat", errno);
  return status.st_size;
}

void File::read(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(descriptor_, to.data(), std::min(to.size(), kPiece), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw failed(path_, "reading", errno);
    if (got == 0) throw error(ErrorCode::io, "{}: ends at byte {}, {} bytes before what is to be read", path_, offset, to.size());
    to = to.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

void File::write(int64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t put = ::pwrite(descriptor_, from.data(), std::min(from.size(), kPiece), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw failed(path_, "writing", errno);
    if (put == 0) throw failed(path_, "writing", ENOSPC);
    from = from.subspan(static_cast<size_t>(put));
    offset += put;
  }
}

void File::reserve(int64_t bytes) {
  if (bytes <= 0) return;
  int number;
  do number = ::posix_fallocate(descriptor_, 0, bytes);
  while (number == EINTR);
  if (number == EOPNOTSUPP || number == EINVAL) return;  // a file system that can't: the writes will tell
  if (number != 0) throw error(ErrorCode::io, "{}: {} bytes can't be reserved: {}", path_, bytes, std::strerror(number));
}

void File::sync() {
  if (::fsync(descriptor_) != 0) throw failed(path_, "fsync", errno);
}

FolderLock::FolderLock(const std::string& folder) : descriptor_(opened(folder + "/.ort-train-lock", O_RDWR | O_CREAT, "created")) {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int number = errno;
  ::close(descriptor_);
  if (number == EWOULDBLOCK)
    throw error(ErrorCode::usage, "{}: another run is writing into this folder: choose another `output_dir`", folder);
  throw failed(folder, "locking", number);
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void sync_folder(const std::string& folder) {
  const int descriptor = opened(folder, O_RDONLY | O_DIRECTORY, "opened");
  const int result = ::fsync(descriptor), number = errno;
  ::close(descriptor);
  if (result != 0 && number != EINVAL) throw failed(folder, "fsync", number);  // EINVAL: a file system without folders to sync
}

void rename_synced(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw error(ErrorCode::io, "{}: can't be renamed to {}: {}", from, to, std::strerror(errno));
  sync_folder(folder_of(to));
}

void replace_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  try {
    File file = File::create(temporary);
    file.write(0, std::as_bytes(std::span(text)));
    file.sync();
    rename_synced(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

std::string read_small_file(const std::string& path, int64_t limit) {
  const File file = File::open(path);
  const int64_t size = file.size();
  if (size > limit) throw error(ErrorCode::io, "{}: has {} bytes, more than the {} that such a file may have", path, size, limit);
  std::string text(static_cast<size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void make_folders(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) throw error(ErrorCode::io, "{}: the folder can't be made: {}", path, code.message());
}

bool exists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string hex16(uint64_t hash) { return fmt::format("{:016x}", hash); }

uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t hash_range(const File& file, int64_t offset, int64_t bytes) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  require(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK, "no hash state");
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (int64_t done = 0; done < bytes;) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(bytes - done, static_cast<int64_t>(buffer.size()))));
    file.read(offset + done, piece);
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
    done += static_cast<int64_t>(piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

uint64_t hash_file(const File& file) { return hash_range(file, 0, file.size()); }

}  // namespace ort_train
