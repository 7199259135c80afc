// Reading weights where a model's files have them.

#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "frontend/export.h"
#include "frontend/import.h"
#include "graph/weight_blocks.h"

namespace ort_train {

// The elements of a tensor from `first` on as its file, which is open, has them in `range`. `integers`: as WeightPlace::integers. Throws
// Error: io, unsupported.
void read_elements(const File& file, const FileRange& range, const IntegerIndex* integers, int64_t element_bytes, int64_t first,
                   std::span<std::byte> to);
void read_elements(const File& file, const WeightPlace& from, int64_t first, std::span<std::byte> to);
// Looks through elements that are stored as integers; none where they are not so many.
std::optional<IntegerIndex> index_integers(const File& file, const FileRange& range, int64_t count);

// The numbers of a weight from `first` on, in another type where it has one of its own. Throws Error(data) where that can't hold one.
void read_weight(const WeightPlace& from, int64_t first, DType wanted, std::span<std::byte> to);

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
