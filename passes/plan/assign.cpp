#include "passes/plan/assign.h"

#include <algorithm>
#include <limits>
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

class Pass {
 public:
  Pass(const Run& run, std::vector<Stay> stays, std::vector<int64_t> block_offsets, int64_t bytes, const StreamRates& disk,
       const Eagerness& eagerness)
      : run_(run),
        eagerness_(eagerness),
        bytes_(bytes),
        steps_(static_cast<int32_t>(run.steps())),
        clock_(disk),
        computed_(run.steps() + 1),
        starting_(run.steps()),
        ending_(run.steps() + 1) {
    plan_.stays = std::move(stays);
    plan_.block_offsets = std::move(block_offsets);
    std::partial_sum(run.seconds.begin(), run.seconds.end(), computed_.begin() + 1);
    std::vector<int32_t> previous(run.pieces.size(), -1);
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      Stay& stay = plan_.stays[i];
      stay.released = stay.last + 1;
      items_.push_back({.first = stay.first,
                        .last = stay.last,
                        .before = std::exchange(previous[stay.piece], static_cast<int32_t>(i)),
                        .place = {stay.offset, stay.offset + run.pieces[stay.piece].bytes}});
      if (stay.reads) reads_.push_back(i);
    }
    for (size_t i = 0; i < run.blocks.size(); ++i)
      items_.push_back({.first = run.blocks[i].first,
                        .last = run.blocks[i].last,
                        .place = {plan_.block_offsets[i], plan_.block_offsets[i] + run.blocks[i].bytes}});
    for (size_t i = 0; i < items_.size(); ++i) {
      starting_[static_cast<size_t>(items_[i].first)].push_back(i);
      ending_[static_cast<size_t>(items_[i].last) + 1].push_back(i);
    }
  }

  RunPlan run() {
    for (int32_t t = 0; t <= steps_; ++t) {
      for (const size_t i : ending_[static_cast<size_t>(t)]) end(i);
      if (t == steps_) break;
      for (const size_t i : starting_[static_cast<size_t>(t)]) {
        if (items_[i].state == State::coming) begin(i, t);
      }
      begin_reads(t);
      for (const size_t i : starting_[static_cast<size_t>(t)]) {
        if (is_read(i)) plan_.waited += clock_.wait(items_[i].transfer);
      }
      clock_.compute(run_.seconds[static_cast<size_t>(t)]);
    }
    for (const size_t i : std::vector<size_t>(live_)) release(i, steps_);
    plan_.seconds = clock_.now();
    return std::move(plan_);
  }

 private:
  enum class State : uint8_t { coming, there, writing, gone };
  struct Item {
    int32_t first = 0, last = 0;
    int32_t before = -1;  // the stay of the same piece before it
    Range place{};
    State state = State::coming;
    size_t transfer = 0;
  };

  bool is_stay(size_t i) const { return i < plan_.stays.size(); }  // else a block
  bool is_read(size_t i) const { return is_stay(i) && plan_.stays[i].reads; }

  void end(size_t i) {
    Item& item = items_[i];
    if (is_stay(i) && plan_.stays[i].writes) {
      item.state = State::writing;
      item.transfer = clock_.begin(true, item.place.end - item.place.begin);
      return;
    }
    item.state = State::gone;
    std::erase(live_, i);
  }

  // Before step t its write is waited for.
  void release(size_t i, int32_t t) {
    plan_.waited += clock_.wait(items_[i].transfer);
    plan_.stays[i].released = t;
    items_[i].state = State::gone;
    std::erase(live_, i);
  }

  // From before step t it is in its place, and read if it has to be.
  void begin(size_t i, int32_t t) {
    Item& item = items_[i];
    for (size_t k = live_.size(); k-- > 0;) {
      const size_t other = live_[k];
      if (items_[other].state == State::writing && items_[other].place.meets(item.place)) release(other, t);
    }
    item.state = State::there;
    live_.push_back(i);
    if (!is_read(i)) return;
    if (item.before >= 0 && items_[static_cast<size_t>(item.before)].state == State::writing) release(static_cast<size_t>(item.before), t);
    plan_.stays[i].issue = t;
    item.transfer = clock_.begin(false, item.place.end - item.place.begin);
  }

  bool is_over(size_t i) const { return clock_.is_over(items_[i].transfer); }

  // Reads ahead of their steps, in the order of need.
  void begin_reads(int32_t t) {
    constexpr int kBlocked = 8;  // that are passed over
    while (next_ < reads_.size() && items_[reads_[next_]].state != State::coming) ++next_;
    int blocked = 0;
    for (size_t r = next_; r < reads_.size() && blocked < kBlocked; ++r) {
      const size_t i = reads_[r];
      if (items_[i].state != State::coming) continue;
      if (clock_.backlog() > run_.seconds[static_cast<size_t>(t)] + eagerness_.queued) return;
      if (computed_[static_cast<size_t>(items_[i].first)] - computed_[static_cast<size_t>(t) + 1] > eagerness_.early) return;
      if (!may_begin(i, t)) {
        ++blocked;
        continue;
      }
      begin(i, t);
    }
  }

  bool may_begin(size_t i, int32_t t) {
    Item& item = items_[i];
    if (item.before >= 0) {
      const Item& before = items_[static_cast<size_t>(item.before)];
      if (before.state == State::coming || before.state == State::there) return false;
      if (before.state == State::writing && !is_over(static_cast<size_t>(item.before))) return false;
    }
    if (is_free(item.place, i, t, item.first - 1)) return true;
    return move(i, t);
  }

  // Calls body(place) for what is in memory before step t, or comes at one of the steps to `last`, until it returns false.
  template <typename Body> bool each_between(size_t besides, int32_t t, int32_t last, Body&& body) const {
    for (const size_t i : live_) {
      if (items_[i].state == State::writing && is_over(i)) continue;
      if (!body(items_[i].place)) return false;
    }
    for (int32_t s = t + 1; s <= last; ++s) {
      for (const size_t i : starting_[static_cast<size_t>(s)]) {
        if (i != besides && items_[i].state == State::coming && !body(items_[i].place)) return false;
      }
    }
    return true;
  }

  bool is_free(const Range& place, size_t besides, int32_t t, int32_t last) const {
    return each_between(besides, t, last, [&](const Range& other) { return !place.meets(other); });
  }

  // To the tightest gap that is free from step t to its last.
  bool move(size_t i, int32_t t) {
    Item& item = items_[i];
    taken_.clear();
    each_between(i, t, item.last, [&](const Range& place) {
      taken_.push_back(place);
      return true;
    });
    std::sort(taken_.begin(), taken_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const int64_t bytes = item.place.end - item.place.begin;
    int64_t cursor = 0, chosen = -1, room = std::numeric_limits<int64_t>::max();
    const auto try_gap = [&](int64_t end) {
      if (end - cursor >= bytes && end - cursor < room) chosen = cursor, room = end - cursor;
    };
    for (const Range& place : taken_) {
      try_gap(place.begin);
      cursor = std::max(cursor, (place.end + kSector - 1) / kSector * kSector);
    }
    try_gap(bytes_);
    if (chosen < 0) return false;
    item.place = {chosen, chosen + bytes};
    plan_.stays[i].offset = chosen;
    return true;
  }

  const Run& run_;
  const Eagerness eagerness_;
  const int64_t bytes_;
  const int32_t steps_;
  StreamClock clock_;
  std::vector<double> computed_;  // before each step, if nothing waits
  RunPlan plan_;
  std::vector<Item> items_;  // the stays, then the blocks
  std::vector<std::vector<size_t>> starting_, ending_;
  std::vector<size_t> live_;   // in memory, or being written
  std::vector<size_t> reads_;  // in the order of need
  size_t next_ = 0;            // of these: those before it have begun
  std::vector<Range> taken_;
};

}  // namespace

