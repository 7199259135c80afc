// Stochastic rounding to bfloat16: up with the probability that the rest has of the distance, so that many small changes of a weight add up
// to what they are on average, where rounding to nearest would lose each of them.
//
// An update has the attributes seed, ordinal (of the weight) and first (the element of the whole weight with which this part begins), and
// the optimizer's scalars have the step behind them (exec/random.h). The number of an element follows from these alone: sixteen bits, two
// elements a word. Dropout's keys have ordinals without the highest bit.

#pragma once

#include <algorithm>

#include "exec/kernel.h"
#include "exec/random.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

// x with sixteen random bits; infinities and NaN stay, what bfloat16 has stays.
HOST_DEVICE inline bfloat16 round_stochastically(float x, uint32_t random) {
  const uint32_t bits = float_bits::of(x);
  const uint32_t up = (bits + random) >> 16, plain = to_bfloat16(x).bits;
  return {static_cast<uint16_t>((bits & 0x7f800000u) == 0x7f800000u ? plain : up)};
}

class StochasticRounding {
 public:
  explicit StochasticRounding(const Attributes& attributes)
      : seed_(static_cast<uint64_t>(attributes.get("seed", int64_t{0}))),
        ordinal_(static_cast<uint32_t>(attributes.get("ordinal", int64_t{0})) | 0x80000000u),
        first_(attributes.get("first", int64_t{0})) {}

  // Elements [begin, begin + n) of the part: `to` from the numbers of these elements. `step`: as behind the scalars.
  void round(const float* step, int64_t begin, int64_t n, const float* from, bfloat16* to) const {
    constexpr int64_t kElements = 8 * kPhiloxLanes;  // of the words of one call
    uint32_t words[4 * kPhiloxLanes];
    const auto number = static_cast<uint64_t>(step[0]) * kStepLow + static_cast<uint64_t>(step[1]);
    for (int64_t at = 0; at < n;) {
      const int64_t element = first_ + begin + at, skip = element % kElements;
      const auto block = static_cast<uint64_t>(element / kElements) * kPhiloxLanes;
      philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(number),
              static_cast<uint32_t>(number >> 32) ^ static_cast<uint32_t>(seed_ >> 32)},
             {static_cast<uint32_t>(seed_), ordinal_}, words);
      const int64_t count = std::min(kElements - skip, n - at);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t e = skip + i;  // the first half of the elements takes the lower halves of the words
        const uint32_t word = words[e % (kElements / 2)];
        to[at + i] = round_stochastically(from[at + i], e < kElements / 2 ? word & 0xffffu : word >> 16);
      }
      at += count;
    }
  }

 private:
  uint64_t seed_;
  uint32_t ordinal_;
  int64_t first_;
};

ORT_TRAIN_OPS_END
