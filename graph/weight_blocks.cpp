#include "graph/weight_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "graph/dynamic8.h"
#include "graph/error.h"
#include "graph/types.h"

namespace ort_train {
namespace {

// Halfway between neighbours, as bitsandbytes rounds them; a number on one of them takes the lower code.
constexpr float kNf4Thresholds[] = {-0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
                                    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
                                    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
                                    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};

float largest(std::span<const float> block) {
  float most = 0;
  for (const float x : block) most = std::max(most, std::abs(x));
  return most;
}

uint8_t nf4_code(float x) {
  return static_cast<uint8_t>(std::lower_bound(std::begin(kNf4Thresholds), std::end(kNf4Thresholds), x) - std::begin(kNf4Thresholds));
}

void write_codes(std::span<const float> block, float most, std::byte* to) {
  const float inverse = most > 0 ? 1 / most : 0;
  std::memset(to, kNf4Zero << 4 | kNf4Zero, kNf4Codes);
  for (size_t i = 0; i < block.size(); ++i) {
    const auto code = static_cast<std::byte>(nf4_code(block[i] * inverse));
    std::byte& pair = to[i / 2];
    pair = i % 2 == 0 ? (pair & std::byte{0x0f}) | code << 4 : (pair & std::byte{0xf0}) | code;
  }
}

// The code of the nearest number of signed dynamic8.
uint8_t scale_code(float x) {
  const auto above = std::lower_bound(kDynamic8Signed.begin(), kDynamic8Signed.end(), x);
  if (above == kDynamic8Signed.begin()) return 0;
  if (above == kDynamic8Signed.end()) return 255;
  const auto below = std::prev(above);
  return static_cast<uint8_t>((x - *below <= *above - x ? below : above) - kDynamic8Signed.begin());
}

// Calls body(number of the block from `first` on, its elements) for each.
template <typename Body> void for_blocks(int64_t first, int64_t count, const Elements32& elements, Body&& body) {
  std::vector<float> block;
  int64_t number = 0;
  const auto finish = [&] {
    if (!block.empty()) body(number++, std::span<const float>(block));
    block.clear();
  };
  elements(first, count, [&](std::span<const float> piece) {
    while (!piece.empty()) {
      const size_t taken = std::min(piece.size(), static_cast<size_t>(kWeightBlock) - block.size());
      block.insert(block.end(), piece.begin(), piece.begin() + static_cast<ptrdiff_t>(taken));
      piece = piece.subspan(taken);
      if (static_cast<int64_t>(block.size()) == kWeightBlock) finish();
    }
  });
  finish();
}

void quantize_twice(float mean, int64_t first, int64_t count, const Elements32& elements, std::span<std::byte> groups) {
  float scales[kNf4Group];
  const auto finish = [&](int64_t group, int64_t used) {  // its scales, once all are known
    std::byte* const to = groups.data() + group * kNf4GroupBytes + kNf4Scales;
    float most = 0;
    for (int64_t b = 0; b < used; ++b) most = std::max(most, std::abs(scales[b] - mean));
    const float inverse = most > 0 ? 1 / most : 0;
    for (int64_t b = 0; b < used; ++b) to[b] = static_cast<std::byte>(scale_code((scales[b] - mean) * inverse));
    std::memcpy(to + kNf4Group, &most, sizeof most);
    std::memcpy(to + kNf4Group + 4, &mean, sizeof mean);
  };
  int64_t last = -1;
  for_blocks(first, count, elements, [&](int64_t number, std::span<const float> block) {
    const int64_t group = number / kNf4Group, at = number % kNf4Group;
    if (at == 0 && group > 0) finish(group - 1, kNf4Group);
    scales[at] = largest(block);
    write_codes(block, scales[at], groups.data() + group * kNf4GroupBytes + at * kNf4Codes);
    last = number;
  });
  if (last >= 0) finish(last / kNf4Group, last % kNf4Group + 1);
}

}  // namespace

float mean_scale(DType dtype, int64_t all, const Elements32& elements) {
  if (dtype != DType::nf4_double) return 0;
  double sum = 0;
  int64_t blocks = 0;
  for_blocks(0, all, elements, [&](int64_t, std::span<const float> block) {
    sum += static_cast<double>(largest(block));
    ++blocks;
  });
  return blocks == 0 ? 0 : static_cast<float>(sum / static_cast<double>(blocks));
}

void quantize_weight(DType dtype, float mean, int64_t first, int64_t count, const Elements32& elements, std::span<std::byte> blocks) {
  require(first % storage_of(dtype).block_elements == 0 && static_cast<int64_t>(blocks.size()) == bytes_of(dtype, count),
          "blocks of a weight that aren't whole");
  std::fill(blocks.begin(), blocks.end(), std::byte{0});
  if (dtype == DType::nf4_double) return quantize_twice(mean, first, count, elements, blocks);
  for_blocks(first, count, elements, [&](int64_t number, std::span<const float> block) {
    float scale = largest(block);
    if (dtype == DType::nf4) {
      std::byte* const to = blocks.data() + number * kNf4Bytes;
      write_codes(block, scale, to);
      std::memcpy(to + kNf4Codes, &scale, sizeof scale);
      return;
    }
    std::byte* const to = blocks.data() + number * kInt8Bytes;
    const float inverse = scale > 0 ? 127 / scale : 0;
    scale /= 127;
    for (size_t i = 0; i < block.size(); ++i) to[i] = static_cast<std::byte>(static_cast<int8_t>(std::lrint(block[i] * inverse)));
    std::memcpy(to + kWeightBlock, &scale, sizeof scale);
  });
}

void dequantize_weight(DType dtype, std::span<const std::byte> blocks, std::span<float> elements) {
  const auto n = static_cast<int64_t>(elements.size());
  require(static_cast<int64_t>(blocks.size()) >= bytes_of(dtype, n), "fewer blocks than the elements have");
  const auto number_at = [](const std::byte* at) {
    float number;
    std::memcpy(&number, at, sizeof number);
    return number;
  };
  for (int64_t i = 0; i < n; ++i) {
    const int64_t block = i / kWeightBlock, at = i % kWeightBlock;
    const std::byte* codes = blocks.data() + block * (dtype == DType::nf4 ? kNf4Bytes : kInt8Bytes);
    float scale = dtype == DType::nf4_double ? 0 : number_at(codes + (dtype == DType::nf4 ? kNf4Codes : kWeightBlock));
    if (dtype == DType::block_int8) {
      elements[static_cast<size_t>(i)] = static_cast<float>(static_cast<int8_t>(codes[at])) * scale;
      continue;
    }
    if (dtype == DType::nf4_double) {
      const std::byte* const group = blocks.data() + block / kNf4Group * kNf4GroupBytes;
      codes = group + block % kNf4Group * kNf4Codes;
      const float most = number_at(group + kNf4Scales + kNf4Group), mean = number_at(group + kNf4Scales + kNf4Group + 4);
      scale = std::fma(kDynamic8Signed[static_cast<size_t>(group[kNf4Scales + block % kNf4Group])], most, mean);
    }
    const auto pair = static_cast<unsigned>(codes[at / 2]);
    elements[static_cast<size_t>(i)] = kNf4[at % 2 == 0 ? pair >> 4 : pair & 15] * scale;
  }
}

}  // namespace ort_train
