// A plan in numbers (Trainer::plan()), as text for people, as JSON for programs, and as a picture.

#pragma once

#include <cstddef>
#include <string>

#include "frontend/job.h"
#include "frontend/machine_rates.h"
#include "frontend/plan_job.h"

namespace ort_train {

// Without the text. `seconds`: that import and planning took.
PlanReport describe_plan(const Job& job, const PlannedJob& planned, const MachineRates& rates, double seconds);

std::string plan_text(const Job& job, const PlannedJob& planned, const MachineRates& rates, const PlanReport& report);
// Into Options::plan_json, plan_svg. Throw Error(io).
void write_plan_json(const Job& job, const PlannedJob& planned, const PlanReport& report);
void write_plan_svg(const Job& job, const PlannedJob& planned, const MachineRates& rates);

// The entry in which an optimizer step computes longest.
size_t main_entry(const PlannedJob& planned, const ComputeRates& compute);

}  // namespace ort_train
