// Search: from a problem in one memory to its plan: the fastest that it finds (best()), or quickly one without addresses (estimate()).
//
// Pieces are held by an order of preference, that of the linear program (bound.h), until the memory left is what is set aside for transfers
// ahead of their steps and after them. How much that is, and how far ahead reads begin (the prefetch distance), are settings: each is tried
// without addresses, and the best get addresses (assign.h), again with every prefetch distance.

#pragma once

#include <optional>
#include <vector>

#include "passes/plan/bound.h"
#include "passes/plan/hold.h"

namespace ort_train::planning {

struct Plan {
  std::vector<bool> resident;   // by number in Problem::lasting
  std::vector<RunPlan> runs{};  // by run
  double seconds = 0;           // of an optimizer step
  int64_t bytes = 0;            // that the runs are given; 0: as far as their addresses reach
};

class Search {
 public:
  // The memory is at least the floor. `enough_seconds`, `max_bytes`: as in Bound. The problem must outlive it.
  explicit Search(const Problem& problem, double enough_seconds = std::numeric_limits<double>::infinity(),
                  int64_t max_bytes = std::numeric_limits<int64_t>::max());

  // Seconds: no plan takes less, for an optimizer step.
  double bound() const { return bound_.seconds(); }
  // About what best() will find, made quickly: a plan without addresses, with few settings.
  Plan estimate();
  // None where it finds no addresses.
  std::optional<Plan> best();

 private:
  struct Setting {
    size_t order = 0;
    double free = 0;      // share of the memory above the floor, that holding leaves alone
    double prefetch = 0;  // how far ahead reads begin: a share of the time that reading all of the memory takes
    double seconds = 0;   // of an optimizer step, without addresses
  };

  void find_orders(size_t count);
  void hold(const Setting& setting);
  int64_t free_bytes(double share) const { return static_cast<int64_t>(share * static_cast<double>(problem_.memory - floor_)); }
  bool counts(size_t run) const { return problem_.runs[run].runs_per_step >= min_counted_runs_per_step(problem_.runs); }
  RunPlan plan_without_addresses(size_t run, double prefetch, double share) const;
  std::vector<Setting> ranked();
  std::optional<RunPlan> place(size_t run, double prefetch) const;
  std::optional<Plan> place_all(double prefetch) const;

  const Problem& problem_;
  const int64_t floor_;
  Bound bound_;
  Holder holder_;
  std::vector<HoldOrder> orders_;  // of preference
  size_t solved_ = 0;              // amounts of free memory for which the linear program was solved
};

// A plan that holds nothing between uses and is given about the least bytes: as many whatever the problem's memory and rates.
Plan least_plan(const Problem& problem);

}  // namespace ort_train::planning
