// The checksum of bytes on their way to a disk and back: the sum of the XXH3-64 of each 256 KiB piece, seeded with the piece's index.
//
// A sum, so that blocks can be hashed in the order in which they arrive, by any thread, and the result knows nothing of the size of blocks.
// Not for bytes that someone forges.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ort_train {

inline constexpr int64_t kChecksumPiece = int64_t{256} << 10;

// Adds up over parts: `first_piece` is the index of the first piece in the whole; only the last part may end within a piece.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t first_piece = 0);
// That of the bytes with zeros behind them, `whole` in all.
uint64_t checksum_with_zeros(std::span<const std::byte> bytes, int64_t whole);

}  // namespace ort_train
