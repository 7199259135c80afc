#include "passes/stream_fit.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "passes/stream_spread.h"

namespace ort_train {
namespace {

// Of each instruction: the step that it is, or that comes next.
std::vector<int32_t> steps_of(const Entry& entry) {
  std::vector<int32_t> step_of(entry.code.size());
  int32_t steps = 0;
  for (size_t at = 0; at < entry.code.size(); ++at) {
    step_of[at] = steps;
    steps += entry.code[at].action == Action::compute;
  }
  return step_of;
}

// What was put last at each address: a time.
class Shelf {
 public:
  explicit Shelf(int32_t time) : times_{{0, time}} {}

  // Puts a time at addresses [low, high); the greatest that was there.
  int32_t put(int64_t low, int64_t high, int32_t time) {
    const auto from = split(low), to = split(high);
    int32_t most = from->second;
    for (auto at = from; at != to; ++at) most = std::max(most, at->second);
    times_.erase(std::next(from), to);
    from->second = time;
    return most;
  }

 private:
  std::map<int64_t, int32_t>::iterator split(int64_t at) {
    const auto found = std::prev(times_.upper_bound(at));
    return found->first == at ? found : times_.emplace_hint(std::next(found), at, found->second);
  }

  std::map<int64_t, int32_t> times_;  // by where they begin; the last has no end
};

// Times are steps: something that begins at step t is there before t runs, behind what ends at t, which isn't there any more.
class Stretcher {
 public:
  Stretcher(const Entry& entry, const StreamEntry& asked, const StreamRates& rates, const std::vector<Visit>& visits)
      : entry_(entry),
        others_(entry.storages.size() - visits.size()),
        steps_(static_cast<int32_t>(asked.seconds.size())),
        seconds_(asked.seconds.size() + 1),
        before_(visits.size(), kNobody),
        behind_(visits.size(), kNobody) {
    std::partial_sum(asked.seconds.begin(), asked.seconds.end(), seconds_.begin() + 1);
    const std::vector<int32_t> step_of = steps_of(entry);
    for (const Storage& storage : entry.storages) {
      const auto last = static_cast<size_t>(storage.last);
      begin_.push_back(step_of[static_cast<size_t>(storage.first)]);
      end_.push_back(step_of[last] + (entry.code[last].action == Action::compute ? 1 : 0));
    }
    for (const Visit& visit : visits)
      read_.push_back(static_cast<double>(asked.pieces[visit.piece].bytes) / rates.read * (1 - rates.slowed) / rates.beside);
    std::vector<size_t> latest(asked.pieces.size(), kNobody);
    for (size_t v = 0; v < visits.size(); ++v) {
      before_[v] = std::exchange(latest[visits[v].piece], v);
      if (before_[v] != kNobody) behind_[before_[v]] = v;
    }
  }

  // By visit: from when on its place is free before it begins.
  std::vector<int32_t> free_from(const std::vector<Visit>& visits) {
    set_times(visits);
    std::vector<int32_t> result(visits.size());
    Shelf shelf(0);
    for (const size_t i : in_order()) {
      const int32_t from = shelf.put(entry_.storages[i].place.offset, entry_.storages[i].place.end(), end_[i]);
      if (i >= others_) result[i - others_] = from;
    }
    for (size_t v = 0; v < visits.size(); ++v) {
      if (before_[v] != kNobody) result[v] = std::max({result[v], visits[before_[v]].last + 1, visits[before_[v]].written});
    }
    return result;
  }

  // Reads in the order in which they are wanted, none before the one ahead of it, and not before they have so many times the time that they
  // take.
  void move_reads(const std::vector<int32_t>& from, double patience, std::vector<Visit>& visits) const {
    std::vector<double> latest(visits.size());
    double until = seconds_.back();
    for (size_t v = visits.size(); v-- > 0;) {
      if (visits[v].issue < 0) continue;
      until = std::min(until, seconds_[static_cast<size_t>(visits[v].first)]) - patience * read_[v];
      latest[v] = until;
    }
    int32_t earliest = 0;
    for (size_t v = 0; v < visits.size(); ++v) {
      Visit& visit = visits[v];
      if (visit.issue < 0) continue;
      const auto near = std::upper_bound(seconds_.begin() + 1, seconds_.end(), latest[v]) - seconds_.begin() - 1;
      visit.issue = std::min(visit.issue, std::max({earliest, static_cast<int32_t>(near), from[v]}));
      earliest = std::max(earliest, visit.issue);
    }
  }

  // Writes are waited for when they are over anyway: their places are free sooner.
  void end_writes(const std::vector<int32_t>& over, std::vector<Visit>& visits) const {
    for (size_t v = 0; v < visits.size(); ++v) {
      if (visits[v].written >= 0) visits[v].written = std::min(visits[v].written, over[v]);
    }
  }

