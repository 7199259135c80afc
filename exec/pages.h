// Memory is taken and given back in pages.

#pragma once

#include <cstdint>

#include "graph/rounding.h"

namespace ort_train {

inline constexpr int64_t kPage = 4096;
inline constexpr int64_t kDevicePage = int64_t{2} << 20;  // in which CUDA's driver counts a GPU's
// Bytes of the host's pinned memory that one byte of a GPU's page tables maps: each page of 4 KiB has an entry of 8 bytes, where the driver
// finds no larger pages. The tables are in the GPU's memory.
inline constexpr int64_t kMappedByTable = 512;
constexpr int64_t whole_pages(int64_t bytes) { return round_up(bytes, kPage); }

}  // namespace ort_train
