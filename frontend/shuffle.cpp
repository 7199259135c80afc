#include "frontend/shuffle.h"

#include "graph/error.h"

namespace ort_train {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64 (Steele, Lea & Flood 2014)
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Shuffle::Shuffle(uint64_t seed, int64_t epoch, int64_t n) : n_(static_cast<uint64_t>(n)) {
  require(n > 0, "a shuffle of nothing");
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
  for (int round = 0; round < kRounds; ++round)
    keys_[round] = mix(mix(mix(seed) ^ static_cast<uint64_t>(epoch)) + static_cast<uint64_t>(round));
}

int64_t Shuffle::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    x = (left << half_bits_) | right;
  } while (x >= n_);
  return static_cast<int64_t>(x);
}

}  // namespace ort_train
