// Greedy placement in several orders, then "squeaky wheel" rounds (Joslin & Clements, JAIR 10, 1999): the blocks that ended up above the
// lower bound go to the front of the order, and everything is placed again. The lowest result wins; the search ends at the lower bound.

#include "passes/addresses.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "passes/placements.h"

namespace ort_train {
namespace {

// What the rounds may cost, in steps of the inner loop (a nanosecond or two each): fixed, so that the result is.
constexpr int64_t kRoundSteps = 100'000'000;
constexpr int64_t kMaxRounds = 600;
// So far above what is enough, rounds lead nowhere.
constexpr double kHopeless = 1.01;

int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) & -alignment; }

// Live bytes at each time, from the first to the last that occurs.
std::vector<int64_t> live_profile(const std::vector<AddressBlock>& blocks) {
  int32_t end = 0;
  for (const AddressBlock& block : blocks) end = std::max(end, block.last + 1);
  std::vector<int64_t> live(static_cast<size_t>(end) + 1);
  for (const AddressBlock& block : blocks) {
    live[block.first] += align_up(block.bytes, block.alignment);
    live[block.last + 1] -= align_up(block.bytes, block.alignment);
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  return live;
}

using Order = std::vector<uint32_t>;

// Places blocks one by one, each at the lowest gap that takes it, or at the tightest one.
class Placer {
 public:
  Placer(const std::vector<AddressBlock>& blocks, int64_t enough) : blocks_(blocks), enough_(enough), offsets_(blocks.size()) {}

  // Gives up where it will be as high as `below`; says whether it is lower.
  bool place(const Order& order, bool tightest, int64_t below) {
    placed_.clear();
    height_ = 0;
    for (uint32_t index : order) {
      const AddressBlock& block = blocks_[index];
      const int most = block.spare_before > 0 || block.spare_after > 0 ? 2 : 0;  // halves
      Live live{block.first, block.last};
      int64_t offset = find_gap(block, live, tightest);
      for (int halves = 1; halves <= most && offset + block.bytes > enough_; ++halves) {
        live = {block.first + block.spare_before * halves / 2, block.last - block.spare_after * halves / 2};
        offset = find_gap(block, live, tightest);
      }
      offsets_[index] = offset;
      height_ = std::max(height_, offset + block.bytes);
      if (height_ >= below) return false;
      placed_.add(index, {offset, offset + block.bytes}, live.first, live.last);
    }
    return true;
  }

  int64_t height() const { return height_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  struct Live {
    int32_t first, last;
  };

  int64_t find_gap(const AddressBlock& block, const Live& live, bool tightest) const {
    int64_t cursor = 0, chosen = -1, chosen_room = INT64_MAX;
    placed_.each_within(live.first, live.last, [&](uint32_t, const Range& taken) {
      const int64_t room = taken.begin - cursor;
      if (room >= block.bytes && room < chosen_room) {
        chosen = cursor;
        chosen_room = room;
        if (!tightest || room == block.bytes) return false;
      }
      cursor = std::max(cursor, align_up(taken.end, block.alignment));
      return true;
    });
    return chosen >= 0 ? chosen : cursor;
  }

  const std::vector<AddressBlock>& blocks_;
  const int64_t enough_;
  Placements placed_;
  std::vector<int64_t> offsets_;
  int64_t height_ = 0;
};

class Packer {
 public:
  // What is as high as `below` is of no use.
  Packer(std::vector<AddressBlock>& blocks, int64_t enough, int64_t below)
      : blocks_(blocks), placer_(blocks, enough), other_(blocks, enough), best_(below) {}

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
    for (size_t i = 0; i < best_offsets_.size(); ++i) blocks_[i].offset = best_offsets_[i];
  }

 private:
  void keep(const Placer& placer, const Order& order, bool tightest) {
    if (placer.height() >= best_) return;
    best_ = placer.height();
    best_order_ = order;
    best_tightest_ = tightest;
    best_offsets_ = placer.offsets();
  }

  std::vector<AddressBlock>& blocks_;
  Placer placer_, other_;
  std::vector<int64_t> best_offsets_;
  int64_t best_;
  Order best_order_;
  bool best_tightest_ = false;
};

template <typename Key> Order sorted_by(const std::vector<AddressBlock>& blocks, Key key) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(blocks[a]) > key(blocks[b]); });
  return order;
}

// Blocks by the fullest moment of their lives: what is live at the peak is placed first, tightly, then the next fullest moment …
Order by_pressure(const std::vector<AddressBlock>& blocks) {
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

int size_class(const AddressBlock& block) { return std::bit_width(static_cast<uint64_t>(block.bytes)); }

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

int64_t max_live_bytes(const std::vector<AddressBlock>& blocks, int32_t* when) {
  const std::vector<int64_t> live = live_profile(blocks);
  const auto peak = std::max_element(live.begin(), live.end());
  if (when) *when = static_cast<int32_t>(peak - live.begin());
  return *peak;
}

int64_t assign_addresses(std::vector<AddressBlock>& blocks, const AddressOptions& options) {
  if (blocks.empty()) return 0;
  for (AddressBlock& block : blocks) block.bytes = align_up(block.bytes, block.alignment);
  const bool is_given = options.enough > 0;
  const int64_t bound = is_given ? options.enough : max_live_bytes(blocks);
  const auto lifetime = [](const AddressBlock& b) { return static_cast<double>(b.last) - b.first + 1; };
  std::vector<std::vector<Order>> starts{
      {
          sorted_by(blocks, [](const AddressBlock& b) { return std::pair(b.bytes, int64_t{-b.first}); }),
          sorted_by(blocks, [&](const AddressBlock& b) { return static_cast<double>(b.bytes) * lifetime(b); }),
          by_pressure(blocks),
          sorted_by(blocks, [&](const AddressBlock& b) { return std::pair(lifetime(b), b.bytes); }),
          sorted_by(blocks, [](const AddressBlock& b) { return std::pair(int64_t{-b.first}, b.bytes); }),
          sorted_by(blocks, [](const AddressBlock& b) { return std::pair(int64_t{b.last}, b.bytes); }),
      },
      {
          sorted_by(blocks, [](const AddressBlock& b) { return std::pair(b.bytes, int64_t{b.last}); }),
          sorted_by(blocks, [&](const AddressBlock& b) { return static_cast<double>(b.bytes) * std::sqrt(lifetime(b)); }),
          sorted_by(blocks, [](const AddressBlock& b) { return std::pair(size_class(b), int64_t{-b.first}); }),
          sorted_by(blocks, [&](const AddressBlock& b) { return std::pair(size_class(b), lifetime(b)); }),
          sorted_by(blocks, [&](const AddressBlock& b) { return std::pair(b.bytes, lifetime(b)); }),
      },
  };
  // With many short lives between transfers the second ones mostly do better, and what does well enough ends the search; the first lead to
  // less in the rounds.
  if (is_given) std::swap(starts[0], starts[1]);
  Packer packer(blocks, bound, is_given ? static_cast<int64_t>(kHopeless * static_cast<double>(bound)) + 1 : INT64_MAX);
  for (const auto& orders : starts) {
    const int64_t before = packer.best();
    for (const Order& order : orders)
      if (packer.best() > bound) packer.place_both(order, bound);
    if (packer.best() < before) run_rounds(packer, bound, static_cast<int64_t>(blocks.size()));
  }
  packer.apply();
  return packer.best();
}

}  // namespace ort_train
