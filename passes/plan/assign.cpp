#include "passes/plan/assign.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "passes/pack.h"
#include "passes/stream_clock.h"

namespace ort_train::planning {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

enum class State : uint8_t { coming, there, writing, gone };

// A stay or, behind those, a block.
struct Item {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
  int32_t before = -1;  // the stay of the same piece before it
  State state = State::coming;
  size_t transfer = 0;  // the one that was begun last
};

// What a pass goes by: where there is room, and for which writes has to be waited to get it.
class Room {
 public:
  using Release = std::function<void(size_t)>;  // waits for an item's write
  virtual ~Room() = default;
  // Takes room for an item from before step t, ahead of its step, and releases what was written from there; false where that is not over
  // yet.
  virtual bool take_early(size_t i, int32_t t, const Release& release) = 0;
  // Its step t has come: takes its room, after it has waited for what is still written from there.
  virtual void take(size_t i, int32_t t, const Release& release) = 0;
  virtual void begin_write(size_t i) = 0;
  virtual void leave(size_t i) = 0;
};

// What the pass and its room know of the items.
struct Table {
  Table(const Run& run, const std::vector<Stay>& stays, const StreamRates& disk)
      : clock(disk), computed(run.steps() + 1), starting(run.steps()), ending(run.steps() + 1) {
    std::partial_sum(run.seconds.begin(), run.seconds.end(), computed.begin() + 1);
    std::vector<int32_t> previous(run.pieces.size(), -1);
    for (const Stay& stay : stays)
      items.push_back({.bytes = run.pieces[stay.piece].bytes,
                       .first = stay.first,
                       .last = stay.last,
                       .before = std::exchange(previous[stay.piece], static_cast<int32_t>(items.size()))});
    for (const Block& block : run.blocks) items.push_back({.bytes = block.bytes, .first = block.first, .last = block.last});
    for (size_t i = 0; i < items.size(); ++i) {
      starting[static_cast<size_t>(items[i].first)].push_back(i);
      ending[static_cast<size_t>(items[i].last) + 1].push_back(i);
    }
  }
  bool is_over(size_t i) const { return clock.is_over(items[i].transfer); }

  StreamClock clock;
  std::vector<double> computed;  // before each step, if nothing waits
  std::vector<Item> items;
  std::vector<std::vector<size_t>> starting, ending;  // by step
};

class Pass {
 public:
  Pass(const Run& run, RunPlan& plan, const Eagerness& eagerness, Table& table, Room& room)
      : run_(run), plan_(plan), eagerness_(eagerness), table_(table), items_(table.items), clock_(table.clock), room_(room) {}

  void run() {
    const auto steps = static_cast<int32_t>(run_.steps());
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      Stay& stay = plan_.stays[i];
      stay.issue = stay.first;
      stay.released = stay.last + 1;
      if (stay.reads) reads_.push_back(i);
    }
    for (int32_t t = 0; t <= steps; ++t) {
      for (const size_t i : table_.ending[static_cast<size_t>(t)]) end(i);
      if (t == steps) break;
      const std::vector<size_t>& starting = table_.starting[static_cast<size_t>(t)];
      const auto each_coming = [&](auto&& body) {
        for (const size_t i : starting) {
          if (items_[i].state == State::coming) body(i);
        }
      };
      each_coming([&](size_t i) {
        room_.take(i, t, [&](size_t other) { release(other, t); });
        release_before(i, t);
      });
      each_coming([&](size_t i) { begin(i, t); });
      begin_reads(t);
      for (const size_t i : starting) {
        if (is_read(i)) clock_.wait(items_[i].transfer);
      }
      clock_.compute(run_.seconds[static_cast<size_t>(t)]);
    }
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      if (items_[i].state == State::writing) release(i, steps);
    }
    plan_.seconds = clock_.now();
  }

 private:
  bool is_read(size_t i) const { return i < plan_.stays.size() && plan_.stays[i].reads; }

  void end(size_t i) {
    if (i < plan_.stays.size() && plan_.stays[i].writes) {
      items_[i].state = State::writing;
      items_[i].transfer = clock_.begin(true, items_[i].bytes);
      room_.begin_write(i);
    } else {
      items_[i].state = State::gone;
      room_.leave(i);
    }
  }

  // Before step t its write is waited for.
  void release(size_t i, int32_t t) {
    clock_.wait(items_[i].transfer);
    plan_.stays[i].released = t;
    items_[i].state = State::gone;
    room_.leave(i);
  }

  // What it reads is in the file.
  void release_before(size_t i, int32_t t) {
    const int32_t before = items_[i].before;
    if (is_read(i) && before >= 0 && items_[static_cast<size_t>(before)].state == State::writing) release(static_cast<size_t>(before), t);
  }

  void begin(size_t i, int32_t t) {
    items_[i].state = State::there;
    if (!is_read(i)) return;
    plan_.stays[i].issue = t;
    items_[i].transfer = clock_.begin(false, items_[i].bytes);
  }

  // Reads ahead of their steps, in the order of need.
  void begin_reads(int32_t t) {
    constexpr int kBlocked = 8;  // that are passed over
    while (next_ < reads_.size() && items_[reads_[next_]].state != State::coming) ++next_;
    int blocked = 0;
    for (size_t r = next_; r < reads_.size() && blocked < kBlocked; ++r) {
      const size_t i = reads_[r];
      if (items_[i].state != State::coming) continue;
      if (clock_.backlog() > run_.seconds[static_cast<size_t>(t)] + eagerness_.queued) return;
      if (table_.computed[static_cast<size_t>(items_[i].first)] - table_.computed[static_cast<size_t>(t) + 1] > eagerness_.early) return;
      if (!is_written(i) || !room_.take_early(i, t, [&](size_t other) { release(other, t); })) {
        ++blocked;
        continue;
      }
      release_before(i, t);
      begin(i, t);
    }
  }

  // Whether what it reads is in the file.
  bool is_written(size_t i) const {
    if (items_[i].before < 0) return true;
    const auto before = static_cast<size_t>(items_[i].before);
    const State state = items_[before].state;
    return state == State::gone || (state == State::writing && table_.is_over(before));
  }

  const Run& run_;
  RunPlan& plan_;
  const Eagerness eagerness_;
  Table& table_;
  std::vector<Item>& items_;
  StreamClock& clock_;
  Room& room_;
  std::vector<size_t> reads_;  // in the order of need
  size_t next_ = 0;            // of these: those before it have begun
};

