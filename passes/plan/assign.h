// assign: from the stays of a run (hold.h) and the bytes of the memory to a RunPlan: when each transfer begins and is over, and the address
// of each stay and block. One pass through the run's steps.
//
// A stay's core reaches from its first use to its last; before it lies
// the time of its read, after it that of its write: its flanks. Each core has a place reserved that no other core takes, so that every
// pass has a plan at its end. The pass goes from step to step with a clock. Writes begin when their stays end, and keep their place until
// they are over. Reads begin in the order of need, as early as they may and there is room: in the place that is reserved, or in the
// tightest gap. What begins at its step takes its place, and waits for the writes that are still in it.
//
// The same pass can go without addresses: that is fast, and says which flanks are worth a place.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/plan/problem.h"

namespace ort_train::planning {

// A stay of a piece in memory. A write of a piece with `written_by_step` is complete before that step.
struct Stay {
  uint32_t piece = 0;
  int32_t first = 0, last = 0;  // steps of its first and last use
  bool reads = false;           // its content is read from the store
  bool writes = false;          // it is written to the store when it ends
  int64_t offset = 0;           // from the beginning of the memory that can be given away
  int32_t issue = 0;            // the step before which its read begins; where it isn't read, its first
  int32_t released = 0;         // the step before which its write, begun after `last`, is waited for; without one the step after its last
};

struct RunPlan {
  std::vector<Stay> stays;             // by first use
  std::vector<int64_t> block_offsets;  // by block
  double seconds = 0;                  // that the run takes by the clock of the pass
};

// Without addresses: no more than `bytes` are taken at any step. Offsets are not set. `prefetch_seconds`: seconds that are computed at most
// between the beginning of a read and its step.
RunPlan assign_without_addresses(const Run& run, std::vector<Stay> stays, int64_t bytes, const StreamRates& disk, double prefetch_seconds);

// Places of cores: the offset of each stay and, after those, of each block.
struct Cores {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;  // the highest end
};
// Below `bytes`, with as much of the flanks of `wish` as there is room for. None where the cores alone don't fit.
std::optional<Cores> place_cores(const Run& run, const RunPlan& wish, int64_t bytes);
// Without flanks, in few bytes.
Cores place_tightly(const Run& run, const std::vector<Stay>& stays);

// With addresses below `bytes`.
RunPlan assign(const Run& run, std::vector<Stay> stays, const Cores& cores, int64_t bytes, const StreamRates& disk,
               double prefetch_seconds);

}  // namespace ort_train::planning
