#include "passes/plan/assign.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "exec/program.h"
#include "passes/addresses.h"
#include "passes/placements.h"
#include "passes/stream_clock.h"

namespace ort_train::planning {
namespace {

enum class State : uint8_t { coming, there, writing, gone };

// A stay or, after those, a block.
struct Item {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
  int32_t before = -1;  // the stay of the same piece before it
  State state = State::coming;
  size_t transfer = 0;  // the one that was begun last
};

// At each step: begin writes of stays that have ended; wait for writes that the step needs in the backing memory; make room; begin the
// reads that the step needs; begin reads ahead of their steps; wait for the step's reads; compute.
class Assigner {
 public:
  // `cores`: null where it goes without addresses.
  Assigner(const Run& run, std::vector<Stay> stays, const Cores* cores, int64_t bytes, const StreamRates& disk, double prefetch_seconds)
      : run_(run), bytes_(bytes), prefetch_seconds_(prefetch_seconds), by_bytes_(!cores), clock_(disk) {
    plan_.stays = std::move(stays);
    if (cores) offsets_ = cores->offsets;
    computed_.resize(run.steps() + 1);
    std::partial_sum(run.seconds.begin(), run.seconds.end(), computed_.begin() + 1);
    for (auto* by_step : {&starting_, &ending_, &due_}) by_step->resize(run.steps() + 1);
    load_.resize(run.steps());
    std::vector<int32_t> previous(run.pieces.size(), -1);
    for (Stay& stay : plan_.stays) {
      const size_t i = items_.size();
      const Piece& piece = run.pieces[stay.piece];
      stay.issue = stay.first;
      stay.released = stay.last + 1;
      if (stay.reads) reads_.push_back(i);
      if (stay.writes && piece.written_by_step >= 0) due_[static_cast<size_t>(piece.written_by_step)].push_back(i);
      const int32_t before = std::exchange(previous[stay.piece], static_cast<int32_t>(i));
      items_.push_back({.bytes = piece.bytes, .first = stay.first, .last = stay.last, .before = before});
    }
    for (const Block& block : run.blocks) items_.push_back({.bytes = block.bytes, .first = block.first, .last = block.last});
    for (size_t i = 0; i < items_.size(); ++i) {
      starting_[static_cast<size_t>(items_[i].first)].push_back(i);
      ending_[static_cast<size_t>(items_[i].last) + 1].push_back(i);
      occupy(i, items_[i].first, items_[i].last);
    }
  }

  RunPlan run() {
    const auto steps = static_cast<int32_t>(run_.steps());
    for (int32_t t = 0; t <= steps; ++t) {
      for (const size_t i : ending_[static_cast<size_t>(t)]) end_stay(i);
      if (t == steps) break;
      for (const size_t i : due_[static_cast<size_t>(t)]) {  // what the step uses in the backing memory is there by then
        if (items_[i].state == State::writing) release(i, t);
      }
      const std::vector<size_t>& starting = starting_[static_cast<size_t>(t)];
      for (const size_t i : starting) {
        if (items_[i].state == State::coming) make_room(i, t);
      }
      for (const size_t i : starting) {
        if (items_[i].state == State::coming) begin_stay(i, t);
      }
      begin_reads(t);
      for (const size_t i : starting) {
        if (is_read(i)) clock_.wait(items_[i].transfer);
      }
      compute(static_cast<size_t>(t));
    }
    while (!writing_.empty()) release(writing_.front(), steps);
    if (!backing_done_.empty()) clock_.wait_until(backing_done_.back());
    plan_.seconds = clock_.now();
    for (size_t i = 0; i < offsets_.size(); ++i) {
      if (i < plan_.stays.size())
        plan_.stays[i].offset = offsets_[i];
      else
        plan_.block_offsets.push_back(offsets_[i]);
    }
    return std::move(plan_);
  }

 private:
  bool is_read(size_t i) const { return i < plan_.stays.size() && plan_.stays[i].reads; }

  void begin_stay(size_t i, int32_t t) {
    items_[i].state = State::there;
    if (!is_read(i)) return;
    plan_.stays[i].issue = t;
    clock_.wait_until(ready(i));
    items_[i].transfer = clock_.begin(false, items_[i].bytes);
  }

