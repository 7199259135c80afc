#include "offload/disk_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "graph/error.h"
#include "offload/state_file.h"

namespace ort_train {

DiskFile create_disk_file(const std::string& folder, std::string_view prefix, Direct direct) {
  std::error_code code;
  if (!std::filesystem::exists(folder, code))
    throw error(ErrorCode::io, "'{}', the folder for the disk tier, can't be used: {}; make it, or name another", folder,
                code ? code.message() : reason(ENOENT));
  if (!std::filesystem::is_directory(folder, code)) throw error(ErrorCode::io, "'{}', named for the disk tier, is not a folder", folder);
  const auto made = [&](int& locked) {
    try {
      return File::create_numbered(folder, prefix, locked);
    } catch (const Error& problem) {
      throw error(ErrorCode::io, "{}; correct that, or name another folder for the disk tier", problem.what());
    }
  };
  int locked = 0;
  File file = made(locked);
  if (locked != 0) {
    file.remove_name();
    throw error(ErrorCode::io, "the file system of '{}' can't lock files ({}); name another folder for the disk tier", folder,
                reason(locked));
  }
  const std::string path = file.path();
  try {
    return DiskFile(std::move(file), direct);
  } catch (...) {
    remove_file(path);
    throw;
  }
}

bool reserve_space(DiskFile& file, const std::string& folder, int64_t bytes) {
  if (bytes == 0) return true;
  const auto full = [&](int64_t missing, int64_t free, bool quota) {
    return error(ErrorCode::io, "'{}': the disk tier needs {} bytes there, and {} bytes are free{}: free some, or name another folder",
                 folder, missing, free, quota ? " (and you have a quota)" : "");
  };
  const std::optional<int64_t> left = free_bytes(folder);
  const int64_t free = left.value_or(0);
  const int64_t missing = std::max<int64_t>(0, bytes - file.file().held());
  int code = 0;
  const bool reserved = file.file().reserve(bytes, code);
  if (!reserved && code == 0) {  // the file system can't: writes will tell
    if (left && free < missing) throw full(missing, free, false);
    file.file().resize(bytes);
  }
  if (code == ENOSPC || code == EDQUOT) throw full(missing, free, code == EDQUOT);
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

int64_t remove_leftovers(const std::string& folder) {
  const auto needed = [](const File& file) {
    const StateHeader header = read_state_header(file);
    return header.kept || header.failed != 0;
  };
  return remove_numbered(folder, kSpillPrefix) + remove_numbered(folder, kStatePrefix, needed);
}

}  // namespace ort_train
