// Two sweeps give candidates: `hoist` runs the last readers of something as soon as they can where that frees more than it takes (an update
// right after its gradient), `defer` runs what takes more than it frees as late as its readers permit. Then a search at the peak: move the
// readers of something that is live there to before it, or its producer to after it, with whatever has to move along or profits from it.
// Each candidate is simulated; the lowest peak wins, the graph's own order where nothing is gained: it has the better locality. At last,
// sums are moved to right after what they read.

#include "passes/schedule.h"

#include <algorithm>
#include <numeric>

namespace ort_train {
namespace {

// What the search may cost: simulated steps (some ten nanoseconds each).
constexpr int64_t kSearchSteps = 4'000'000;
// A candidate must be this much better to leave the graph's own order.
constexpr double kWorthwhile = 0.999;

// Runs the last readers of something together as soon as they can, where that leaves fewer live bytes; the rest in the given order.
class Hoister {
 public:
  explicit Hoister(const MemoryModel& model)
      : model_(model),
        waiting_(model.steps.size()),
        placed_(model.steps.size()),
        remaining_(model.classes.size()),
        reads_(model.classes.size()) {
    for (size_t c = 0; c < model.classes.size(); ++c) remaining_[c] = model.classes[c].readers;
    class_readers_.resize(model.classes.size());
    for (uint32_t s = 0; s < model.steps.size(); ++s) {
      waiting_[s] = static_cast<uint32_t>(model.steps[s].before.size());
      for (uint32_t c : model.steps[s].reads) class_readers_[c].push_back(s);
    }
  }

  StepOrder run(const StepOrder& order) {
    for (uint32_t s : order) {
      if (placed_[s]) continue;
      place(s);
      while (hoist_one()) {
      }
      candidates_.clear();
    }
    return std::move(result_);
  }

 private:
  // Of the classes that the last steps touched, the one whose end gains most.
  bool hoist_one() {
    uint32_t best = kNone;
    int64_t best_change = 0;
    for (uint32_t c : candidates_) {
      const int64_t change = change_of_ending(c);
      if (change < best_change || (change == best_change && best != kNone && c < best)) {
        best = c;
        best_change = change;
      }
    }
    if (best == kNone) return false;
    for (uint32_t s : class_readers_[best]) {
      if (!placed_[s]) place(s);
    }
    return true;
  }

  void place(uint32_t s) {
    placed_[s] = true;
    result_.push_back(s);
    for (uint32_t c : model_.steps[s].reads) {
      --remaining_[c];
      candidates_.push_back(c);
    }
    for (uint32_t next : model_.steps[s].after) {
      if (--waiting_[next] == 0) candidates_.insert(candidates_.end(), model_.steps[next].reads.begin(), model_.steps[next].reads.end());
    }
  }

  // What running all readers that `c` still has does to live bytes; 0 where that can't be done now.
  int64_t change_of_ending(uint32_t c) {
    if (remaining_[c] == 0 || remaining_[c] > kTogether || model_.classes[c].kept) return 0;
    int64_t change = 0;
    ended_.clear();
    for (uint32_t s : class_readers_[c]) {
      if (placed_[s]) continue;
      if (waiting_[s] > 0) return 0;
      for (uint32_t d : model_.steps[s].defines) {
        if (model_.classes[d].readers > 0 || model_.classes[d].kept) change += model_.classes[d].bytes;
      }
      ended_.insert(ended_.end(), model_.steps[s].reads.begin(), model_.steps[s].reads.end());
    }
    for (uint32_t d : ended_) ++reads_[d];
    for (uint32_t d : ended_) {
      if (reads_[d] == remaining_[d] && !model_.classes[d].kept) change -= model_.classes[d].bytes;
      reads_[d] = 0;  // counted
    }
    return change;
  }

  static constexpr uint32_t kTogether = 4;  // readers

