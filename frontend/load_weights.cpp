#include "frontend/load_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "frontend/element.h"
#include "frontend/hash.h"
#include "frontend/runtime.h"
#include "frontend/weight_file.h"
#include "graph/error.h"
#include "graph/weight_blocks.h"

namespace ort_train {

std::map<std::string, std::string> WeightLoader::load(bool unchanged_alone) {
  std::map<std::string, std::string> sums;
  for (const Weight& weight : job_.model.weights) {
    const std::vector<Slice> slices = runtime_.slices_of(weight.parameter);
    const bool unchanged = runtime_.is_unchanged(weight);
    if (!unchanged && unchanged_alone) continue;
    const std::string sum = load_weight(weight, slices);
    if (unchanged && !slices.empty()) sums[weight.parameter] = sum;
  }
  return sums;
}

// Returns its checksum.
std::string WeightLoader::load_weight(const Weight& weight, const std::vector<Slice>& slices) {
  Hash hash;
  const WeightPlace& from = weight.places.at(0);
  if (weight.fresh) {
    load_fresh(weight, slices);
    return {};
  }
  if (is_weight_blocks(weight.dtype)) return load_blocks(weight, slices);
  const int64_t all = element_count(from.shape);
  int64_t first = 0;  // element
  for (const Slice& slice : slices) {
    const TensorType& type = runtime_.type_of(slice.name);
    const int64_t count = slice.bytes / size_of(weight.dtype);
    require(!from.transposed && type.dtype == weight.dtype && first + count <= all, "a weight that is not stored as it is used");
    // Of a pack the rest stays what it is: other weights, or zeros.
    const auto whole = slice.bytes == type.bytes() ? runtime_.blank(slice.name) : runtime_.persistent(slice.name);
    const auto bytes = whole.subspan(static_cast<size_t>(slice.offset), static_cast<size_t>(slice.bytes));
    read_weight(from, first, weight.dtype, bytes);
    hash.add(bytes);
    runtime_.changed(slice.name);
    first += count;
  }
  return hash.text();
}

// The same of a weight that is stored in blocks: it is the model's, and divided where blocks begin.
std::string WeightLoader::load_blocks(const Weight& weight, const std::vector<Slice>& slices) {
  const Elements32 finite = [&, numbers = numbers_in(weight.places.at(0))](int64_t first, int64_t count, const auto& sink) {
    numbers(first, count, [&](std::span<const float> piece) {
      if (!std::all_of(piece.begin(), piece.end(), [](float x) { return std::isfinite(x); }))
        throw error(ErrorCode::data, "the weight '{}' has numbers that aren't finite, which {} can't hold: use another `base_dtype`",
                    weight.parameter, to_string(weight.dtype));
      sink(piece);
    });
  };
  Hash hash;
  const float mean = mean_scale(weight.dtype, element_count(weight.places[0].shape), finite);
  int64_t first = 0;
  for (const Slice& slice : slices) {
    const int64_t count = element_count(runtime_.type_of(slice.name).shape);
    const auto blocks = runtime_.blank(slice.name);
    quantize_weight(weight.dtype, mean, first, count, finite, blocks);
    hash.add(blocks);
    runtime_.changed(slice.name);
    first += count;
  }
  return hash.text();
}

// The sums of the squares of a weight's numbers by their place along an axis, in the order of its elements.
std::vector<double> WeightLoader::squares_of(const Weight& weight, size_t axis) const {
  const Shape& shape = weight.places.at(0).shape;
  const int64_t all = element_count(shape), size = shape[axis], inner = element_count(shape.from(axis + 1));
  const StorageTraits storage = storage_of(weight.dtype);
  constexpr int64_t kSome = int64_t{1} << 16;  // elements: whole blocks of any type
  std::vector<double> sums(static_cast<size_t>(size));
  std::vector<float> numbers;
  int64_t element = 0;
  runtime_.read_parameter(weight.parameter, [&](int64_t, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto taken = std::min(bytes.size(), static_cast<size_t>(bytes_of(weight.dtype, kSome)));
      const int64_t held = static_cast<int64_t>(taken) / storage.block_bytes * storage.block_elements;
      numbers.resize(static_cast<size_t>(std::min(held, all - element)));
      if (is_weight_blocks(weight.dtype))
        dequantize_weight(weight.dtype, bytes.first(taken), numbers);
      else
        convert(element_of(weight.dtype), bytes.first(taken), DType::float32, std::as_writable_bytes(std::span(numbers)));
      int64_t place = element / inner % size, left = inner - element % inner;
      for (const float number : numbers) {
        sums[static_cast<size_t>(place)] += double{number} * double{number};
        if (--left > 0) continue;
        left = inner;
        place = place + 1 == size ? 0 : place + 1;
      }
      element += static_cast<int64_t>(numbers.size());
      bytes = bytes.subspan(taken);
    }
  });
  require(element == all, "a weight that isn't read as a whole");
  return sums;
}

void WeightLoader::load_fresh(const Weight& weight, const std::vector<Slice>& slices) {
  const auto ordinal = static_cast<uint32_t>(&weight - job_.model.weights.data());
  if (const FreshNumbers& fresh = *weight.fresh; !fresh.squares_of.empty()) {
    if (squares_.of != fresh.squares_of)
      squares_ = {.of = fresh.squares_of, .sums = squares_of(weight_named(job_.model.weights, fresh.squares_of), fresh.axis)};
    size_t at = 0;
    for (const Slice& slice : slices) {
      const auto bytes = runtime_.persistent(slice.name).subspan(static_cast<size_t>(slice.offset), static_cast<size_t>(slice.bytes));
      for (size_t to = 0; to < bytes.size(); to += sizeof(float)) {
        const double sum = squares_.sums.at(at++);
        const auto number = static_cast<float>(fresh.root ? std::sqrt(sum) : sum);
        std::memcpy(bytes.data() + to, &number, sizeof number);
      }
      runtime_.changed(slice.name);
    }
    return;
  }
  int64_t first = 0;  // element
  for (const Slice& slice : slices) {
    const auto bytes = runtime_.persistent(slice.name).subspan(static_cast<size_t>(slice.offset), static_cast<size_t>(slice.bytes));
    write_fresh(*weight.fresh, weight.dtype, job_.options.seed, ordinal, first, bytes);
    runtime_.changed(slice.name);
    first += slice.bytes / size_of(weight.dtype);
  }
}

}  // namespace ort_train
