#include "offload/file_range.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "graph/error.h"

namespace ort_train {
namespace {

// The C library's strerror is not thread-safe.
std::string reason(int code) { return std::generic_category().message(code); }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

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

int open_beneath(const std::string& root, const std::string& relative, int flags) {
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

// A regular file and its size. O_NONBLOCK: a pipe must not make us wait before we see that it is one.
Descriptor open_file(const std::string& path, const std::string& root, int access, int64_t& size) {
  const bool beneath = !root.empty() && path.size() > root.size() + 1 && path.starts_with(root) && path[root.size()] == '/';
  const int flags = access | O_CLOEXEC | O_NONBLOCK;
  Descriptor file(beneath ? open_beneath(root, path.substr(root.size() + 1), flags) : ::open(path.c_str(), flags));
  if (file.get() < 0) {
    if (beneath && errno == ELOOP)
      throw error(ErrorCode::io, "'{}' is a symbolic link, or lies behind one, and such are not followed; put the file itself there", path);
    if (beneath && errno == EXDEV)
      throw error(ErrorCode::io, "'{}' lies outside the model's folder '{}'; put it there and correct the model", path, root);
    throw error(ErrorCode::io, "can't open '{}': {}", path, reason(errno));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw error(ErrorCode::io, "can't look at '{}': {}", path, reason(errno));
  if (S_ISDIR(status.st_mode)) throw error(ErrorCode::io, "'{}' is a folder, not a file", path);
  if (!S_ISREG(status.st_mode)) throw error(ErrorCode::io, "'{}' is not a regular file", path);
  if (beneath && status.st_nlink > 1)
    throw error(ErrorCode::io, "'{}' has {} names (hard links), so it may be someone else's; put a copy there", path, status.st_nlink);
  size = status.st_size;
  return file;
}

void read_all(int fd, const std::string& path, int64_t offset, std::span<std::byte> to) {
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = ::pread(fd, to.data() + done, to.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw error(ErrorCode::io, "can't read '{}' at byte {}: {}", path, offset + static_cast<int64_t>(done), reason(errno));
    if (n == 0)
      throw error(ErrorCode::io, "'{}' ends at byte {}: {} bytes are missing", path, offset + static_cast<int64_t>(done), to.size() - done);
    done += static_cast<size_t>(n);
  }
}

void check(const FileRange& range, size_t bytes) {
  require(range.offset >= 0 && range.bytes >= 0 && static_cast<uint64_t>(range.bytes) == bytes, "a file range is as long as its buffer");
}

}  // namespace

void read_range(const FileRange& range, std::span<std::byte> to) {
  check(range, to.size());
  int64_t size = 0;
  const Descriptor file = open_file(range.path, range.root, O_RDONLY, size);
  read_all(file.get(), range.path, range.offset, to);
}

void write_range(const FileRange& range, std::span<const std::byte> from) {
  check(range, from.size());
  int64_t size = 0;
  const Descriptor file = open_file(range.path, range.root, O_WRONLY, size);
  size_t done = 0;
  while (done < from.size()) {
    const ssize_t n = ::pwrite(file.get(), from.data() + done, from.size() - done, range.offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw error(ErrorCode::io, "can't write {} bytes of '{}' at byte {}: {}", from.size() - done, range.path,
                  range.offset + static_cast<int64_t>(done), n < 0 ? reason(errno) : "nothing was taken");
    }
    done += static_cast<size_t>(n);
  }
}

FileReader::FileReader(std::string path, const std::string& root) : path_(std::move(path)) {
  fd_ = open_file(path_, root, O_RDONLY, size_).release();
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void FileReader::read(int64_t offset, std::span<std::byte> to) const { read_all(fd_, path_, offset, to); }

}  // namespace ort_train
