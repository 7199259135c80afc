#include "frontend/element.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>

#include "graph/error.h"

namespace ort_train {
namespace {

constexpr std::string_view kElementNames[] = {"float16", "bfloat16", "float32", "float64", "int8",   "int16", "int32",
                                              "int64",   "uint8",    "uint16",  "uint32",  "uint64", "bool"};

template <typename To, typename From> bool fits(From value) {
  if constexpr (std::is_same_v<To, bool>)
    return value == From{0} || value == From{1};
  else if constexpr (std::is_signed_v<From>) {
    return static_cast<int64_t>(value) >= static_cast<int64_t>(std::numeric_limits<To>::min()) &&
           (value < 0 || static_cast<uint64_t>(value) <= static_cast<uint64_t>(std::numeric_limits<To>::max()));
  } else {
    return static_cast<uint64_t>(value) <= static_cast<uint64_t>(std::numeric_limits<To>::max());
  }
}

template <typename From, typename To> int64_t convert_all(const std::byte* from, std::byte* to, int64_t count) {
  constexpr bool halves = !std::is_same_v<To, Compute<To>>, floats = std::is_floating_point_v<To>;
  for (int64_t i = 0; i < count; ++i) {
    From value;  // neither side need be aligned
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    To result;
    if constexpr (halves) {
      result = store<To>(static_cast<float>(load(value)));
      if (std::isfinite(load(value)) && !std::isfinite(load(result))) return i;
    } else if constexpr (floats) {
      result = static_cast<To>(load(value));
    } else {
      if (!fits<To>(value)) return i;
      result = static_cast<To>(value);
    }
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), &result, sizeof(To));
  }
  return -1;
}

template <typename From> int64_t integers(const std::byte* from, DType to, std::byte* result, int64_t count) {
  switch (to) {
    case DType::int64:
      return convert_all<From, int64_t>(from, result, count);
    case DType::int32:
      return convert_all<From, int32_t>(from, result, count);
    case DType::int16:
      return convert_all<From, int16_t>(from, result, count);
    case DType::int8:
      return convert_all<From, int8_t>(from, result, count);
    case DType::uint8:
      return convert_all<From, uint8_t>(from, result, count);
    case DType::boolean:
      return convert_all<From, bool>(from, result, count);
    default:
      break;
  }
  throw error(ErrorCode::data, "integers can't become {}", to_string(to));
}

template <typename From> int64_t floats(const std::byte* from, DType to, std::byte* result, int64_t count) {
  if (to == DType::float32) return convert_all<From, float>(from, result, count);
  if (to == DType::float64) return convert_all<From, double>(from, result, count);
  if (to == DType::float16) return convert_all<From, float16>(from, result, count);
  if (to == DType::bfloat16) return convert_all<From, bfloat16>(from, result, count);
  throw error(ErrorCode::data, "floating-point numbers can't become {}", to_string(to));
}

}  // namespace

int64_t size_of(Element element) {
  switch (element) {
    case Element::float64:
    case Element::int64:
    case Element::uint64:
      return 8;
    case Element::float32:
    case Element::int32:
    case Element::uint32:
      return 4;
    case Element::float16:
    case Element::bfloat16:
    case Element::int16:
    case Element::uint16:
      return 2;
    case Element::int8:
    case Element::uint8:
    case Element::boolean:
      return 1;
  }
  return 0;
}

bool is_float(Element element) {
  return element == Element::float16 || element == Element::bfloat16 || element == Element::float32 || element == Element::float64;
}

std::string_view to_string(Element element) { return kElementNames[static_cast<size_t>(element)]; }

std::optional<Element> element_named(std::string_view name) {
  const auto found = std::find(std::begin(kElementNames), std::end(kElementNames), name);
  if (found == std::end(kElementNames)) return std::nullopt;
  return static_cast<Element>(found - std::begin(kElementNames));
}

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return Element::float32;
    case DType::float64:
      return Element::float64;
    case DType::float16:
      return Element::float16;
    case DType::bfloat16:
      return Element::bfloat16;
    case DType::int64:
      return Element::int64;
    case DType::int32:
      return Element::int32;
    case DType::int16:
      return Element::int16;
    case DType::int8:
      return Element::int8;
    case DType::uint8:
    case DType::dynamic8:
    case DType::dynamic8_unsigned:
    case DType::nf4:
    case DType::nf4_double:
    case DType::block_int8:
      return Element::uint8;  // as bytes
    case DType::boolean:
      return Element::boolean;
  }
  return Element::float32;
}

bool converts(Element from, DType to) {
  if (element_of(to) == from) return true;
  return is_float(from) ? to == DType::float32 || to == DType::float64 : !is_floating(to);
}

int64_t convert(Element from, std::span<const std::byte> bytes, DType to, std::span<std::byte> result) {
  const int64_t count = static_cast<int64_t>(result.size()) / size_of(to);
  require(static_cast<int64_t>(bytes.size()) == count * size_of(from), "a conversion between arrays of different lengths");
  if (element_of(to) == from && from != Element::boolean) {
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return -1;
  }
  switch (from) {
    case Element::int8:
      return integers<int8_t>(bytes.data(), to, result.data(), count);
    case Element::int16:
      return integers<int16_t>(bytes.data(), to, result.data(), count);
    case Element::int32:
      return integers<int32_t>(bytes.data(), to, result.data(), count);
    case Element::int64:
      return integers<int64_t>(bytes.data(), to, result.data(), count);
    case Element::boolean:
    case Element::uint8:
      return integers<uint8_t>(bytes.data(), to, result.data(), count);
    case Element::uint16:
      return integers<uint16_t>(bytes.data(), to, result.data(), count);
    case Element::uint32:
      return integers<uint32_t>(bytes.data(), to, result.data(), count);
    case Element::uint64:
      return integers<uint64_t>(bytes.data(), to, result.data(), count);
    case Element::float16:
      return floats<float16>(bytes.data(), to, result.data(), count);
    case Element::bfloat16:
      return floats<bfloat16>(bytes.data(), to, result.data(), count);
    case Element::float32:
      return floats<float>(bytes.data(), to, result.data(), count);
    case Element::float64:
      return floats<double>(bytes.data(), to, result.data(), count);
  }
  return -1;
}

int sign_at(Element element, std::span<const std::byte> bytes, int64_t i) {
  const auto width = static_cast<size_t>(size_of(element));
  const auto number = bytes.subspan(static_cast<size_t>(i) * width, width);  // the sign is in its last byte
  constexpr std::byte kSign{0x80};
  const bool has_sign =
      is_float(element) || element == Element::int8 || element == Element::int16 || element == Element::int32 || element == Element::int64;
  const std::byte last = is_float(element) ? number.back() & ~kSign : number.back();  // there are two zeros
  const bool is_zero =
      last == std::byte{0} && std::all_of(number.begin(), number.end() - 1, [](std::byte byte) { return byte == std::byte{0}; });
  return is_zero ? 0 : has_sign && (number.back() & kSign) != std::byte{0} ? -1 : 1;
}

std::byte* take_corner(std::byte* out, const std::byte* in, std::span<const int64_t> from, std::span<const int64_t> to, int64_t element) {
  const int64_t inner = std::accumulate(from.begin() + 1, from.end(), element, std::multiplies<>());
  if (std::equal(from.begin() + 1, from.end(), to.begin() + 1)) {
    std::memmove(out, in, static_cast<size_t>(to[0] * inner));
    return out + to[0] * inner;
  }
  for (int64_t i = 0; i < to[0]; ++i) out = take_corner(out, in + i * inner, from.subspan(1), to.subspan(1), element);
  return out;
}

}  // namespace ort_train
