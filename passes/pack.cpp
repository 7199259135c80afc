// Greedy placement in several orders, then "squeaky wheel" rounds (Joslin & Clements, JAIR 10, 1999): the blocks that ended up above the
// lower bound go to the front of the order, and everything is placed again. The lowest result wins; the search ends at the lower bound.

#include "passes/pack.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

namespace ort_train {
namespace {

// What the rounds may cost, in steps of the inner loop (a nanosecond or two each): fixed, so that the result is.
constexpr int64_t kRoundSteps = 100'000'000;
constexpr int64_t kMaxRounds = 600;
// So far above what is enough, rounds lead nowhere.
constexpr double kHopeless = 1.01;

int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) & -alignment; }

// Live bytes at each time, from the first to the last that occurs.
std::vector<int64_t> live_profile(const std::vector<Block>& blocks) {
  int32_t end = 0;
  for (const Block& block : blocks) end = std::max(end, block.last + 1);
  std::vector<int64_t> live(static_cast<size_t>(end) + 1);
  for (const Block& block : blocks) {
    live[block.first] += align_up(block.bytes, block.alignment);
    live[block.last + 1] -= align_up(block.bytes, block.alignment);
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  return live;
}

using Order = std::vector<uint32_t>;

// What is placed already, by address, in chunks whose times are looked through many at once.
class Placements {
 public:
  void clear() { chunks_.clear(); }

  void add(int64_t offset, int64_t end, int32_t first, int32_t last) {
    // Behind all that begin at or below it.
    auto at = std::upper_bound(chunks_.begin(), chunks_.end(), offset, [](int64_t o, const Chunk& c) { return o < c.offset[0]; });
    if (at != chunks_.begin()) --at;
    if (at == chunks_.end()) at = chunks_.emplace(at);
    if (at->count == kChunk) at = split(at, offset);
    Chunk& chunk = *at;
    const auto i = static_cast<size_t>(std::upper_bound(chunk.offset, chunk.offset + chunk.count, offset) - chunk.offset);
    const auto insert = [&](auto& of, auto value) {
      std::copy_backward(of + i, of + chunk.count, of + chunk.count + 1);
      of[i] = value;
    };
    insert(chunk.first, first);
    insert(chunk.last, last);
    insert(chunk.offset, offset);
    insert(chunk.end, end);
    ++chunk.count;
  }

  // Calls `body(offset, end)` for each that lives at a time between, by address, until it returns false.
  template <typename Body> void each_within(int32_t first, int32_t last, Body&& body) const {
    for (const Chunk& chunk : chunks_) {
      for (uint64_t mask = chunk.within(first, last); mask != 0; mask &= mask - 1) {
        const auto i = static_cast<size_t>(std::countr_zero(mask));
        if (!body(chunk.offset[i], chunk.end[i])) return;
      }
    }
  }

 private:
  static constexpr size_t kChunk = 64;
  struct Chunk {
    size_t count = 0;
    int32_t first[kChunk], last[kChunk];  // of those behind `count`: never
    int64_t offset[kChunk], end[kChunk];

    Chunk() {
      std::fill(first, first + kChunk, INT32_MAX);
      std::fill(last, last + kChunk, INT32_MIN);
    }
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

  std::vector<Chunk>::iterator split(std::vector<Chunk>::iterator at, int64_t offset) {
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
    move(low.offset, high.offset, int64_t{0});
    move(low.end, high.end, int64_t{0});
    low.count = high.count = kHalf;
    return offset < high.offset[0] ? at : std::next(at);
  }

  std::vector<Chunk> chunks_;
};

// Places blocks one by one, each at the lowest gap that takes it, or at the tightest one.
class Placer {
 public:
  explicit Placer(const std::vector<Block>& blocks) : blocks_(blocks), offsets_(blocks.size()) {}

  // Gives up where it will be as high as `below`; says whether it is lower.
  bool place(const Order& order, bool tightest, int64_t below) {
    placed_.clear();
    height_ = 0;
    for (uint32_t index : order) {
      const Block& block = blocks_[index];
      const int64_t offset = tightest ? find_gap<true>(block) : find_gap<false>(block);
      offsets_[index] = offset;
      height_ = std::max(height_, offset + block.bytes);
      if (height_ >= below) return false;
      placed_.add(offset, offset + block.bytes, block.first, block.last);
    }
    return true;
  }

  int64_t height() const { return height_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  template <bool tightest> int64_t find_gap(const Block& block) const {
    int64_t cursor = 0, chosen = -1, chosen_room = INT64_MAX;
    placed_.each_within(block.first, block.last, [&](int64_t offset, int64_t end) {
      const int64_t room = offset - cursor;
      if (room >= block.bytes && room < chosen_room) {
        chosen = cursor;
        chosen_room = room;
        if (!tightest || room == block.bytes) return false;
      }
      cursor = std::max(cursor, align_up(end, block.alignment));
      return true;
    });
    return chosen >= 0 ? chosen : cursor;
  }

  const std::vector<Block>& blocks_;
  Placements placed_;
  std::vector<int64_t> offsets_;
  int64_t height_ = 0;
};

class Packer {
 public:
  explicit Packer(std::vector<Block>& blocks) : blocks_(blocks), placer_(blocks), other_(blocks) {}

  // Places the blocks in this order; keeps the result if it is the best so far.
  void place(const Order& order, bool tightest) {
    if (placer_.place(order, tightest, INT64_MAX)) keep(placer_, order, tightest);
  }

  // In either way, where it is better than the best so far: until that is no more than `enough`.
  void place_both(const Order& order, int64_t enough) {
    if (placer_.place(order, false, best_)) keep(placer_, order, false);
    if (best_ > enough && other_.place(order, true, best_)) keep(other_, order, true);
  }

  // Those that stick out above `limit` in the last placement go first, the rest after them; both in their present order.
  Order blame(const Order& order, int64_t limit, int64_t stride) const {
    std::vector<std::pair<int64_t, uint32_t>> keys;
    keys.reserve(order.size());
    for (size_t at = 0; at < order.size(); ++at) {
      const bool guilty = placer_.offsets()[order[at]] + blocks_[order[at]].bytes > limit;
      // Moved forward by a share of its position rather than to the very front: the big blocks that shape the rest keep their lead.
      keys.emplace_back(guilty ? static_cast<int64_t>(at) * stride / 8 * 2 : static_cast<int64_t>(at) * 2 + 1, order[at]);
    }
    std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    Order next;
    next.reserve(order.size());
    for (const auto& [key, index] : keys) next.push_back(index);
    return next;
  }

  int64_t best() const { return best_; }
  const Order& best_order() const { return best_order_; }
  bool best_tightest() const { return best_tightest_; }
  void apply() const {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].offset = best_offsets_[i];
  }

 private:
  void keep(const Placer& placer, const Order& order, bool tightest) {
    if (placer.height() >= best_) return;
    best_ = placer.height();
    best_order_ = order;
    best_tightest_ = tightest;
    best_offsets_ = placer.offsets();
  }

  std::vector<Block>& blocks_;
  Placer placer_, other_;
  std::vector<int64_t> best_offsets_;
  int64_t best_ = INT64_MAX;
  Order best_order_;
  bool best_tightest_ = false;
};

template <typename Key> Order sorted_by(const std::vector<Block>& blocks, Key key) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(blocks[a]) > key(blocks[b]); });
  return order;
}