  void end_stay(size_t i) {
    if (i >= plan_.stays.size() || !plan_.stays[i].writes) return leave(i);
    items_[i].state = State::writing;
    items_[i].transfer = clock_.begin(true, items_[i].bytes);
    writing_.push_back(i);
    writing_bytes_ += items_[i].bytes;
    if (by_bytes_) return;
    taken_.remove(static_cast<uint32_t>(i), place(i).begin);
    occupy(i, items_[i].first, std::numeric_limits<int32_t>::max());
  }

  void leave(size_t i) {
    items_[i].state = State::gone;
    if (!by_bytes_) taken_.remove(static_cast<uint32_t>(i), place(i).begin);
  }

  // Before step t its write is waited for.
  void release(size_t i, int32_t t) {
    clock_.wait(items_[i].transfer);
    plan_.stays[i].released = t;
    std::erase(writing_, i);
    writing_bytes_ -= items_[i].bytes;
    leave(i);
  }

  void compute(size_t t) {
    const double before = backing_done_.empty() ? 0 : backing_done_.back();
    if (!run_.backing_seconds.empty()) backing_done_.push_back(std::max(before, clock_.now()) + run_.backing_seconds[t]);
    clock_.compute(run_.seconds[t]);
  }

  // When what a stay reads has been computed in the backing memory.
  double ready(size_t i) const {
    const int32_t from = run_.pieces[plan_.stays[i].piece].first_readable_step;
    return from == 0 || backing_done_.empty() ? 0 : backing_done_[static_cast<size_t>(from) - 1];
  }

  // Reads ahead of their steps, in the order of need, until there is no room for one.
  void begin_reads(int32_t t) {
    while (next_ < reads_.size() && items_[reads_[next_]].state != State::coming) ++next_;
    for (size_t r = next_; r < reads_.size(); ++r) {
      const size_t i = reads_[r];
      if (items_[i].state != State::coming) continue;
      if (computed_[static_cast<size_t>(items_[i].first)] - computed_[static_cast<size_t>(t) + 1] > prefetch_seconds_) return;
      if (run_.pieces[plan_.stays[i].piece].first_readable_step > t || ready(i) > clock_.now() || !is_written(i)) continue;
      if (!(by_bytes_ ? find_bytes(i, t) : find_address(i, t))) return;
      make_room(i, t);
      begin_stay(i, t);
    }
  }

  // Whether what it reads is in the store already.
  bool is_written(size_t i) const {
    if (items_[i].before < 0) return true;
    const auto before = static_cast<size_t>(items_[i].before);
    return items_[before].state == State::gone || is_out_of_the_way(before);
  }
  bool is_out_of_the_way(size_t i) const { return items_[i].state == State::writing && clock_.is_over(items_[i].transfer); }

  // --- room -------------------------------------------------------------------------------------------------------------------------

  Range place(size_t i) const { return {offsets_[i], offsets_[i] + items_[i].bytes}; }

  void occupy(size_t i, int32_t first, int32_t last) {
    if (!by_bytes_) return taken_.add(static_cast<uint32_t>(i), place(i), first, last);
    for (int32_t t = first; t <= last; ++t) load_[static_cast<size_t>(t)] += items_[i].bytes;
  }

  // It begins before step t: waits for what is still written from its room, and for what it reads.
  void make_room(size_t i, int32_t t) {
    while (by_bytes_ && !writing_.empty() && load_[static_cast<size_t>(t)] + writing_bytes_ > bytes_) release(writing_.front(), t);
    for (size_t k = by_bytes_ ? 0 : writing_.size(); k-- > 0;) {
      if (place(writing_[k]).meets(place(i))) release(writing_[k], t);
    }
    const auto before = static_cast<size_t>(items_[i].before);
    if (is_read(i) && items_[i].before >= 0 && items_[before].state == State::writing) release(before, t);
  }

  // Room from step t on, beside what is still written then.
  bool find_bytes(size_t i, int32_t t) {
    int64_t writing = writing_bytes_;
    size_t over = 0;
    for (int32_t s = t; s < items_[i].first; ++s) {
      const double until = computed_[static_cast<size_t>(s)] - computed_[static_cast<size_t>(t)];
      for (; over < writing_.size() && clock_.lead(items_[writing_[over]].transfer) <= until; ++over)
        writing -= items_[writing_[over]].bytes;
      if (load_[static_cast<size_t>(s)] + writing + items_[i].bytes > bytes_) return false;
    }
    occupy(i, t, items_[i].first - 1);
    return true;
  }

