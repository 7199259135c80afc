#include "passes/stream.h"

#include <algorithm>
#include <numeric>

namespace ort_train {
namespace {

// Shares of the memory above the floor that choices leave free for transfers ahead of and behind their steps.
constexpr double kFree[] = {0, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6, 0.8, 1};

// Bytes at each step if every piece is there only while it is used.
std::vector<int64_t> least_load(const StreamEntry& entry) {
  std::vector<int64_t> load = entry.fixed;
  for (const StreamPiece& piece : entry.pieces) {
    for (const StreamUse& use : piece.uses) load[static_cast<size_t>(use.step)] += piece.bytes;
  }
  return load;
}

// Something that may be held: a piece between uses `use` and `use + 1`, or (use -1) a persistent value everywhere.
struct Candidate {
  size_t entry = 0;
  uint32_t piece = 0;
  int32_t use = -1;
  double gain = 0;  // seconds of transfers saved, for a byte-step of contended memory
};

class Holder {
 public:
  Holder(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates)
      : entries_(entries), limit_(limit), rates_(rates), owners_(persistents) {
    for (size_t e = 0; e < entries.size(); ++e) {
      least_.push_back(least_load(entries[e]));
      for (uint32_t p = 0; p < entries[e].pieces.size(); ++p) {
        if (entries[e].pieces[p].persistent >= 0) owners_[static_cast<size_t>(entries[e].pieces[p].persistent)].push_back({e, p});
      }
    }
    find_contended();
    find_candidates();
  }

  // The choices that leave `free` bytes below the limit at each step that they affect.
  void choose(int64_t free) {
    load_ = least_;
    resident_.assign(owners_.size(), false);
    held_.clear();
    for (const StreamEntry& entry : entries_) {
      auto& held = held_.emplace_back();
      for (const StreamPiece& piece : entry.pieces) held.emplace_back(piece.uses.size(), false);
    }
    for (const Candidate& candidate : candidates_) {
      if (candidate.use < 0)
        make_resident(candidate, limit_ - free);
      else
        hold(candidate, limit_ - free);
    }
  }

  const std::vector<bool>& resident() const { return resident_; }
  const std::vector<int64_t>& load(size_t entry) const { return load_[entry]; }
  bool held(size_t entry, uint32_t piece, size_t use) const { return held_[entry][piece][use]; }
  bool is_resident(const StreamPiece& piece) const { return piece.persistent >= 0 && resident_[static_cast<size_t>(piece.persistent)]; }

 private:
  struct Owner {
    size_t entry;
    uint32_t piece;
  };

  // Steps at which not everything can be held; as counts before each step.
  void find_contended() {
    for (size_t e = 0; e < entries_.size(); ++e) {
      std::vector<int64_t> all = entries_[e].fixed;
      const auto steps = static_cast<int32_t>(all.size());
      for (const StreamPiece& piece : entries_[e].pieces) {
        const int32_t first = piece.persistent >= 0 ? 0 : piece.uses.front().step;
        const int32_t last = piece.persistent >= 0 ? steps - 1 : piece.uses.back().step;
        for (int32_t t = first; t <= last; ++t) all[static_cast<size_t>(t)] += piece.bytes;
      }
      auto& contended = contended_.emplace_back(1, 0.0);
      for (const int64_t bytes : all) contended.push_back(contended.back() + (bytes > limit_ ? 1 : 1e-3));
    }
  }

  double span(size_t entry, int32_t after, int32_t before) const {  // steps strictly between
    return contended_[entry][static_cast<size_t>(before)] - contended_[entry][static_cast<size_t>(after) + 1];
  }

