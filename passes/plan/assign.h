// assign: gives every stay in memory its interval, its place on the disk's time and its address, in one pass through a run's steps.
//
// What is held between which uses is chosen before (stream_hold.h); each stay's core, from its first use to its last, then has a place that
// nothing else of those takes, so that every pass has a plan at its end. Beside them go the flanks: a read before the core, a write behind
// it. The pass goes from step to step with a clock. Writes begin when their stays end, and keep the place until they are over. Reads begin
// in the order of need, as early as `Eagerness` says and the place is free, there or elsewhere. What begins at a step takes its place, and
// waits for the writes that are still in it.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/plan/problem.h"

namespace ort_train::planning {

// A stay of a piece in memory.
struct Stay {
  uint32_t piece = 0;
  int32_t first = 0, last = 0;  // steps of its first and last use
  bool reads = false;           // its content comes from the file
  bool writes = false;          // and goes there
  int64_t offset = 0;           // from the beginning of the memory that can be given away
  int32_t issue = 0;            // the step before which its read begins
  int32_t released = 0;         // the step before which its write, begun behind `last`, is waited for
};

struct RunPlan {
  std::vector<Stay> stays;             // by first use
  std::vector<int64_t> block_offsets;  // by block
  double seconds = 0;                  // that the run is expected to take
  double waited = 0;                   // of these, for the disk
};

// How early reads begin.
struct Eagerness {
  double queued = 0;  // seconds of transfers that may wait for the disk when another read is begun
  double early = 0;   // seconds that are computed at most between the beginning of a read and its step
};

// Cores with places, for passes with several eagernesses. None where they don't fit into `bytes`.
class Cores {
 public:
  static std::optional<Cores> place(const Run& run, std::vector<Stay> stays, int64_t bytes, const StreamRates& disk);
  RunPlan assign(const Run& run, const StreamRates& disk, const Eagerness& eagerness) const;

 private:
  std::vector<Stay> stays_;
  std::vector<int64_t> block_offsets_;
  int64_t bytes_ = 0;
};

}  // namespace ort_train::planning