  const MemoryModel& model_;
  std::vector<uint32_t> waiting_;
  std::vector<bool> placed_;
  std::vector<uint32_t> remaining_;
  std::vector<std::vector<uint32_t>> class_readers_;
  std::vector<uint32_t> candidates_;  // classes
  std::vector<uint32_t> ended_;
  std::vector<uint32_t> reads_;  // by class, of `ended_`
  StepOrder result_;
};

// The same from the end: each step that takes more than it frees runs as late as it can.
class Deferrer {
 public:
  explicit Deferrer(const MemoryModel& model)
      : model_(model), waiting_(model.steps.size()), placed_(model.steps.size()), wanted_(model.classes.size()) {
    for (size_t c = 0; c < model.classes.size(); ++c) wanted_[c] = model.classes[c].kept;
    class_readers_.resize(model.classes.size());
    for (uint32_t s = 0; s < model.steps.size(); ++s) {
      waiting_[s] = static_cast<uint32_t>(model.steps[s].after.size());
      for (uint32_t c : model.steps[s].reads) class_readers_[c].push_back(s);
    }
  }

  StepOrder run(const StepOrder& order) {
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      if (placed_[*at]) continue;
      place(*at);
      while (true) {
        uint32_t best = kNone;
        int64_t best_change = 0;
        for (uint32_t candidate : candidates_) {
          if (placed_[candidate] || waiting_[candidate] > 0) continue;
          const int64_t change = change_of(candidate);
          if (change < best_change || (change == best_change && best != kNone && candidate > best)) {
            best = candidate;
            best_change = change;
          }
        }
        if (best == kNone) break;
        place(best);
      }
      candidates_.clear();
    }
    std::reverse(result_.begin(), result_.end());
    return std::move(result_);
  }

 private:
  void place(uint32_t s) {
    placed_[s] = true;
    result_.push_back(s);
    for (uint32_t c : model_.steps[s].reads) {
      if (wanted_[c]) continue;
      wanted_[c] = true;  // its other readers keep nothing alive any more by reading it
      candidates_.insert(candidates_.end(), class_readers_[c].begin(), class_readers_[c].end());
    }
    for (uint32_t previous : model_.steps[s].before) {
      if (--waiting_[previous] == 0) candidates_.push_back(previous);
    }
  }

  int64_t change_of(uint32_t s) const {
    int64_t change = 0;
    for (uint32_t c : model_.steps[s].reads) change += wanted_[c] ? 0 : model_.classes[c].bytes;
    for (uint32_t c : model_.steps[s].defines) change -= wanted_[c] ? model_.classes[c].bytes : 0;
    return change;
  }

  const MemoryModel& model_;
  std::vector<uint32_t> waiting_;
  std::vector<bool> placed_, wanted_;
  std::vector<std::vector<uint32_t>> class_readers_;
  std::vector<uint32_t> candidates_;
  StepOrder result_;
};

// Moves around the peak of an order, until nothing helps or the search has cost enough. What a move leads to is simulated from the first
// step that it moves to the last: before and after these the same is live as ever.
class PeakSearch {
 public:
  PeakSearch(const MemoryModel& model, StepOrder order)
      : model_(model),
        mark_(model.steps.size()),
        position_(model.steps.size()),
        producer_(model.classes.size(), kNone),
        readers_(model.classes.size()),
        remaining_(model.classes.size()),
        counted_(model.classes.size(), 0) {
    for (uint32_t s = 0; s < model.steps.size(); ++s) {
      for (uint32_t c : model.steps[s].defines) producer_[c] = s;
      for (uint32_t c : model.steps[s].reads) readers_[c].push_back(s);
    }
    for (const MemoryClass& c : model.classes) unread_ += c.fed && c.readers == 0 && !c.kept ? c.bytes : 0;
    take(std::move(order));
  }

  StepOrder run() {
    int64_t tries = kSearchSteps / (static_cast<int64_t>(order_.size()) + 1);
    while (tries > 0 && improve(tries)) {
    }
    return std::move(order_);
  }
  const Peak& peak() const { return peak_; }

