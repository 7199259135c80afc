#include "graph/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "graph/dynamic8.h"
#include "graph/error.h"
#include "graph/half.h"
#include "graph/weight_blocks.h"

namespace ort_train {

StorageTraits storage_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return {1, 8};
    case DType::float32:
    case DType::int32:
      return {1, 4};
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
      return {1, 2};
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
      return {1, 1};
    case DType::dynamic8:
    case DType::dynamic8_unsigned:
      return {kDynamic8Block, kDynamic8BlockBytes};
    case DType::nf4:
      return {kWeightBlock, kNf4Bytes};
    case DType::nf4_double:
      return {kWeightBlock * kNf4Group, kNf4GroupBytes};
    case DType::block_int8:
      return {kWeightBlock, kInt8Bytes};
  }
  return {};
}

int64_t bytes_of(DType dtype, int64_t elements) {
  const StorageTraits storage = storage_of(dtype);
  return (elements + storage.block_elements - 1) / storage.block_elements * storage.block_bytes;
}

int64_t size_of(DType dtype) {
  const StorageTraits storage = storage_of(dtype);
  require(storage.block_elements == 1, "the bytes of one element of a type that is stored in blocks");
  return storage.block_bytes;
}

std::string to_string(DTypes types) {
  std::string text;
  for (DType type :
       {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32, DType::int16, DType::int8,
        DType::uint8, DType::boolean, DType::dynamic8, DType::dynamic8_unsigned, DType::nf4, DType::nf4_double, DType::block_int8}) {
    if (types.has(type)) text += (text.empty() ? "" : ", ") + std::string(to_string(type));
  }
  return text;
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int64:
      return "int64";
    case DType::int32:
      return "int32";
    case DType::int16:
      return "int16";
    case DType::int8:
      return "int8";
    case DType::uint8:
      return "uint8";
    case DType::boolean:
      return "bool";
    case DType::dynamic8:
      return "dynamic8";
    case DType::dynamic8_unsigned:
      return "dynamic8_unsigned";
    case DType::nf4:
      return "nf4";
    case DType::nf4_double:
      return "nf4_double";
    case DType::block_int8:
      return "block_int8";
  }
  return "?";
}

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 || dtype == DType::bfloat16;
}

namespace {

template <typename T> void fill_with(std::span<std::byte> bytes, T number) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) std::memcpy(bytes.data() + at, &number, sizeof(T));
}

template <typename T> void fill_with_integer(std::span<std::byte> bytes, double number) {
  using Limits = std::numeric_limits<T>;
  fill_with(bytes, !std::isinf(number) ? to_integer<T>(number) : number > 0 ? Limits::max() : Limits::lowest());
}

// Both maps have 1 as their last code.
void fill_blocks(std::span<std::byte> bytes, float number) {
  require(bytes.size() % kDynamic8BlockBytes == 0, "a part of a block of 8-bit numbers");
  for (size_t at = 0; at < bytes.size(); at += kDynamic8BlockBytes) {
    std::memset(bytes.data() + at, 255, kDynamic8Block);
    std::memcpy(bytes.data() + at + kDynamic8Block, &number, sizeof(number));
  }
}

}  // namespace

void fill_elements(std::span<std::byte> bytes, DType dtype, double number) {
  if (number == 0) {
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
    return;
  }
  switch (dtype) {
    case DType::float32:
      return fill_with(bytes, static_cast<float>(number));
    case DType::float64:
      return fill_with(bytes, number);
    case DType::int64:
      return fill_with_integer<int64_t>(bytes, number);
    case DType::int32:
      return fill_with_integer<int32_t>(bytes, number);
    case DType::int16:
      return fill_with_integer<int16_t>(bytes, number);
    case DType::int8:
      return fill_with_integer<int8_t>(bytes, number);
    case DType::uint8:
      return fill_with_integer<uint8_t>(bytes, number);
    case DType::boolean:
      return fill_with(bytes, number != -std::numeric_limits<double>::infinity());
    case DType::float16:
      return fill_with(bytes, to_float16(static_cast<float>(number)));
    case DType::bfloat16:
      return fill_with(bytes, to_bfloat16(static_cast<float>(number)));
    case DType::dynamic8:
    case DType::dynamic8_unsigned:
      if (number > 0) return fill_blocks(bytes, static_cast<float>(number));
      [[fallthrough]];
    default:
      throw error(ErrorCode::unsupported, "elements of type {} can't begin as {}, only as 0", to_string(dtype), number);
  }
}

Shape Shape::before(size_t axis) const {
  if (axis > size()) throw_no_axis(axis);
  return {begin(), begin() + static_cast<ptrdiff_t>(axis)};
}

Shape Shape::from(size_t axis) const {
  if (axis > size()) throw_no_axis(axis);
  return {begin() + static_cast<ptrdiff_t>(axis), end()};
}

void Shape::throw_no_axis(size_t axis) const {
  if (empty()) throw error(ErrorCode::unsupported, "a scalar stands where a tensor with more axes is needed");
  throw error(ErrorCode::unsupported, "a tensor of {} has no axis {}", to_string(*this), static_cast<int64_t>(axis));
}

