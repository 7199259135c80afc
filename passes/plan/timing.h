// timing: what a run is expected to take, with its transfers where a plan has them. The one simulation of a plan (stream_clock.h).

#pragma once

#include "passes/plan/assign.h"

namespace ort_train::planning {

// At each step writes begin, writes are waited for, reads begin, reads are waited for, and then it computes: as emitted programs do.
StreamForecast forecast_of(const Run& run, const std::vector<Stay>& stays, const StreamRates& disk);

}  // namespace ort_train::planning
