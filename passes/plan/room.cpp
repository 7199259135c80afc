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
  for (size_t i = 0; offsets && i < table.items.size(); ++i) occupy(i, table.items[i].first, table.items[i].last);
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
}

void Room::begin_write(size_t i) {
  writing_.push_back(i);
  writing_bytes_ += bytes_of(i);
  if (!offsets_) return;
  taken_.remove(static_cast<uint32_t>(i), place(i).begin);
  occupy(i, table_.items[i].first, std::numeric_limits<int32_t>::max());
}

void Room::occupy(size_t i, int32_t first, int32_t last) { taken_.add(static_cast<uint32_t>(i), place(i), first, last); }

void Room::leave(size_t i) {
  if (offsets_) taken_.remove(static_cast<uint32_t>(i), place(i).begin);
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

// Its own place, which is reserved from its first step on, or the tightest gap that is free from step t to its last.
bool Room::find_address(size_t i, int32_t t) {
  const Range own = place(i);
  const auto self = static_cast<uint32_t>(i);
  const bool is_free = taken_.each_within(
      t, table_.items[i].first - 1, [&](uint32_t other, const Range& taken) { return !taken.meets(own) || is_out_of_the_way(other); });
  if (!is_free) {
    int64_t cursor = 0, tightest = std::numeric_limits<int64_t>::max();
    const auto look = [&](const Range& taken) {
      const int64_t gap = taken.begin - cursor;
      if (gap >= bytes_of(i) && gap < tightest) tightest = gap, (*offsets_)[i] = cursor;
      cursor = std::max(cursor, whole_sectors(taken.end));
    };
    taken_.each_within(t, table_.items[i].last, [&](uint32_t other, const Range& taken) {
      if (other != self && !is_out_of_the_way(other)) look(taken);
      return true;
    });
    look({bytes_, bytes_});
    if (tightest == std::numeric_limits<int64_t>::max()) return false;
  }
  taken_.remove(self, own.begin);
  occupy(i, t, table_.items[i].last);
  return true;
}

}  // namespace ort_train::planning
