#include "passes/stream_spread.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "passes/stream_clock.h"

namespace ort_train {
namespace {

constexpr double kRoomy = 0.7;  // of the limit: where no more is there, reads may begin as early as they like
constexpr double kLate = 0.5;   // of its own time, that a write may take longer than foreseen before somebody waits for it

bool is_long_over(const StreamClock& clock, size_t write) {
  return clock.is_over(write) && clock.now() >= clock.ended(write) + kLate * (clock.ended(write) - clock.began(write));
}

class Spreader {
 public:
  Spreader(const StreamEntry& entry, const std::vector<int64_t>& load, int64_t limit, const StreamRates& rates, const Eagerness& eagerness,
           std::vector<Visit>& visits)
      : entry_(entry),
        load_(load),
        limit_(limit),
        roomy_(static_cast<int64_t>(kRoomy * static_cast<double>(limit))),
        rates_(rates),
        clock_(rates),
        eagerness_(eagerness),
        visits_(visits),
        steps_(static_cast<int32_t>(entry.seconds.size())),
        begin_(entry.seconds.size() + 1),
        before_(visits.size(), kNobody),
        transfer_(visits.size(), 0),
        is_writing_(visits.size(), false) {
    std::partial_sum(entry.seconds.begin(), entry.seconds.end(), begin_.begin() + 1);
    load_.push_back(0);
    std::vector<size_t> last(entry.pieces.size(), kNobody);
    for (size_t v = 0; v < visits.size(); ++v) {
      if (visits[v].issue >= 0) reads_.push_back(v);
      before_[v] = std::exchange(last[visits[v].piece], v);
    }
  }

  void run() {
    std::vector<std::vector<size_t>> ending(static_cast<size_t>(steps_) + 1);
    for (size_t v = 0; v < visits_.size(); ++v) {
      if (visits_[v].written >= 0) ending[static_cast<size_t>(visits_[v].last) + 1].push_back(v);
    }
    for (int32_t t = 0; t <= steps_; ++t) {
      for (const size_t v : ending[static_cast<size_t>(t)]) begin_write(v);
      while (!writing_.empty() && is_long_over(clock_, transfer_[writing_.front()])) end_write(t);
      while (!writing_.empty() && (t == steps_ || eagerness_.queued < 0 || load_[static_cast<size_t>(t)] + writing_bytes_ > limit_))
        end_write(t);
      if (t == steps_) break;
      begin_reads(t);
      for (size_t r = needed_; r < next_read_ && visits_[reads_[r]].first == t; ++r, ++needed_) clock_.wait(transfer_[reads_[r]]);
      clock_.compute(entry_.seconds[static_cast<size_t>(t)]);
    }
  }

 private:
  static constexpr size_t kNobody = ~size_t{0};

  int64_t bytes(size_t visit) const { return entry_.pieces[visits_[visit].piece].bytes; }
  bool is_over(size_t visit) const { return clock_.is_over(transfer_[visit]); }

  void begin_write(size_t v) {
    transfer_[v] = clock_.begin(true, bytes(v));
    writing_.push_back(v);
    is_writing_[v] = true;
    writing_bytes_ += bytes(v);
  }

  // Waits before step t for the write that began first: the disk makes them in this order.
  void end_write(int32_t t) {
    const size_t v = writing_.front();
    writing_.erase(writing_.begin());
    is_writing_[v] = false;
    visits_[v].written = t;
    clock_.wait(transfer_[v]);
    writing_bytes_ -= bytes(v);
  }

  void begin_reads(int32_t t) {
    for (; next_read_ < reads_.size(); ++next_read_) {
      const size_t v = reads_[next_read_];
      Visit& visit = visits_[v];
      const size_t before = before_[v];
      if (visit.first == t) {  // now or never
        while (before != kNobody && is_writing_[before]) end_write(t);
      } else {
        if (eagerness_.queued < 0 || clock_.backlog() > entry_.seconds[static_cast<size_t>(t)] + eagerness_.queued) return;
        const bool is_early = begin_[static_cast<size_t>(visit.first)] - begin_[static_cast<size_t>(t) + 1] > eagerness_.early;
        if (before != kNobody && visits_[before].last >= t) return;
        if (!has_room(t, visit.first, bytes(v), before, is_early ? roomy_ : limit_)) return;
        while (before != kNobody && is_writing_[before]) end_write(t);
        while (load_[static_cast<size_t>(t)] + writing_bytes_ + bytes(v) > limit_) end_write(t);
        for (int32_t s = t; s < visit.first; ++s) load_[static_cast<size_t>(s)] += bytes(v);
      }
      visit.issue = t;
      transfer_[v] = clock_.begin(false, bytes(v));
    }
  }

