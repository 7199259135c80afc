#include "passes/plan/backing.h"

#include <algorithm>
#include <map>

namespace ort_train::planning {
namespace {

// In the order of steps, those that meet as one.
std::vector<Use> joined(std::vector<Use> uses) {
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.step < b.step; });
  std::vector<Use> result;
  for (const Use& use : uses) {
    if (result.empty() || use.step > result.back().last()) {
      result.push_back(use);
      continue;
    }
    Use& before = result.back();
    before.steps = std::max(before.last(), use.last()) - before.step + 1;
    before.changes |= use.changes;
  }
  return result;
}

// Values with all their uses, whatever pieces they are in.
class Values {
 public:
  Values(const Problem& problem, const Run& run) : problem_(problem), run_(run) {}

  void add(uint32_t piece, const Use& use) {
    const Piece& of = run_.pieces[piece];
    // One without a number has no other piece: it gets a number that no value has.
    add(of.value_number >= 0 ? of.value_number : -1 - static_cast<int32_t>(piece),
        {.name = of.name, .bytes = of.bytes, .lasting = of.lasting}, use);
  }
  // What steps that compute in the backing memory use.
  void add_backing_uses() {
    for (const BackingUse& of : run_.backing_uses) {
      const std::string& name = of.lasting >= 0 ? problem_.lasting[static_cast<size_t>(of.lasting)].name : run_.name;
      add(of.value_number, {.name = name, .bytes = of.bytes, .lasting = of.lasting}, of.use);
    }
  }
  // A piece for each.
  std::vector<Piece> pieces() {
    std::vector<Piece> result;
    for (auto& [number, piece] : values_) {
      piece.uses = joined(std::move(piece.uses));
      piece.value_number = std::max(number, -1);
      result.push_back(std::move(piece));
    }
    return result;
  }

 private:
  void add(int32_t number, const Piece& like, const Use& use) { values_.try_emplace(number, like).first->second.uses.push_back(use); }

  const Problem& problem_;
  const Run& run_;
  std::map<int32_t, Piece> values_;  // by number
};

Run backing_run(const Problem& problem, const Run& run, const RunPlan& plan) {
  Values values(problem, run);
  for (const Stay& stay : plan.stays) {
    if (stay.reads) values.add(stay.piece, {.step = stay.issue, .steps = stay.first - stay.issue + 1});
    if (stay.writes) values.add(stay.piece, {.step = stay.last + 1, .reads = false, .changes = true, .steps = stay.released - stay.last});
  }
  values.add_backing_uses();
  Run result{.name = run.name, .runs_per_step = run.runs_per_step, .seconds = run.seconds, .pieces = values.pieces()};
  result.seconds.push_back(0);
  for (const Block& block : run.blocks) {
    if (block.fed) result.blocks.push_back({.bytes = block.bytes, .first = 0, .last = 0});
  }
  for (const Block& block : run.backing_blocks) result.blocks.push_back({.bytes = block.bytes, .first = block.first, .last = block.last});
  return result;
}

// Without `ahead` copies begin and end at their steps, so that the backing memory holds as few at a time as it can.
HierarchyPlan with_backing_problem(const Problem& problem, Plan near, bool ahead) {
  for (RunPlan& run : near.runs) {
    for (Stay& stay : run.stays) {
      if (!ahead) stay.issue = stay.first, stay.released = stay.last + 1;
    }
  }
  HierarchyPlan levels{.plans = {std::move(near)}};
  levels.backing = {backing_problem(problem, levels.plans[0].resident, levels.plans[0].runs)};
  return levels;
}

// Holds in the backing memory what a plan for the nearest one needs there.
std::optional<HierarchyPlan> plan_backing(const Problem& problem, const Plan& near) {
  for (const bool ahead : {true, false}) {
    HierarchyPlan levels = with_backing_problem(problem, near, ahead);
    const Problem& backing = levels.backing[0];
    if (backing.memory < floor_bytes(backing)) continue;
    std::optional<Plan> plan = Search(backing).best();
    levels.plans.push_back(plan ? std::move(*plan) : least_plan(backing));
    if (bytes_of(backing, levels.plans[1]) > backing.memory) continue;
    set_forecasts(problem, levels);
    return levels;
  }
  return std::nullopt;
}