std::optional<Cores> Cores::place(const Run& run, std::vector<Stay> stays, int64_t bytes, const StreamRates& disk) {
  std::vector<double> computed(run.steps() + 1);
  std::partial_sum(run.seconds.begin(), run.seconds.end(), computed.begin() + 1);
  const auto steps = static_cast<int32_t>(run.steps());
  // With the flanks that transfers would like, as far as there is room.
  for (const double flanks : {4.0, 2.0, 1.0, 0.0}) {
    std::vector<ort_train::Block> blocks;
    for (const Stay& stay : stays) {
      const auto size = static_cast<double>(run.pieces[stay.piece].bytes);
      int32_t first = stay.first, last = stay.last;
      while (stay.reads && first > 0 &&
             computed[static_cast<size_t>(stay.first)] - computed[static_cast<size_t>(first)] < flanks * size / disk.read)
        --first;
      while (stay.writes && last + 1 < steps &&
             computed[static_cast<size_t>(last) + 1] - computed[static_cast<size_t>(stay.last) + 1] < flanks * size / disk.write)
        ++last;
      blocks.push_back({.bytes = run.pieces[stay.piece].bytes, .first = first, .last = last, .alignment = kSector});
    }
    for (const Block& block : run.blocks) blocks.push_back({.bytes = block.bytes, .first = block.first, .last = block.last});
    if (max_live_bytes(blocks) > bytes || pack(blocks, {.enough = bytes}) > bytes) continue;
    Cores cores;
    for (size_t i = 0; i < stays.size(); ++i) stays[i].offset = blocks[i].offset;
    for (size_t i = stays.size(); i < blocks.size(); ++i) cores.block_offsets_.push_back(blocks[i].offset);
    cores.stays_ = std::move(stays);
    cores.bytes_ = bytes;
    return cores;
  }
  return std::nullopt;
}

RunPlan Cores::assign(const Run& run, const StreamRates& disk, const Eagerness& eagerness) const {
  return Pass(run, stays_, block_offsets_, bytes_, disk, eagerness).run();
}

}  // namespace ort_train::planning
