#include "offload/spill_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string_view>
#include <system_error>

#include "graph/error.h"

namespace ort_train {
namespace {

constexpr std::string_view kPrefix = "ort-train-spill-";
constexpr size_t kDigits = 16;

std::string reason(int code) { return std::generic_category().message(code); }

bool is_spill_name(std::string_view name) {
  return name.size() == kPrefix.size() + kDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// A new file with a lock on it, and its name.
std::pair<std::string, int> create(const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0)
    throw error(ErrorCode::io, "'{}', the folder for the disk tier, can't be used: {}; make it, or name another", folder, reason(errno));
  if (!S_ISDIR(status.st_mode)) throw error(ErrorCode::io, "'{}', named for the disk tier, is not a folder", folder);
  std::random_device random;
  for (;;) {
    const uint64_t number = (uint64_t{random()} << 32) | random();
    std::string path = fmt::format("{}/{}{:016x}", folder, kPrefix, number);
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0 && (errno == EEXIST || errno == EINTR)) continue;
    if (descriptor < 0)
      throw error(ErrorCode::io, "can't make a file in '{}', the folder for the disk tier: {}; correct that, or name another", folder,
                  reason(errno));
    const int locked = ::flock(descriptor, LOCK_EX | LOCK_NB), code = errno;
    // Between the two calls it looked like a leftover: another run that starts may have it, or have removed it.
    if (locked == 0 && ::fstat(descriptor, &status) == 0 && status.st_nlink > 0) return {std::move(path), descriptor};
    ::close(descriptor);
    if (locked == 0 || code == EWOULDBLOCK || code == EINTR) continue;
    ::unlink(path.c_str());
    throw error(ErrorCode::io, "the file system of '{}' can't lock files ({}); name another folder for the disk tier", folder,
                reason(code));
  }
}

DiskFile create_file(const std::string& folder, Direct direct) {
  auto [path, descriptor] = create(folder);
  try {
    return DiskFile(path, descriptor, direct);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

}  // namespace

int64_t remove_spill_leftovers(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (!listing) return 0;
  const int at = ::dirfd(listing.get());
  int64_t bytes = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    if (!is_spill_name(entry->d_name)) continue;
    const int descriptor = ::openat(at, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    struct stat opened {
    }, named{};
    // The name must still be the file's whose lock we hold.
    if (::fstat(descriptor, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_nlink == 1 && opened.st_uid == ::geteuid() &&
        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::fstatat(at, entry->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        same_file(opened, named) && ::unlinkat(at, entry->d_name, 0) == 0) {
      bytes += opened.st_blocks * 512;
    }
    ::close(descriptor);
  }
  return bytes;
}

SpillFile::SpillFile(const std::string& folder, int64_t bytes, Direct direct)
    : bytes_(bytes), removed_(remove_spill_leftovers(folder)), file_(create_file(folder, direct)) {
  try {
    require(bytes >= 0 && bytes % kDiskAlignment == 0, "a spill file is made of whole blocks");
    reserve(folder);
    file_.probe(direct);
  } catch (...) {
    remove();
    throw;
  }
}

SpillFile::~SpillFile() { remove(); }

void SpillFile::reserve(const std::string& folder) {
  if (bytes_ == 0) return;
  struct statvfs space {};
  const bool known = ::statvfs(folder.c_str(), &space) == 0;
  const int64_t free = known ? static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize) : 0;
  int code = 0;
  do code = ::fallocate(file_.descriptor(), 0, 0, bytes_) == 0 ? 0 : errno;
  while (code == EINTR);
  if (code == EOPNOTSUPP) {  // the file system can't: writes will tell
    reserved_ = false;
    if (known && free < bytes_) {
      code = ENOSPC;
    } else {
      code = ::ftruncate(file_.descriptor(), bytes_) == 0 ? 0 : errno;
    }
  }
  if (code == ENOSPC || code == EDQUOT) {
    throw error(ErrorCode::io, "'{}': the disk tier needs {} bytes there, and {} bytes are free{}: free some, or name another folder",
                folder, bytes_, free, code == EDQUOT ? " (and you have a quota)" : "");
  }
  if (code != 0) throw error(ErrorCode::io, "'{}': {} bytes can't be reserved for the disk tier: {}", folder, bytes_, reason(code));
}

void SpillFile::remove() const {
  struct stat opened {
  }, named{};
  const char* path = file_.path().c_str();
  if (::fstat(file_.descriptor(), &opened) == 0 && ::lstat(path, &named) == 0 && same_file(opened, named)) ::unlink(path);
}

std::string SpillFile::note() const {
  std::string note = file_.note();
  const auto add = [&](const std::string& sentence) { note += (note.empty() ? "" : "\n") + sentence; };
  if (!reserved_)
    add(fmt::format("'{}': the file system can't reserve space, so a disk that fills up will show during the run", file_.path()));
  if (removed_ > 0) add(fmt::format("{} bytes that a killed run had left beside '{}' were removed", removed_, file_.path()));
  return note;
}

}  // namespace ort_train
