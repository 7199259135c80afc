#include "passes/plan/room.h"

#include <algorithm>
#include <limits>

#include "exec/program.h"

namespace ort_train::planning {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

// Bytes at each step.
class Bytes : public Room {
 public:
  Bytes(const Table& table, int64_t bytes) : table_(table), bytes_(bytes), load_(table.starting.size()) {
    for (const Item& item : table.items) {
      for (int32_t t = item.first; t <= item.last; ++t) load_[static_cast<size_t>(t)] += item.bytes;
    }
  }

  bool take_early(size_t i, int32_t t, const Release& release) override {
    const Item& item = table_.items[i];
    int64_t writing = writing_bytes_;
    size_t over = 0;
    for (; over < writing_.size() && table_.is_over(writing_[over]); ++over) writing -= bytes_of(over);
    for (int32_t s = t; s < item.first; ++s) {
      const double until = table_.computed[static_cast<size_t>(s)] - table_.computed[static_cast<size_t>(t)];
      for (; over < writing_.size() && table_.clock.lead(table_.items[writing_[over]].transfer) <= until; ++over) writing -= bytes_of(over);
      if (load_[static_cast<size_t>(s)] + writing + item.bytes > bytes_) return false;
    }
    for (int32_t s = t; s < item.first; ++s) load_[static_cast<size_t>(s)] += item.bytes;
    take(i, t, release);
    return true;
  }
  void take(size_t, int32_t t, const Release& release) override {
    while (!writing_.empty() && load_[static_cast<size_t>(t)] + writing_bytes_ > bytes_) release(writing_.front());
  }
  void begin_write(size_t i) override {
    writing_.push_back(i);
    writing_bytes_ += table_.items[i].bytes;
  }
  void leave(size_t i) override {
    const auto found = std::find(writing_.begin(), writing_.end(), i);
    if (found == writing_.end()) return;
    writing_.erase(found);
    writing_bytes_ -= table_.items[i].bytes;
  }

 private:
  int64_t bytes_of(size_t writing) const { return table_.items[writing_[writing]].bytes; }

  const Table& table_;
  const int64_t bytes_;
  std::vector<int64_t> load_;    // cores, and reads ahead of them
  std::vector<size_t> writing_;  // in the order in which they were begun
  int64_t writing_bytes_ = 0;
};

// Addresses.
class Addresses : public Room {
 public:
  Addresses(const Table& table, int64_t bytes, std::vector<int64_t>& offsets)
      : table_(table), items_(table.items), bytes_(bytes), offsets_(offsets) {}

  bool take_early(size_t i, int32_t t, const Release& release) override {
    if (!is_free(place(i), i, t, items_[i].first - 1) && !move_to_gap(i, t, t) && !eject(i, t)) return false;
    take(i, t, release);
    return true;
  }
  void take(size_t i, int32_t, const Release& release) override {
    for (size_t k = live_.size(); k-- > 0;) {
      const size_t other = live_[k];
      if (items_[other].state == State::writing && place(other).meets(place(i))) release(other);
    }
    live_.push_back(i);
  }
  void begin_write(size_t) override {}
  void leave(size_t i) override { std::erase(live_, i); }

 private:
  Range place(size_t i) const { return {offsets_[i], offsets_[i] + items_[i].bytes}; }

  // Calls body(item) for what is in memory before step t and stays until `from` at least, or comes at one of the steps behind t to `last`
  // and is not over before `from`, until it returns false.
  template <typename Body> bool each_between(size_t besides, int32_t t, int32_t from, int32_t last, Body&& body) const {
    for (const size_t i : live_) {
      if (i == besides || (items_[i].state == State::writing && table_.is_over(i))) continue;
      if (from > t && items_[i].last < from) continue;
      if (!body(i)) return false;
    }
    for (int32_t s = t + 1; s <= last; ++s) {
      for (const size_t i : table_.starting[static_cast<size_t>(s)]) {
        if (i != besides && items_[i].state == State::coming && items_[i].last >= from && !body(i)) return false;
      }
    }
    return true;
  }

  bool is_free(const Range& wanted, size_t besides, int32_t t, int32_t last) const {
    return each_between(besides, t, t, last, [&](size_t i) { return !wanted.meets(place(i)); });
  }

  // The tightest gap between `taken` for so many bytes; -1: none.
  int64_t tightest(std::vector<Range>& taken, int64_t bytes) const {
    std::sort(taken.begin(), taken.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    int64_t cursor = 0, chosen = -1, room = std::numeric_limits<int64_t>::max();
    const auto try_gap = [&](int64_t end) {
      if (end - cursor >= bytes && end - cursor < room) chosen = cursor, room = end - cursor;
    };
    for (const Range& place : taken) {
      try_gap(place.begin);
      cursor = std::max(cursor, (place.end + kSector - 1) / kSector * kSector);
    }
    try_gap(bytes_);
    return chosen;
  }

  // To the tightest gap that is free from step `from`, t or later, to its last.
  bool move_to_gap(size_t i, int32_t t, int32_t from) {
    taken_.clear();
    each_between(i, t, from, items_[i].last, [&](size_t other) {
      taken_.push_back(place(other));
      return true;
    });
    const int64_t chosen = tightest(taken_, items_[i].bytes);
    if (chosen >= 0) offsets_[i] = chosen;
    return chosen >= 0;
  }

  // To where only what has not begun is in the way, which moves elsewhere.
  bool eject(size_t i, int32_t t) {
    constexpr size_t kMost = 8;  // items
    const int64_t own = offsets_[i];
    taken_.clear();
    each_between(i, t, t, t, [&](size_t other) {
      taken_.push_back(place(other));
      return true;
    });
    const int64_t gap = tightest(taken_, items_[i].bytes);
    for (const int64_t at : {own, gap}) {
      if (at < 0 || (at == own && !is_free(place(i), i, t, t))) continue;
      offsets_[i] = at;
      std::vector<size_t> inside;
      each_between(i, t, t, items_[i].last, [&](size_t other) {
        if (place(i).meets(place(other))) inside.push_back(other);
        return inside.size() <= kMost;
      });
      if (inside.size() <= kMost && move_away(inside, i, t)) return true;
      offsets_[i] = own;
    }
    return false;
  }

  // Gives other places to what comes later than step t; all stay where they are if one finds none.
  bool move_away(const std::vector<size_t>& items, size_t from, int32_t t) {
    std::vector<int64_t> before;
    live_.push_back(from);
    bool moved = true;
    for (const size_t i : items) {
      before.push_back(offsets_[i]);
      moved = move_to_gap(i, t, items_[i].first);
      if (!moved) break;
    }
    live_.pop_back();
    if (moved) return true;
    for (size_t k = 0; k < before.size(); ++k) offsets_[items[k]] = before[k];
    return false;
  }

  const Table& table_;
  const std::vector<Item>& items_;
  const int64_t bytes_;
  std::vector<int64_t>& offsets_;  // by item
  std::vector<size_t> live_;       // in memory, or being written
  std::vector<Range> taken_;
};

}  // namespace

std::unique_ptr<Room> room_of_bytes(const Table& table, int64_t bytes) { return std::make_unique<Bytes>(table, bytes); }

std::unique_ptr<Room> room_of_addresses(const Table& table, int64_t bytes, std::vector<int64_t>& offsets) {
  return std::make_unique<Addresses>(table, bytes, offsets);
}

}  // namespace ort_train::planning
