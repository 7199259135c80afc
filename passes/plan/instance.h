// Instance: from a job's drafts, a machine and the bytes of its memory to the planner's problem, and what leads from a plan of that problem
// back to the graphs.

#pragma once

#include <vector>

#include "passes/plan/drafts.h"
#include "passes/plan/search.h"

namespace ort_train {

struct Instance {
  JobMachine machine{};
  planning::Problem problem{};
  std::vector<RunDraft> run_drafts{};  // by entry; their runs are in the problem
  std::vector<bool> movable{};         // by persistent value: it may leave the memory
};

// `memory`: bytes. `store`: between the memory and what is behind it, a file or another memory.
Instance make_instance(const JobDraft& job, int64_t memory, const JobMachine& machine, const StreamRates& store);

// What a plan, in one memory, has on the disk.
struct DiskBytes {
  int64_t all = 0;
  int64_t state = 0;  // of these, of what survives the process: weights that change, optimizer state
};
DiskBytes bytes_on_disk(const JobDraft& job, const Instance& instance, const planning::Plan& plan);

}  // namespace ort_train
