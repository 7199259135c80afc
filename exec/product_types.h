// The element types of products, convolutions and attention.
//
// Operands are of float32, float16 and bfloat16 in any mixture; of another type, all are of that one. Frozen matrices may be stored in
// blocks, which are float32 to what reads them. Two attributes, each a DType as a number, as Cast's `to` is:
//
//   to        of the result. Absent: that of the operands, or float32 where they differ
//   compute   float16 or bfloat16: operands of float32 are rounded to it when they are read. Absent: they are used as they are
//
// Sums are float32 and are rounded once, when they are stored. What a sum goes on from, and what it leaves to be gone on from, is therefore
// float32 too: the result of a product that is divided has the bits of the whole.

#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "exec/kernel.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr DTypes kMixed{DType::float32, DType::float16, DType::bfloat16};
constexpr bool mixes(DType type) { return kMixed.has(type); }

inline DType type_from(const Attributes& attributes, std::string_view name, DType otherwise) {
  return static_cast<DType>(attributes.between(name, 0, static_cast<int64_t>(DType::boolean), static_cast<int64_t>(otherwise)));
}

// What a matrix that is stored in blocks (graph/weight_blocks.h) is read as.
constexpr DType read_as(DType stored) { return is_weight_blocks(stored) ? DType::float32 : stored; }

// What the result is without the attribute `to`.
inline DType common_type(std::initializer_list<DType> operands) {
  const DType first = read_as(*operands.begin());
  return std::all_of(operands.begin(), operands.end(), [&](DType type) { return read_as(type) == first; }) ? first : DType::float32;
}

// The type of the result. Throws Error(unsupported) where operands and attributes don't go together.
inline DType result_type(const Attributes& attributes, std::initializer_list<DType> operands) {
  const DType common = common_type(operands), to = type_from(attributes, "to", common);
  const DType compute = type_from(attributes, "compute", DType::float32);
  const auto mix = [](DType type) { return mixes(read_as(type)); };
  const bool all_mix = std::all_of(operands.begin(), operands.end(), mix);
  const bool all_same = std::all_of(operands.begin(), operands.end(), [&](DType type) { return read_as(type) == common; });
  if (!all_mix && !all_same)
    throw error(ErrorCode::unsupported, "its operands are of different types, {} among them: of float32, float16 and bfloat16 they may be",
                to_string(*std::find_if_not(operands.begin(), operands.end(), mix)));
  if (all_mix ? !mixes(to) : to != common)
    throw error(ErrorCode::unsupported, "its result can't be {}, where its operands are {}", to_string(to), to_string(common));
  if (compute != DType::float32 && !(all_mix && is_half(compute)))
    throw error(ErrorCode::unsupported, "its operands can't be rounded to {}, where they are {}", to_string(compute), to_string(common));
  return to;
}

// Whether a vector or mask of this type can be added to sums that become `result`.
constexpr bool adds_to(DType type, DType result) { return type == result || (mixes(type) && mixes(result)); }

// The same attributes for a result of this type.
inline Attributes with_result(Attributes attributes, std::initializer_list<DType> operands, DType result) {
  if (common_type(operands) == result)
    attributes.erase("to");
  else
    attributes.set("to", static_cast<int64_t>(result));
  return attributes;
}

ORT_TRAIN_OPS_END
