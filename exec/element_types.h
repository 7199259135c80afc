// Which element types a kernel is made for, and the one way from a DType at hand to code for it.

#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "exec/kernel.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

using Prepare = KernelRun (*)(const KernelSpec&);

template <typename... T> struct Types {};
using Wide = Types<float, double>;
using Floats = Types<float, double, float16, bfloat16>;
using Numbers = Types<float, double, float16, bfloat16, int64_t, int32_t>;
using Indices = Types<int64_t, int32_t>;

template <typename... T> constexpr DTypes dtypes_of(Types<T...>) { return {dtype_of<T>()...}; }
inline constexpr DTypes kWide = dtypes_of(Wide{}), kFloating = dtypes_of(Floats{}), kNumbers = dtypes_of(Numbers{});
// What a kernel takes that moves some elements and adds others, which it does to 16-bit ones in float32.
inline constexpr DTypes kNotHalf{DType::float32, DType::float64, DType::int64, DType::int32,
                                 DType::int16,   DType::int8,    DType::uint8, DType::boolean};
// Of what is only moved.
inline constexpr DTypes kAnyType{DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int64,
                                 DType::int32,   DType::int16,   DType::int8,    DType::uint8,    DType::boolean};

[[noreturn]] inline void no_kernel(DType dtype, DTypes types) {  // KernelTable::at() has refused it before
  throw error(ErrorCode::unsupported, "there is no kernel for elements of type {}, but for {}", to_string(dtype), to_string(types));
}

// Calls body.operator()<T>() for the T among those listed that is `dtype`, and returns what it does.
template <typename... T, typename Body> auto for_type(Types<T...> types, DType dtype, Body&& body) {
  using First = std::tuple_element_t<0, std::tuple<T...>>;
  using Result = decltype(body.template operator()<First>());
  if constexpr (std::is_void_v<Result>) {
    if (!((dtype == dtype_of<T>() && (body.template operator()<T>(), true)) || ...)) no_kernel(dtype, dtypes_of(types));
  } else {
    Result result{};
    if (!((dtype == dtype_of<T>() && (result = body.template operator()<T>(), true)) || ...)) no_kernel(dtype, dtypes_of(types));
    return result;
  }
}

// The same by the size of an element: T is an unsigned integer of that many bytes.
template <typename Body> auto for_word(int64_t bytes, Body&& body) {
  switch (bytes) {
    case 1:
      return body.template operator()<uint8_t>();
    case 2:
      return body.template operator()<uint16_t>();
    case 4:
      return body.template operator()<uint32_t>();
    default:
      return body.template operator()<uint64_t>();
  }
}

ORT_TRAIN_OPS_END
