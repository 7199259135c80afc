// What assign's pass goes by: what is in memory, and where there is room, by bytes alone or with addresses.

#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "passes/placements.h"
#include "passes/plan/assign.h"
#include "passes/stream_clock.h"

namespace ort_train::planning {

enum class State : uint8_t { coming, there, writing, gone };

// A stay or, behind those, a block.
struct Item {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
  int32_t before = -1;  // the stay of the same piece before it
  State state = State::coming;
  size_t transfer = 0;  // the one that was begun last
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

// Where there is room, and for which writes has to be waited to get it. Refers to the table.
class Room {
 public:
  using Release = std::function<void(size_t)>;  // waits for an item's write

  // No more than `bytes` at any step. `offsets`: addresses by item, below `bytes`; at first cores don't meet there, and what moves changes
  // them. They outlive the room; null: it goes by bytes alone.
  Room(const Table& table, int64_t bytes, std::vector<int64_t>* offsets);

  // Takes room for an item from before step t, ahead of its step, and releases what was written from there; false where that is not over
  // yet.
  bool take_early(size_t i, int32_t t, const Release& release);
  // Its step t has come: takes its room, after it has waited for what is still written from there.
  void take(size_t i, int32_t t, const Release& release);
  void begin_write(size_t i);
  void leave(size_t i);

 private:
  int64_t bytes_of(size_t i) const { return table_.items[i].bytes; }
  Range place(size_t i) const { return {(*offsets_)[i], (*offsets_)[i] + bytes_of(i)}; }
  bool has_bytes(size_t i, int32_t t) const;
  bool find_address(size_t i, int32_t t);
  bool is_free(size_t i, int32_t t) const;
  bool is_out_of_the_way(size_t i) const { return table_.items[i].state == State::writing && table_.is_over(i); }
  void occupy(size_t i, int32_t first, int32_t last);

  const Table& table_;
  const int64_t bytes_;
  std::vector<int64_t>* const offsets_;
  std::vector<int64_t> load_;    // by step: cores, and reads ahead of them
  std::vector<size_t> writing_;  // in the order in which the writes were begun
  int64_t writing_bytes_ = 0;
  Placements taken_;  // with addresses: what is in memory, being written, or comes
};

}  // namespace ort_train::planning
