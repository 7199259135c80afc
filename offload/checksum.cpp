#include "offload/checksum.h"

#define XXH_INLINE_ALL  // compiled with our own flags: half as fast again as the shared library's
#include <xxhash.h>

#include <algorithm>
#include <array>

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

uint64_t checksum_with_zeros(std::span<const std::byte> bytes, int64_t whole) {
  constexpr std::array<std::byte, 4096> kZeros{};
  const auto pieces = static_cast<int64_t>(bytes.size()) / kChecksumPiece;
  uint64_t sum = checksum(bytes.first(static_cast<size_t>(pieces * kChecksumPiece)));
  bytes = bytes.subspan(static_cast<size_t>(pieces * kChecksumPiece));
  for (int64_t piece = pieces; piece * kChecksumPiece < whole; ++piece, bytes = {}) {
    XXH3_state_t state;
    XXH3_64bits_reset_withSeed(&state, static_cast<uint64_t>(piece));
    XXH3_64bits_update(&state, bytes.data(), bytes.size());
    for (auto left = std::min(whole - piece * kChecksumPiece, kChecksumPiece) - static_cast<int64_t>(bytes.size()); left > 0;) {
      const auto more = std::min<int64_t>(left, static_cast<int64_t>(kZeros.size()));
      XXH3_64bits_update(&state, kZeros.data(), static_cast<size_t>(more));
      left -= more;
    }
    sum += XXH3_64bits_digest(&state);
  }
  return sum;
}

}  // namespace ort_train
