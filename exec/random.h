// Random numbers with addresses: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), a fixed function of a
// key and a counter. Whoever asks for a number again, in whatever order and on whatever thread, gets the same.
//
// A node of the user's model draws under the key (run's seed, the node's ordinal in the file mixed with its own attribute `seed`) and the
// counter (optimizer step, number of the element in the batch of the whole step). So a recomputed node draws what it drew before, and
// micro-batches draw what the large batch draws.

#pragma once

#ifndef __CUDACC__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>

#include "graph/attributes.h"
#include "graph/half.h"

namespace ort_train {

// The graph input that says where a run stands: int64 [kRandomNumbers].
inline constexpr const char* kRandomInput = "ort_train.random";
enum RandomNumber : int64_t {
  kRandomSeed,
  kRandomStep,     // optimizer steps, from 1; 0 outside training
  kRandomFirst,    // samples of this step's batch that came before this micro-batch
  kRandomSamples,  // of this micro-batch
  kRandomNumbers   // how many
};

// Where updates round stochastically, these stand behind the optimizer's scalars: the step as high * kStepLow + low, both float32.
inline constexpr int64_t kStepNumbers = 2, kStepLow = int64_t{1} << 20;

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline constexpr int kPhiloxLanes = 16;  // counters at once

// The four numbers of one counter.
HOST_DEVICE inline PhiloxCounter philox_numbers(const PhiloxCounter& counter, const PhiloxKey& key) {
  uint32_t w0 = counter[0], w1 = counter[1], w2 = counter[2], w3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
    const uint64_t a = uint64_t{0xd2511f53u} * w0, b = uint64_t{0xcd9e8d57u} * w2;
    w0 = static_cast<uint32_t>(b >> 32) ^ w1 ^ k0;
    w2 = static_cast<uint32_t>(a >> 32) ^ w3 ^ k1;
    w1 = static_cast<uint32_t>(b);
    w3 = static_cast<uint32_t>(a);
  }
  return {w0, w1, w2, w3};
}

// Where a node finds its numbers. `random` is kRandomInput's value.
struct DrawAddress {
  uint32_t ordinal;
  bool shared;    // what is drawn is no sample's: the same in every micro-batch
  uint32_t seed;  // the node's own

  explicit DrawAddress(const Attributes& attributes)
      : ordinal(static_cast<uint32_t>(attributes.get("ordinal", 0))),
        shared(attributes.get("shared", 0) != 0),
        seed(static_cast<uint32_t>(attributes.get("seed", 0))) {}

  HOST_DEVICE PhiloxKey key(const int64_t* random) const { return {static_cast<uint32_t>(random[kRandomSeed]), ordinal ^ spread(seed)}; }
  // Seeds that differ in one bit, as neighbouring ordinals do, become keys that differ in half of them (the last steps of MurmurHash3). 0
  // stays.
  HOST_DEVICE static uint32_t spread(uint32_t seed) {
    seed = (seed ^ (seed >> 16)) * 0x85ebca6bu;
    seed = (seed ^ (seed >> 13)) * 0xc2b2ae35u;
    return seed ^ (seed >> 16);
  }
  // Element i of the step's batch has number i % 4 of counter i / 4.
  HOST_DEVICE static PhiloxCounter counter(const int64_t* random, int64_t number) {
    const auto seed = static_cast<uint64_t>(random[kRandomSeed]), step = static_cast<uint64_t>(random[kRandomStep]),
               block = static_cast<uint64_t>(number);
    return {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(step),
            static_cast<uint32_t>(step >> 32) ^ static_cast<uint32_t>(seed >> 32)};
  }
  // Elements of the step's batch that come before the n of this tensor.
  HOST_DEVICE int64_t before(const int64_t* random, int64_t n) const {
    const int64_t samples = random[kRandomSamples] > 1 ? random[kRandomSamples] : 1;
    return shared ? 0 : random[kRandomFirst] * ((n + samples - 1) / samples);
  }
};

#ifndef __CUDACC__
// Four numbers for each of kPhiloxLanes counters that count up from `counter` in its first two words (a carry out of them is lost):
// numbers[4 * lane + word].
inline void philox(const PhiloxCounter& counter, const PhiloxKey& key, uint32_t* numbers) {
  // Four counters at a time. Words are the lower halves of 64 bits; what the upper halves hold doesn't count.
  const auto all = [](uint32_t word) { return _mm256_set1_epi64x(word); };
  for (int lane = 0; lane < kPhiloxLanes; lane += 4) {
    const __m256i at = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(counter[0] | uint64_t{counter[1]} << 32)),
                                        _mm256_setr_epi64x(lane, lane + 1, lane + 2, lane + 3));
    __m256i w0 = at, w1 = _mm256_srli_epi64(at, 32), w2 = all(counter[2]), w3 = all(counter[3]);
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
      const __m256i a = _mm256_mul_epu32(all(0xd2511f53u), w0), b = _mm256_mul_epu32(all(0xcd9e8d57u), w2);
      w0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), w1), all(k0));
      w2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), w3), all(k1));
      w1 = b, w3 = a;
    }
    constexpr int kUpperWords = 0b10101010;
    const __m256i first = _mm256_blend_epi32(w0, _mm256_slli_epi64(w1, 32), kUpperWords),
                  second = _mm256_blend_epi32(w2, _mm256_slli_epi64(w3, 32), kUpperWords), even = _mm256_unpacklo_epi64(first, second),
                  odd = _mm256_unpackhi_epi64(first, second);
    auto* const to = reinterpret_cast<__m256i*>(numbers + 4 * lane);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

// Calls body(at, count, numbers, skip) for elements [begin, end) of a tensor, some at a time: element at + i has numbers[skip + i], of
// 4 * kPhiloxLanes. `before`: DrawAddress::before() of all of the tensor.
template <typename Body>
__attribute__((always_inline)) inline void each_drawn(const DrawAddress& address, const int64_t* random, int64_t before, int64_t begin,
                                                      int64_t end, const Body& body) {
  constexpr int64_t kNumbers = 4 * kPhiloxLanes;
  const PhiloxKey key = address.key(random);
  uint32_t numbers[kNumbers];
  for (int64_t at = begin; at < end;) {
    const int64_t element = before + at, group = element / kNumbers, skip = element % kNumbers, count = std::min(kNumbers - skip, end - at);
    philox(address.counter(random, group * kPhiloxLanes), key, numbers);
    body(at, count, numbers, skip);
    at += count;
  }
}
#endif

}  // namespace ort_train
