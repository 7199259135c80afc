// timing: the forecast of a run: what it takes with its transfers where its plan has them, by a clock (stream_clock.h).

#pragma once

#include <vector>

#include "passes/plan/assign.h"

namespace ort_train::planning {

// A run in one memory, as it is planned.
struct LevelPlan {
  const Run* run = nullptr;
  const RunPlan* plan = nullptr;
  StreamRates store{};
};

// At each step, first in the farthest memory: writes begin, writes are waited for, reads begin, reads are waited for; and then it computes,
// as emitted programs do. What steps compute in the backing memory goes on beside that. `levels`: the nearest memory first.
StreamForecast forecast_of(const std::vector<LevelPlan>& levels);

}  // namespace ort_train::planning