  // Whether so many bytes more fit at steps [t, first), without waiting for a write at step t. Writes under way are over by the time at
  // which they end if nothing waits until then.
  bool has_room(int32_t t, int32_t first, int64_t more, size_t before, int64_t limit) const {
    int64_t writing = writing_bytes_;
    size_t over = 0;
    for (; over < writing_.size() && is_over(writing_[over]); ++over) writing -= bytes(writing_[over]);
    if (before != kNobody && is_writing_[before] && !is_over(before)) return false;
    for (int32_t s = t; s < first; ++s) {
      const double until = begin_[static_cast<size_t>(s)] - begin_[static_cast<size_t>(t)];
      for (; over < writing_.size() && clock_.lead(transfer_[writing_[over]]) <= until; ++over) writing -= bytes(writing_[over]);
      if (load_[static_cast<size_t>(s)] + writing + more > limit) return false;
    }
    return true;
  }

  const StreamEntry& entry_;
  std::vector<int64_t> load_;
  const int64_t limit_, roomy_;
  const StreamRates rates_;
  StreamClock clock_;
  const Eagerness eagerness_;
  std::vector<Visit>& visits_;
  const int32_t steps_;
  std::vector<double> begin_;     // of each step, if nothing waits
  std::vector<size_t> reads_;     // visits, in the order of need
  std::vector<size_t> before_;    // by visit: the one of the same piece before it
  std::vector<size_t> transfer_;  // by visit: the one under way
  std::vector<bool> is_writing_;
  std::vector<size_t> writing_;  // visits whose writes nobody has waited for yet, in the order in which they began
  int64_t writing_bytes_ = 0;
  size_t next_read_ = 0, needed_ = 0;
};

}  // namespace

void spread_transfers(const StreamEntry& entry, const std::vector<int64_t>& load, int64_t limit, const StreamRates& rates,
                      const Eagerness& eagerness, std::vector<Visit>& visits) {
  Spreader(entry, load, limit, rates, eagerness, visits).run();
}

StreamForecast simulate(const StreamEntry& entry, const std::vector<Visit>& visits, const StreamRates& rates, StreamTimes* times) {
  const size_t steps = entry.seconds.size();
  std::vector<std::vector<size_t>> issues(steps + 1), needs(steps + 1), begins(steps + 1), ends(steps + 1);
  for (size_t v = 0; v < visits.size(); ++v) {
    const Visit& visit = visits[v];
    if (visit.issue >= 0) {
      issues[static_cast<size_t>(visit.issue)].push_back(v);
      needs[static_cast<size_t>(visit.first)].push_back(v);
    }
    if (visit.written >= 0) {
      begins[static_cast<size_t>(visit.last) + 1].push_back(v);
      ends[static_cast<size_t>(visit.written)].push_back(v);
    }
  }
  StreamForecast forecast;
  std::vector<size_t> read(visits.size()), write(visits.size());
  std::vector<size_t> writing;  // in the order in which they began
  size_t over = 0;              // of these
  if (times) *times = {.waited = std::vector<double>(visits.size()), .over = std::vector<int32_t>(visits.size())};
  StreamClock clock(rates);
  for (size_t t = 0; t <= steps; ++t) {
    for (; over < writing.size() && (t == steps || is_long_over(clock, write[writing[over]])); ++over)
      times->over[writing[over]] = static_cast<int32_t>(t);
    for (size_t v : begins[t]) {
      const int64_t bytes = entry.pieces[visits[v].piece].bytes;
      write[v] = clock.begin(true, bytes);
      if (times) writing.push_back(v);
      forecast.write += static_cast<double>(bytes) / rates.write;
      forecast.bytes_written += bytes;
    }
    for (size_t v : ends[t]) forecast.stalled += clock.wait(write[v]);
    for (size_t v : issues[t]) {
      const int64_t bytes = entry.pieces[visits[v].piece].bytes;
      read[v] = clock.begin(false, bytes);
      forecast.read += static_cast<double>(bytes) / rates.read;
      forecast.bytes_read += bytes;
    }
    for (size_t v : needs[t]) {
      const double seconds = clock.wait(read[v]);
      forecast.stalled += seconds;
      if (times) times->waited[v] = seconds;
    }
    if (t == steps) break;
    clock.compute(entry.seconds[t]);
    forecast.compute += entry.seconds[t];
  }
  forecast.seconds = clock.now();
  forecast.slowed = std::max(0.0, forecast.seconds - forecast.compute - forecast.stalled);
  return forecast;
}

}  // namespace ort_train
