// Whole numbers, rounded up.

#pragma once

#include <cstdint>

namespace ort_train {

constexpr int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace ort_train
