#include "passes/plan/timing.h"

#include <algorithm>

#include "passes/stream_clock.h"

namespace ort_train::planning {
namespace {

// The transfers of a level, by the step at which something happens to them.
struct Events {
  explicit Events(const LevelPlan& level) : stays(level.plan->stays), reads(stays.size()), writes(stays.size()) {
    for (auto* list : {&issued, &first, &ended, &released}) list->resize(level.run->steps() + 1);
    for (size_t i = 0; i < stays.size(); ++i) {
      if (stays[i].reads) {
        issued[static_cast<size_t>(stays[i].issue)].push_back(i);
        first[static_cast<size_t>(stays[i].first)].push_back(i);
      }
      if (stays[i].writes) {
        ended[static_cast<size_t>(stays[i].last) + 1].push_back(i);
        released[static_cast<size_t>(stays[i].released)].push_back(i);
      }
    }
  }
  const std::vector<Stay>& stays;
  std::vector<std::vector<size_t>> issued, first, ended, released;  // stays, by step
  std::vector<size_t> reads, writes;                                // transfers, by stay
};

}  // namespace

StreamForecast forecast_of(const std::vector<LevelPlan>& levels) {
  std::vector<Events> events;
  std::vector<StreamRates> stores;
  for (const LevelPlan& level : levels) {
    events.emplace_back(level);
    stores.push_back(level.store);
  }
  const Run& run = *levels.front().run;
  const size_t steps = run.steps();
  StreamForecast forecast;
  StreamClock clock(stores);
  double backing_done = 0;              // when what was computed in the backing memory is over
  std::vector<double> done(steps + 1);  // by step: that of its own
  const auto begin = [&](size_t l, bool write, const Stay& stay) {
    const Piece& piece = levels[l].run->pieces[stay.piece];
    const double seconds = static_cast<double>(piece.bytes) / levels[l].store.rate(write);
    if (l + 1 == levels.size()) {
      (write ? forecast.write : forecast.read) += seconds;
      (write ? forecast.bytes_written : forecast.bytes_read) += piece.bytes;
    } else {
      (write ? forecast.down : forecast.up) += seconds;
      (write ? forecast.bytes_down : forecast.bytes_up) += piece.bytes;
    }
    if (l == 0 && !write && piece.first_readable_step > 0) {
      const double before = clock.now();
      clock.wait_until(done[static_cast<size_t>(piece.first_readable_step) - 1]);
      forecast.stalled += clock.now() - before;
    }
    return clock.begin(write, piece.bytes, l);
  };
  const size_t last = levels.back().run->steps();
  for (size_t t = 0; t <= last; ++t) {
    for (size_t l = levels.size(); l-- > 0;) {
      Events& of = events[l];
      if (t > levels[l].run->steps()) continue;
      for (const size_t i : of.ended[t]) of.writes[i] = begin(l, true, of.stays[i]);
      for (const size_t i : of.released[t]) forecast.stalled += clock.wait(of.writes[i]);
      for (const size_t i : of.issued[t]) of.reads[i] = begin(l, false, of.stays[i]);
      for (const size_t i : of.first[t]) forecast.stalled += clock.wait(of.reads[i]);
    }
    if (t >= steps) continue;
    if (!run.backing_seconds.empty()) done[t] = backing_done = std::max(backing_done, clock.now()) + run.backing_seconds[t];
    clock.compute(run.seconds[t]);
    forecast.compute += run.seconds[t];
  }
  forecast.stalled += std::max(0.0, backing_done - clock.now());
  clock.wait_until(backing_done);
  forecast.seconds = clock.now();
  forecast.contention = std::max(0.0, forecast.seconds - forecast.compute - forecast.stalled);
  return forecast;
}

}  // namespace ort_train::planning
