// The search for a plan with a disk, where the budget can't hold a job: which updates wait for the next step, how many micro-batches go
// together, and what is recomputed.
//
// Calls come from one thread. The constructor may start another one, which looks for the smallest budget and reads only what the search for
// it was given; the destructor waits for it.

#pragma once

#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/plan_search.h"

namespace ort_train {

struct DiskLimits {
  int64_t budget = 0;                    // bytes of memory; 0: none
  Reserve reserve{};                     // of these, not the arena's, with a disk
  int64_t disk_bytes = 0;                // on the disk; 0: no limit
  bool updates_can_wait_longer = false;  // there are weights that a step uses late: see Deferral::most
  // What a plan takes there.
  std::function<int64_t(const Program&)> on_disk{};
  std::function<int64_t(const StreamOutlook&)> expected_on_disk{};
};

// The program of the fastest plan that was found, or else what the disk would have to hold.
struct DiskPlan {
  std::optional<PlannedCandidate> placed{};
  int64_t disk_bytes = 0;
  std::string problems{};  // passes/problem_dump.h: of the plan, and what else was looked at
};

class DiskSearch {
 public:
  // `resident`: what takes no disk. All three must outlive it.
  DiskSearch(PlanSearch& entries, const PlannedCandidate& resident, const DiskLimits& limits);

  // Whether no disk is needed.
  bool fits() const;
  // Whether the smallest budget is computed in the background, because the budget is clearly above it.
  bool finds_least_meanwhile() const { return finds_least_meanwhile_; }
  // Whether there may be room for what the kernel needs to pin memory.
  bool leaves_room_to_pin() const;
  // The smallest budget with a disk. It depends on the job alone, not on budget or machine.
  const SmallestBudget& least();
  // `pinning`: bytes of the budget that are set aside. `dumps`: the problems are wanted.
  DiskPlan best(const ComputeRates& compute, const StreamRates& disk, int64_t pinning, bool dumps);

 private:
  struct CandidateEstimate {
    StepStrategy strategy{};
    RecomputeChoice recompute{};
    std::optional<Candidate> candidate{};  // none where there is no room to keep it
    int64_t instructions = 0;
    double expected = INFINITY;  // seconds of an optimizer step, even if the disk has no room for it
    double seconds = INFINITY;   // the same; infinite if the disk has no room
    int64_t disk_bytes = 0;
    std::string problem{};  // a line of the dump; of the one that is taken the whole
    double rank() const;
  };
  // What smallest_of() reads, perhaps on a thread of its own. It holds the candidates where there is room for them; otherwise smallest_of()
  // makes them one at a time, on the caller's thread.
  struct LeastSearch {
    struct Of {
      RecomputeChoice recompute{};
      std::optional<Candidate> candidate{};
      int64_t besides = 0;  // bytes besides the arena
    };
    std::multimap<int64_t, Of> choices{};  // by a lower bound of the budget that they need
  };

  LeastSearch least_search() const;
  SmallestBudget smallest_of(const LeastSearch& search) const;
  int64_t graph_bytes(int64_t instructions) const { return limits_.reserve(instructions) - limits_.reserve(0); }
  // What planning one candidate takes beside the reserve: its graphs, and the problem and the program that are made of them; if it isn't of
  // the first strategy, its entries, too. By its nodes before anything is recomputed.
  int64_t bytes_to_plan(int64_t nodes, bool is_first) const { return (is_first ? 1 : 2) * graph_bytes(nodes); }
  bool plans_two() const { return has_room_for_several_ && entries_.options().threads > 1; }  // at once
  int64_t limit(int64_t instructions) const { return limits_.budget - pinning_ - limits_.reserve(instructions); }
  bool disk_has_room(int64_t bytes) const { return limits_.disk_bytes == 0 || bytes <= limits_.disk_bytes; }

  std::vector<StepStrategy> strategies() const;
  void estimate_strategies();
  std::vector<RecomputeChoice> rungs(const EntrySet& set) const;
  double estimate_rungs(const EntrySet& set, const std::vector<RecomputeChoice>& rungs, bool in_memory);
  Candidate candidate(const EntrySet& set, const RecomputeChoice& choice, double beat = INFINITY) const;
  double estimate(const EntrySet& set, CandidateEstimate& choice, bool in_memory) const;
  double to_beat(const CandidateEstimate& choice) const;
  planning::Problem problem(const Candidate& candidate) const;
  std::string dump(const Candidate& chosen) const;
  PlannedCandidate place(CandidateEstimate& choice);
  DiskPlan plan_for_smallest_budget();

  PlanSearch& entries_;
  const PlannedCandidate& resident_;
  const DiskLimits& limits_;
  // While plans are made, the arena isn't there: its bytes are what they may take beside the reserve.
  const int64_t room_;
  const bool has_room_for_several_;  // there is room for several plans at a time
  LeastSearch search_;
  double share_ = 0;  // the budget in smallest budgets, about
  bool finds_least_meanwhile_ = false;
  std::future<SmallestBudget> searched_;
  std::optional<SmallestBudget> least_;
  ComputeRates compute_{};
  StreamRates disk_{};
  int64_t pinning_ = 0;
  bool dumps_ = false;
  std::map<std::string, std::string> dump_lines_;  // lines of the dump, by name
  std::vector<CandidateEstimate> choices_;
};

}  // namespace ort_train
