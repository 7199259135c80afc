// Element types, shapes and constant tensors: the vocabulary that every folder shares.
//
// All of these are values; none is synchronised.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/half.h"

namespace ort_train {

enum class DType : uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean,
  dynamic8,           // numbers in 8 bits, in blocks with a scale (graph/dynamic8.h): optimizer state
  dynamic8_unsigned,  // the same of numbers that are never negative
  nf4,                // 4 bits, in blocks with a scale (graph/weight_blocks.h): frozen weights
  nf4_double,         // the same, with the scales in 8 bits
  block_int8,         // 8 bits
};

// How elements lie in memory: in blocks of so many elements and bytes. A block of a number is the number itself.
struct StorageTraits {
  int64_t block_elements = 1;
  int64_t block_bytes = 0;
};
StorageTraits storage_of(DType dtype);
// Bytes of so many elements: whole blocks.
int64_t bytes_of(DType dtype, int64_t elements);
// Bytes of one element, of types whose blocks are single elements; booleans take one byte.
int64_t size_of(DType dtype);
// "float32", "int64", "bool" …
std::string_view to_string(DType dtype);
bool is_floating(DType dtype);
// Numbers that are stored in blocks, each of which has to be read as a whole.
constexpr bool is_quantized(DType dtype) { return dtype >= DType::dynamic8; }
// Those of frozen weights, which products read as float32.
constexpr bool is_weight_blocks(DType dtype) { return dtype >= DType::nf4; }
// float16 or bfloat16: 16 bits of storage, computed with in float32.
constexpr bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }
// What arithmetic on elements is done in.
constexpr DType compute_type(DType dtype) { return is_half(dtype) || is_weight_blocks(dtype) ? DType::float32 : dtype; }

// A set of element types.
class DTypes {
 public:
  constexpr DTypes() = default;
  constexpr DTypes(std::initializer_list<DType> types) {
    for (DType type : types) bits_ |= bit(type);
  }
  constexpr bool has(DType type) const { return (bits_ & bit(type)) != 0; }
  constexpr DTypes operator|(DTypes other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  static constexpr uint32_t bit(DType type) { return uint32_t{1} << static_cast<uint32_t>(type); }
  uint32_t bits_ = 0;
};
std::string to_string(DTypes types);  // "float32, float64"
// Makes each element the number; in an integer an infinity is the greatest or the least that it can be, and a boolean is false of 0 and
// -infinity alone. Throws Error(unsupported) for a number other than 0 in types that nothing computes with.
void fill_elements(std::span<std::byte> bytes, DType dtype, double number);

// DType of a C++ type: dtype_of<float>() == DType::float32. bool is DType::boolean.
template <typename T> constexpr DType dtype_of();
template <> constexpr DType dtype_of<float>() { return DType::float32; }
template <> constexpr DType dtype_of<double>() { return DType::float64; }
template <> constexpr DType dtype_of<float16>() { return DType::float16; }
template <> constexpr DType dtype_of<bfloat16>() { return DType::bfloat16; }
template <> constexpr DType dtype_of<int64_t>() { return DType::int64; }
template <> constexpr DType dtype_of<int32_t>() { return DType::int32; }
template <> constexpr DType dtype_of<int16_t>() { return DType::int16; }
template <> constexpr DType dtype_of<int8_t>() { return DType::int8; }
template <> constexpr DType dtype_of<uint8_t>() { return DType::uint8; }
template <> constexpr DType dtype_of<bool>() { return DType::boolean; }

// Fixed dimensions, row-major; empty for a scalar. Everything is bound at import, so there are no unknown ones.
//
// Axes are checked: asking for one that isn't there throws Error(unsupported), so that a shape rule may index what a file gives it.
class Shape : public std::vector<int64_t> {
 public:
  using std::vector<int64_t>::vector;
  Shape(std::vector<int64_t> dims) : std::vector<int64_t>(std::move(dims)) {}  // lists of dimensions are shapes

  int64_t& operator[](size_t axis) { return data()[checked(axis)]; }
  const int64_t& operator[](size_t axis) const { return data()[checked(axis)]; }
  int64_t& front() { return (*this)[0]; }
  const int64_t& front() const { return (*this)[0]; }
  int64_t& back() { return (*this)[size() - 1]; }
  const int64_t& back() const { return (*this)[size() - 1]; }
  // The dimensions before `axis`, and from it on.
  Shape before(size_t axis) const;
  Shape from(size_t axis) const;