namespace {

enum class Fit { yes, negative, too_many, far_too_many };

Fit fit(const Shape& shape, int64_t& count) {
  count = 1;
  int64_t nonzero = 1;
  for (int64_t dim : shape) {
    if (dim < 0) return Fit::negative;
    if (__builtin_mul_overflow(nonzero, dim == 0 ? 1 : dim, &nonzero)) return Fit::far_too_many;
    count *= dim;  // at most `nonzero`
  }
  return nonzero <= kMaxElements ? Fit::yes : Fit::too_many;
}

}  // namespace

int64_t element_count(const Shape& shape) {
  int64_t count = 0;
  switch (fit(shape, count)) {
    case Fit::yes:
      return count;
    case Fit::negative:
      throw error(ErrorCode::unsupported, "the shape {} has a negative dimension", to_string(shape));
    case Fit::too_many:
      throw error(ErrorCode::unsupported, "a tensor of the shape {} has more bytes than fit into any memory", to_string(shape));
    case Fit::far_too_many:
      break;
  }
  throw error(ErrorCode::unsupported, "a tensor of the shape {} has more elements than fit in 64 bits", to_string(shape));
}

std::optional<int64_t> bytes_of(int64_t element_bytes, const Shape& shape) {
  int64_t count = 0;
  if (shape.size() > kMaxRank || fit(shape, count) != Fit::yes) return std::nullopt;
  return count * element_bytes;
}

void check_type(const TensorType& type) {
  if (type.shape.size() > kMaxRank)
    throw error(ErrorCode::unsupported, "a tensor of {} dimensions is needed; at most {} are supported", type.shape.size(), kMaxRank);
  element_count(type.shape);
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t checked_product(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product))
      throw error(ErrorCode::unsupported, "the product of the sizes {} doesn't fit in 64 bits", to_string(std::vector<int64_t>(sizes)));
  }
  return product;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

int64_t normalize_axis(int64_t axis, int64_t rank, std::string_view what) {
  if (axis < -rank || axis >= rank) {
    throw error(ErrorCode::unsupported, "{} {} is outside a tensor of rank {}", what, axis, rank);
  }
  return axis < 0 ? axis + rank : axis;
}

Shape without_ones(const Shape& shape) {
  Shape others;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(others), [](int64_t size) { return size != 1; });
  return others;
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) {  // from the last dimension
    const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (da != db && da != 1 && db != 1) {
      throw error(ErrorCode::unsupported, "the shapes {} and {} can't be broadcast together", to_string(a), to_string(b));
    }
    result[result.size() - 1 - i] = da == 1 ? db : da;
  }
  return result;
}

std::string to_string(const TensorType& type) { return fmt::format("{} {}", to_string(type.dtype), to_string(type.shape)); }

Tensor::Tensor(DType dtype_, Shape shape_) : dtype(dtype_), shape(std::move(shape_)) {
  check_type({dtype, shape});
  bytes.resize(static_cast<size_t>(bytes_of(dtype, element_count(shape))));
}

void Tensor::check_dtype(DType wanted) const {
  if (dtype != wanted) {
    throw error(ErrorCode::unsupported, "a constant is {} where {} is expected", to_string(dtype), to_string(wanted));
  }
}

namespace {

template <typename Result> std::vector<Result> converted(const Tensor& tensor, bool floats_too) {
  std::vector<Result> result(static_cast<size_t>(tensor.size()));
  const auto copy = [&](auto data) {
    std::transform(data.begin(), data.end(), result.begin(), [](auto v) { return static_cast<Result>(load(v)); });
  };
  switch (tensor.dtype) {
    case DType::int64:
      copy(tensor.data<int64_t>());
      return result;
    case DType::int32:
      copy(tensor.data<int32_t>());
      return result;
    case DType::int16:
      copy(tensor.data<int16_t>());
      return result;
    case DType::int8:
      copy(tensor.data<int8_t>());
      return result;
    case DType::uint8:
      copy(tensor.data<uint8_t>());
      return result;
    case DType::boolean:
      copy(tensor.data<bool>());
      return result;
    default:
      break;
  }
  if (!floats_too) throw error(ErrorCode::unsupported, "a constant is {} where integers are expected", to_string(tensor.dtype));
  if (is_quantized(tensor.dtype)) {
    std::vector<float> numbers(result.size());
    dequantize(tensor.dtype, tensor.bytes, numbers);
    copy(std::span<const float>(numbers));
  } else if (tensor.dtype == DType::float32) {
    copy(tensor.data<float>());
  } else if (tensor.dtype == DType::float64) {
    copy(tensor.data<double>());
  } else if (tensor.dtype == DType::float16) {
    copy(tensor.data<float16>());
  } else {
    copy(tensor.data<bfloat16>());
  }
  return result;
}

}  // namespace

std::vector<int64_t> Tensor::to_int64() const { return converted<int64_t>(*this, false); }
std::vector<double> Tensor::to_double() const { return converted<double>(*this, true); }

}  // namespace ort_train
