// Random numbers with addresses: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), a fixed function of a
// key and a counter. Whoever asks for a number again, in whatever order and on whatever thread, gets the same.
//
// A node of the user's model draws under the key (seed, ordinal of the node in the file) and the counter (optimizer step, number of the
// element in the batch of the whole step). So a recomputed node draws what it drew before, and micro-batches draw what the large batch
// draws.

#pragma once

#include <array>
#include <cstdint>

namespace ort_train {

// The graph input that says where a run stands: int64 [kRandomNumbers].
inline constexpr const char* kRandomInput = "ort_train.random";
enum RandomNumber : int64_t {
  kRandomSeed,
  kRandomStep,     // optimizer steps, from 1
  kRandomFirst,    // samples of this step's batch that came before this micro-batch
  kRandomSamples,  // of this micro-batch
  kRandomNumbers   // how many
};

// Where updates round stochastically, these stand behind the optimizer's scalars: the step as high * kStepLow + low, both float32.
inline constexpr int64_t kStepNumbers = 2, kStepLow = int64_t{1} << 20;

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline constexpr int kPhiloxLanes = 16;  // counters at once

// Four numbers for each of kPhiloxLanes counters that count up from `counter` in its first two words (a carry out of them is lost):
// numbers[4 * lane + word].
inline void philox(const PhiloxCounter& counter, const PhiloxKey& key, uint32_t* numbers) {
  uint32_t words[4][kPhiloxLanes];
  const uint64_t first = counter[0] | uint64_t{counter[1]} << 32;
  for (int i = 0; i < kPhiloxLanes; ++i) {
    const uint64_t at = first + static_cast<uint64_t>(i);
    words[0][i] = static_cast<uint32_t>(at), words[1][i] = static_cast<uint32_t>(at >> 32);
    words[2][i] = counter[2], words[3][i] = counter[3];
  }
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
    for (int i = 0; i < kPhiloxLanes; ++i) {
      const uint64_t a = uint64_t{0xd2511f53u} * words[0][i], b = uint64_t{0xcd9e8d57u} * words[2][i];
      words[0][i] = static_cast<uint32_t>(b >> 32) ^ words[1][i] ^ k0;
      words[2][i] = static_cast<uint32_t>(a >> 32) ^ words[3][i] ^ k1;
      words[1][i] = static_cast<uint32_t>(b);
      words[3][i] = static_cast<uint32_t>(a);
    }
  }
  for (int i = 0; i < kPhiloxLanes; ++i) {
    for (int word = 0; word < 4; ++word) numbers[4 * i + word] = words[word][i];
  }
}

}  // namespace ort_train
