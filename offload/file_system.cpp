#include "offload/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>
#include <vector>

#include "graph/error.h"

namespace ort_train {
namespace {

constexpr size_t kPiece = size_t{64} << 20;  // Linux moves at most 2 GiB a call; smaller pieces notice a full disk sooner
constexpr std::string_view kTemporaryPrefix = ".ort-train-tmp-";

FileStamp stamp_from(const struct stat& status) {
  const auto nanoseconds = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .modified = nanoseconds(status.st_mtim),
          .changed = nanoseconds(status.st_ctim)};
}

struct stat status_of(const File& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw error(ErrorCode::io, "can't look at '{}': {}", file.path(), reason(errno));
  return status;
}

// Without waiting for a pipe's other end.
int open_quietly(const std::string& path, int flags, mode_t mode = 0) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | ((flags & O_CREAT) != 0 ? 0 : O_NONBLOCK), mode);
    if (descriptor >= 0 || errno != EINTR) return descriptor;
  }
}

// Sets errno.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    const int code = errno;
    if (fd_ >= 0) ::close(fd_);
    errno = code;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// For kernels (and sandboxes) without openat2: component by component, through no link and never upwards. Sets errno.
int open_by_component(int folder, const std::string& relative, int flags) {
  Descriptor at(::fcntl(folder, F_DUPFD_CLOEXEC, 0));
  if (relative.starts_with('/')) {
    errno = EXDEV;
    return -1;
  }
  for (size_t begin = 0;;) {
    const size_t end = relative.find('/', begin);
    const std::string part = relative.substr(begin, end == std::string::npos ? end : end - begin);
    if (part == "..") {
      errno = EXDEV;
      return -1;
    }
    if (end == std::string::npos) return ::openat(at.get(), part.c_str(), flags | O_NOFOLLOW);
    if (!part.empty() && part != ".") {
      Descriptor next(::openat(at.get(), part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (next.get() < 0) return -1;
      at = std::move(next);
    }
    begin = end + 1;
  }
}

int descriptor_beneath(const std::string& root, const std::string& relative, int flags) {
  const Descriptor folder(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return -1;
  if (relative.find('\0') != std::string::npos) {
    errno = EINVAL;
    return -1;
  }
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  long fd = -1;
  for (int attempt = 0; attempt < 8; ++attempt) {
    fd = ::syscall(SYS_openat2, folder.get(), relative.c_str(), &how, sizeof how);
    if (fd >= 0 || errno != EAGAIN) break;  // EAGAIN: something was renamed meanwhile
  }
  if (fd < 0 && (errno == ENOSYS || errno == EPERM)) return open_by_component(folder.get(), relative, flags);
  return static_cast<int>(fd);
}

// Throws unless it is a regular file.
struct stat check_regular(const File& file) {
  const struct stat status = status_of(file);
  if (S_ISDIR(status.st_mode)) throw error(ErrorCode::io, "'{}' is a folder, not a regular file", file.path());
  if (!S_ISREG(status.st_mode)) throw error(ErrorCode::io, "'{}' is not a regular file", file.path());
  return status;
}

int flags_of(Access access) { return access == Access::read ? O_RDONLY : O_RDWR; }

}  // namespace

std::string reason(int code) { return std::generic_category().message(code); }

std::optional<int64_t> free_bytes(const std::string& path) {
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) != 0) return std::nullopt;
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return stamp_from(status);
}

bool same_file(const std::string& a, const std::string& b) {
  const auto first = stamp_of(a), second = stamp_of(b);
  return first && second && first->file() == second->file();
}

File File::open(const std::string& path, Access access) {
  File file(path, open_quietly(path, flags_of(access)));
  if (file.descriptor_ < 0) throw error(ErrorCode::io, "can't open '{}': {}", path, reason(errno));
  check_regular(file);
  return file;
}

