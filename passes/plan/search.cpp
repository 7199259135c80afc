#include "passes/plan/search.h"

#include <algorithm>
#include <utility>

namespace ort_train::planning {
namespace {

// Every element of these lists is the best one for some of tests/problems.
constexpr double kFree[] = {0, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6, 0.8, 1};
constexpr double kEstimateFree[] = {0.06, 0.22}, kEstimatePrefetch[] = {0.25, 0.5}, kEstimateShare = 0.97;  // fewer, for estimate()
constexpr double kFreeOfOrder[] = {0.06, 0, 0.22};  // for which the linear program is solved
constexpr double kPrefetch[] = {0.25, 0.12, 0.5, 1};
constexpr double kShare[] = {1, 0.97};  // of the memory that cores are planned for: planned for fewer bytes they may pack better
constexpr double kNoGap = 1e-3;         // of the bound: nothing better is looked for
constexpr size_t kPlaced = 8;           // settings that get addresses

double prefetch_seconds(const Problem& problem, double prefetch, int64_t memory) {
  return prefetch * static_cast<double>(memory) / problem.store.read;
}

void set_seconds(const Problem& problem, Plan& plan) {
  plan.seconds = step_seconds(problem, [&](size_t r) { return plan.runs[r].seconds; });
}

}  // namespace

Search::Search(const Problem& problem, double enough_seconds, int64_t max_bytes)
    : problem_(problem), floor_(floor_bytes(problem)), bound_(problem, enough_seconds, max_bytes), holder_(problem) {}

// Solves the linear program with the first `count` amounts of free memory. Where it has no solution, pieces are held by gain.
void Search::find_orders(size_t count) {
  for (; solved_ < count; ++solved_) {
    if (bound_.solve_with_free(free_bytes(kFreeOfOrder[solved_]))) orders_.push_back(holder_.by_shares(bound_));
  }
  if (orders_.empty()) orders_.push_back(holder_.by_gain());
}

void Search::hold(const Setting& setting) { holder_.fill(orders_[setting.order], problem_.memory - free_bytes(setting.free)); }

// A plan of a run, with what is held now, in `share` of the memory.
RunPlan Search::plan_without_addresses(size_t run, double prefetch, double share) const {
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(problem_.memory)) - bytes_below(problem_, holder_.resident());
  return assign_without_addresses(problem_.runs[run], holder_.stays(run), bytes, problem_.store,
                                  prefetch_seconds(problem_, prefetch, problem_.memory));
}

// All settings, the fastest first: each with the first prefetch distance, the best kPlaced then with the distance that is fastest for them.
std::vector<Search::Setting> Search::ranked() {
  std::vector<Setting> all;
  const auto seconds_of = [&](double prefetch) {
    return step_seconds(problem_, [&](size_t r) { return plan_without_addresses(r, prefetch, 1).seconds; });
  };
  find_orders(std::size(kFreeOfOrder));
  for (size_t order = 0; order < orders_.size(); ++order) {
    for (const double free : kFree) {
      Setting setting{.order = order, .free = free, .prefetch = kPrefetch[0]};
      hold(setting);
      setting.seconds = seconds_of(setting.prefetch);
      all.push_back(setting);
    }
  }
  const auto sort = [&] {
    std::stable_sort(all.begin(), all.end(), [](const Setting& a, const Setting& b) { return a.seconds < b.seconds; });
  };
  sort();
  for (size_t i = 0; i < std::min(kPlaced, all.size()) && all[i].seconds > bound() * (1 + kNoGap); ++i) {
    hold(all[i]);
    for (const double prefetch : kPrefetch) {
      const double seconds = prefetch == kPrefetch[0] ? all[i].seconds : seconds_of(prefetch);
      if (seconds < all[i].seconds) {
        all[i].prefetch = prefetch;
        all[i].seconds = seconds;
      }
    }
  }
  sort();
  return all;
}

// A plan of a run with addresses, with what is held now.
std::optional<RunPlan> Search::place(size_t run, double prefetch) const {
  const int64_t bytes = problem_.memory - bytes_below(problem_, holder_.resident());
  std::optional<RunPlan> best;
  for (const double share : kShare) {
    const RunPlan wished = plan_without_addresses(run, prefetch, share);
    const std::optional<Cores> cores = place_cores(problem_.runs[run], wished, bytes);
    if (!cores) continue;
    for (const double placed_prefetch : kPrefetch) {
      RunPlan plan = assign(problem_.runs[run], wished.stays, *cores, bytes, problem_.store,
                            prefetch_seconds(problem_, placed_prefetch, problem_.memory));
      if (!best || plan.seconds < best->seconds) best = std::move(plan);
      if (!counts(run)) return best;  // a rare run only needs a valid plan
    }
  }
  return best;
}

std::optional<Plan> Search::place_all(double prefetch) const {
  Plan plan{.resident = holder_.resident()};
  for (size_t r = 0; r < problem_.runs.size(); ++r) {
    std::optional<RunPlan> placed = place(r, prefetch);
    if (!placed) return std::nullopt;
    plan.runs.push_back(std::move(*placed));
  }
  set_seconds(problem_, plan);
  return plan;
}

std::optional<Plan> Search::best() {
  std::optional<Plan> best;
  size_t placed = 0;
  double last = -1;
  for (const Setting& setting : ranked()) {
    if (placed == kPlaced || (best && best->seconds <= std::max(bound() * (1 + kNoGap), setting.seconds))) break;
    if (setting.seconds == last) continue;  // most likely it holds the same pieces
    last = setting.seconds;
    hold(setting);
    std::optional<Plan> plan = place_all(setting.prefetch);
    if (!plan) continue;
    ++placed;
    if (!best || plan->seconds < best->seconds) best = std::move(plan);
  }
  return best;
}

Plan Search::estimate() {
  Plan best{.resident = {}, .seconds = std::numeric_limits<double>::infinity()};
  find_orders(1);
  for (const double free : kEstimateFree) {
    hold({.free = free});
    for (const double prefetch : kEstimatePrefetch) {
      Plan plan{.resident = holder_.resident()};
      for (size_t r = 0; r < problem_.runs.size(); ++r) plan.runs.push_back(plan_without_addresses(r, prefetch, kEstimateShare));
      set_seconds(problem_, plan);
      if (plan.seconds < best.seconds) best = std::move(plan);
    }
  }
  return best;
}

Plan least_plan(const Problem& problem) {
  Holder holder(problem);
  holder.fill({}, 0);  // nothing
  Plan least{.resident = holder.resident()};
  std::vector<Cores> cores;  // of its runs
  for (size_t r = 0; r < problem.runs.size(); ++r) {
    least.runs.push_back({.stays = holder.stays(r), .block_offsets = {}});
    cores.push_back(place_tightly(problem.runs[r], least.runs[r].stays));
    least.bytes = std::max(least.bytes, cores[r].bytes);
  }
  const double prefetch = prefetch_seconds(problem, kPrefetch[0], bytes_below(problem, least.resident) + least.bytes);
  for (size_t r = 0; r < problem.runs.size(); ++r)
    least.runs[r] = assign(problem.runs[r], std::move(least.runs[r].stays), cores[r], least.bytes, problem.store, prefetch);
  set_seconds(problem, least);
  return least;
}

}  // namespace ort_train::planning
