// The smallest budget that a job can be planned for: how it is found, and what sets it.
//
// A budget holds the arena and, beside it, what the program itself takes: the reserve. So a plan needs a budget of both (budget_of()). The
// smallest budget is that of the plan that needs the least:
//
//   without a disk   everything in memory, with as much recomputed as makes the arena smaller: RecomputeBudgets
//   with a disk      nothing in memory that no step uses, with nothing or with everything recomputed: SmallestWithDisk. It depends on the
//                    job alone, not on the budget that was given or on the machine's rates.
//   on a device      as little as possible in its memory: Candidates::discrete(), device_budget()
//
// The operation at that plan's memory peak sets it. It may also be
//
//   planning         with a disk, which takes memory while the arena isn't there: raise_for_planning()
//   the process      which has taken more by then than was foreseen, inside another allocator or library: raise_above()

#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/candidates.h"
#include "passes/planning_room.h"

namespace ort_train {

struct SmallestBudget {
  int64_t budget = 0;
  std::string op{}, entry{};  // that sets it; what is no operation of the job has no entry
  RecomputeChoice recompute{};

  std::string set_by() const;
  // Planning takes `planning` bytes beside the reserve.
  void raise_for_planning(int64_t reserve, int64_t planning);
  // The process has taken `taken` bytes before its arena is there.
  void raise_above(int64_t taken);
};

// What a candidate's program needs with that reserve: a budget, and which operation sets it.
int64_t budget_of(int64_t reserve, const Program& program);
SmallestBudget budget_for(int64_t reserve, const Program& program, const Candidate& candidate);
// The same for `bytes` of a device's memory, which is allocated in pages of `page` bytes.
SmallestBudget device_budget(int64_t reserve, int64_t bytes, int64_t page);
// The budget for a process that has taken `taken` bytes before its arena is there.
int64_t budget_above(int64_t taken);

// Without a disk: the budgets of plans in memory that recompute more and more, the rungs of a ladder (recompute_ladder()).
class RecomputeBudgets {
 public:
  // `without`: the budget of the first rung, nothing recomputed. The others outlive it.
  RecomputeBudgets(const Candidates& candidates, const Reserve& reserve, SmallestBudget without);

  // The least budget of a sample of the rungs.
  const SmallestBudget& smallest() { return at(smallest_); }
  // The first rung, found by halving, that fits into `budget`: at least smallest(), but below the first rung's.
  RecomputeChoice first_within(int64_t budget);

 private:
  const SmallestBudget& at(size_t rung);

  const Candidates& candidates_;
  const Reserve& reserve_;
  const std::vector<RecomputeChoice> ladder_;
  std::map<size_t, SmallestBudget> known_;  // by rung
  size_t smallest_ = 0;                     // rung
};

// With a disk: from a job's candidates to the smallest budget of a plan that moves to the disk all that it can. Calls come from one thread;
// search_in_background() starts another one, for which the destructor waits.
class SmallestWithDisk {
 public:
  // Makes the candidates, keeps them where there is room for several, and finds lower bounds. All three outlive it.
  SmallestWithDisk(const Candidates& candidates, const Reserve& reserve, const PlanningRoom& room);

  // `budget` divided by a lower bound of the smallest one.
  double times(int64_t budget) const;
  // Only where there is room for several candidates.
  void search_in_background();
  // Searches now, or waits for the search. Frees the candidates.
  const SmallestBudget& get();

 private:
  // A candidate that may have the smallest budget.
  struct Contender {
    RecomputeChoice recompute{};
    std::optional<Candidate> candidate{};  // none where there is no room to keep it
    int64_t reserve = 0;
    int64_t lower_bound = 0;  // of the budget that it needs
  };

  Contender contender(const RecomputeChoice& choice) const;
  SmallestBudget search() const;

  const Candidates& candidates_;
  const Reserve& reserve_;
  const PlanningRoom& room_;
  std::vector<Contender> contenders_{};  // by their lower bounds
  int64_t lower_bound_ = 0;              // the least of these
  std::optional<SmallestBudget> found_{};
  std::future<SmallestBudget> background_{};
};

}  // namespace ort_train
