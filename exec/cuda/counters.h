// Which thread draws which random numbers (exec/random.h): a thread takes counters, each of whose four numbers are those of four neighbours
// in the step's batch.

#pragma once

#include "exec/block.h"
#include "exec/random.h"

ORT_TRAIN_OPS_BEGIN

struct Counters {
  static constexpr int kThreads = 256, kEach = 4;  // of a thread

  static int64_t blocks(int64_t n) { return n == 0 ? 0 : (n / 4 + 1 + kThreads * kEach) / (kThreads * kEach); }
};

// Calls body(first, numbers, is_whole) for the counters that a block's threads take: element first + i of the tensor's n has numbers[i].
// is_whole: all four of them are there, and `first` is a multiple of 4; otherwise some may lie outside.
template <class Block, typename Body>
HOST_DEVICE inline void each_counter(Block& block, const DrawAddress& address, const int64_t* random, int64_t n, const Body& body) {
  block.each([&](int t) {
    const int64_t before = address.before(random, n);
    const PhiloxKey key = address.key(random);
    for (int k = 0; k < Counters::kEach; ++k) {
      const int64_t counter = before / 4 + (block.index * Counters::kEach + k) * Counters::kThreads + t, first = 4 * counter - before;
      if (first >= n) continue;
      body(first, philox_numbers(address.counter(random, counter), key), before % 4 == 0 && first + 4 <= n);
    }
  });
}

ORT_TRAIN_OPS_END