 private:
  void take(StepOrder order) {
    order_ = std::move(order);
    for (uint32_t at = 0; at < order_.size(); ++at) position_[order_[at]] = static_cast<int32_t>(at);
    peak_ = simulate(model_, order_, nullptr, &load_);
    const Peak none{.bytes = -1};
    until_.assign(1, none);
    for (const StepLoad& load : load_) until_.push_back(joined(until_.back(), {.bytes = load.during, .times = 1}));
    from_.assign(load_.size() + 1, none);
    for (size_t at = load_.size(); at-- > 0;) from_[at] = joined({.bytes = load_[at].during, .times = 1}, from_[at + 1]);
  }

  // Of two stretches.
  static Peak joined(const Peak& a, const Peak& b) {
    if (a.bytes != b.bytes) return a.bytes > b.bytes ? a : b;
    return {.bytes = a.bytes, .times = a.times + b.times};
  }

  bool improve(int64_t& tries) {
    for (uint32_t c : live_at_peak()) {
      for (const auto& [earlier, company] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
        if (tries <= 0) return false;
        if (!(earlier ? readers_before_peak(c, company) : producer_after_peak(c, company))) continue;
        --tries;
        if (!lowers_peak(earlier)) continue;
        take(moved(earlier));
        return true;
      }
    }
    return false;
  }

  // Whether the order with the marked steps on the other side of the peak has a lower one.
  bool lowers_peak(bool earlier) {
    std::sort(marked_.begin(), marked_.end(), [&](uint32_t a, uint32_t b) { return position_[a] < position_[b]; });
    const int32_t begin = earlier ? peak_.at : position_[marked_.front()];
    const int32_t end = earlier ? position_[marked_.back()] + 1 : peak_.at + 1;
    ++round_;
    int64_t live = load_[static_cast<size_t>(begin)].before;
    Peak peak = joined(until_[static_cast<size_t>(begin)], from_[static_cast<size_t>(end)]);
    int32_t at = begin;
    const auto run = [&](uint32_t s) {
      const int64_t now = run_step(s, begin, at++, live);
      peak = joined(peak, {.bytes = now, .times = 1});
      return !(peak_ < peak);
    };
    const auto run_marked = [&] { return std::all_of(marked_.begin(), marked_.end(), run); };
    if (earlier && !run_marked()) return false;
    for (int32_t i = begin; i < end; ++i) {
      if (const uint32_t s = order_[static_cast<size_t>(i)]; !mark_[s] && !run(s)) return false;
    }
    if (!earlier && !run_marked()) return false;
    return peak < peak_;
  }

  // One step at position `at` of an order that is the present one before `begin`. Returns the bytes live in it; `live` becomes those after
  // it. As simulate() does it.
  int64_t run_step(uint32_t s, int32_t begin, int32_t at, int64_t& live) {
    const MemoryStep& step = model_.steps[s];
    for (uint32_t c : step.reads) {
      if (counted_[c] == round_) continue;
      counted_[c] = round_;
      remaining_[c] = 0;
      for (uint32_t reader : readers_[c]) remaining_[c] += position_[reader] >= begin;
    }
    int64_t now = live + step.workspace;
    taken_.clear();
    for (uint32_t c : step.defines) {
      const auto place = std::find_if(step.in_place.begin(), step.in_place.end(), [&](const auto& pair) {
        return pair.first == c && remaining_[pair.second] == 1 && std::find(taken_.begin(), taken_.end(), pair.second) == taken_.end();
      });
      if (place == step.in_place.end())
        now += model_.classes[c].bytes;
      else
        taken_.push_back(place->second);
      if (model_.classes[c].readers > 0 || model_.classes[c].kept) live += model_.classes[c].bytes;
    }
    for (uint32_t c : step.reads) {
      if (--remaining_[c] == 0 && !model_.classes[c].kept) live -= model_.classes[c].bytes;
    }
    if (at == 0) live -= unread_;
    return now;
  }

