// What a streamed run has on the disk: the state file, which outlives the process, and the spill file, which doesn't.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/program.h"
#include "frontend/checkpoint.h"
#include "frontend/run_start.h"
#include "offload/spill_disk.h"
#include "passes/plan.h"

namespace ort_train {

// What a program takes there.
struct DiskNeed {
  int64_t state = 0;  // the state file: `slots` for each tensor that survives; 0 where none of them lives on the disk
  int64_t spill = 0;  // the rest
  int64_t total() const { return state + spill; }
};
DiskNeed disk_need(const Program& program, int slots);
// Of a plan without addresses; `other` is any program of the job.
DiskNeed disk_need(const PlanEstimate& estimate, const Program& other, int slots);

// The state files in the folder `nvme_path` to which the checkpoints in the output folder refer.
struct StateBefore {
  struct Found {
    int64_t size = 0;         // with all its slots
    int64_t held = 0;         // bytes that it takes
    bool has_newest = false;  // the newest checkpoint refers to it
  };
  std::vector<Found> files{};
  int64_t held() const;  // by all of them
};
StateBefore state_before(const Options& options);
// What is there at most in a run. One that is resumed goes on in its checkpoint's state file; any other, also one from a checkpoint that
// was written out, makes a new one, and the old one stays until a checkpoint refers to the new one.
int64_t most_on_disk(const DiskNeed& need, const StateBefore& before, const RunStart& start);

// Removes what runs before this one have left in the folder `nvme_path`, and tells of what it leaves.
void tidy_disk(const Options& options, const Note& note);

struct OpenedDisk {
  std::unique_ptr<SpillDisk> disk{};
  bool in_place = false;  // the run goes on with its checkpoint's state file
};
// The slots of the checkpoint that the run goes on from.
struct SavedSlots {
  const SlotTable* table = nullptr;  // null: it has none
  std::string path{};                // of the state file
  std::vector<SlotTable> before{};   // of earlier checkpoints that are kept in it, too
};
// Throws Error(budget) where the run needs another state file than was planned, for which `nvme_budget` has no room.
OpenedDisk open_disk(const Options& options, const Program& program, const RunStart& start, const DiskOptions& engine,
                     const SavedSlots& saved);

}  // namespace ort_train
