#include "passes/plan/behind.h"

#include <algorithm>
#include <map>

#include "exec/program.h"
#include "passes/plan/bound.h"
#include "passes/plan/timing.h"

namespace ort_train::planning {
namespace {

// What a value is used for behind, by the copies of a plan and by steps that compute there.
struct Value {
  Piece piece;
  std::vector<Use> uses{};
};

int32_t value_of(const Run& run, uint32_t piece) {
  // Those without a number have no other piece, and numbers of their own.
  return run.pieces[piece].value >= 0 ? run.pieces[piece].value : -1 - static_cast<int32_t>(piece);
}

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

Run run_behind(const Problem& problem, const Run& run, const RunPlan& plan) {
  Run result{.name = run.name, .weight = run.weight, .seconds = run.seconds};
  result.seconds.push_back(0);
  std::map<int32_t, Value> values;
  const auto value = [&](int32_t number, const std::string& name, int64_t bytes, int32_t lasting) -> Value& {
    Value& of = values[number];
    if (of.uses.empty()) of.piece = {.name = name, .bytes = bytes, .lasting = lasting, .uses = {}, .value = std::max(number, -1)};
    return of;
  };
  for (const Stay& stay : plan.stays) {
    const Piece& piece = run.pieces[stay.piece];
    if (!stay.reads && !stay.writes) continue;
    std::vector<Use>& uses = value(value_of(run, stay.piece), piece.name, piece.bytes, piece.lasting).uses;
    if (stay.reads) uses.push_back({.step = stay.issue, .reads = true, .changes = false, .steps = stay.first - stay.issue + 1});
    if (stay.writes) uses.push_back({.step = stay.last + 1, .reads = false, .changes = true, .steps = stay.released - stay.last});
  }
  for (const BehindUse& of : run.uses_behind) {
    const std::string name = of.lasting >= 0 ? problem.lasting[static_cast<size_t>(of.lasting)].name : run.name;
    value(of.value, name, of.bytes, of.lasting).uses.push_back(of.use);
  }
  for (auto& [number, of] : values) {
    of.piece.uses = joined(std::move(of.uses));
    result.pieces.push_back(std::move(of.piece));
  }
  for (const Block& block : run.blocks) {
    if (block.fed) result.blocks.push_back({.bytes = block.bytes, .first = 0, .last = 0});
  }
  for (const Block& block : run.blocks_behind) result.blocks.push_back({.bytes = block.bytes, .first = block.first, .last = block.last});
  return result;
}

}  // namespace

Problem problem_behind(const Problem& problem, const std::vector<bool>& resident, const std::vector<RunPlan>& runs) {
  const MemoryBehind& memory = problem.behind.at(0);
  Problem result{.memory = memory.bytes, .disk = memory.store, .behind = {problem.behind.begin() + 1, problem.behind.end()}};
  result.lasting = problem.lasting;
  for (size_t i = 0; i < result.lasting.size(); ++i) result.lasting[i].stays = !resident[i];
  for (size_t r = 0; r < runs.size(); ++r) result.runs.push_back(run_behind(problem, problem.runs[r], runs[r]));
  result.runs.push_back({.name = "between runs", .weight = 0, .seconds = {0}});
  result.runs.back().blocks.push_back({.bytes = memory.between_runs});
  return result;
}

RunPlan with_lead(RunPlan plan, double share) {
  const auto part = [&](int32_t steps) { return static_cast<int32_t>(share * steps); };
  for (Stay& stay : plan.stays) {
    if (stay.reads) stay.issue = stay.first - part(stay.first - stay.issue);
    if (stay.writes) stay.released = stay.last + 1 + part(stay.released - stay.last - 1);
  }
  return plan;
}

namespace {

void set_forecasts(const Problem& problem, Layers& layers) {
  std::vector<double> seconds;
  for (size_t r = 0; r < problem.runs.size(); ++r) {
    std::vector<Layer> of;
    for (size_t l = 0; l < layers.plans.size(); ++l) {
      const Problem& in = layers.problem(problem, l);
      of.push_back({.run = &in.runs[r], .stays = &layers.plans[l].runs[r].stays, .store = in.disk});
    }
    layers.forecasts.push_back(forecast_of(of));
    seconds.push_back(layers.forecasts.back().seconds);
  }
  layers.seconds = step_seconds(problem, seconds);
}

// With the lead that is left of the plan for the nearest memory.
Layers in_front_of_behind(const Problem& problem, Plan near, double lead) {
  Layers layers{.plans = {std::move(near)}};
  for (RunPlan& run : layers.plans[0].runs) run = with_lead(std::move(run), lead);
  if (!problem.behind.empty()) layers.behind = {problem_behind(problem, layers.plans[0].resident, layers.plans[0].runs)};
  return layers;
}

// Holds in the memory behind what a plan for the nearest one needs there: with as much lead as there is room for.
std::optional<Layers> add_behind(const Problem& problem, const Plan& near) {
  for (const double lead : {1.0, 0.5, 0.25, 0.1, 0.0}) {
    Layers layers = in_front_of_behind(problem, near, lead);
    const Problem& behind = layers.behind[0];
    if (behind.memory < floor_bytes(behind)) continue;
    std::optional<Plan> plan = Search(behind).best();
    layers.plans.push_back(plan ? std::move(*plan) : least_plan(behind));
    if (bytes_of(behind, layers.plans[1]) > behind.memory) continue;
    set_forecasts(problem, layers);
    return layers;
  }
  return std::nullopt;
}

// All memories as one: nothing that moves between them takes time. What is used, here or behind, has to be in one of them.
double bound_of_all(const Problem& problem) {
  Problem all = problem;
  for (const MemoryBehind& memory : problem.behind) all.memory += memory.bytes, all.disk = memory.store;
  all.behind.clear();
  for (Lasting& value : all.lasting) value.stays = true;
  for (Run& run : all.runs) {
    std::map<int32_t, Value> values;
    for (uint32_t p = 0; p < run.pieces.size(); ++p) {
      const Piece& piece = run.pieces[p];
      Value& of = values[value_of(run, p)];
      if (of.uses.empty())
        of.piece = {.name = piece.name, .bytes = piece.bytes, .lasting = piece.lasting, .uses = {}, .value = piece.value};
      of.uses.insert(of.uses.end(), piece.uses.begin(), piece.uses.end());
    }
    for (const BehindUse& use : run.uses_behind) {
      Value& of = values[use.value];
      if (of.uses.empty()) of.piece = {.bytes = use.bytes, .lasting = use.lasting, .uses = {}, .value = use.value};
      of.uses.push_back(use.use);
    }
    run.pieces.clear();
    for (auto& [number, of] : values) {
      of.piece.uses = joined(std::move(of.uses));
      run.pieces.push_back(std::move(of.piece));
    }
    run.uses_behind.clear();
    run.seconds_behind.clear();
    run.blocks_behind.clear();
  }
  return Bound(all).seconds();
}

}  // namespace

int64_t bytes_of(const Problem& problem, const Plan& plan) {
  int64_t resident = problem.always, most = 0;
  for (size_t i = 0; i < plan.resident.size(); ++i) resident += plan.resident[i] ? problem.lasting[i].held : 0;
  for (size_t r = 0; r < plan.runs.size(); ++r) {
    const Run& run = problem.runs[r];
    for (const Stay& stay : plan.runs[r].stays) most = std::max(most, stay.offset + run.pieces[stay.piece].bytes);
    for (size_t b = 0; b < run.blocks.size(); ++b) most = std::max(most, plan.runs[r].block_offsets[b] + run.blocks[b].bytes);
  }
  return whole_sectors(resident) + most;
}

std::optional<Layers> plan_layers(const Problem& problem) {
  std::optional<Layers> best;
  double bound = 0;
  const auto consider = [&](const Plan& near) {
    std::optional<Layers> layers = add_behind(problem, near);
    if (layers && (!best || layers->seconds < best->seconds)) best = std::move(layers);
  };
  if (problem.memory >= floor_bytes(problem)) {
    Search search(problem);
    bound = search.bound();
    if (const std::optional<Plan> near = search.best()) consider(*near);
    bound = std::max(bound, bound_of_all(problem));
  }
  if (!best) {
    const Plan least = least_plan(problem);
    if (bytes_of(problem, least) <= problem.memory) consider(least);
  }
  if (best) best->bound = bound;
  return best;
}

Layers least_layers(const Problem& problem) {
  Layers layers = in_front_of_behind(problem, least_plan(problem), 0);
  layers.plans.push_back(least_plan(layers.behind[0]));
  set_forecasts(problem, layers);
  return layers;
}

}  // namespace ort_train::planning