// Blocks by the fullest moment of their lives: what is live at the peak is placed first, tightly, then the next fullest moment …
Order by_pressure(const std::vector<Block>& blocks) {
  const std::vector<int64_t> live = live_profile(blocks);
  std::vector<int64_t> pressure(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i)
    pressure[i] = *std::max_element(live.begin() + blocks[i].first, live.begin() + blocks[i].last + 1);
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(pressure[a], blocks[a].bytes) > std::pair(pressure[b], blocks[b].bytes);
  });
  return order;
}

int size_class(const Block& block) { return std::bit_width(static_cast<uint64_t>(block.bytes)); }

void run_rounds(Packer& packer, int64_t bound, int64_t blocks) {
  const int64_t rounds = std::clamp(kRoundSteps / (blocks * blocks / 2 + 1), int64_t{8}, kMaxRounds);
  Order order = packer.best_order();
  bool tightest = packer.best_tightest();
  for (int64_t round = 0; round < rounds && packer.best() > bound; ++round) {
    packer.place(order, tightest);
    const int64_t limit = round % 3 == 0 ? bound : packer.best() - 1;
    order = packer.blame(order, limit, /*stride=*/round % 8);
    if (round % 32 == 31) {  // leads nowhere: start again from the best, with the other kind of gap
      order = packer.blame(packer.best_order(), bound, round / 32 % 8);
      tightest = !tightest;
    }
  }
}

}  // namespace

int64_t max_live_bytes(const std::vector<Block>& blocks, int32_t* when) {
  const std::vector<int64_t> live = live_profile(blocks);
  const auto peak = std::max_element(live.begin(), live.end());
  if (when) *when = static_cast<int32_t>(peak - live.begin());
  return *peak;
}

int64_t pack(std::vector<Block>& blocks, const PackOptions& options) {
  if (blocks.empty()) return 0;
  for (Block& block : blocks) block.bytes = align_up(block.bytes, block.alignment);
  const int64_t bound = std::max(max_live_bytes(blocks), options.enough);
  const auto lifetime = [](const Block& b) { return static_cast<double>(b.last) - b.first + 1; };
  std::vector<std::vector<Order>> starts{
      {
          sorted_by(blocks, [](const Block& b) { return std::pair(b.bytes, int64_t{-b.first}); }),
          sorted_by(blocks, [&](const Block& b) { return static_cast<double>(b.bytes) * lifetime(b); }),
          by_pressure(blocks),
          sorted_by(blocks, [&](const Block& b) { return std::pair(lifetime(b), b.bytes); }),
          sorted_by(blocks, [](const Block& b) { return std::pair(int64_t{-b.first}, b.bytes); }),
          sorted_by(blocks, [](const Block& b) { return std::pair(int64_t{b.last}, b.bytes); }),
      },
      {
          sorted_by(blocks, [](const Block& b) { return std::pair(b.bytes, int64_t{b.last}); }),
          sorted_by(blocks, [&](const Block& b) { return static_cast<double>(b.bytes) * std::sqrt(lifetime(b)); }),
          sorted_by(blocks, [](const Block& b) { return std::pair(size_class(b), int64_t{-b.first}); }),
          sorted_by(blocks, [&](const Block& b) { return std::pair(size_class(b), lifetime(b)); }),
          sorted_by(blocks, [&](const Block& b) { return std::pair(b.bytes, lifetime(b)); }),
      },
  };
  const bool is_given = bound == options.enough;
  // With many short lives between transfers the second ones mostly do better, and what does well enough ends the search; the first lead to
  // less in the rounds.
  if (is_given) std::swap(starts[0], starts[1]);
  Packer packer(blocks);
  for (const auto& orders : starts) {
    const int64_t before = packer.best();
    for (const Order& order : orders)
      if (packer.best() > bound) packer.place_both(order, bound);
    const bool is_hopeless = is_given && static_cast<double>(packer.best()) > kHopeless * static_cast<double>(bound);
    if (packer.best() < before && !is_hopeless) run_rounds(packer, bound, static_cast<int64_t>(blocks.size()));
  }
  packer.apply();
  return packer.best();
}

}  // namespace ort_train