  // Writes are waited for when something else wants their place, or the piece is read again.
  void move_writes(std::vector<Visit>& visits) {
    set_times(visits);
    std::vector<size_t> order = in_order();
    std::reverse(order.begin(), order.end());
    Shelf shelf(-steps_);
    for (const size_t i : order) {
      const int32_t until = -shelf.put(entry_.storages[i].place.offset, entry_.storages[i].place.end(), -begin_[i]);
      if (i < others_ || visits[i - others_].written < 0) continue;
      Visit& visit = visits[i - others_];
      const size_t behind = behind_[i - others_];
      visit.written = std::max(visit.written, behind == kNobody ? until : std::min(until, begin_of(visits[behind])));
    }
  }

 private:
  static constexpr size_t kNobody = ~size_t{0};

  static int32_t begin_of(const Visit& visit) { return visit.issue >= 0 ? visit.issue : visit.first; }
  void set_times(const std::vector<Visit>& visits) {
    for (size_t v = 0; v < visits.size(); ++v) {
      begin_[others_ + v] = begin_of(visits[v]);
      end_[others_ + v] = visits[v].written >= 0 ? visits[v].written : visits[v].last + 1;
    }
  }
  // What has a place at one address at different times is in the order of these.
  std::vector<size_t> in_order() const {
    std::vector<size_t> order(begin_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::pair(begin_[a], a) < std::pair(begin_[b], b); });
    return order;
  }

  const Entry& entry_;
  const size_t others_;  // storages that aren't visits come first
  const int32_t steps_;
  std::vector<double> seconds_;          // until each step, if nothing waits
  std::vector<double> read_;             // by visit: what is computed while it is read
  std::vector<size_t> before_, behind_;  // by visit: of the same piece
  std::vector<int32_t> begin_, end_;     // by storage
};

}  // namespace

bool shorten(const Entry& entry, int64_t limit, bool around, std::vector<Visit>& visits) {
  const std::vector<int32_t> step_of = steps_of(entry);
  std::vector<int32_t> crowded(static_cast<size_t>(step_of.empty() ? 0 : step_of.back()) + 3);  // counts, by where they change
  std::vector<bool> cut(visits.size());
  const size_t others = entry.storages.size() - visits.size();
  for (size_t i = 0; i < entry.storages.size(); ++i) {
    const Storage& storage = entry.storages[i];
    if (storage.place.end() <= limit) continue;
    if (i >= others) {
      const Visit& visit = visits[i - others];
      cut[i - others] = (visit.issue >= 0 && visit.issue < visit.first) || visit.written > visit.last + 1;
      if (cut[i - others]) continue;
    }
    ++crowded[static_cast<size_t>(step_of[static_cast<size_t>(storage.first)])];
    --crowded[static_cast<size_t>(step_of[static_cast<size_t>(storage.last)]) + 1];
  }
  std::vector<int32_t> before(crowded.size() + 1);  // crowded steps before each
  for (size_t t = 0, now = 0; t < crowded.size(); ++t) {
    now += static_cast<size_t>(crowded[t]);
    before[t + 1] = before[t] + (now > 0);
  }
  const auto meets = [&](int32_t from, int32_t to) { return before[static_cast<size_t>(to)] > before[static_cast<size_t>(from)]; };
  bool changed = false;
  for (size_t v = 0; v < visits.size(); ++v) {
    Visit& visit = visits[v];
    if (visit.issue >= 0 && visit.issue < visit.first && (cut[v] || (around && meets(visit.issue, visit.first)))) {
      visit.issue += cut[v] ? (visit.first - visit.issue + 1) / 2 : (visit.first - visit.issue + 3) / 4;
      changed = true;
    }
    if (visit.written > visit.last + 1 && (cut[v] || (around && meets(visit.last + 1, visit.written)))) {
      visit.written -= cut[v] ? (visit.written - visit.last) / 2 : (visit.written - visit.last + 2) / 4;
      changed = true;
    }
  }
  return changed;
}

bool stretch(const Entry& entry, const StreamEntry& asked, const StreamRates& rates, std::vector<Visit>& visits, StreamForecast& forecast) {
  constexpr double kPatience[] = {1.1, 1.5, 2.5, 10};
  constexpr double kWorth = 1 - 1e-4;
  std::vector<Visit> given = visits;
  Stretcher stretcher(entry, asked, rates, given);
  StreamTimes times;
  simulate(asked, given, rates, &times);
  bool any = false;
  for (const bool reads_first : {true, false}) {
    if (reads_first)
      stretcher.end_writes(times.over, given);
    else
      stretcher.move_writes(given);
    const std::vector<int32_t> from = stretcher.free_from(given);
    for (const double patience : kPatience) {
      std::vector<Visit> moved = given;
      stretcher.move_reads(from, patience, moved);
      if (reads_first) stretcher.move_writes(moved);
      const StreamForecast found = simulate(asked, moved, rates);
      if (found.seconds >= kWorth * forecast.seconds) continue;
      visits = std::move(moved);
      forecast = found;
      any = true;
    }
  }
  return any;
}

}  // namespace ort_train
