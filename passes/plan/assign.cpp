#include "passes/plan/assign.h"

#include <algorithm>
#include <map>
#include <utility>

#include "passes/pack.h"
#include "passes/plan/room.h"

namespace ort_train::planning {
namespace {

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
      const int32_t until = run_.pieces[stay.piece].until;
      if (stay.writes && until >= 0 && until < steps) due_[until].push_back(i);
    }
    for (int32_t t = 0; t <= steps; ++t) {
      for (const size_t i : table_.ending[static_cast<size_t>(t)]) end(i);
      if (t == steps) break;
      compute_behind(t);
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

  // What step t uses behind is there by then.
  void compute_behind(int32_t t) {
    if (const auto due = due_.find(t); due != due_.end()) {
      for (const size_t i : due->second) {
        if (items_[i].state == State::writing) release(i, t);
      }
    }
    if (run_.seconds_behind.empty()) return;
    const double before = done_behind_.empty() ? 0 : done_behind_.back();
    done_behind_.push_back(std::max(before, clock_.now()) + run_.seconds_behind[static_cast<size_t>(t)]);
  }

  // When what a stay reads has been computed behind.
  double ready(size_t i) const {
    const int32_t from = run_.pieces[plan_.stays[i].piece].from;
    return from == 0 || done_behind_.empty() ? 0 : done_behind_[static_cast<size_t>(from) - 1];
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
    clock_.wait_until(ready(i));
    items_[i].transfer = clock_.begin(false, items_[i].bytes);
  }

  // Reads ahead of their steps, in the order of need, until there is no room for one.
  void begin_reads(int32_t t) {
    while (next_ < reads_.size() && items_[reads_[next_]].state != State::coming) ++next_;
    for (size_t r = next_; r < reads_.size(); ++r) {
      const size_t i = reads_[r];
      if (items_[i].state != State::coming) continue;
      if (clock_.backlog() > run_.seconds[static_cast<size_t>(t)] + eagerness_.queued) return;
      if (table_.computed[static_cast<size_t>(items_[i].first)] - table_.computed[static_cast<size_t>(t) + 1] > eagerness_.early) return;
      if (run_.pieces[plan_.stays[i].piece].from > t || ready(i) > clock_.now() || !is_written(i)) continue;
      if (!room_.take_early(i, t, [&](size_t other) { release(other, t); })) return;
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
  std::vector<size_t> reads_;                   // in the order of need
  size_t next_ = 0;                             // of these: those before it have begun
  std::map<int32_t, std::vector<size_t>> due_;  // by step: stays whose content it uses behind
  std::vector<double> done_behind_;             // by step so far: when it has computed behind
};

// Each core, and such a share of its flanks.
std::vector<ort_train::Block> blocks_of(const Run& run, const std::vector<Stay>& stays, double share) {
  std::vector<ort_train::Block> blocks;
  const auto part = [&](int32_t steps) { return static_cast<int32_t>(share * steps); };
  for (const Stay& stay : stays) {
    const int32_t before = part(stay.first - stay.issue), behind = part(stay.released - stay.last - 1);
    blocks.push_back({.bytes = run.pieces[stay.piece].bytes,
                      .first = stay.first - before,
                      .last = stay.last + behind,
                      .spare_before = before,
                      .spare_behind = behind,
                      .alignment = kSector});
  }
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
  Room room(table, bytes, /*offsets=*/nullptr);
  Pass(run, plan, eagerness, table, room).run();
  return plan;
}

std::optional<Cores> place_cores(const Run& run, const RunPlan& wish, int64_t bytes) {
  for (const double share : {0.7, 0.3, 0.0}) {
    std::vector<ort_train::Block> blocks = blocks_of(run, wish.stays, share);
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
  std::vector<int64_t> offsets = cores.offsets;
  Room room(table, bytes, &offsets);
  Pass(run, plan, eagerness, table, room).run();
  for (size_t i = 0; i < plan.stays.size(); ++i) plan.stays[i].offset = offsets[i];
  plan.block_offsets.assign(offsets.begin() + static_cast<std::ptrdiff_t>(plan.stays.size()), offsets.end());
  return plan;
}

}  // namespace ort_train::planning
