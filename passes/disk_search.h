// The search for a plan with a disk, where the budget can't hold a job: which updates wait for the next step, how many micro-batches go
// together, and what is recomputed. In go a job's candidates and the limits; out comes the fastest plan that it finds.
//
// Calls come from one thread.

#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/candidates.h"
#include "passes/planning_room.h"
#include "passes/smallest_budget.h"

namespace ort_train {

struct DiskLimits {
  int64_t budget = 0;                    // bytes of memory; 0: none
  Reserve reserve{};                     // of these, not the arena's, with a disk
  int64_t disk_bytes = 0;                // on the disk; 0: no limit
  bool updates_can_wait_longer = false;  // there are weights that a step uses late: see Deferral::most
  // What a plan takes there.
  std::function<int64_t(const Program&)> on_disk{};
  std::function<int64_t(const PlanEstimate&)> estimated_on_disk{};
};

// The fastest plan that was found; where the disk has no room for any, what it would have to hold.
struct DiskPlan {
  std::optional<PlannedCandidate> placed{};
  int64_t disk_bytes = 0;
  std::string problems{};  // passes/problem_dump.h: of the plan, and what else was looked at
};

class DiskSearch {
 public:
  // `resident`: what takes no disk. `room`: by the budget. `smallest`: the budget whose plan is taken where no other is found. All outlive
  // it.
  DiskSearch(Candidates& candidates, const PlannedCandidate& resident, const DiskLimits& limits, const PlanningRoom& room,
             SmallestWithDisk& smallest);

  // Whether no disk is needed.
  bool fits() const;
  // `pinning`: bytes of the budget that are set aside. `dumps`: the problems are wanted.
  DiskPlan best(const ComputeRates& compute, const StreamRates& disk, int64_t pinning, bool dumps);

 private:
  // A candidate with what a plan for it will take; what place() makes of it is the plan.
  struct CandidateEstimate {
    StepStrategy strategy{};
    RecomputeChoice recompute{};
    std::optional<Candidate> candidate{};  // none where there is no room to keep it
    int64_t instructions = 0;
    double estimated_seconds = INFINITY;  // of an optimizer step, even if the disk has no room for it
    double seconds = INFINITY;            // the same, or of its plan where there is one; infinite if the disk has no room
    int64_t disk_bytes = 0;
    std::string problem{};  // a line of the dump; of the one that is taken the whole
    double rank() const;
  };

  // What planning one candidate takes beside the reserve: its graphs, and the problem and the program that are made of them; if it isn't of
  // the first strategy, its entries, too. By its nodes before anything is recomputed.
  int64_t bytes_to_plan(int64_t nodes, bool is_first) const { return (is_first ? 1 : 2) * graph_bytes(limits_.reserve, nodes); }
  int64_t limit(int64_t instructions) const { return limits_.budget - pinning_ - limits_.reserve(instructions); }
  bool disk_has_room(int64_t bytes) const { return limits_.disk_bytes == 0 || bytes <= limits_.disk_bytes; }

  std::vector<StepStrategy> strategies() const;
  void estimate_strategies();
  std::vector<RecomputeChoice> rungs(const EntrySet& set) const;
  double estimate_rungs(const EntrySet& set, const std::vector<RecomputeChoice>& rungs, bool in_memory);
  Candidate make(const EntrySet& set, const RecomputeChoice& choice, double beat = INFINITY) const;
  double estimate(const EntrySet& set, CandidateEstimate& estimated, bool in_memory) const;
  double to_beat(const CandidateEstimate& estimated) const;
  planning::Problem problem(const Candidate& candidate) const;
  std::string dump(const Candidate& chosen) const;
  PlannedCandidate place(CandidateEstimate& estimated);
  DiskPlan plan_for_smallest_budget();

  Candidates& candidates_;
  const PlannedCandidate& resident_;
  const DiskLimits& limits_;
  const PlanningRoom& room_;
  SmallestWithDisk& smallest_;
  ComputeRates compute_{};
  StreamRates disk_{};
  int64_t pinning_ = 0;
  bool dumps_ = false;
  std::map<std::string, std::string> dump_lines_;  // lines of the dump, by name
  std::vector<CandidateEstimate> estimates_;       // of the candidates that are worth a plan
};

}  // namespace ort_train