  void find_candidates() {
    for (size_t e = 0; e < entries_.size(); ++e) {
      for (uint32_t p = 0; p < entries_[e].pieces.size(); ++p) {
        const StreamPiece& piece = entries_[e].pieces[p];
        bool changed = piece.persistent < 0;
        for (size_t u = 0; u + 1 < piece.uses.size(); ++u) {
          changed |= piece.uses[u].changes;
          if (!piece.uses[u + 1].reads) continue;  // nothing would come back
          const double saved = 1 / rates_.read + (changed ? 1 / rates_.write : 0);
          const double steps = span(e, piece.uses[u].step, piece.uses[u + 1].step);
          candidates_.push_back({e, p, static_cast<int32_t>(u), saved / std::max(steps, 1e-6)});
        }
      }
    }
    for (const auto& owners : owners_) {
      if (owners.empty()) continue;
      double saved = 0, steps = 0;
      for (const Owner& owner : owners) {
        const StreamPiece& piece = entries_[owner.entry].pieces[owner.piece];
        const bool changed = std::any_of(piece.uses.begin(), piece.uses.end(), [](const StreamUse& use) { return use.changes; });
        const bool reads = piece.uses.front().reads;
        saved += entries_[owner.entry].weight * ((reads ? 1 / rates_.read : 0) + (changed ? 1 / rates_.write : 0));
        steps += entries_[owner.entry].weight *
                 (contended_[owner.entry].back() - span(owner.entry, piece.uses.front().step, piece.uses.back().step));
      }
      candidates_.push_back({owners[0].entry, owners[0].piece, -1, saved / std::max(steps, 1e-6)});
    }
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.gain > b.gain; });
  }

  void hold(const Candidate& candidate, int64_t cap) {
    const StreamPiece& piece = entries_[candidate.entry].pieces[candidate.piece];
    if (is_resident(piece)) return;
    auto& load = load_[candidate.entry];
    const auto use = static_cast<size_t>(candidate.use);
    const auto begin = load.begin() + piece.uses[use].step + 1, end = load.begin() + piece.uses[use + 1].step;
    if (std::any_of(begin, end, [&](int64_t bytes) { return bytes + piece.bytes > cap; })) return;
    for (auto at = begin; at != end; ++at) *at += piece.bytes;
    held_[candidate.entry][candidate.piece][use] = true;
  }

  void make_resident(const Candidate& candidate, int64_t cap) {
    const auto number = static_cast<size_t>(entries_[candidate.entry].pieces[candidate.piece].persistent);
    std::vector<std::vector<bool>> there;  // by entry: the steps at which it is in memory already
    for (const auto& load : load_) there.emplace_back(load.size(), false);
    int64_t bytes = 0;
    for (const Owner& owner : owners_[number]) {
      const StreamPiece& piece = entries_[owner.entry].pieces[owner.piece];
      bytes = piece.bytes;
      for (size_t u = 0; u < piece.uses.size(); ++u) {
        const int32_t end = held_[owner.entry][owner.piece][u] ? piece.uses[u + 1].step : piece.uses[u].step + 1;
        for (int32_t t = piece.uses[u].step; t < end; ++t) there[owner.entry][static_cast<size_t>(t)] = true;
      }
    }
    for (size_t e = 0; e < load_.size(); ++e) {
      for (size_t t = 0; t < load_[e].size(); ++t) {
        if (!there[e][t] && load_[e][t] + bytes > cap) return;
      }
    }
    for (size_t e = 0; e < load_.size(); ++e) {
      for (size_t t = 0; t < load_[e].size(); ++t) load_[e][t] += there[e][t] ? 0 : bytes;
    }
    resident_[number] = true;
  }

  const std::vector<StreamEntry>& entries_;
  const int64_t limit_;
  const StreamRates rates_;
  std::vector<std::vector<Owner>> owners_;  // by persistent
  std::vector<std::vector<int64_t>> least_, load_;
  std::vector<std::vector<double>> contended_;
  std::vector<Candidate> candidates_;
  std::vector<bool> resident_;
  std::vector<std::vector<std::vector<bool>>> held_;  // by entry, piece, use: held from there to the next
};

