#include "graph/dynamic8.h"

#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "graph/types.h"
#include "graph/weight_blocks.h"

namespace ort_train {

const std::array<float, 256>& dynamic8_map(DType dtype) {
  require(dtype == DType::dynamic8 || dtype == DType::dynamic8_unsigned, "the codes of a type that has none");
  return dtype == DType::dynamic8 ? kDynamic8Signed : kDynamic8Unsigned;
}

void dequantize(DType dtype, std::span<const std::byte> blocks, std::span<float> elements) {
  if (is_weight_blocks(dtype)) return dequantize_weight(dtype, blocks, elements);
  const auto n = static_cast<int64_t>(elements.size());
  require(static_cast<int64_t>(blocks.size()) >= bytes_of(dtype, n), "fewer blocks than the elements have");
  const std::array<float, 256>& map = dynamic8_map(dtype);
  for (int64_t begin = 0; begin < n; begin += kDynamic8Block) {
    const std::byte* const block = blocks.data() + begin / kDynamic8Block * kDynamic8BlockBytes;
    float scale;
    std::memcpy(&scale, block + kDynamic8Block, sizeof(scale));
    for (int64_t i = begin; i < std::min(begin + kDynamic8Block, n); ++i)
      elements[static_cast<size_t>(i)] = map[static_cast<size_t>(block[i - begin])] * scale;
  }
}

}  // namespace ort_train
