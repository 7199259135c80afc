#include "passes/plan/timing.h"

#include <algorithm>

#include "passes/stream_clock.h"

namespace ort_train::planning {

StreamForecast forecast_of(const Run& run, const std::vector<Stay>& stays, const StreamRates& disk) {
  const size_t steps = run.steps();
  std::vector<std::vector<size_t>> issued(steps + 1), first(steps + 1), ended(steps + 1), released(steps + 1);  // stays, by step
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
  StreamForecast forecast;
  std::vector<size_t> reads(stays.size()), writes(stays.size());
  StreamClock clock(disk);
  const auto begin = [&](bool write, const Stay& stay) {
    const int64_t bytes = run.pieces[stay.piece].bytes;
    (write ? forecast.write : forecast.read) += static_cast<double>(bytes) / disk.rate(write);
    (write ? forecast.bytes_written : forecast.bytes_read) += bytes;
    return clock.begin(write, bytes);
  };
  for (size_t t = 0; t <= steps; ++t) {
    for (const size_t i : ended[t]) writes[i] = begin(true, stays[i]);
    for (const size_t i : released[t]) forecast.stalled += clock.wait(writes[i]);
    for (const size_t i : issued[t]) reads[i] = begin(false, stays[i]);
    for (const size_t i : first[t]) forecast.stalled += clock.wait(reads[i]);
    if (t == steps) break;
    clock.compute(run.seconds[t]);
    forecast.compute += run.seconds[t];
  }
  forecast.seconds = clock.now();
  forecast.slowed = std::max(0.0, forecast.seconds - forecast.compute - forecast.stalled);
  return forecast;
}

}  // namespace ort_train::planning