// The stays that the choices lead to, without transfers.
std::vector<Visit> make_visits(const StreamEntry& entry, size_t number, const Holder& holder) {
  std::vector<Visit> visits;
  for (uint32_t p = 0; p < entry.pieces.size(); ++p) {
    const StreamPiece& piece = entry.pieces[p];
    if (holder.is_resident(piece)) continue;
    bool changed = false, first_visit = true;
    for (size_t u = 0; u < piece.uses.size(); ++u) {
      const bool reads = piece.uses[u].reads;
      Visit visit{.piece = p, .first = piece.uses[u].step, .last = piece.uses[u].step};
      changed |= piece.uses[u].changes;
      // Uses in neighbouring steps have nothing between them.
      while (u + 1 < piece.uses.size() && (holder.held(number, p, u) || piece.uses[u + 1].step == piece.uses[u].step + 1)) {
        visit.last = piece.uses[++u].step;
        changed |= piece.uses[u].changes;
      }
      const bool comes_back = u + 1 < piece.uses.size() ? piece.uses[u + 1].reads : piece.persistent >= 0;
      visit.issue = (first_visit && piece.persistent < 0) || !reads ? -1 : visit.first;
      visit.written = changed && comes_back ? visit.last + 1 : -1;
      if (visit.written >= 0) changed = false;
      first_visit = false;
      visits.push_back(visit);
    }
  }
  std::stable_sort(visits.begin(), visits.end(), [](const Visit& a, const Visit& b) { return a.first < b.first; });
  return visits;
}

// Lets reads begin as early as memory allows, in the order of need, and writes end as late as they take.
class Spreader {
 public:
  Spreader(const StreamEntry& entry, std::vector<int64_t> load, int64_t limit, const StreamRates& rates, std::vector<Visit>& visits)
      : entry_(entry), load_(std::move(load)), limit_(limit), rates_(rates), visits_(visits), begin_(entry.seconds.size() + 1) {
    std::partial_sum(entry.seconds.begin(), entry.seconds.end(), begin_.begin() + 1);
  }

  void run() {
    std::vector<std::vector<size_t>> reads(entry_.seconds.size() + 1), writes(entry_.seconds.size() + 1);
    int64_t largest = 0;
    for (size_t v = 0; v < visits_.size(); ++v) {
      if (visits_[v].issue >= 0) reads[static_cast<size_t>(visits_[v].first)].push_back(v);
      if (visits_[v].written < 0) continue;
      writes[static_cast<size_t>(visits_[v].last)].push_back(v);
      largest = std::max(largest, entry_.pieces[visits_[v].piece].bytes);
    }
    // Reads ahead leave room for a write behind, where there is any.
    const int64_t peak = *std::max_element(load_.begin(), load_.end());
    spare_ = std::clamp<int64_t>((limit_ - peak) / 2, 0, largest);
    std::vector<int32_t> next_first(entry_.pieces.size(), static_cast<int32_t>(entry_.seconds.size()));
    std::vector<int32_t> limit_of_write(visits_.size());
    for (size_t v = visits_.size(); v-- > 0;) {
      limit_of_write[v] = next_first[visits_[v].piece];
      next_first[visits_[v].piece] = visits_[v].first;
    }
    std::vector<int32_t> free_from(entry_.pieces.size(), 0);  // where the piece's previous stay is over
    for (size_t t = 0; t < entry_.seconds.size(); ++t) {
      for (size_t v : reads[t]) read_ahead(visits_[v], free_from[visits_[v].piece]);
      for (size_t v : writes[t]) write_behind(visits_[v], limit_of_write[v]);
      for (size_t v : writes[t]) free_from[visits_[v].piece] = visits_[v].written;
    }
  }

 private:
  void read_ahead(Visit& visit, int32_t earliest) {
    const int64_t bytes = entry_.pieces[visit.piece].bytes;
    earliest = std::max(earliest, last_issue_);
    while (visit.issue > earliest && load_[static_cast<size_t>(visit.issue) - 1] + bytes + spare_ <= limit_) {
      --visit.issue;
      load_[static_cast<size_t>(visit.issue)] += bytes;
    }
    last_issue_ = visit.issue;
  }

  void write_behind(Visit& visit, int32_t latest) {
    const int64_t bytes = entry_.pieces[visit.piece].bytes;
    // The disk is shared with reads: a write takes about twice its own time.
    const double end = std::max(disk_free_, begin_[static_cast<size_t>(visit.last) + 1]) + 2 * static_cast<double>(bytes) / rates_.write;
    disk_free_ = end;
    while (visit.written < latest && begin_[static_cast<size_t>(visit.written)] < end &&
           load_[static_cast<size_t>(visit.written)] + bytes <= limit_) {
      load_[static_cast<size_t>(visit.written)] += bytes;
      ++visit.written;
    }
  }