// Bytes at each step.
class Bytes : public Room {
 public:
  Bytes(Table& table, int64_t bytes) : table_(table), bytes_(bytes), load_(table.starting.size()) {
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
  Addresses(Table& table, int64_t bytes, std::vector<int64_t> offsets)
      : table_(table), items_(table.items), bytes_(bytes), offsets_(std::move(offsets)) {}

  const std::vector<int64_t>& offsets() const { return offsets_; }

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
  std::vector<int64_t> offsets_;  // by item
  std::vector<size_t> live_;      // in memory, or being written
  std::vector<Range> taken_;
};

// Each core with such a share of its flanks.
std::vector<ort_train::Block> blocks_of(const Run& run, const std::vector<Stay>& stays, double share) {
  std::vector<ort_train::Block> blocks;
  const auto part = [&](int32_t steps) { return static_cast<int32_t>(share * steps); };
  for (const Stay& stay : stays)
    blocks.push_back({.bytes = run.pieces[stay.piece].bytes,
                      .first = stay.first - part(stay.first - stay.issue),
                      .last = stay.last + part(stay.released - stay.last - 1),
                      .alignment = kSector});
  for (const Block& block : run.blocks) blocks.push_back({.bytes = block.bytes, .first = block.first, .last = block.last});
  return blocks;
}

Cores cores_of(const std::vector<ort_train::Block>& blocks, int64_t bytes) {
  Cores cores{.offsets = {}, .bytes = bytes};
  for (const ort_train::Block& block : blocks) cores.offsets.push_back(block.offset);
  return cores;
}

}  // namespace

RunPlan assign_bytes(const Run& run, std::vector<Stay> stays, int64_t bytes, const StreamRates& disk, const Eagerness& eagerness) {
  RunPlan plan{.stays = std::move(stays), .block_offsets = {}};
  Table table(run, plan.stays, disk);
  Bytes room(table, bytes);
  Pass(run, plan, eagerness, table, room).run();
  return plan;
}

std::optional<Cores> place_cores(const Run& run, const RunPlan& wish, int64_t bytes) {
  for (const double share : {1.0, 0.7, 0.5, 0.3, 0.15, 0.0}) {
    std::vector<ort_train::Block> blocks = blocks_of(run, wish.stays, share);
    if (max_live_bytes(blocks) > bytes) continue;
    const int64_t most = pack(blocks, {.enough = bytes});
    if (most <= bytes) return cores_of(blocks, most);
  }
  return std::nullopt;
}

Cores place_tightly(const Run& run, const std::vector<Stay>& stays) {
  std::vector<ort_train::Block> blocks = blocks_of(run, stays, 0);
  const int64_t most = pack(blocks);
  return cores_of(blocks, most);
}

RunPlan assign(const Run& run, std::vector<Stay> stays, const Cores& cores, int64_t bytes, const StreamRates& disk,
               const Eagerness& eagerness) {
  RunPlan plan{.stays = std::move(stays), .block_offsets = {}};
  Table table(run, plan.stays, disk);
  Addresses room(table, bytes, cores.offsets);
  Pass(run, plan, eagerness, table, room).run();
  for (size_t i = 0; i < plan.stays.size(); ++i) plan.stays[i].offset = room.offsets()[i];
  plan.block_offsets.assign(room.offsets().begin() + static_cast<std::ptrdiff_t>(plan.stays.size()), room.offsets().end());
  return plan;
}

}  // namespace ort_train::planning
