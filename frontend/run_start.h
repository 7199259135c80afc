// Where a run begins: afresh, or from a checkpoint. In go the options; out comes a RunStart.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/algorithms.h"
#include "frontend/ort_train.h"

namespace ort_train {

struct RunStart {
  std::string checkpoint{};  // the newest, or the one that was named; empty: the run begins afresh
  bool is_named = false;     // that one and no other
  bool is_branch = false;    // the run goes on beside checkpoints that aren't its own
  // Data cursors of the checkpoints that this run may resume from: several, because loading falls back to an older one if the newest is
  // damaged.
  struct Cursor {
    int64_t step = 0, index = 0;
  };
  std::vector<Cursor> cursors{};
  bool is_resumed() const { return !checkpoint.empty(); }
};

// Throws Error(usage) where what the options name isn't there.
RunStart choose_start(const Options& options);

// By which algorithms a resumed run goes on: those of its newest checkpoint that can be read.
Algorithms algorithms_of_run(const RunStart& start, const Options& options, const std::string& makes_products);

// How many checkpoints to keep: by default two, or one where a streamed run has them in its state file (`in_slots`).
int64_t kept_checkpoints(const Options& options, bool in_slots);
// The slots of such a file for each tensor.
int state_slots(const Options& options);

}  // namespace ort_train
