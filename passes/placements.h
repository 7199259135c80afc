// Placements: ranges of addresses that are taken for a time, by address; those of a time are found many at once.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace ort_train {

struct Range {
  int64_t begin = 0, end = 0;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

class Placements {
 public:
  void clear() { chunks_.clear(); }

  // From step `first` to `last`.
  void add(uint32_t item, const Range& range, int32_t first, int32_t last) {
    auto at = chunk_of(range.begin);
    if (at == chunks_.end()) at = chunks_.emplace(at);
    if (at->count == kChunk) at = split(at, range.begin);
    Chunk& chunk = *at;
    const auto i = static_cast<size_t>(std::upper_bound(chunk.begin, chunk.begin + chunk.count, range.begin) - chunk.begin);
    const auto insert = [&](auto& of, auto value) {
      std::copy_backward(of + i, of + chunk.count, of + chunk.count + 1);
      of[i] = value;
    };
    insert(chunk.first, first);
    insert(chunk.last, last);
    insert(chunk.item, item);
    insert(chunk.begin, range.begin);
    insert(chunk.end, range.end);
    ++chunk.count;
  }

  // An item that was added with that beginning.
  void remove(uint32_t item, int64_t begin) {
    auto at = chunk_of(begin);
    size_t i = at->find(item);
    for (; i == at->count; i = at->find(item)) --at;
    Chunk& chunk = *at;
    const auto erase = [&](auto& of) { std::copy(of + i + 1, of + chunk.count, of + i); };
    erase(chunk.first);
    erase(chunk.last);
    erase(chunk.item);
    erase(chunk.begin);
    erase(chunk.end);
    if (--chunk.count == 0)
      chunks_.erase(at);
    else
      chunk.first[chunk.count] = INT32_MAX, chunk.last[chunk.count] = INT32_MIN;
  }

  // Calls body(item, range) for each that is there at a step between, by address, until it returns false; whether it never did.
  template <typename Body> bool each_within(int32_t first, int32_t last, Body&& body) const {
    for (const Chunk& chunk : chunks_) {
      for (uint64_t mask = chunk.within(first, last); mask != 0; mask &= mask - 1) {
        const auto i = static_cast<size_t>(std::countr_zero(mask));
        if (!body(chunk.item[i], Range{chunk.begin[i], chunk.end[i]})) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kChunk = 64;
  struct Chunk {
    size_t count = 0;
    int32_t first[kChunk], last[kChunk];  // of those after `count`: never
    uint32_t item[kChunk];
    int64_t begin[kChunk], end[kChunk];

    Chunk() {
      std::fill(first, first + kChunk, INT32_MAX);
      std::fill(last, last + kChunk, INT32_MIN);
    }
    size_t find(uint32_t of) const { return static_cast<size_t>(std::find(item, item + count, of) - item); }
    // A bit each.
    uint64_t within(int32_t from, int32_t to) const {
      const __m256i after = _mm256_set1_epi32(to), before = _mm256_set1_epi32(from);
      const auto eight = [](const int32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); };
      uint64_t without = 0;
      for (size_t i = 0; i < kChunk; i += 8) {
        const __m256i is = _mm256_or_si256(_mm256_cmpgt_epi32(eight(first + i), after), _mm256_cmpgt_epi32(before, eight(last + i)));
        without |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is)))) << i;
      }
      return ~without;
    }
  };

  // The last that begins at or below an address, or the first.
  std::vector<Chunk>::iterator chunk_of(int64_t address) {
    auto at = std::upper_bound(chunks_.begin(), chunks_.end(), address, [](int64_t a, const Chunk& c) { return a < c.begin[0]; });
    return at == chunks_.begin() ? at : std::prev(at);
  }

  std::vector<Chunk>::iterator split(std::vector<Chunk>::iterator at, int64_t address) {
    constexpr size_t kHalf = kChunk / 2;
    at = std::prev(chunks_.insert(std::next(at), Chunk()));
    Chunk& low = *at;
    Chunk& high = *std::next(at);
    const auto move = [&](auto& from, auto& to, auto never) {
      std::copy(from + kHalf, from + kChunk, to);
      std::fill(from + kHalf, from + kChunk, never);
    };
    move(low.first, high.first, INT32_MAX);
    move(low.last, high.last, INT32_MIN);
    move(low.item, high.item, 0u);
    move(low.begin, high.begin, int64_t{0});
    move(low.end, high.end, int64_t{0});
    low.count = high.count = kHalf;
    return address < high.begin[0] ? at : std::next(at);
  }

  std::vector<Chunk> chunks_;
};

}  // namespace ort_train