  // Transient classes that exist at the peak, the largest first.
  std::vector<uint32_t> live_at_peak() const {
    std::vector<uint32_t> live;
    for (uint32_t c = 0; c < model_.classes.size(); ++c) {
      const MemoryClass& info = model_.classes[c];
      if (info.persistent || info.bytes == 0) continue;
      const int32_t first = producer_[c] == kNone ? 0 : position_[producer_[c]];
      int32_t last = info.kept ? static_cast<int32_t>(order_.size()) - 1 : first;
      for (uint32_t reader : readers_[c]) last = std::max(last, position_[reader]);
      if (first <= peak_.at && peak_.at <= last) live.push_back(c);
    }
    std::stable_sort(live.begin(), live.end(), [&](uint32_t a, uint32_t b) { return model_.classes[a].bytes > model_.classes[b].bytes; });
    return live;
  }

  // Marks what has to move; false where that can't be.
  bool readers_before_peak(uint32_t c, bool company) {
    if (model_.classes[c].kept) return false;
    std::vector<uint32_t> seeds;
    for (uint32_t reader : readers_[c]) {
      if (position_[reader] == peak_.at) return false;
      if (position_[reader] > peak_.at) seeds.push_back(reader);
    }
    if (seeds.empty() || !mark(seeds, &MemoryStep::before, +1)) return false;
    return !company || mark_enders();
  }
  bool producer_after_peak(uint32_t c, bool company) {
    if (producer_[c] == kNone || position_[producer_[c]] >= peak_.at) return false;
    if (!mark({producer_[c]}, &MemoryStep::after, -1)) return false;
    return !company || mark_feeders();
  }

  // Marks `seeds` and all that must move with them to the other side of the peak; false where the peak's own step is among them.
  // `side` is where they are now: +1 after the peak.
  bool mark(std::vector<uint32_t> seeds, const std::vector<uint32_t> MemoryStep::*along, int side) {
    std::fill(mark_.begin(), mark_.end(), false);
    marked_ = seeds;
    for (uint32_t s : seeds) mark_[s] = true;
    while (!seeds.empty()) {
      const uint32_t s = seeds.back();
      seeds.pop_back();
      for (uint32_t other : model_.steps[s].*along) {
        if (position_[other] == peak_.at) return false;
        if ((position_[other] > peak_.at) != (side > 0) || mark_[other]) continue;
        mark_[other] = true;
        marked_.push_back(other);
        seeds.push_back(other);
      }
    }
    return true;
  }

  // Marks, too, the readers of what the marked steps (on their way to before the peak) make, where all of them can come along: a gradient
  // moves with its update. False where there are none.
  bool mark_enders() {
    const size_t before = marked_.size();
    const auto can_move = [&](uint32_t s) {
      return mark_[s] || position_[s] < peak_.at ||
             std::all_of(model_.steps[s].before.begin(), model_.steps[s].before.end(),
                         [&](uint32_t p) { return mark_[p] || position_[p] < peak_.at; });
    };
    for (size_t i = 0; i < marked_.size(); ++i) {
      for (uint32_t c : model_.steps[marked_[i]].defines) {
        if (model_.classes[c].kept || !std::all_of(readers_[c].begin(), readers_[c].end(), can_move)) continue;
        for (uint32_t s : readers_[c]) {
          if (mark_[s] || position_[s] <= peak_.at) continue;
          mark_[s] = true;
          marked_.push_back(s);
        }
      }
    }
    return marked_.size() > before;
  }

  // The same for the other direction: producers of what only marked steps read.
  bool mark_feeders() {
    const size_t before = marked_.size();
    for (size_t i = 0; i < marked_.size(); ++i) {
      for (uint32_t c : model_.steps[marked_[i]].reads) {
        const uint32_t s = producer_[c];
        if (s == kNone || mark_[s] || position_[s] >= peak_.at || model_.classes[c].kept) continue;
        const auto& after = model_.steps[s].after;
        if (!std::all_of(after.begin(), after.end(), [&](uint32_t next) { return mark_[next] || position_[next] > peak_.at; })) continue;
        mark_[s] = true;
        marked_.push_back(s);
      }
    }
    return marked_.size() > before;
  }

