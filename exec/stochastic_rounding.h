// Stochastic rounding to bfloat16: up with the probability that the rest has of the distance, so that many small changes of a weight add up
// to what they are on average, where rounding to nearest would lose each of them.
//
// An update has the attributes seed, ordinal (of the weight) and first (the element of the whole weight with which this part begins), and
// the optimizer's scalars have the step behind them (exec/random.h). The number of an element follows from these alone: sixteen bits, two
// elements a word. Dropout's keys have ordinals without the highest bit.

#pragma once

#include <algorithm>
#include <utility>

#include "exec/kernel.h"
#include "exec/random.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

// The bits of x, rounded with sixteen random bits; infinities and NaN stay, what bfloat16 has stays.
HOST_DEVICE inline uint16_t round_stochastically(float x, uint32_t random) {
  const uint32_t bits = float_bits::of(x), nan = bits >> 16 | 0x40u;  // quiet
  const uint32_t special = (bits & 0x7fffffffu) > 0x7f800000u ? nan : bits >> 16;
  return static_cast<uint16_t>((bits & 0x7f800000u) == 0x7f800000u ? special : (bits + random) >> 16);
}

class StochasticRounding {
 public:
  explicit StochasticRounding(const Attributes& attributes)
      : seed_(static_cast<uint64_t>(attributes.get("seed", int64_t{0}))),
        ordinal_(static_cast<uint32_t>(attributes.get("ordinal", int64_t{0})) | 0x80000000u),
        first_(attributes.get("first", int64_t{0})) {}

  // Of the numbers of a step, by what stands behind the scalars.
  HOST_DEVICE static uint64_t number_of(const float* step) {
    return static_cast<uint64_t>(step[0]) * kStepLow + static_cast<uint64_t>(step[1]);
  }

#ifndef __CUDACC__
  // Elements [begin, begin + n) of the part: `to` from the numbers of these elements. `step`: as behind the scalars.
  void round(const float* step, int64_t begin, int64_t n, const float* from, bfloat16* to) const {
    uint32_t words[4 * kPhiloxLanes];
    const uint64_t number = number_of(step);
    for (int64_t at = 0; at < n;) {
      const int64_t element = first_ + begin + at, skip = element % kElements;
      philox(counter(static_cast<uint64_t>(element / kElements) * kPhiloxLanes, number), key(), words);
      // The first half of the elements takes the lower halves of the words.
      const int64_t count = std::min(kElements - skip, n - at), lower = std::clamp(kElements / 2 - skip, int64_t{0}, count);
      for (int64_t i = 0; i < lower; ++i) to[at + i].bits = round_stochastically(from[at + i], words[skip + i] & 0xffffu);
      for (int64_t i = lower; i < count; ++i) to[at + i].bits = round_stochastically(from[at + i], words[skip + i - kElements / 2] >> 16);
      at += count;
    }
  }
#endif

  // The same for a thread that has elements [begin, begin + 4) of the part and those from begin + kElements / 2 on: `random` of the first
  // four, then of the others. Where they begin a word's counter, one is enough for all of them.
  HOST_DEVICE void random_bits(uint64_t number, int64_t begin, uint32_t (&random)[8]) const {
    const int64_t element = first_ + begin;
    if (element % 4 == 0 && element % kElements < kElements / 2) {
      const PhiloxCounter words = words_of(element, number);
      for (int i = 0; i < 4; ++i) {
        random[i] = words[i] & 0xffffu;
        random[4 + i] = words[i] >> 16;
      }
    } else {
      const auto each = [&]<int... i>(std::integer_sequence<int, i...>) {
        ((random[i] = random_of(element + (i < 4 ? i : kElements / 2 + i - 4), number)), ...);
      };
      each(std::make_integer_sequence<int, 8>{});
    }
  }

 private:
  static constexpr int64_t kElements = 8 * kPhiloxLanes;  // that share the words of one call

  HOST_DEVICE PhiloxKey key() const { return {static_cast<uint32_t>(seed_), ordinal_}; }
  HOST_DEVICE PhiloxCounter counter(uint64_t first, uint64_t number) const {
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(number),
            static_cast<uint32_t>(number >> 32) ^ static_cast<uint32_t>(seed_ >> 32)};
  }
  HOST_DEVICE PhiloxCounter words_of(int64_t element, uint64_t number) const {
    const int64_t lane = element % (kElements / 2) / 4;
    return philox_numbers(counter(static_cast<uint64_t>(element / kElements * kPhiloxLanes + lane), number), key());
  }
  HOST_DEVICE uint32_t random_of(int64_t element, uint64_t number) const {
    const PhiloxCounter words = words_of(element, number);
    const auto at = element % 4;  // no index into what is in registers
    const uint32_t word = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
    return element % kElements < kElements / 2 ? word & 0xffffu : word >> 16;
  }

  uint64_t seed_;
  uint32_t ordinal_;
  int64_t first_;
};

ORT_TRAIN_OPS_END