  // Its own place, which is reserved from its first step on, or the tightest gap that is free from step t to its last.
  bool find_address(size_t i, int32_t t) {
    const Range own = place(i);
    const auto self = static_cast<uint32_t>(i);
    const bool is_free = taken_.each_within(
        t, items_[i].first - 1, [&](uint32_t other, const Range& taken) { return !taken.meets(own) || is_out_of_the_way(other); });
    if (!is_free) {
      int64_t cursor = 0, tightest = std::numeric_limits<int64_t>::max();
      const auto look = [&](const Range& taken) {
        const int64_t gap = taken.begin - cursor;
        if (gap >= items_[i].bytes && gap < tightest) tightest = gap, offsets_[i] = cursor;
        cursor = std::max(cursor, whole_sectors(taken.end));
      };
      taken_.each_within(t, items_[i].last, [&](uint32_t other, const Range& taken) {
        if (other != self && !is_out_of_the_way(other)) look(taken);
        return true;
      });
      look({bytes_, bytes_});
      if (tightest == std::numeric_limits<int64_t>::max()) return false;
    }
    taken_.remove(self, own.begin);
    occupy(i, t, items_[i].last);
    return true;
  }

  const Run& run_;
  const int64_t bytes_;
  const double prefetch_seconds_;
  const bool by_bytes_;
  RunPlan plan_{};
  StreamClock clock_;
  std::vector<Item> items_;
  std::vector<double> computed_;                              // before each step, if nothing waits
  std::vector<std::vector<size_t>> starting_, ending_, due_;  // by step: items; stays whose content it uses in the backing memory
  std::vector<double> backing_done_;                          // by step so far: when it has computed in the backing memory
  std::vector<size_t> reads_;                                 // in the order of need
  size_t next_ = 0;                                           // of these: those before it have begun
  std::vector<size_t> writing_;                               // in the order in which the writes were begun
  int64_t writing_bytes_ = 0;
  std::vector<int64_t> load_;     // by step, without addresses: cores, and reads ahead of them
  std::vector<int64_t> offsets_;  // by item: at first cores don't meet there, and what moves changes them
  Placements taken_;              // what is in memory, being written, or comes
};

// Each core, and such a share of its flanks.
Cores pack_cores(const Run& run, const std::vector<Stay>& stays, double share, const AddressOptions& options) {
  std::vector<AddressBlock> blocks;
  const auto part = [&](int32_t steps) { return static_cast<int32_t>(share * steps); };
  for (const Stay& stay : stays) {
    const int32_t before = part(stay.first - stay.issue), after = part(stay.released - stay.last - 1);
    blocks.push_back({.bytes = run.pieces[stay.piece].bytes,
                      .first = stay.first - before,
                      .last = stay.last + after,
                      .spare_before = before,
                      .spare_after = after,
                      .alignment = kSector});
  }
  for (const Block& block : run.blocks)  // of a run without steps, too
    blocks.push_back({.bytes = block.bytes, .first = block.first, .last = std::max(block.first, block.last)});
  Cores cores{.offsets = {}, .bytes = assign_addresses(blocks, options)};
  for (const AddressBlock& block : blocks) cores.offsets.push_back(block.offset);
  return cores;
}

}  // namespace

RunPlan assign_without_addresses(const Run& run, std::vector<Stay> stays, int64_t bytes, const StreamRates& disk, double prefetch_seconds) {
  return Assigner(run, std::move(stays), nullptr, bytes, disk, prefetch_seconds).run();
}

std::optional<Cores> place_cores(const Run& run, const RunPlan& wish, int64_t bytes) {
  for (const double share : {0.7, 0.3, 0.0}) {
    Cores cores = pack_cores(run, wish.stays, share, {.enough = bytes});
    if (cores.bytes <= bytes) return cores;
  }
  return std::nullopt;
}

Cores place_tightly(const Run& run, const std::vector<Stay>& stays) { return pack_cores(run, stays, 0, {}); }

RunPlan assign(const Run& run, std::vector<Stay> stays, const Cores& cores, int64_t bytes, const StreamRates& disk,
               double prefetch_seconds) {
  return Assigner(run, std::move(stays), &cores, bytes, disk, prefetch_seconds).run();
}

}  // namespace ort_train::planning
