// What the program itself needs beside the arena: the row "program" of the plan's table, called the reserve.
//
// It is a fixed function of the job, not a measurement, so that the smallest budget is the same from run to run and the one that is printed
// is the one that works. It was fitted to measured peaks (the figures stand in budget.cpp) with headroom. At the start the resident size is
// read; where it is above what the function says, as it may be inside another allocator or library, the reserve is raised.

#pragma once

#include <cstdint>

#include "exec/pages.h"

namespace ort_train {

struct ProcessFootprint {
  bool whole_process = false;  // else only what the library adds to a process
  bool disk = false;           // with a disk
  int threads = 1;
  int64_t instructions = 0;    // of all entries
  int64_t kernels = 0;         // prepared
  int64_t file_nodes = 0;      // in the user's file
  int64_t parameters = 0;      // tensors
  int64_t constant_bytes = 0;  // of the graphs: folded tensors, masks
  int64_t data_bytes = 0;      // that the data sets hold in memory, and a sample's buffers
  int64_t merging_bytes = 0;   // what adding an adapter to its weight takes (frontend/adapters.h)
};

int64_t reserve_for(const ProcessFootprint& footprint);
// What the search for a plan with a disk takes beside that, while the arena isn't there yet: no budget of a whole process may leave less
// for the arena. (Where there is little room, other searches make one plan at a time, which the reserve has room for.)
int64_t planning_bytes(const ProcessFootprint& footprint);
// The reserve, raised if the process is already larger than it allows. `resident` is without the arena. Pages of code come in pieces of a
// size that the kernel chooses, so that two runs differ by 1 MB, and a job at the smallest budget that another run has named must still
// fit.
int64_t raised_reserve(int64_t reserve, int64_t resident);

}  // namespace ort_train
