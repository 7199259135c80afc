// Transfers and addresses: where a plan's addresses take too much, its transfers get less time; where a place is free before a read or
// behind a write, they get more.

#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "passes/stream.h"

namespace ort_train {

// In both, `entry` was made from `visits`, and the visits' storages are its last.

// Where addresses take more than `limit`: takes half of the time that transfers have ahead of and behind their use from what lies above it;
// where that has none (`around`), a quarter from what is there at the same time. False where nothing is left to shorten.
bool shorten(const Entry& entry, int64_t limit, bool around, std::vector<Visit>& visits);

// With the addresses as they are, reads begin earlier and writes are waited for later, where that makes the run shorter. `forecast` is that
// of `visits`. False where it doesn't.
bool stretch(const Entry& entry, const StreamEntry& asked, const StreamRates& rates, std::vector<Visit>& visits, StreamForecast& forecast);

}  // namespace ort_train
