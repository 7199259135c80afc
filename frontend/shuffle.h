// Shuffle: a permutation of [0, n) that takes no memory, a fixed function of (seed, epoch).
//
// A Feistel network of six rounds over the smallest even number of bits that holds n; what falls outside [0, n) walks on along its cycle
// until it is inside (Black & Rogaway 2002), four tries at most on average. The round function is splitmix64's finisher.

#pragma once

#include <cstdint>

namespace ort_train {

class Shuffle {
 public:
  Shuffle(uint64_t seed, int64_t epoch, int64_t n);
  int64_t operator()(int64_t index) const;  // 0 <= index < n

 private:
  static constexpr int kRounds = 6;
  uint64_t keys_[kRounds];
  uint64_t n_;
  int half_bits_ = 1;
};

}  // namespace ort_train
