#include "offload/disk_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "graph/error.h"

namespace ort_train {
DiskFile::DiskFile(File file, Direct direct) : file_(std::move(file)) {
  if (direct == Direct::off) return;
  // Switched on afterwards: an open() that the file system refuses would have to be tried again, and a file created twice.
  const int flags = ::fcntl(descriptor(), F_GETFL);
  direct_ = flags >= 0 && ::fcntl(descriptor(), F_SETFL, flags | O_DIRECT) == 0;
  if (!direct_) refuse(direct, errno);
}

DiskFile DiskFile::open(std::string path, Direct direct) {
  DiskFile file(File::open(path), direct);
  file.probe(direct);
  return file;
}

void DiskFile::probe(Direct direct) {
  if (!direct_) return;
  alignas(kDiskAlignment) std::byte block[kDiskAlignment];
  if (::pread(descriptor(), block, sizeof block, 0) >= 0 || errno != EINVAL) return;  // other failures are the first request's to report
  const int code = errno, flags = ::fcntl(descriptor(), F_GETFL);
  if (flags < 0 || ::fcntl(descriptor(), F_SETFL, flags & ~O_DIRECT) != 0)
    throw error(ErrorCode::io, "'{}': direct I/O can't be switched off: {}", path(), reason(errno));
  direct_ = false;
  refuse(direct, code);
}

void DiskFile::refuse(Direct direct, int code) {
  std::string sentence = fmt::format("'{}': the file system has no direct I/O ({})", path(), reason(code));
  if (direct == Direct::on) throw Error(ErrorCode::io, sentence);
  note_ = std::move(sentence) + ", so the disk tier goes through the page cache, which is slower";
}

}  // namespace ort_train
