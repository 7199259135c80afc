// From a job to its proven plan: how much of the budget is the program's own, which plan is looked for, and refusals.
//
// On the CPU, in this order: (1) plan with everything in memory, which sizes the reserve; (2) measure the CPU; (3) without a budget, take
// what the machine has left as one; (4) find the smallest budget (passes/smallest_budget.h), and a plan within the budget if that of (1)
// doesn't fit: with a disk (passes/disk_search.h) if `nvme_path` is given and planning takes less memory than the plan of (1); otherwise,
// with `recompute` auto, by recomputing; (5) refuse with the smallest budget, or adopt the plan and verify it.

#pragma once

#include <memory>
#include <vector>

#include "exec/cpu_device.h"
#include "frontend/budget.h"
#include "frontend/device_choice.h"
#include "frontend/job.h"
#include "frontend/machine_rates.h"
#include "frontend/note.h"
#include "frontend/run_start.h"
#include "offload/calibration.h"
#include "passes/smallest_budget.h"

namespace ort_train {

struct PlannedJob {
  EntrySet set;                               // with the planned graphs
  Program program;                            // verified
  std::unique_ptr<Device> discrete_device{};  // with memory of its own, for that program; null: it runs on the processor
  std::vector<StreamForecast> forecasts{};    // by entry; empty where everything is in memory
  double bound = 0;                           // seconds of an optimizer step, with the disk
  Recomputed recomputed{};                    // of the first entry
  SmallestBudget least{};                     // the smallest budget that would do
  int64_t budget = 0;                         // bytes; 0: none
  bool budget_is_machines = false;            // it is what the machine had left, not the user's
  DiskRates disk{};                           // as it was measured; zero where there is none
  ProcessFootprint footprint{};
  std::string device{};            // its name, where the program is for one with memory of its own
  int64_t reserve = 0;             // bytes of the budget that aren't the arena's
  int64_t pinning = 0;             // part of the reserve: what the kernel takes to pin the arena; 0: it isn't pinned
  int64_t tables = 0;              // part of the reserve: a device's page tables, which map the host's memory
  int64_t page = 1;                // bytes in which the arena's memory is allocated
  int64_t rss_after_planning = 0;  // bytes of the process when everything was planned, without the arena
};

// Measures the machine where that is needed. Throws Error(budget) with the smallest budget that would do, or the disk's.
PlannedJob plan_job(Job& job, const RunStart& start, const DeviceChoice& on, CpuDevice& device, MachineRates& rates, const Note& note);

}  // namespace ort_train
