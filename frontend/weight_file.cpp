#include "frontend/weight_file.h"

#include <algorithm>
#include <vector>

#include "frontend/element.h"
#include "graph/error.h"

namespace ort_train {

// Numbers of a file, in another type where the weight has one of its own.
void read_weight(const FileRange& from, DType stored, DType wanted, std::span<std::byte> to) {
  if (stored == wanted) return read_range(from, to);
  constexpr int64_t kBlock = int64_t{1} << 18;  // elements
  std::vector<std::byte> buffer;
  FileRange range = from;
  for (const int64_t end = from.offset + from.bytes; range.offset < end; range.offset += range.bytes) {
    range.bytes = std::min(end - range.offset, kBlock * size_of(stored));
    buffer.resize(static_cast<size_t>(range.bytes));
    read_range(range, buffer);
    const auto bytes = static_cast<size_t>(range.bytes / size_of(stored) * size_of(wanted));
    if (const int64_t bad = convert(element_of(stored), buffer, wanted, to.first(bytes)); bad >= 0) {
      throw error(ErrorCode::data,
                  "{}: the weight's number at byte {} is more than {} can hold: use `bf16`, which keeps trained weights in float32, or "
                  "another `base_dtype`",
                  range.path, range.offset + bad * size_of(stored), to_string(wanted));
    }
    to = to.subspan(bytes);
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
    const int64_t size = size_of(place.dtype);
    for (int64_t done = 0; done < count;) {
      numbers.resize(static_cast<size_t>(std::min(kBlock, count - done)));
      FileRange range = place.bytes;
      range.offset += (first + done) * size;
      range.bytes = static_cast<int64_t>(numbers.size()) * size;
      read_weight(range, place.dtype, DType::float32, std::as_writable_bytes(std::span(numbers)));
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
    FileRange range = place.bytes;
    range.offset += first * size_of(place.dtype);
    range.bytes = n * size_of(place.dtype);
    numbers.resize(static_cast<size_t>(n * size_of(as)));
    read_weight(range, place.dtype, as, numbers);
    sink(first * size_of(as), numbers);
  }
}

}  // namespace ort_train