 private:
  size_t checked(size_t axis) const {
    if (axis >= size()) throw_no_axis(axis);
    return axis;
  }
  [[noreturn]] void throw_no_axis(size_t axis) const;
};

// What a tensor may have. No memory holds more, and the sizes of thousands of such tensors add up within 64 bits.
inline constexpr size_t kMaxRank = 64;
inline constexpr int64_t kMaxElements = int64_t{1} << 48;

// Throws Error(unsupported) where a dimension is negative, or there are more than kMaxElements (a dimension of 0 counts as 1, so that
// strides fit too).
int64_t element_count(const Shape& shape);
// "[8, 32, 64]"
std::string to_string(const Shape& shape);
// The product; throws Error(unsupported) where it doesn't fit in 64 bits.
int64_t checked_product(std::initializer_list<int64_t> sizes);
// Row-major strides in elements.
std::vector<int64_t> strides_of(const Shape& shape);
// Axis in [-rank, rank) to [0, rank); throws Error(unsupported) that names `what`.
int64_t normalize_axis(int64_t axis, int64_t rank, std::string_view what);
// Without its axes of one element: the elements and their order are the same.
Shape without_ones(const Shape& shape);
// NumPy broadcasting; throws Error(unsupported) that names both shapes.
Shape broadcast(const Shape& a, const Shape& b);

// A number as an integer, towards zero. What the type can't hold (NaN, infinities, numbers out of range), which C++ leaves undefined,
// becomes what x86 makes of it, and so NumPy there: the least integer, of which narrow types keep the low bits.
template <typename To, typename From> constexpr To to_integer(From value) {
  if constexpr (sizeof(To) < sizeof(int32_t)) {
    return static_cast<To>(to_integer<int32_t>(value));
  } else {
    constexpr From least = static_cast<From>(std::numeric_limits<To>::min());
    return value >= least && value < -least ? static_cast<To>(value) : std::numeric_limits<To>::min();
  }
}

struct TensorType {
  DType dtype = DType::float32;
  Shape shape;
  int64_t bytes() const { return bytes_of(dtype, element_count(shape)); }
  bool operator==(const TensorType&) const = default;
};
std::string to_string(const TensorType& type);  // "float32 [8, 32, 64]"
// Throws Error(unsupported) for a type that no tensor can have: too many dimensions, or too many elements. Values and constants are checked
// where they are made, so that whoever computes with their sizes need not.
void check_type(const TensorType& type);
// Bytes of elements of so many bytes each, as files of arrays state them; nothing where no tensor can have that shape.
std::optional<int64_t> bytes_of(int64_t element_bytes, const Shape& shape);

// A constant that lives in ordinary memory: folded shapes, masks, scalars. Weights never do.
struct Tensor {
  DType dtype = DType::float32;
  Shape shape;
  std::vector<std::byte> bytes;  // bytes_of(dtype, element_count(shape))

  Tensor() = default;
  Tensor(DType dtype_, Shape shape_);  // zeros

  TensorType type() const { return {dtype, shape}; }
  int64_t size() const { return element_count(shape); }
  // Elements; T must be the C++ type of dtype (checked, Error(unsupported) else).
  template <typename T> std::span<const T> data() const {
    check_dtype(dtype_of<T>());
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <typename T> std::span<T> data() {
    check_dtype(dtype_of<T>());
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Integers of whatever width, as int64; throws Error(unsupported) if it isn't an integer or boolean tensor.
  std::vector<int64_t> to_int64() const;
  // Numbers of whatever type, as double.
  std::vector<double> to_double() const;
  bool operator==(const Tensor&) const = default;

 private:
  void check_dtype(DType wanted) const;
};

template <typename T> Tensor make_tensor(Shape shape, const std::vector<T>& values) {
  Tensor tensor(dtype_of<T>(), std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) tensor.data<T>()[i] = values[i];
  return tensor;
}
template <typename T> Tensor scalar_tensor(T value) { return make_tensor<T>({}, {value}); }

}  // namespace ort_train
