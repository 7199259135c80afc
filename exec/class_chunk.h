// A row of logits is summed in chunks of so many classes (exec/ops/cross_entropy.h). Where it is divided between chunks
// (passes/split_logits.h), the sums have the same bits.

#pragma once

#include <cstdint>

namespace ort_train {

inline constexpr int64_t kClassChunk = 256;

}  // namespace ort_train