  // The order with the marked steps (by position) right on the other side of the peak, among themselves as they were.
  StepOrder moved(bool earlier) const {
    StepOrder result;
    result.reserve(order_.size());
    const auto put_marked = [&] { result.insert(result.end(), marked_.begin(), marked_.end()); };
    for (uint32_t s : order_) {
      if (position_[s] == peak_.at && earlier) put_marked();
      if (!mark_[s]) result.push_back(s);
      if (position_[s] == peak_.at && !earlier) put_marked();
    }
    return result;
  }

  const MemoryModel& model_;
  StepOrder order_;
  Peak peak_;
  std::vector<StepLoad> load_;      // by position
  std::vector<Peak> until_, from_;  // before each position; from it on
  std::vector<bool> mark_;          // by step
  std::vector<uint32_t> marked_;
  std::vector<int32_t> position_;   // by step
  std::vector<uint32_t> producer_;  // by class
  std::vector<std::vector<uint32_t>> readers_;
  std::vector<uint32_t> remaining_;  // readers that are still to run, where `counted_` is the present round
  std::vector<uint32_t> counted_;
  uint32_t round_ = 0;
  std::vector<uint32_t> taken_;
  int64_t unread_ = 0;  // bytes of inputs that nobody reads: there at the first step
};

// The order with what reads much and makes next to nothing (sums of squares, of columns) as soon as it can be: what it reads is in the
// cache then.
StepOrder with_sums_at_once(const MemoryModel& model, const StepOrder& order) {
  constexpr int64_t kNextToNothing = 64;  // of the bytes read
  std::vector<uint32_t> waiting(model.steps.size());
  std::vector<bool> is_sum(model.steps.size()), placed(model.steps.size());
  for (uint32_t s = 0; s < model.steps.size(); ++s) {
    const MemoryStep& step = model.steps[s];
    waiting[s] = static_cast<uint32_t>(step.before.size());
    int64_t read = 0, made = 0;
    for (const uint32_t c : step.reads) read += model.classes[c].bytes;
    for (const uint32_t c : step.defines) made += model.classes[c].bytes;
    is_sum[s] = made > 0 && made * kNextToNothing <= read;  // an update makes nothing new
  }
  StepOrder result;
  result.reserve(order.size());
  std::vector<uint32_t> ready;
  for (const uint32_t next : order) {
    if (placed[next]) continue;
    ready = {next};
    while (!ready.empty()) {
      const uint32_t s = ready.back();
      ready.pop_back();
      placed[s] = true;
      result.push_back(s);
      for (auto after = model.steps[s].after.rbegin(); after != model.steps[s].after.rend(); ++after) {
        if (--waiting[*after] == 0 && is_sum[*after]) ready.push_back(*after);
      }
    }
  }
  return result;
}

}  // namespace

StepOrder schedule(const MemoryModel& model) {
  StepOrder own(model.steps.size());
  std::iota(own.begin(), own.end(), 0u);
  const auto hoist = [&](const StepOrder& order) { return Hoister(model).run(order); };
  const auto defer = [&](const StepOrder& order) { return Deferrer(model).run(order); };
  std::vector<StepOrder> candidates = {own, hoist(own), defer(own)};
  candidates.push_back(hoist(candidates[2]));
  candidates.push_back(defer(candidates[1]));

  StepOrder best = own;
  int64_t best_bytes = simulate(model, own).bytes;
  const auto consider = [&](StepOrder order, int64_t bytes) {
    if (static_cast<double>(bytes) >= kWorthwhile * static_cast<double>(best_bytes)) return;
    best = std::move(order);
    best_bytes = bytes;
  };
  for (size_t i = 1; i < candidates.size(); ++i) consider(candidates[i], simulate(model, candidates[i]).bytes);
  PeakSearch search(model, best);
  StepOrder found = search.run();
  consider(std::move(found), search.peak().bytes);
  StepOrder close = with_sums_at_once(model, best);
  return kWorthwhile * static_cast<double>(simulate(model, close).bytes) <= static_cast<double>(best_bytes) ? close : best;
}

}  // namespace ort_train
