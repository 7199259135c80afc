// Element: the number types of data files, which are more than the graph has, and their conversion to the graph's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "graph/types.h"

namespace ort_train {

enum class Element : uint8_t { float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, boolean };

int64_t size_of(Element element);
bool is_float(Element element);
std::string_view to_string(Element element);
// The one that is called so, as to_string() does; none where there is no such.
std::optional<Element> element_named(std::string_view name);
Element element_of(DType dtype);

// Of data: integers and booleans become integers (or booleans, from 0 and 1) of any width, floats float32 or float64.
bool converts(Element from, DType to);
// Converts as many elements as `result` holds; -1, or the index of the first one whose value the wanted type can't hold. Floats become
// 16-bit ones, too: the nearest, of two as near the even one.
int64_t convert(Element from, std::span<const std::byte> bytes, DType to, std::span<std::byte> result);
// Whether element i is below 0 (-1), 0, or neither (1).
int sign_at(Element element, std::span<const std::byte> bytes, int64_t i);
// Copies the part of a tensor of shape `from` whose indices lie below `to`, packed, to `out`, which may be `in`. Returns its end.
// `element`: bytes.
std::byte* take_corner(std::byte* out, const std::byte* in, std::span<const int64_t> from, std::span<const int64_t> to, int64_t element);

}  // namespace ort_train
