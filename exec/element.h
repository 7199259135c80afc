// What the elements of a product's matrices are in memory: those of its type, or others that are read or rounded on the way.

#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/kernel.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

enum class Element : uint8_t {
  own,          // of the type that the product is computed in
  float16,      // the others are of products in float32
  bfloat16,     //
  to_float16,   // float32 that is rounded when it is read
  to_bfloat16,  //
};

// Of an operand that is stored as `stored`, where the op's attribute `compute` is this.
constexpr Element element_of(DType stored, DType compute = DType::float32) {
  if (stored == DType::float16) return Element::float16;
  if (stored == DType::bfloat16) return Element::bfloat16;
  if ((stored != DType::float32 && !is_weight_blocks(stored)) || !is_half(compute)) return Element::own;
  return compute == DType::float16 ? Element::to_float16 : Element::to_bfloat16;
}
constexpr bool is_half(Element element) { return element == Element::float16 || element == Element::bfloat16; }
constexpr bool is_bfloat16(Element element) { return element == Element::bfloat16 || element == Element::to_bfloat16; }
template <typename T> constexpr int64_t bytes_each(Element element) { return is_half(element) ? 2 : int64_t{sizeof(T)}; }

ORT_TRAIN_OPS_END
