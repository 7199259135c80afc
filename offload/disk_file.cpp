#include "offload/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "graph/error.h"

namespace ort_train {
namespace {

std::string reason(int code) { return std::generic_category().message(code); }

}  // namespace

DiskFile::DiskFile(std::string path, int descriptor, Direct direct) : path_(std::move(path)), descriptor_(descriptor) {
  if (direct == Direct::off) return;
  // Switched on afterwards: an open() that the file system refuses would have to be tried again, and a file created twice.
  const int flags = ::fcntl(descriptor_, F_GETFL);
  direct_ = flags >= 0 && ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0;
  if (!direct_) {
    const int code = errno;
    try {
      refuse(direct, code);
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
  }
}

DiskFile::~DiskFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

DiskFile::DiskFile(DiskFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_),
      note_(std::move(other.note_)) {}

DiskFile DiskFile::open(std::string path, Direct direct) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: a pipe must not make us wait
  if (descriptor < 0) throw error(ErrorCode::io, "can't open '{}': {}", path, reason(errno));
  DiskFile file(std::move(path), descriptor, direct);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw error(ErrorCode::io, "can't look at '{}': {}", file.path_, reason(errno));
  if (!S_ISREG(status.st_mode)) throw error(ErrorCode::io, "'{}' is not a regular file", file.path_);
  file.probe(direct);
  return file;
}

void DiskFile::probe(Direct direct) {
  if (!direct_) return;
  alignas(kDiskAlignment) std::byte block[kDiskAlignment];
  if (::pread(descriptor_, block, sizeof block, 0) >= 0 || errno != EINVAL) return;  // other failures are the first request's to report
  const int code = errno, flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) != 0)
    throw error(ErrorCode::io, "'{}': direct I/O can't be switched off: {}", path_, reason(errno));
  direct_ = false;
  refuse(direct, code);
}

void DiskFile::refuse(Direct direct, int code) {
  std::string sentence = fmt::format("'{}': the file system has no direct I/O ({})", path_, reason(code));
  if (direct == Direct::on) throw Error(ErrorCode::io, sentence);
  note_ = std::move(sentence) + ", so the disk tier goes through the page cache, which is slower";
}

}  // namespace ort_train
