// Whole numbers that are rounded up.

#pragma once

#include <cstdint>

namespace ort_train {

constexpr int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
// To a multiple of `multiple`.
constexpr int64_t round_up(int64_t n, int64_t multiple) { return divided_up(n, multiple) * multiple; }

}  // namespace ort_train
