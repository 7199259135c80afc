// The search for a job's plan: what is recomputed, and with a disk (disk_search.h) which updates wait and how many micro-batches go
// together.
//
// It is a function of the job's entry points, which it asks a Source for, of the memory and of the machine's rates. candidate() may be
// called from several threads at once; nothing else may run beside it.

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

struct SearchOptions {
  int threads = 1;
  const KernelTable* kernels = nullptr;  // as PlanOptions::kernels
  std::string recompute = "auto";        // as Options::recompute
  std::string micro_batches = "auto";    // as Options::micro_batches
  bool keeps_gradients = false;          // of a run that trains, until it is over
  PassOptions passes{};                  // skip, and dump_after of the passes that come with the plan
};

// What of a budget isn't the arena's: bytes, by the number of instructions of the program.
using Reserve = std::function<int64_t(int64_t instructions)>;

// Entry points with what is recomputed, and their planner.
struct Candidate {
  StepStrategy strategy{};
  RecomputeChoice recompute{};
  FinishedGraphs finished{};
  std::unique_ptr<Planner> planner{};  // none where it can't take less than what it has to beat
  double seconds = 0;                  // of computing, for an optimizer step with everything in memory
};

struct PlannedCandidate {
  Candidate of{};
  PlannedProgram made{};
  std::optional<Program> overlapped{};  // instead, where there is memory for it
};
// Has the planner, which is asked for nothing else any more, make it (Planner::overlap_updates).
void add_overlapped(PlannedCandidate& placed);

// The smallest budget.
struct SmallestBudget {
  int64_t budget = 0;
  std::string op{}, entry{};  // that sets it; "planning itself" has no entry
  RecomputeChoice recompute{};
  std::string set_by() const;
};
SmallestBudget least_of(int64_t budget, const Program& made, const std::vector<const Graph*>& graphs);

// What the search leads to.
struct PlannedEntries {
  EntrySet set;  // with the planned graphs
  PlannedProgram made;
  Recomputed recomputed;  // of the first entry
};

// On a device with memory of its own.
struct DiscretePlan {
  std::optional<PlannedCandidate> placed{};  // none: the memories are too small
  int64_t least_device = 0, least_host = 0;  // bytes of its memory, and of the host's with that, that would do
  int64_t disk_bytes = 0;                    // where plans were found that take too much of the disk: the least of these
};

class PlanSearch {
 public:
  using Source = std::function<EntrySet(const StepStrategy&)>;

  // `first`: for plans with everything in memory. Others are asked of `source` when they are looked at.
  PlanSearch(EntrySet first, Source source, SearchOptions options);

  const SearchOptions& options() const { return options_; }
  const EntrySet& first() const { return sets_.front(); }
  // The entry points of that strategy, made when they are first asked for. The reference is valid until adopt(), or, without `keeps_all`,
  // until entries() makes those of another strategy; first() stays valid.
  const EntrySet& entries(const StepStrategy& strategy, bool keeps_all);
  // What is recomputed where nothing asks for another choice.
  RecomputeChoice first_choice() const;

  // `beat`: no planner is made where computing alone takes as many seconds. `for_slower_disk`, `search_bytes`: as in PlanOptions.
  Candidate candidate(const EntrySet& set, const RecomputeChoice& choice, const ComputeRates& rates = {},
                      double beat = std::numeric_limits<double>::infinity(), bool for_slower_disk = false,
                      int64_t search_bytes = std::numeric_limits<int64_t>::max()) const;
  // Everything in memory, the first strategy and choice.
  PlannedCandidate all_in_memory() const;
  // On a device with memory of its own: the fastest choice of what is recomputed.
  // `on_disk`: what a program takes there. `disk_bytes`: its limit; 0: none.
  DiscretePlan discrete(const DeviceMemories& memories, const std::function<int64_t(const Program&)>& on_disk, int64_t disk_bytes) const;
  // A plan in memory with as much recomputed as `budget` requires. None where nothing needs to be recomputed (0: no budget), or where
  // recomputing everything isn't enough. `least`: in, the budget without recomputing; out, the smallest budget of any choice.
  std::optional<PlannedCandidate> recomputing(int64_t budget, const Reserve& reserve, SmallestBudget& least) const;

  // Ends the search.
  PlannedEntries adopt(PlannedCandidate placed);

 private:
  PlannedCandidate in_memory(const RecomputeChoice& choice, bool overlapped) const;  // the first strategy

  const Source source_;
  const SearchOptions options_;
  std::list<EntrySet> sets_;  // the first, and others
};

}  // namespace ort_train
