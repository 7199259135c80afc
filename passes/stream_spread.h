// spread_transfers: when the reads and writes of given stays begin and end.
//
// Runs through the steps with a clock and one disk that makes one transfer after the other, in the order in which they were begun. A write
// begins when the stay's last step is over, and is waited for when it is long over, when its memory is wanted, or when the piece is. Reads
// begin in the order of need, as early as memory allows and as the disk will soon have time for them.

#pragma once

#include <limits>
#include <vector>

#include "passes/stream.h"

namespace ort_train {

// How far ahead of their use reads begin.
struct Eagerness {
  // Seconds of transfers that may wait for the disk when another read is begun ahead of its step; negative: nothing begins ahead of its
  // step or ends behind it.
  double queued = -1;
  // Seconds that are computed at most between the beginning of a read and its step: what waits long takes memory, and fits addresses badly.
  double early = std::numeric_limits<double>::infinity();
};

// Sets `issue` and `written` of the visits that are read and written; `load`: bytes by step without transfers ahead and behind.
void spread_transfers(const StreamEntry& entry, const std::vector<int64_t>& load, int64_t limit, const StreamRates& rates,
                      const Eagerness& eagerness, std::vector<Visit>& visits);

// By visit.
struct StreamTimes {
  std::vector<double> waited;  // seconds, for its read
  std::vector<int32_t> over;   // its write: the first step before which it is long over
};

// The same disk and clock, for visits as they are: what the run is expected to take.
StreamForecast simulate(const StreamEntry& entry, const std::vector<Visit>& visits, const StreamRates& rates, StreamTimes* times = nullptr);

}  // namespace ort_train
