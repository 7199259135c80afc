// Arithmetic of integers that wraps around.

#pragma once

#include <cstdint>
#include <type_traits>

namespace ort_train {

// What numbers of T are added and multiplied as; of a floating type that itself. Signed overflow is undefined; unsigned arithmetic isn't,
// and gives the same bits. Types of 16 bits and less would be promoted to int.
template <typename T>
using Wrapping = typename std::conditional_t<!std::is_integral_v<T>, std::type_identity<T>,
                                             std::conditional_t<sizeof(T) < 4, std::type_identity<uint32_t>, std::make_unsigned<T>>>::type;

}  // namespace ort_train
