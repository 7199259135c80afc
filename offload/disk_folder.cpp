#include "offload/disk_folder.h"

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
#include <system_error>

#include "graph/error.h"
#include "offload/state_file.h"

namespace ort_train {
namespace {

std::string reason(int code) { return std::generic_category().message(code); }

bool is_named(std::string_view name, std::string_view prefix) {
  return name.size() == prefix.size() + kNameDigits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

std::pair<std::string, int> create_locked(const std::string& folder, std::string_view prefix) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0)
    throw error(ErrorCode::io, "'{}', the folder for the disk tier, can't be used: {}; make it, or name another", folder, reason(errno));
  if (!S_ISDIR(status.st_mode)) throw error(ErrorCode::io, "'{}', named for the disk tier, is not a folder", folder);
  std::random_device random;
  for (;;) {
    const uint64_t number = (uint64_t{random()} << 32) | random();
    std::string path = fmt::format("{}/{}{:016x}", folder, prefix, number);
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

DiskFile create_disk_file(const std::string& folder, std::string_view prefix, Direct direct) {
  auto [path, descriptor] = create_locked(folder, prefix);
  try {
    return DiskFile(path, descriptor, direct);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

bool reserve_space(const DiskFile& file, const std::string& folder, int64_t bytes) {
  if (bytes == 0) return true;
  struct statvfs space {};
  struct stat status {};
  const bool known = ::statvfs(folder.c_str(), &space) == 0;
  const int64_t free = known ? static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize) : 0;
  const int64_t held = ::fstat(file.descriptor(), &status) == 0 ? static_cast<int64_t>(status.st_blocks) * 512 : 0;
  const int64_t missing = std::max<int64_t>(0, bytes - held);
  bool reserved = true;
  int code = 0;
  do code = ::fallocate(file.descriptor(), 0, 0, bytes) == 0 ? 0 : errno;
  while (code == EINTR);
  if (code == EOPNOTSUPP) {  // the file system can't: writes will tell
    reserved = false;
    if (known && free < missing) {
      code = ENOSPC;
    } else {
      code = ::ftruncate(file.descriptor(), bytes) == 0 ? 0 : errno;
    }
  }
  if (code == ENOSPC || code == EDQUOT) {
    throw error(ErrorCode::io, "'{}': the disk tier needs {} bytes there, and {} bytes are free{}: free some, or name another folder",
                folder, missing, free, code == EDQUOT ? " (and you have a quota)" : "");
  }
  if (code != 0) throw error(ErrorCode::io, "'{}': {} bytes can't be reserved for the disk tier: {}", folder, bytes, reason(code));
  return reserved;
}

std::string note_of(const DiskFile& file, bool reserved, int64_t removed) {
  std::string note = file.note();
  const auto add = [&](const std::string& sentence) { note += (note.empty() ? "" : "\n") + sentence; };
  if (!reserved)
    add(fmt::format("'{}': the file system can't reserve space, so a disk that fills up will show during the run", file.path()));
  if (removed > 0) add(fmt::format("{} bytes that a killed run had left beside '{}' were removed", removed, file.path()));
  return note;
}

void remove_name(const DiskFile& file) {
  struct stat opened {
  }, named{};
  const char* path = file.path().c_str();
  if (::fstat(file.descriptor(), &opened) == 0 && ::lstat(path, &named) == 0 && same_file(opened, named)) ::unlink(path);
}

int64_t remove_leftovers(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (!listing) return 0;
  const int at = ::dirfd(listing.get());
  int64_t bytes = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    const bool is_state = is_named(entry->d_name, kStatePrefix);
    if (!is_state && !is_named(entry->d_name, kSpillPrefix)) continue;
    const int descriptor = ::openat(at, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    struct stat opened {
    }, named{};
    // Whoever has another name of it needs it; and the name must still be the file's whose lock we hold.
    const auto needed = [&] {
      const StateHeader header = is_state ? read_state_header(descriptor) : StateHeader{};
      return header.kept || header.failed != 0;
    };
    const auto ours = [&] {
      return ::fstat(descriptor, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_nlink == 1 && opened.st_uid == ::geteuid() &&
             !needed();
    };
    if (ours() && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ours() && ::fstatat(at, entry->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        same_file(opened, named) && ::unlinkat(at, entry->d_name, 0) == 0) {
      bytes += opened.st_blocks * 512;
    }
    ::close(descriptor);
  }
  return bytes;
}

}  // namespace ort_train