// All memories as one: nothing that moves between them takes time. What is used, here or in the backing memory, has to be in one of them.
double bound_of_all(const Problem& problem) {
  Problem all = problem;
  for (const BackingMemory& memory : problem.backing) all.memory += memory.bytes, all.store = memory.store;
  all.backing.clear();
  for (Lasting& value : all.lasting) value.may_be_resident = true;
  for (Run& run : all.runs) {
    Values values(problem, run);
    for (uint32_t p = 0; p < run.pieces.size(); ++p) {
      for (const Use& use : run.pieces[p].uses) values.add(p, use);
    }
    values.add_backing_uses();
    run.pieces = values.pieces();
    run.backing_uses.clear();
    run.backing_seconds.clear();
    run.backing_blocks.clear();
  }
  return Bound(all).seconds();
}

}  // namespace

Problem backing_problem(const Problem& problem, const std::vector<bool>& resident, const std::vector<RunPlan>& runs) {
  const BackingMemory& memory = problem.backing.at(0);
  Problem result{.memory = memory.bytes, .store = memory.store, .backing = {problem.backing.begin() + 1, problem.backing.end()}};
  result.lasting = problem.lasting;
  for (size_t i = 0; i < result.lasting.size(); ++i) result.lasting[i].may_be_resident = !resident[i];
  for (size_t r = 0; r < runs.size(); ++r) result.runs.push_back(backing_run(problem, problem.runs[r], runs[r]));
  result.runs.push_back({.name = "between runs", .runs_per_step = 0, .seconds = {0}});
  result.runs.back().blocks.push_back({.bytes = memory.between_runs});
  return result;
}

std::vector<LevelPlan> HierarchyPlan::of_run(const Problem& nearest, size_t run) const {
  std::vector<LevelPlan> result;
  for (size_t l = 0; l < plans.size(); ++l) {
    const Problem& problem = l == 0 ? nearest : backing[l - 1];
    result.push_back({.run = &problem.runs[run], .plan = &plans[l].runs[run], .store = problem.store});
  }
  return result;
}

void set_forecasts(const Problem& problem, HierarchyPlan& levels) {
  levels.forecasts.clear();
  for (size_t r = 0; r < problem.runs.size(); ++r) levels.forecasts.push_back(forecast_of(levels.of_run(problem, r)));
  levels.seconds = step_seconds(problem, [&](size_t r) { return levels.forecasts[r].seconds; });
}

int64_t bytes_of(const Problem& problem, const Plan& plan) {
  int64_t most = plan.bytes;
  for (size_t r = 0; r < plan.runs.size(); ++r) {
    const Run& run = problem.runs[r];
    for (const Stay& stay : plan.runs[r].stays) most = std::max(most, stay.offset + run.pieces[stay.piece].bytes);
    for (size_t b = 0; b < run.blocks.size(); ++b) most = std::max(most, plan.runs[r].block_offsets[b] + run.blocks[b].bytes);
  }
  return bytes_below(problem, plan.resident) + most;
}

std::optional<HierarchyPlan> plan_hierarchy(const Problem& problem) {
  std::optional<HierarchyPlan> best;
  double bound = 0;
  if (problem.memory >= floor_bytes(problem)) {
    Search search(problem);
    bound = search.bound();
    if (const std::optional<Plan> near = search.best()) best = plan_backing(problem, *near);
    bound = std::max(bound, bound_of_all(problem));
  }
  if (!best) {
    const Plan least = least_plan(problem);
    if (bytes_of(problem, least) <= problem.memory) best = plan_backing(problem, least);
  }
  if (best) best->bound = bound;
  return best;
}

HierarchyPlan least_hierarchy(const Problem& problem) {
  HierarchyPlan levels = with_backing_problem(problem, least_plan(problem), /*ahead=*/false);
  levels.plans.push_back(least_plan(levels.backing[0]));
  set_forecasts(problem, levels);
  return levels;
}

}  // namespace ort_train::planning
