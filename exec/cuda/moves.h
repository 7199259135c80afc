// What only moves: by the largest words, up to the 16 bytes that a thread loads at once, in which memory is divided.

#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include "exec/block.h"
#include "exec/element_types.h"

ORT_TRAIN_OPS_BEGIN

struct alignas(16) WideWord {
  uint64_t low, high;
};

// n elements that lie side by side, as one load or store.
template <typename T, int n> struct alignas(sizeof(T) * n) Vector { T of[n]; };

// The largest word of which each of the sizes is a multiple; memory begins at multiples of 16 bytes.
inline int64_t word_bytes(std::span<const int64_t> sizes) {
  int64_t bytes = 16;
  for (const int64_t size : sizes) {
    while (size % bytes != 0) bytes /= 2;
  }
  return bytes;
}
inline int64_t word_bytes(std::initializer_list<int64_t> sizes) { return word_bytes(std::span(sizes.begin(), sizes.size())); }

// Calls body.operator()<Word>() for the word of so many bytes: for_word, with 16.
template <typename Body> auto for_wide_word(int64_t bytes, Body&& body) {
  if (bytes == 16) return body.template operator()<WideWord>();
  return for_word(bytes, body);
}

// For each 0 <= i < n: a Mover's put(i, take(i)). A thread takes all of its words before it puts the first, so that its loads overlap.
template <typename Mover, int each> struct MoveWords {
  static constexpr int kThreads = 256, kEach = each;
  using Shared = NoShared;
  Mover mover;
  int64_t n;
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      decltype(mover.take(0)) taken[kEach];
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = (block.index * kEach + k) * kThreads + t;
        if (i < n) taken[k] = mover.take(i);
      }
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = (block.index * kEach + k) * kThreads + t;
        if (i < n) mover.put(i, taken[k]);
      }
    });
  }
};
template <int each = 4, typename Mover> void launch_moves(const Mover& mover, int64_t n, const KernelArgs& args) {
  constexpr int64_t kBlock = MoveWords<Mover, each>::kThreads * each;
  launch(MoveWords<Mover, each>{mover, n}, (n + kBlock - 1) / kBlock, args);
}

ORT_TRAIN_OPS_END
