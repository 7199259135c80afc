#include "passes/plan/search.h"

#include <algorithm>
#include <utility>

#include "passes/plan/timing.h"

namespace ort_train::planning {
namespace {

// Measured on GPT-2 124M (256 to 2,048 tokens, 10 % above the least memory up to 60 % of what it takes without a disk): each of these
// lists has the best setting of some problem.
constexpr double kFree[] = {0, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6, 0.8, 1};
constexpr double kFreeOfOrder[] = {0.06, 0, 0.22};  // for which the linear program is solved
constexpr double kEarly[] = {0.25, 0.12, 0.5, 1, 0.03};
constexpr double kPlacedEarly[] = {0.25, 0.12, 0.5};
constexpr double kPlacedShare[] = {1, 0.97};  // of the memory: by less bytes cores are packed better
constexpr double kNoGap = 1e-3;               // of the bound: nothing better is looked for
constexpr int kPlaced = 8, kTries = 24;       // settings that get addresses, that are tried for it

}  // namespace

void set_forecasts(const Problem& problem, Plan& plan) {
  plan.forecasts.clear();
  std::vector<double> seconds;
  for (size_t r = 0; r < plan.runs.size(); ++r) {
    plan.forecasts.push_back(forecast_of(problem.runs[r], plan.runs[r].stays, problem.disk));
    seconds.push_back(plan.forecasts.back().seconds);
  }
  plan.seconds = step_seconds(problem, seconds);
}

Search::Search(const Problem& problem, double enough, int64_t most)
    : problem_(problem), floor_(floor_bytes(problem)), bound_(problem, enough, most), holder_(problem) {}

// Those of the linear program; the last is the holder's own, by gain.
const HoldOrder* Search::order(size_t number) {
  while (orders_.size() <= number) {
    const size_t next = orders_.size();
    auto& order = orders_.emplace_back();
    if (next == std::size(kFreeOfOrder)) {
      order = holder_.greedy();
    } else if (bound_.settle(static_cast<int64_t>(kFreeOfOrder[next] * static_cast<double>(problem_.memory - floor_)))) {
      order = holder_.like(bound_);
    }
  }
  return orders_[number] ? &*orders_[number] : nullptr;
}

void Search::hold(const Setting& setting) {
  const auto free = static_cast<int64_t>(setting.free * static_cast<double>(problem_.memory - floor_));
  holder_.choose(*order(setting.order), problem_.memory - free);
}

Eagerness Search::eagerness(size_t run, double early) const {
  return {.queued = computing(problem_.runs[run]), .early = early * static_cast<double>(problem_.memory) / problem_.disk.read};
}

// By bytes alone, in such a share of the memory.
RunPlan Search::wish(size_t run, double early, double share) const {
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(problem_.memory)) - holder_.resident_bytes();
  return assign_bytes(problem_.runs[run], holder_.stays(run), bytes, problem_.disk, eagerness(run, early));
}

bool Search::counts(size_t run) const { return problem_.runs[run].weight >= kRarely; }

// Of an optimizer step, by bytes alone, with what is held.
double Search::seconds_of(double early) const {
  std::vector<double> seconds(problem_.runs.size());
  for (size_t r = 0; r < seconds.size(); ++r) {
    if (counts(r)) seconds[r] = wish(r, early, 1).seconds;
  }
  return step_seconds(problem_, seconds);
}

// What may be held with the usual earliness, the fastest first, and these with the earliness that suits them best.
std::vector<Search::Setting> Search::ranked() {
  std::vector<Setting> all;
  for (size_t number = 0; number < std::size(kFreeOfOrder) || (all.empty() && number == std::size(kFreeOfOrder)); ++number) {
    if (!order(number)) continue;
    for (const double free : kFree) {
      Setting setting{.order = number, .free = free, .early = kEarly[0]};
      hold(setting);
      setting.seconds = seconds_of(setting.early);
      all.push_back(setting);
    }
  }
  const auto sort = [&] {
    std::stable_sort(all.begin(), all.end(), [](const Setting& a, const Setting& b) { return a.seconds < b.seconds; });
  };
  sort();
  for (size_t i = 0; i < std::min<size_t>(2 * kPlaced, all.size()); ++i) {
    Setting& setting = all[i];
    if (setting.seconds <= bound() * (1 + kNoGap)) break;
    hold(setting);
    for (const double early : kEarly) {
      const double seconds = early == kEarly[0] ? setting.seconds : seconds_of(early);
      if (seconds < setting.seconds) setting.early = early, setting.seconds = seconds;
    }
  }
  sort();
  return all;
}

