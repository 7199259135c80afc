#include "passes/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "passes/background.h"
#include "passes/plan/drafts.h"
#include "passes/plan/fastest_plan.h"
#include "passes/plan/instance.h"
#include "passes/plan/make_program.h"
#include "passes/plan/staging.h"

namespace ort_train {
namespace {

// The Program of a plan, with what the plan says of it.
PlannedProgram planned_program(const JobDraft& job, const Instance& instance, planning::HierarchyPlan plan) {
  Program program = make_program(job, instance, plan);
  return {.program = std::move(program), .forecasts = std::move(plan.forecasts), .seconds = plan.seconds, .bound = plan.bound};
}

}  // namespace

struct Planner::Impl {
  // An instance in one memory with a disk, and the search for its plans, whose bound is found once: by estimate() and streamed().
  struct Streamed {
    Instance instance;
    int64_t floor = planning::floor_bytes(instance.problem);
    std::unique_ptr<planning::Search> search{};  // of the instance's problem

    // Made by the first call; later ones ignore the arguments. The memory is at least the floor. Arguments: as Search has them.
    planning::Search& search_once(double enough_seconds, int64_t max_bytes) {
      if (!search) search = std::make_unique<planning::Search>(instance.problem, enough_seconds, max_bytes);
      return *search;
    }
  };

  PlanOptions options;
  JobDraft job;
  std::unique_ptr<Streamed> last{};

  Streamed& streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) {
    const bool is_last =
        last && last->instance.problem.memory == limit && last->instance.machine.rates == compute && last->instance.problem.store == disk;
    if (!is_last) last.reset(new Streamed{.instance = make_instance(job, limit, {.threads = options.threads, .rates = compute}, disk)});
    return *last;
  }

  Instance discrete(const DeviceMemories& memories, const BackingCompute& backing) const {
    const JobMachine machine{.threads = options.threads, .rates = memories.compute, .backing = backing};
    Instance instance = make_instance(job, memories.device, machine, memories.link);
    instance.problem.backing = {{.name = "host", .bytes = memories.host, .between_runs = most_staging_bytes(job), .store = memories.disk}};
    return instance;
  }

  // With these nodes computed on the host. With staging areas above inputs that are kept, the plan of least memory may fit where the
  // fastest one doesn't.
  std::optional<PlannedProgram> plan_discrete(const DeviceMemories& memories, const BackingCompute& backing) const {
    const Instance instance = discrete(memories, backing);
    for (const bool least : {false, true}) {
      std::optional<planning::HierarchyPlan> plan =
          least ? planning::least_hierarchy(instance.problem) : planning::plan_hierarchy(instance.problem);
      if (!plan) continue;
      PlannedProgram planned = planned_program(job, instance, std::move(*plan));
      if (planned.program.memory().bytes <= memories.device && planned.program.spaces[kHost].bytes <= memories.host) return planned;
    }
    return std::nullopt;
  }
};

Planner::Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options)
    : impl_(new Impl{.options = options, .job = draft_job(entries, options.kernels ? *options.kernels : cpu_kernels(), options.threads)}) {}
Planner::~Planner() = default;

void Planner::overlap_updates() {
  impl_->last.reset();
  for (Draft& draft : impl_->job.drafts) overlap_updates_of(draft, impl_->options.threads);
}

Program Planner::all_in_memory() const {
  const Instance instance = make_instance(impl_->job, 0, {.threads = impl_->options.threads, .moves = false}, {});
  planning::Plan plan{.resident = std::vector<bool>(impl_->job.persistents.size(), true)};
  for (const planning::Run& run : instance.problem.runs)
    plan.runs.push_back({.stays = {}, .block_offsets = place_tightly(run, {}).offsets});
  return make_program(impl_->job, instance, {.plans = {std::move(plan)}});
}

int64_t Planner::bytes_in_memory() const {
  int64_t persistent = 0, most = 0;
  for (size_t i = 0; i < impl_->job.persistents.size(); ++i) persistent += aligned(impl_->job.persistents[i].type.bytes());
  for (const Draft& draft : impl_->job.drafts) most = std::max(most, simulate(draft.model, draft.order).bytes);
  return persistent + most;
}

int64_t Planner::least_bytes() const { return impl_->streamed(0, {}, {}).floor; }

PlanEstimate Planner::estimate(int64_t limit, const ComputeRates& compute, const StreamRates& disk, double beat) const {
  Impl::Streamed& streamed = impl_->streamed(limit, compute, disk);
  const planning::Problem& problem = streamed.instance.problem;
  PlanEstimate estimate;
  if (limit < streamed.floor) return estimate;
  estimate.bound = planning::step_seconds(problem, [&](size_t r) { return planning::computing(problem.runs[r]); });
  if (estimate.bound >= beat) return estimate;
  planning::Search& search = streamed.search_once(beat, impl_->options.search_bytes);
  estimate.bound = search.bound();
  if (estimate.bound >= beat) return estimate;
  const planning::Plan plan = search.estimate();
  estimate.seconds = plan.seconds;
  const DiskBytes on_disk = bytes_on_disk(impl_->job, streamed.instance, plan);
  estimate.disk_bytes = on_disk.all;
  estimate.state_bytes = on_disk.state;
  return estimate;
}

PlannedProgram Planner::streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  Impl::Streamed& streamed = impl_->streamed(limit, compute, disk);
  const Instance& instance = streamed.instance;
  double bound = 0;
  if (limit >= streamed.floor) {
    planning::Search& search = streamed.search_once(std::numeric_limits<double>::infinity(), impl_->options.search_bytes);
    std::optional<planning::HierarchyPlan> plan =
        fastest_plan(instance.problem, search, impl_->options.for_slower_disk, impl_->options.search_bytes);
    bound = search.bound();
    if (plan) {
      PlannedProgram planned = planned_program(impl_->job, instance, std::move(*plan));
      if (planned.program.memory().bytes <= limit) return planned;
    }
  }
  return planned_program(impl_->job, instance, planning::in_one_memory(instance.problem, planning::least_plan(instance.problem), bound));
}

std::optional<PlannedProgram> Planner::discrete(const DeviceMemories& memories) const {
  std::optional<PlannedProgram> best = impl_->plan_discrete(memories, {});
  if (memories.host_updates) {
    const auto updates = [](const Graph&, const Node& node) { return updates_state(node); };
    std::optional<PlannedProgram> other = impl_->plan_discrete(memories, {.wanted = updates, .rates = memories.host_compute});
    if (other && (!best || other->seconds < best->seconds)) best = std::move(other);
  }
  return best;
}

std::pair<int64_t, int64_t> Planner::least_discrete() const {
  const Instance instance = impl_->discrete({}, {});
  const planning::HierarchyPlan plan = planning::least_hierarchy(instance.problem);
  const Program program = make_program(impl_->job, instance, plan);
  return {std::max(program.memory().bytes, planning::bytes_of(instance.problem, plan.plans[0])),
          std::max(program.spaces[kHost].bytes, planning::bytes_of(plan.backing[0], plan.plans[1]))};
}

planning::Problem Planner::problem(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  return impl_->streamed(limit, compute, disk).instance.problem;
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).all_in_memory(); }

}  // namespace ort_train
