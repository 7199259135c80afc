// Reading weights where a model's files have them.

#pragma once

#include <cstddef>
#include <span>

#include "frontend/export.h"
#include "frontend/import.h"
#include "graph/weight_blocks.h"

namespace ort_train {

// Numbers of a file, in another type where the weight has one of its own. Throws Error(data) where that can't hold one.
void read_weight(const FileRange& from, DType stored, DType wanted, std::span<std::byte> to);

// The numbers of a weight in its file, as float32, some at a time. `place` has to outlive it.
Elements32 numbers_in(const WeightPlace& place);
// All of them, in that type, in pieces of whole rows.
void read_rows(const WeightPlace& place, DType as, const ByteSink& sink);

}  // namespace ort_train
