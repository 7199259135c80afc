// How frozen weights are stored in few bits, block by block along their rows. A last block that is short has all of a block's bytes.
//
//   nf4          A block is 64 elements: 32 bytes of two codes each, the first in the upper half, and the largest absolute value as
//                float32. A code stands for one of 16 numbers, quantiles of the normal distribution (Dettmers et al., QLoRA, arXiv
//                2305.14314). An element is that number times the block's largest.
//
//   nf4_double   A group is 256 of these blocks: first their codes, then the largest absolute value of each as a code of signed dynamic8
//                (graph/dynamic8.h), then two numbers as float32: what these are multiplied by, and the mean that is added to them.
//
//   block_int8   A block is 64 elements: a signed byte each, and the largest absolute value / 127 as float32.
//
// Codes of nf4 and of its scales are those of bitsandbytes, but for blocks of zeros, whose codes are 0 here.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace ort_train {

enum class DType : uint8_t;

inline constexpr int64_t kWeightBlock = 64;                   // elements with a scale
inline constexpr int64_t kNf4Codes = 32;                      // bytes of a block
inline constexpr int64_t kNf4Bytes = 36;                      // with the scale
inline constexpr int64_t kNf4Group = 256;                     // blocks of nf4_double
inline constexpr int64_t kNf4Scales = kNf4Group * kNf4Codes;  // where in a group the codes of scales are, behind all others
inline constexpr int64_t kNf4GroupBytes = kNf4Scales + kNf4Group + 8;
inline constexpr int64_t kInt8Bytes = 68;

inline constexpr std::array<float, 16> kNf4{-1.0f,
                                            -0.6961928009986877f,
                                            -0.5250730514526367f,
                                            -0.39491748809814453f,
                                            -0.28444138169288635f,
                                            -0.18477343022823334f,
                                            -0.09105003625154495f,
                                            0.0f,
                                            0.07958029955625534f,
                                            0.16093020141124725f,
                                            0.24611230194568634f,
                                            0.33791524171829224f,
                                            0.44070982933044434f,
                                            0.5626170039176941f,
                                            0.7229568362236023f,
                                            1.0f};
inline constexpr uint8_t kNf4Zero = 7;

// Hands over `count` elements from `first` on, in as many pieces as it likes, in order.
using Elements32 = std::function<void(int64_t first, int64_t count, const std::function<void(std::span<const float>)>& sink)>;
// What nf4_double adds to its scales: their mean over a weight of `all` elements; 0 for the others.
float mean_scale(DType dtype, int64_t all, const Elements32& elements);
// The blocks of elements [first, first + count) of a weight with that mean; `first` is where a block begins.
void quantize_weight(DType dtype, float mean, int64_t first, int64_t count, const Elements32& elements, std::span<std::byte> blocks);

// The numbers of so many elements, of whole blocks.
void dequantize_weight(DType dtype, std::span<const std::byte> blocks, std::span<float> elements);

}  // namespace ort_train