  const StreamEntry& entry_;
  std::vector<int64_t> load_;
  const int64_t limit_;
  const StreamRates rates_;
  std::vector<Visit>& visits_;
  std::vector<double> begin_;  // of each step, if nothing stalls
  int64_t spare_ = 0;
  int32_t last_issue_ = 0;
  double disk_free_ = 0;
};

// One disk that does one transfer after the other; steps that wait for theirs.
StreamForecast simulate(const StreamEntry& entry, const std::vector<Visit>& visits, const StreamRates& rates) {
  const size_t steps = entry.seconds.size();
  std::vector<std::vector<size_t>> issues(steps + 1), needs(steps + 1), begins(steps + 1), waits(steps + 1);
  for (size_t v = 0; v < visits.size(); ++v) {
    const Visit& visit = visits[v];
    if (visit.issue >= 0) {
      issues[static_cast<size_t>(visit.issue)].push_back(v);
      needs[static_cast<size_t>(visit.first)].push_back(v);
    }
    if (visit.written >= 0) {
      begins[static_cast<size_t>(visit.last) + 1].push_back(v);
      waits[static_cast<size_t>(visit.written)].push_back(v);
    }
  }
  StreamForecast forecast;
  std::vector<double> read_end(visits.size()), write_end(visits.size());
  double now = 0, disk = 0;
  const auto until = [&](double time) {
    forecast.stalled += std::max(0.0, time - now);
    now = std::max(now, time);
  };
  for (size_t t = 0; t <= steps; ++t) {
    for (size_t v : begins[t]) {
      const auto bytes = static_cast<double>(entry.pieces[visits[v].piece].bytes);
      disk = write_end[v] = std::max(disk, now) + bytes / rates.write;
      forecast.write += bytes / rates.write;
      forecast.bytes_written += entry.pieces[visits[v].piece].bytes;
    }
    for (size_t v : waits[t]) until(write_end[v]);
    for (size_t v : issues[t]) {
      const auto bytes = static_cast<double>(entry.pieces[visits[v].piece].bytes);
      disk = read_end[v] = std::max(disk, now) + bytes / rates.read;
      forecast.read += bytes / rates.read;
      forecast.bytes_read += entry.pieces[visits[v].piece].bytes;
    }
    for (size_t v : needs[t]) until(read_end[v]);
    if (t == steps) break;
    now += entry.seconds[t];
    forecast.compute += entry.seconds[t];
  }
  forecast.seconds = now;
  return forecast;
}

}  // namespace

int64_t stream_floor(const std::vector<StreamEntry>& entries) {
  int64_t floor = 0;
  for (const StreamEntry& entry : entries) {
    for (const int64_t bytes : least_load(entry)) floor = std::max(floor, bytes);
  }
  return floor;
}

StreamPlan plan_streams(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates) {
  const int64_t spare = limit - stream_floor(entries);
  Holder holder(entries, persistents, limit, rates);
  StreamPlan best;
  double best_seconds = 0;
  for (const double share : kFree) {
    StreamPlan plan;
    double seconds = 0;
    holder.choose(static_cast<int64_t>(share * static_cast<double>(spare)));
    plan.resident = holder.resident();
    for (size_t e = 0; e < entries.size(); ++e) {
      std::vector<Visit> visits = make_visits(entries[e], e, holder);
      Spreader(entries[e], holder.load(e), limit, rates, visits).run();
      plan.forecasts.push_back(simulate(entries[e], visits, rates));
      plan.visits.push_back(std::move(visits));
      seconds += entries[e].weight * plan.forecasts.back().seconds;
    }
    if (!best.visits.empty() && seconds >= best_seconds) continue;
    best = std::move(plan);
    best_seconds = seconds;
  }
  return best;
}

}  // namespace ort_train
