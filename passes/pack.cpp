// Greedy placement in several orders, then "squeaky wheel" rounds (Joslin & Clements, JAIR 10, 1999): the blocks that ended up above the
// lower bound go to the front of the order, and everything is placed again. The lowest result wins; the search ends at the lower bound.

#include "passes/pack.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ort_train {
namespace {

// What the rounds may cost, in steps of the inner loop (a nanosecond or two each): fixed, so that the result is.
constexpr int64_t kRoundSteps = 100'000'000;
constexpr int64_t kMaxRounds = 600;

int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

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

// What is placed already, by address, for questions of a stretch of time. Kept several times over, in windows of time of several widths, each
// half over the next: a block asks the narrowest window that holds its life, and meets few that lived at another time.
class Placements {
 public:
  struct Placed {
    int64_t offset, end;
    int32_t first, last;
  };

  explicit Placements(const std::vector<Block>& blocks) {
    std::vector<int32_t> begins;
    int32_t end = 0;
    for (const Block& block : blocks) {
      begins.push_back(block.first);
      end = std::max(end, block.last);
    }
    std::sort(begins.begin(), begins.end());
    // Units of time in which equally many begin.
    unit_of_.resize(static_cast<size_t>(end) + 1);
    for (size_t t = 0, before = 0; t < unit_of_.size(); ++t) {
      while (before < begins.size() && begins[before] < static_cast<int32_t>(t)) ++before;
      unit_of_[t] = static_cast<uint32_t>(before * kUnits / (begins.size() + 1));
    }
    for (uint32_t width = 2; blocks.size() >= kFew && width < kUnits; width *= 4) levels_.push_back({width / 2, kUnits / (width / 2)});
    levels_.push_back({kUnits, 1});
    for (Level& level : levels_) {
      level.begin = windows_.size();
      windows_.resize(windows_.size() + level.count);
    }
  }

  void clear() {
    for (auto& window : windows_) window.clear();
  }

  void add(const Placed& placed) {
    const uint32_t first = unit_of_[placed.first], last = unit_of_[placed.last];
    for (const Level& level : levels_) {
      const uint32_t from = first / level.stride, to = last / level.stride;
      for (uint32_t i = from > 0 ? from - 1 : 0; i <= to; ++i) insert(windows_[level.begin + i], placed);
    }
  }

  // All that live with a block, and some that don't.
  const std::vector<Placed>& around(const Block& block) const {
    const uint32_t first = unit_of_[block.first], last = unit_of_[block.last];
    for (const Level& level : levels_) {
      if (last < (first / level.stride + 2) * level.stride) return windows_[level.begin + first / level.stride];
    }
    return windows_.back();
  }

 private:
  struct Level {
    uint32_t stride, count;  // a window is two strides wide
    size_t begin = 0;        // its windows
  };

  static void insert(std::vector<Placed>& window, const Placed& placed) {
    window.insert(std::upper_bound(window.begin(), window.end(), placed.offset, [](int64_t at, const Placed& p) { return at < p.offset; }),
                  placed);
  }

  static constexpr uint32_t kUnits = 64;
  static constexpr size_t kFew = 256;  // blocks, that need no windows

  std::vector<uint32_t> unit_of_;  // by time
  std::vector<Level> levels_;
  std::vector<std::vector<Placed>> windows_;
};

class Packer {
 public:
  explicit Packer(std::vector<Block>& blocks) : blocks_(blocks), placed_(blocks), offsets_(blocks.size()), best_offsets_(blocks.size()) {}

  // Places the blocks one by one, each at the lowest gap that takes it (or at the tightest one); keeps the result if it is the best so far.
  void place(const Order& order, bool tightest) {
    placed_.clear();
    int64_t height = 0;
    for (uint32_t index : order) {
      const Block& block = blocks_[index];
      const int64_t offset = tightest ? find_gap<true>(block) : find_gap<false>(block);
      offsets_[index] = offset;
      height = std::max(height, offset + block.bytes);
      placed_.add({offset, offset + block.bytes, block.first, block.last});
    }
    if (height < best_) {
      best_ = height;
      best_order_ = order;
      best_tightest_ = tightest;
      best_offsets_ = offsets_;
    }
  }

  // Those that stick out above `limit` in the last placement go first, the rest after them; both in their present order.
  Order blame(const Order& order, int64_t limit, int64_t stride) const {
    std::vector<std::pair<int64_t, uint32_t>> keys;
    keys.reserve(order.size());
    for (size_t at = 0; at < order.size(); ++at) {
      const bool guilty = offsets_[order[at]] + blocks_[order[at]].bytes > limit;
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
  template <bool tightest> int64_t find_gap(const Block& block) const {
    int64_t cursor = 0, chosen = -1, chosen_room = INT64_MAX;
    for (const Placements::Placed& other : placed_.around(block)) {  // in the order of their offsets
      if (other.first > block.last || block.first > other.last) continue;
      const int64_t room = other.offset - cursor;
      if (room >= block.bytes && room < chosen_room) {
        chosen = cursor;
        chosen_room = room;
        if (!tightest || room == block.bytes) break;
      }
      cursor = std::max(cursor, align_up(other.end, block.alignment));
    }
    return chosen >= 0 ? chosen : cursor;
  }

  std::vector<Block>& blocks_;
  Placements placed_;
  std::vector<int64_t> offsets_, best_offsets_;
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

}  // namespace

int64_t max_live_bytes(const std::vector<Block>& blocks, int32_t* when) {
  const std::vector<int64_t> live = live_profile(blocks);
  const auto peak = std::max_element(live.begin(), live.end());
  if (when) *when = static_cast<int32_t>(peak - live.begin());
  return *peak;
}

int64_t pack(std::vector<Block>& blocks, int64_t enough) {
  if (blocks.empty()) return 0;
  for (Block& block : blocks) block.bytes = align_up(block.bytes, block.alignment);
  const int64_t bound = std::max(max_live_bytes(blocks), enough);
  const auto lifetime = [](const Block& b) { return int64_t{b.last} - b.first + 1; };
  const std::vector<Order> starts = {
      sorted_by(blocks, [](const Block& b) { return std::pair(b.bytes, int64_t{-b.first}); }),
      sorted_by(blocks, [&](const Block& b) { return static_cast<double>(b.bytes) * static_cast<double>(lifetime(b)); }),
      by_pressure(blocks),
      sorted_by(blocks, [&](const Block& b) { return std::pair(lifetime(b), b.bytes); }),
      sorted_by(blocks, [](const Block& b) { return std::pair(int64_t{-b.first}, b.bytes); }),
      sorted_by(blocks, [](const Block& b) { return std::pair(int64_t{b.last}, b.bytes); }),
  };
  Packer packer(blocks);
  for (const Order& order : starts)
    for (bool tightest : {false, true})
      if (packer.best() > bound) packer.place(order, tightest);

  const int64_t n = static_cast<int64_t>(blocks.size());
  const int64_t rounds = std::clamp(kRoundSteps / (n * n / 2 + 1), int64_t{8}, kMaxRounds);
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
  packer.apply();
  return packer.best();
}

}  // namespace ort_train
