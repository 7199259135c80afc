// Reading weights where a model's files have them.

#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "frontend/export.h"
#include "frontend/import.h"
#include "graph/weight_blocks.h"

namespace ort_train {

// Numbers of a file, in another type where the weight has one of its own. Throws Error(data) where that can't hold one.
void read_weight(const FileRange& from, DType stored, DType wanted, std::span<std::byte> to);

// Reads so many elements of a stored tensor, from `first` on; false where they aren't of the wanted type.
using ElementReader = std::function<bool(int64_t first, std::span<std::byte> to)>;
// Whether two tensors have the same elements, of `size` bytes: `a` of this shape, `b` of the same or, `transposed`, a matrix stored as its
// transpose. A square at a time.
bool same_elements(const ElementReader& a, const ElementReader& b, const Shape& shape, int64_t size, bool transposed);

// The numbers of a weight in its file, as float32, some at a time. `place` has to outlive it.
Elements32 numbers_in(const WeightPlace& place);
// All of them, in that type, in pieces of whole rows.
void read_rows(const WeightPlace& place, DType as, const ByteSink& sink);

}  // namespace ort_train
