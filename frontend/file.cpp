#include "frontend/file.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "frontend/hash.h"
#include "graph/error.h"

namespace ort_train {

FolderLock::FolderLock(const std::string& folder) : file_(File::open_or_create(folder + "/.ort-train-lock")), process_(getpid()) {
  if (file_.try_lock()) return;
  if (errno == EWOULDBLOCK)
    throw error(ErrorCode::usage, "'{}': another run is writing into this folder: choose another `output_dir`", folder);
  throw error(ErrorCode::io, "'{}' can't be locked: {}", file_.path(), reason(errno));
}

FolderLock::~FolderLock() {
  if (getpid() == process_) file_.unlock();
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

uint64_t hash_sampled(const File& file) {
  constexpr int64_t kPieces = 64, kBytes = int64_t{1} << 20;
  static_assert(kPieces * kBytes == kMostHashed);
  const int64_t size = file.size(), last = size - kBytes;
  if (size <= kMostHashed) return hash_file(file);
  Hash hash;
  hash.add(std::as_bytes(std::span(&size, 1)));
  for (int64_t i = 0; i < kPieces; ++i) {
    const uint64_t piece = hash_range(file, last / (kPieces - 1) * i + last % (kPieces - 1) * i / (kPieces - 1), kBytes);
    hash.add(std::as_bytes(std::span(&piece, 1)));
  }
  return hash.number();
}

}  // namespace ort_train
