// Candidates: the ways to run a job of which the fastest that fits is wanted. From the job's entry points, by strategy (entry_set.h), and
// choices of what is recomputed, to graphs and their planner. disk_search.h and smallest_budget.h say which are looked at.
//
// make() may be called from several threads at once; nothing else may run beside it.

#pragma once

#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "passes/entry_set.h"
#include "passes/plan.h"

namespace ort_train {

struct CandidateOptions {
  int threads = 1;
  const KernelTable* kernels = nullptr;  // as PlanOptions::kernels
  std::string recompute = "auto";        // as Options::recompute
  std::string micro_batches = "auto";    // as Options::micro_batches
  bool keeps_gradients = false;          // of a run that trains, until it is over
  PassOptions passes{};                  // skip, and dump_after of the passes that come with the plan
};

// The entry points of one strategy with what is recomputed, and their planner.
struct Candidate {
  StepStrategy strategy{};
  RecomputeChoice recompute{};
  FinishedGraphs finished{};
  std::unique_ptr<Planner> planner{};  // none where it can't take less than what it has to beat
  double seconds = 0;                  // of computing, for an optimizer step with everything in memory
};

struct PlannedCandidate {
  Candidate candidate{};
  PlannedProgram planned{};
  std::optional<Program> overlapped{};  // instead, where there is memory for it
};
// Has the planner, which is asked for nothing else any more, make it (Planner::overlap_updates).
void add_overlapped(PlannedCandidate& placed);

// The candidate that was chosen, as entry points.
struct PlannedEntries {
  EntrySet set;  // with the planned graphs
  PlannedProgram planned;
  Recomputed recomputed;  // of the first entry
};

// On a device with memory of its own.
struct DiscretePlan {
  std::optional<PlannedCandidate> placed{};  // none: the memories are too small
  int64_t least_device = 0, least_host = 0;  // bytes of its memory, and of the host's with that, that would do
  int64_t disk_bytes = 0;                    // where plans were found that take too much of the disk: the least of these
};

// Makes a job's candidates, and plans those that need no choice among several.
class Candidates {
 public:
  using Source = std::function<EntrySet(const StepStrategy&)>;

  // `first`: for plans with everything in memory. Others are asked of `source` when they are looked at.
  Candidates(EntrySet first, Source source, CandidateOptions options);

  const CandidateOptions& options() const { return options_; }
  const EntrySet& first_entries() const { return sets_.front(); }
  // The entry points of that strategy, made when they are first asked for. The reference is valid until adopt(), or, without `keeps_all`,
  // until entries() makes those of another strategy; first_entries() stays valid.
  const EntrySet& entries(const StepStrategy& strategy, bool keeps_all);
  // What is recomputed where nothing asks for another choice.
  RecomputeChoice first_choice() const;

  // `beat`: no planner is made where computing alone takes as many seconds. `for_slower_disk`, `search_bytes`: as in PlanOptions.
  Candidate make(const EntrySet& set, const RecomputeChoice& choice, const ComputeRates& rates = {},
                 double beat = std::numeric_limits<double>::infinity(), bool for_slower_disk = false,
                 int64_t search_bytes = std::numeric_limits<int64_t>::max()) const;
  // With everything in memory, the first strategy.
  PlannedCandidate in_memory(const RecomputeChoice& choice, bool overlapped) const;
  PlannedCandidate in_memory() const { return in_memory(first_choice(), /*overlapped=*/true); }
  // On a device with memory of its own: the fastest choice of what is recomputed.
  // `on_disk`: what a program takes there. `disk_bytes`: its limit; 0: none.
  DiscretePlan discrete(const DeviceMemories& memories, const std::function<int64_t(const Program&)>& on_disk, int64_t disk_bytes) const;

  // The entry points of the candidate that was chosen, with its graphs. Nothing else may be called any more.
  PlannedEntries adopt(PlannedCandidate placed);

 private:
  const Source source_;
  const CandidateOptions options_;
  std::list<EntrySet> sets_;  // the first, and others
};

}  // namespace ort_train
