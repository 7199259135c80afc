// The entry points of a job as graphs, and the strategies by which an optimizer step can be made of them, which change no result.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/micro_batches.h"
#include "passes/pipeline.h"
#include "passes/recompute.h"

namespace ort_train {

// Which updates are deferred to the next step: none; all but those of weights which that step uses almost at once
// (OptimizerSpec::at_once); or all.
enum class Deferral : uint8_t { none, most, all };

struct StepStrategy {
  Deferral defer = Deferral::none;
  int64_t joined_batches = 1;  // micro-batches that go through the model together; the rest of a step's goes one by one
  bool is_deferred() const { return defer != Deferral::none; }
  bool is_plain() const { return *this == StepStrategy{}; }
  bool operator==(const StepStrategy&) const = default;
};

// Which of the entry points.
struct EntryWanted {
  EntryKind kind = EntryKind::train;
  bool completes_update = false;  // of those that train: makes the update that the step before deferred
  bool joined = false;            // runs several micro-batches joined
  bool remainder = false;         // for the smaller batch at the end of an epoch
  int64_t length = 0;             // of its samples, where the job has several; 0: any
};

struct JobEntry {
  std::string name;
  EntryGraph built;
  int64_t batch = 0;   // samples
  int64_t length = 0;  // of a sample, where the job has several
  double share = 1;    // of the batches that have that length
  bool joined = false, remainder = false;
  MicroBatches values_of_batch{};  // of one that is joined and finished: each micro-batch's values, by those of one
};

struct EntrySet {
  StepStrategy strategy{};
  int64_t micro_batches = 1;      // of an optimizer step
  std::vector<JobEntry> entries;  // index = the program's entry

  int find(const EntryWanted& wanted) const;          // -1 where there is none
  double runs_per_step(const JobEntry& entry) const;  // how often an optimizer step runs it
  std::vector<const Graph*> graphs() const;
};

// How many micro-batches may be joined: the largest divisor of the step's number for which planning takes only seconds; 1 where they have
// several lengths.
int64_t most_together(const EntrySet& set);

// The graphs of a set's entries with what still has to be decided: what is recomputed, micro-batches side by side, updates early.
struct FinishedGraphs {
  std::vector<Graph> graphs;                  // by entry
  std::vector<MicroBatches> values_of_batch;  // the same
  Recomputed recomputed{};                    // of the first entry

  std::vector<const Graph*> pointers() const;
  int64_t instructions() const;
};
FinishedGraphs finish(const EntrySet& set, const RecomputeChoice& choice, const PassOptions& passes);

}  // namespace ort_train
