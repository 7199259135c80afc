#include "frontend/weight_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "frontend/element.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"

namespace ort_train {
namespace {

void read_integers(const File& file, const FileRange& range, const IntegerIndex& index, int64_t first, std::span<std::byte> to) {
  std::vector<std::byte> bytes;
  std::vector<uint16_t> elements(static_cast<size_t>(IntegerIndex::kEach));
  while (!to.empty()) {
    const auto block = static_cast<size_t>(first / IntegerIndex::kEach), skipped = static_cast<size_t>(first % IntegerIndex::kEach);
    const int64_t begin = index.begins.at(block),
                  end = block + 1 < index.begins.size() ? index.begins[block + 1] : range.offset + range.bytes;
    bytes.resize(static_cast<size_t>(end - begin));
    file.read(begin, bytes);
    std::span<const std::byte> rest(bytes);
    const size_t decoded = onnx::decode_varints(rest, sizeof(uint16_t), std::as_writable_bytes(std::span(elements))),
                 wanted = std::min(elements.size() - skipped, to.size() / sizeof(uint16_t));
    if (decoded < skipped + wanted) throw error(ErrorCode::io, "'{}' was changed since it was imported", file.path());
    std::memcpy(to.data(), elements.data() + skipped, wanted * sizeof(uint16_t));
    to = to.subspan(wanted * sizeof(uint16_t));
    first += static_cast<int64_t>(wanted);
  }
}

}  // namespace

std::optional<IntegerIndex> index_integers(const File& file, const FileRange& range, int64_t count) {
  constexpr int64_t kRead = int64_t{1} << 16;  // bytes
  IntegerIndex index;
  std::vector<uint16_t> elements(static_cast<size_t>(IntegerIndex::kEach));
  std::vector<std::byte> bytes;
  int64_t element = 0, at = range.offset;
  for (const int64_t end = range.offset + range.bytes; at < end;) {
    bytes.resize(static_cast<size_t>(std::min(kRead, end - at)));
    file.read(at, bytes);
    std::span<const std::byte> rest(bytes);
    for (size_t decoded = 1; decoded > 0 && element < count; element += static_cast<int64_t>(decoded)) {
      const int64_t behind = element % IntegerIndex::kEach;  // a block's beginning
      if (behind == 0 && !rest.empty()) index.begins.push_back(at + static_cast<int64_t>(bytes.size() - rest.size()));
      const int64_t left = std::min(IntegerIndex::kEach - behind, count - element);
      const auto to = std::as_writable_bytes(std::span(elements).first(static_cast<size_t>(left)));
      decoded = onnx::decode_varints(rest, sizeof(uint16_t), to);
      if (decoded == 0 && behind == 0 && !rest.empty()) index.begins.pop_back();  // cut short
    }
    if (rest.size() == bytes.size() || (element == count && !rest.empty())) return std::nullopt;
    at += static_cast<int64_t>(bytes.size() - rest.size());
  }
  if (element != count) return std::nullopt;
  return index;
}

void read_elements(const File& file, const FileRange& range, const IntegerIndex* integers, int64_t element_bytes, int64_t first,
                   std::span<std::byte> to) {
  if (integers != nullptr)
    read_integers(file, range, *integers, first, to);
  else
    file.read(range.offset + first * element_bytes, to);
}

void read_elements(const File& file, const WeightPlace& from, int64_t first, std::span<std::byte> to) {
  read_elements(file, from.bytes, from.integers.get(), size_of(from.dtype), first, to);
}

void read_weight(const WeightPlace& from, int64_t first, DType wanted, std::span<std::byte> to) {
  const File file = open_range(from.bytes);
  if (from.dtype == wanted) return read_elements(file, from, first, to);
  constexpr int64_t kBlock = int64_t{1} << 18;  // elements
  std::vector<std::byte> buffer;
  while (!to.empty()) {
    const int64_t count = std::min(static_cast<int64_t>(to.size()) / size_of(wanted), kBlock);
    buffer.resize(static_cast<size_t>(count * size_of(from.dtype)));
    read_elements(file, from, first, buffer);
    const auto bytes = static_cast<size_t>(count * size_of(wanted));
    if (const int64_t bad = convert(element_of(from.dtype), buffer, wanted, to.first(bytes)); bad >= 0) {
      throw error(
          ErrorCode::data,
          "{}: number {} of the weight '{}' is more than {} can hold: use `bf16`, which keeps trained weights in float32, or another "
          "`base_dtype`",
          from.bytes.path, first + bad, from.name, to_string(wanted));
    }
    to = to.subspan(bytes);
    first += count;
  }
}

bool same_elements(const ElementReader& a, const ElementReader& b, const Shape& shape, int64_t size, bool transposed) {
  constexpr int64_t kSide = 512;
  const int64_t rows = shape.empty() ? 1 : shape[0], columns = element_count(shape) / std::max<int64_t>(1, rows);
  std::vector<std::byte> of_a, of_b;
  const auto part = [&](std::vector<std::byte>& bytes, int64_t element, int64_t count) {
    return std::span(bytes).subspan(static_cast<size_t>(element * size), static_cast<size_t>(count * size));
  };
  for (int64_t row = 0; row < rows; row += kSide) {
    for (int64_t column = 0; column < columns; column += kSide) {
      const int64_t down = std::min(kSide, rows - row), across = std::min(kSide, columns - column);
      of_a.resize(static_cast<size_t>(down * across * size));
      of_b.resize(of_a.size());
      for (int64_t i = 0; i < down; ++i) {
        if (!a((row + i) * columns + column, part(of_a, i * across, across))) return false;
        if (!transposed && !b((row + i) * columns + column, part(of_b, i * across, across))) return false;
      }
      if (!transposed && of_a != of_b) return false;
      for (int64_t j = 0; transposed && j < across; ++j) {
        if (!b((column + j) * rows + row, part(of_b, j * down, down))) return false;
        for (int64_t i = 0; i < down; ++i) {
          if (!std::ranges::equal(part(of_a, i * across + j, 1), part(of_b, j * down + i, 1))) return false;
        }
      }
    }
  }
  return true;
}

Elements32 numbers_in(const WeightPlace& place) {
  return [&place](int64_t first, int64_t count, const std::function<void(std::span<const float>)>& sink) {
    constexpr int64_t kBlock = int64_t{1} << 18;  // elements
    std::vector<float> numbers;
    for (int64_t done = 0; done < count;) {
      numbers.resize(static_cast<size_t>(std::min(kBlock, count - done)));
      read_weight(place, first + done, DType::float32, std::as_writable_bytes(std::span(numbers)));
      sink(numbers);
      done += static_cast<int64_t>(numbers.size());
    }
  };
}

void read_rows(const WeightPlace& place, DType as, const ByteSink& sink) {
  constexpr int64_t kBlock = int64_t{1} << 18;  // elements
  const int64_t count = element_count(place.shape), row = place.shape.empty() ? count : count / std::max<int64_t>(1, place.shape[0]);
  const int64_t block = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, row)) * row;
  std::vector<std::byte> numbers;
  for (int64_t first = 0; first < count; first += block) {
    const int64_t n = std::min(block, count - first);
    numbers.resize(static_cast<size_t>(n * size_of(as)));
    read_weight(place, first, as, numbers);
    sink(first * size_of(as), numbers);
  }
}

}  // namespace ort_train