File File::open_beneath(const std::string& path, const std::string& root) {
  require(!root.empty() && path.size() > root.size() + 1 && path.starts_with(root) && path[root.size()] == '/', "a path beneath its root");
  File file(path, descriptor_beneath(root, path.substr(root.size() + 1), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor_ < 0) {
    if (errno == ELOOP)
      throw error(ErrorCode::io, "'{}' is a symbolic link, or lies behind one, and such are not followed; put the file itself there", path);
    if (errno == EXDEV)
      throw error(ErrorCode::io, "'{}' lies outside the model's folder '{}'; put it there and correct the model", path, root);
    throw error(ErrorCode::io, "can't open '{}': {}", path, reason(errno));
  }
  if (const auto names = check_regular(file).st_nlink; names > 1)
    throw error(ErrorCode::io, "'{}' has {} names (hard links), so it may be someone else's; put a copy there", path, names);
  return file;
}

std::optional<File> File::find(const std::string& path, Access access, int& code) {
  File file(path, open_quietly(path, flags_of(access) | O_NOFOLLOW));
  code = file.descriptor_ < 0 ? errno : 0;
  if (code != 0) return std::nullopt;
  struct stat status {};
  if (::fstat(file.descriptor_, &status) == 0 && S_ISREG(status.st_mode)) return file;
  code = EINVAL;
  return std::nullopt;
}

File File::create(const std::string& path) {
  File file(path, open_quietly(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666));
  if (file.descriptor_ < 0) throw error(ErrorCode::io, "'{}' can't be made: {}", path, reason(errno));
  return file;
}

File File::create_numbered(const std::string& folder, std::string_view prefix, int& locked) {
  std::random_device random;
  for (;;) {
    const uint64_t number = (uint64_t{random()} << 32) | random();
    const std::string path = fmt::format("{}/{}{:016x}", folder, prefix, number);
    // A temporary file becomes the user's, with the permissions that such have; the rest is nobody else's to read.
    File file(path, open_quietly(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, prefix == kTemporaryPrefix ? 0666 : 0600));
    if (file.descriptor_ < 0 && errno == EEXIST) continue;
    if (file.descriptor_ < 0) throw error(ErrorCode::io, "can't make a file in '{}': {}", folder, reason(errno));
    locked = file.try_lock() ? 0 : errno;
    // Between the two calls it looked like a leftover: another process may have it, or have removed it.
    if (locked == EWOULDBLOCK || locked == EINTR || (locked == 0 && file.names() == 0)) continue;
    return file;
  }
}

File File::open_or_create(const std::string& path) {
  File file(path, open_quietly(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666));
  if (file.descriptor_ < 0) throw error(ErrorCode::io, "'{}' can't be made: {}", path, reason(errno));
  return file;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileStamp File::stamp() const { return stamp_from(status_of(*this)); }
int64_t File::size() const { return status_of(*this).st_size; }
int64_t File::names() const { return static_cast<int64_t>(status_of(*this).st_nlink); }
int64_t File::held() const { return static_cast<int64_t>(status_of(*this).st_blocks) * 512; }

bool File::has_its_name() const {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor_, &opened) == 0 && ::lstat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

void File::unlock() const { ::flock(descriptor_, LOCK_UN); }

bool File::try_lock() const { return ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }

size_t File::read_up_to(int64_t offset, std::span<std::byte> to, int& code) const {
  code = 0;
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(descriptor_, to.data() + done, std::min(to.size() - done, kPiece), offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) code = errno;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void File::read(int64_t offset, std::span<std::byte> to) const {
  int code = 0;
  const size_t done = read_up_to(offset, to, code);
  if (done == to.size()) return;
  const int64_t at = offset + static_cast<int64_t>(done);
  if (code != 0) throw error(ErrorCode::io, "can't read '{}' at byte {}: {}", path_, at, reason(code));
  throw error(ErrorCode::io, "'{}' ends at byte {}: {} bytes are missing", path_, at, to.size() - done);
}

void File::write(int64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t put = ::pwrite(descriptor_, from.data(), std::min(from.size(), kPiece), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      throw error(ErrorCode::io, "can't write {} bytes of '{}' at byte {}: {}", from.size(), path_, offset,
                  put < 0 ? reason(errno) : "nothing was taken");
    }
    from = from.subspan(static_cast<size_t>(put));
    offset += put;
  }
}

bool File::reserve(int64_t bytes, int& code) {
  do code = bytes <= 0 || ::fallocate(descriptor_, 0, 0, bytes) == 0 ? 0 : errno;
  while (code == EINTR);
  const bool done = code == 0;
  if (code == EOPNOTSUPP) code = 0;  // the writes will tell
  return done;
}

bool File::reserve(int64_t bytes) {
  int code = 0;
  const bool done = reserve(bytes, code);
  if (code != 0) throw error(ErrorCode::io, "'{}': {} bytes can't be reserved: {}", path_, bytes, reason(code));
  return done;
}

void File::resize(int64_t bytes) {
  int code;
  do code = ::ftruncate(descriptor_, bytes) == 0 ? 0 : errno;
  while (code == EINTR);
  if (code != 0) throw error(ErrorCode::io, "'{}' can't get a size of {} bytes: {}", path_, bytes, reason(code));
}

bool File::punch_hole(int64_t offset, int64_t bytes) noexcept {
  return ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes) == 0 || errno != EOPNOTSUPP;
}

void File::sync() {
  if (::fsync(descriptor_) != 0) throw error(ErrorCode::io, "'{}': fsync failed: {}", path_, reason(errno));
}

bool File::link_as(const std::string& path) const noexcept {
  // By the descriptor: its own name may be gone, or be another file's.
  char self[64];
  *fmt::format_to_n(self, sizeof self - 1, "/proc/self/fd/{}", descriptor_).out = '\0';
  return ::linkat(AT_FDCWD, self, AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

bool File::remove_name() const noexcept { return has_its_name() && ::unlink(path_.c_str()) == 0; }

namespace {

File temporary_in(const std::string& folder, const std::string& path) {
  remove_numbered(folder, kTemporaryPrefix);
  try {
    int locked = 0;  // without locks nobody takes it for a leftover either
    return File::create_numbered(folder, kTemporaryPrefix, locked);
  } catch (const Error& problem) {
    throw error(problem.code(), "can't write '{}': {}", path, problem.what());
  }
}

}  // namespace

NewFile::NewFile(std::string path) : path_(std::move(path)), file_(temporary_in(folder_of(path_), path_)) {}

NewFile::~NewFile() {
  if (file_.descriptor() >= 0 && !published_) file_.remove_name();
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::move(other.file_)), published_(std::exchange(other.published_, true)) {}

void NewFile::publish() {
  file_.sync();
  rename_synced(file_.path(), path_);
  published_ = true;
}

void sync_folder(const std::string& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) throw error(ErrorCode::io, "can't open the folder '{}': {}", folder, reason(errno));
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL)  // EINVAL: a file system without folders to sync
    throw error(ErrorCode::io, "'{}': fsync failed: {}", folder, reason(errno));
}

bool rename_file(const std::string& from, const std::string& to) noexcept { return ::rename(from.c_str(), to.c_str()) == 0; }

void rename_synced(const std::string& from, const std::string& to) {
  if (!rename_file(from, to)) throw error(ErrorCode::io, "'{}' can't be renamed to '{}': {}", from, to, reason(errno));
  sync_folder(folder_of(to));
  if (folder_of(from) != folder_of(to)) sync_folder(folder_of(from));
}

bool remove_file(const std::string& path) noexcept { return ::unlink(path.c_str()) == 0; }
bool remove_empty_folder(const std::string& path) noexcept { return ::rmdir(path.c_str()) == 0; }

bool link_file(const std::string& from, const std::string& to) noexcept { return ::link(from.c_str(), to.c_str()) == 0; }

void replace_file(const std::string& path, std::string_view text) {
  NewFile replaced(path);
  replaced.file().write(0, std::as_bytes(std::span(text)));
  replaced.publish();
}

std::string read_small_file(const std::string& path, int64_t limit) {
  const File file = File::open(path);
  const int64_t size = file.size();
  if (size > limit) throw error(ErrorCode::io, "'{}' has {} bytes, more than the {} that such a file may have", path, size, limit);
  std::string text(static_cast<size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) throw error(ErrorCode::io, "the folder '{}' can't be made: {}", path, reason(errno));
}

void make_folders(const std::string& path) {
  std::vector<std::string> missing;
  for (std::string at = path; !exists(at); at = folder_of(at)) {
    missing.push_back(at);
    if (folder_of(at) == at) break;
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0777) != 0 && errno != EEXIST)  // another process may have been faster
      throw error(ErrorCode::io, "the folder '{}' can't be made: {}", *folder, reason(errno));
    sync_folder(folder_of(*folder));
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) throw error(ErrorCode::io, "'{}' is not a folder", path);
}

bool exists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

bool is_numbered(std::string_view name, std::string_view prefix) {
  return name.size() == prefix.size() + kNameDigits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
}

int64_t remove_numbered(const std::string& folder, std::string_view prefix, bool (*needed)(const File&)) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (!listing) return 0;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing.get())) {
    if (is_numbered(entry->d_name, prefix)) names.emplace_back(entry->d_name);
  }
  int64_t bytes = 0;
  for (const std::string& name : names) {
    int code = 0;
    const std::optional<File> file = File::find(folder + "/" + name, Access::update, code);
    if (!file) continue;
    struct stat status {};
    // Whoever has another name of it needs it.
    const auto ours = [&] {
      return ::fstat(file->descriptor(), &status) == 0 && status.st_nlink == 1 && status.st_uid == ::geteuid() &&
             !(needed != nullptr && needed(*file));
    };
    if (ours() && file->try_lock() && ours() && file->remove_name()) bytes += static_cast<int64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace ort_train
