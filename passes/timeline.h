// Timeline: when each instruction of an entry runs by the plan, and when the disk works for it. Made from the Program alone, apart from
// the planner's own simulation, by the same clock (stream_clock.h).

#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "passes/cost.h"
#include "passes/stream.h"

namespace ort_train {

struct TimelineTransfer {
  bool write = false;
  Purpose purpose = Purpose::activations;
  int64_t bytes = 0;
  double begin = 0, end = 0;  // seconds
};

struct Timeline {
  std::vector<double> begin;  // of each instruction; then the end of the last
  std::vector<TimelineTransfer> transfers;
  std::vector<std::pair<double, double>> waits;  // from, to: nothing is computed, for the disk
  double seconds() const { return begin.back(); }
};

Timeline make_timeline(const Program& program, const Entry& entry, const Graph& graph, const ComputeRates& compute,
                       const StreamRates& disk);

// One run of an entry as if nothing had to be waited for. What is in the background takes a share of the threads, until something needs it.
NodeWork run_work(const Program& program, const Entry& entry, const Graph& graph, const ComputeRates& rates);

}  // namespace ort_train
