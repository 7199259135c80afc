#include "passes/plan/room.h"

#include <algorithm>
#include <limits>

#include "exec/program.h"

namespace ort_train::planning {

Room::Room(const Table& table, int64_t bytes, std::vector<int64_t>* offsets)
    : table_(table), bytes_(bytes), offsets_(offsets), load_(table.starting.size()) {
  for (const Item& item : table.items) {
    for (int32_t t = item.first; t <= item.last; ++t) load_[static_cast<size_t>(t)] += item.bytes;
  }
}

bool Room::take_early(size_t i, int32_t t, const Release& release) {
  if (!has_bytes(i, t) || (offsets_ && !find_address(i, t))) return false;
  for (int32_t s = t; s < table_.items[i].first; ++s) load_[static_cast<size_t>(s)] += bytes_of(i);
  take(i, t, release);
  return true;
}

void Room::take(size_t i, int32_t t, const Release& release) {
  if (!offsets_) {
    while (!writing_.empty() && load_[static_cast<size_t>(t)] + writing_bytes_ > bytes_) release(writing_.front());
    return;
  }
  for (size_t k = writing_.size(); k-- > 0;) {
    if (place(writing_[k]).meets(place(i))) release(writing_[k]);
  }
  live_.push_back(i);
}

void Room::begin_write(size_t i) {
  writing_.push_back(i);
  writing_bytes_ += bytes_of(i);
}

void Room::leave(size_t i) {
  std::erase(live_, i);
  if (std::erase(writing_, i) > 0) writing_bytes_ -= bytes_of(i);
}

// From step t to its first, beside what is still written then.
bool Room::has_bytes(size_t i, int32_t t) const {
  int64_t writing = writing_bytes_;
  size_t over = 0;
  for (int32_t s = t; s < table_.items[i].first; ++s) {
    const double until = table_.computed[static_cast<size_t>(s)] - table_.computed[static_cast<size_t>(t)];
    for (; over < writing_.size() && table_.clock.lead(table_.items[writing_[over]].transfer) <= until; ++over)
      writing -= bytes_of(writing_[over]);
    if (load_[static_cast<size_t>(s)] + writing + bytes_of(i) > bytes_) return false;
  }
  return true;
}

// Calls body(item) for what is in memory before step t, or comes at one of the steps behind it to `last`, until it returns false.
template <typename Body> bool Room::each_until(size_t besides, int32_t t, int32_t last, Body&& body) const {
  for (const size_t i : live_) {
    const bool is_written = table_.items[i].state == State::writing && table_.is_over(i);
    if (i != besides && !is_written && !body(i)) return false;
  }
  for (int32_t s = t + 1; s <= last; ++s) {
    for (const size_t i : table_.starting[static_cast<size_t>(s)]) {
      if (i != besides && table_.items[i].state == State::coming && !body(i)) return false;
    }
  }
  return true;
}

// Whether its place is free from step t to its first, from which it is reserved.
bool Room::is_free(size_t i, int32_t t) const {
  return each_until(i, t, table_.items[i].first - 1, [&](size_t other) { return !place(i).meets(place(other)); });
}

// Its own place, or the tightest gap that is free from step t to its last.
bool Room::find_address(size_t i, int32_t t) {
  if (is_free(i, t)) return true;
  taken_.clear();
  each_until(i, t, table_.items[i].last, [&](size_t other) {
    taken_.push_back(place(other));
    return true;
  });
  std::sort(taken_.begin(), taken_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  taken_.push_back({bytes_, bytes_});
  int64_t cursor = 0, tightest = std::numeric_limits<int64_t>::max();
  for (const Range& taken : taken_) {
    const int64_t gap = taken.begin - cursor;
    if (gap >= bytes_of(i) && gap < tightest) tightest = gap, (*offsets_)[i] = cursor;
    cursor = std::max(cursor, whole_sectors(taken.end));
  }
  return tightest < std::numeric_limits<int64_t>::max();
}

}  // namespace ort_train::planning
