// spread_transfers: when the reads and writes of given stays begin and end.
//
// Runs through the steps with a clock and one disk that makes one transfer after the other, in the order in which they were begun. A write
// begins when the stay's last step is over, and is waited for when it is long over, when its memory is wanted, or when the piece is. Reads
// begin in the order of need, as early as memory allows and as the disk will soon have time for them.

#pragma once

#include <vector>

#include "passes/stream.h"

namespace ort_train {

// Sets `issue` and `written` of the visits that are read and written; `load`: bytes by step without transfers ahead and behind.
// `ahead`: seconds of transfers that may wait for the disk when another read is begun ahead of its step; negative: nothing begins ahead of
// its step or ends behind it.
void spread_transfers(const StreamEntry& entry, const std::vector<int64_t>& load, int64_t limit, const StreamRates& rates, double ahead,
                      std::vector<Visit>& visits);

// The same disk and clock, for visits as they are: what the run is expected to take.
StreamForecast simulate(const StreamEntry& entry, const std::vector<Visit>& visits, const StreamRates& rates);

}  // namespace ort_train