// With what is held.
std::optional<RunPlan> Search::place(size_t run, double early) const {
  const int64_t bytes = problem_.memory - holder_.resident_bytes();
  std::optional<RunPlan> best;
  for (const double share : kPlacedShare) {
    const RunPlan wished = wish(run, early, share);
    const std::optional<Cores> cores = place_cores(problem_.runs[run], wished, bytes);
    if (!cores) continue;
    for (const double placed_early : kPlacedEarly) {
      RunPlan plan = assign(problem_.runs[run], wished.stays, *cores, bytes, problem_.disk, eagerness(run, placed_early));
      if (!best || plan.seconds < best->seconds) best = std::move(plan);
      if (!counts(run)) return best;
    }
  }
  return best;
}

std::optional<Plan> Search::place_all(double early) const {
  Plan plan{.resident = holder_.resident()};
  for (size_t r = 0; r < problem_.runs.size(); ++r) {
    std::optional<RunPlan> placed = place(r, early);
    if (!placed) return std::nullopt;
    plan.runs.push_back(std::move(*placed));
  }
  set_forecasts(problem_, plan);
  return plan;
}

std::optional<Plan> Search::best() {
  std::optional<Plan> best;
  int placed = 0, tried = 0;
  double last = 0;
  for (const Setting& setting : ranked()) {
    if (placed == kPlaced || (placed > 0 && tried == kTries)) break;
    if (best && (best->seconds <= bound() * (1 + kNoGap) || best->seconds <= setting.seconds)) break;
    if (setting.seconds == last) continue;  // mostly the same is held
    last = setting.seconds;
    ++tried;
    hold(setting);
    std::optional<Plan> plan = place_all(setting.early);
    if (!plan) continue;
    ++placed;
    if (!best || plan->seconds < best->seconds) best = std::move(plan);
  }
  return best;
}

Plan Search::outlook() {
  constexpr double kPacked = 0.98;  // of the memory: addresses take a little more than bytes
  constexpr double kFewFree[] = {0.06, 0.22};
  Plan best{.resident = {}, .seconds = std::numeric_limits<double>::infinity()};
  const size_t number = order(0) ? 0 : std::size(kFreeOfOrder);
  for (const double free : kFewFree) {
    hold({.order = number, .free = free});
    for (const double early : {kEarly[0], kEarly[2]}) {
      Plan plan{.resident = holder_.resident()};
      std::vector<double> seconds;
      for (size_t r = 0; r < problem_.runs.size(); ++r) {
        plan.runs.push_back(wish(r, early, kPacked));
        seconds.push_back(plan.runs.back().seconds);
      }
      plan.seconds = step_seconds(problem_, seconds);
      if (plan.seconds < best.seconds) best = std::move(plan);
    }
  }
  return best;
}

Plan least_plan(const Problem& problem) {
  constexpr double kMore[] = {0, 1, 1.02};  // times the floor, that is held; 0: nothing
  constexpr double kLittle = 1.002;         // times the floor: there is hardly less
  const auto floor = static_cast<double>(floor_bytes(problem));
  Problem nominal = problem;  // with other rates the same is held
  nominal.disk = {};
  Plan least{.resident = {}};
  std::vector<Cores> cores;                                            // of its runs
  int64_t bytes = std::numeric_limits<int64_t>::max(), run_bytes = 0;  // that it takes, and its largest run above what is resident
  for (const double more : kMore) {
    if (static_cast<double>(bytes) <= kLittle * floor) break;
    nominal.memory = static_cast<int64_t>(more * floor);
    Holder holder(nominal);
    holder.choose(holder.greedy(), nominal.memory);
    Plan plan{.resident = holder.resident()};
    std::vector<Cores> placed;
    int64_t most = 0;
    for (size_t r = 0; r < problem.runs.size(); ++r) {
      plan.runs.push_back({.stays = holder.stays(r), .block_offsets = {}});
      placed.push_back(place_tightly(problem.runs[r], plan.runs[r].stays));
      most = std::max(most, placed.back().bytes);
    }
    if (holder.resident_bytes() + most >= bytes) continue;
    least = std::move(plan);
    cores = std::move(placed);
    bytes = holder.resident_bytes() + most;
    run_bytes = most;
  }
  for (size_t r = 0; r < problem.runs.size(); ++r) {
    const double early = kEarly[0] * static_cast<double>(bytes) / problem.disk.read;
    least.runs[r] = assign(problem.runs[r], std::move(least.runs[r].stays), cores[r], run_bytes, problem.disk,
                           {.queued = computing(problem.runs[r]), .early = early});
  }
  set_forecasts(problem, least);
  return least;
}

}  // namespace ort_train::planning
