#include "frontend/file.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "frontend/hash.h"
#include "graph/error.h"

namespace ort_train {

FolderLock::FolderLock(const std::string& folder) : file_(File::open_or_create(folder + "/.ort-train-lock")) {
  if (file_.try_lock()) return;
  if (errno == EWOULDBLOCK)
    throw error(ErrorCode::usage, "'{}': another run is writing into this folder: choose another `output_dir`", folder);
  throw error(ErrorCode::io, "'{}' can't be locked: {}", file_.path(), reason(errno));
}

std::string hex16(uint64_t hash) { return fmt::format("{:016x}", hash); }

uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t hash_range(const File& file, int64_t offset, int64_t bytes) {
  Hash hash;
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (int64_t done = 0; done < bytes;) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(bytes - done, static_cast<int64_t>(buffer.size()))));
    file.read(offset + done, piece);
    hash.add(piece);
    done += static_cast<int64_t>(piece.size());
  }
  return hash.number();
}

uint64_t hash_file(const File& file) { return hash_range(file, 0, file.size()); }

}  // namespace ort_train
