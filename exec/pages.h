// Memory is taken and given back in pages.

#pragma once

#include <cstdint>

namespace ort_train {

inline constexpr int64_t kPage = 4096;
constexpr int64_t whole_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace ort_train
