#include "frontend/plan_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/executor.h"
#include "frontend/file.h"
#include "frontend/machine.h"
#include "frontend/memory.h"
#include "frontend/report_files.h"
#include "frontend/run_disk.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "graph/rounding.h"
#include "passes/disk_search.h"
#include "passes/plan_report.h"
#include "passes/smallest_budget.h"

namespace ort_train {
namespace {

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const ValueId id : graph.values_of(ValueKind::constant)) bytes += graph.value(id).bytes();
  return bytes;
}

CandidateOptions candidate_options(const Options& options, const DeviceChoice& on, int threads) {
  return {.threads = threads,
          .kernels = on.kernels,
          .recompute = options.recompute,
          .micro_batches = options.micro_batches,
          .keeps_gradients = !options.save_gradients.empty(),
          .passes = {.skip = options.skip_passes, .dump_after = options.dump_after}};
}

// For plans with everything in memory.
EntrySet first_entries(Job& job) {
  EntrySet set = job.graphs.entries({});
  const int64_t joined = job.options.micro_batches == "vertical" ? most_together(set) : 1;
  return joined > 1 ? job.graphs.entries({.joined_batches = joined}) : std::move(set);
}

// The steps of plan_job(). What is settled so far is in `planned_`.
class JobPlanner {
 public:
  JobPlanner(Job& job, const RunStart& start, const DeviceChoice& on, CpuDevice& device, MachineRates& rates, const Note& note)
      : job_(job),
        options_(job.options),
        start_(start),
        on_(on),
        device_(device),
        rates_(rates),
        note_(note),
        candidates_(
            first_entries(job), [&job](const StepStrategy& strategy) { return job.graphs.entries(strategy); },
            candidate_options(job.options, on, device.workers().threads())) {
    planned_.budget = options_.budget;
    for (const auto& feed : job_.data.feeds(candidates_.first_entries(), job_.graphs.losses))
      feed_bytes_ += feed ? feed->memory_bytes() : 0;
  }

  PlannedJob on_processor();
  PlannedJob on_device();

 private:
  void settle_reserve(const PlannedCandidate& placed, bool with_disk);
  bool gains_by_disk(const PlannedCandidate& in_memory_plan) const;
  Reserve reserve() const;
  void raise_for_planning(SmallestBudget& least) const { least.raise_for_planning(planned_.reserve, planning_bytes(planned_.footprint)); }
  int64_t table_bytes(int64_t host) const;
  int64_t state_bytes() const;
  DiscretePlan plan_beside_page_tables(const DeviceMemories& memories) const;
  int64_t takes(const Program& program) const { return budget_of(planned_.reserve, program); }
  SmallestBudget budget_in_memory(const PlannedCandidate& in_memory_plan) const {
    return budget_for(planned_.reserve, in_memory_plan.planned.program, in_memory_plan.candidate);
  }
  PlanningRoom planning_room(const PlannedCandidate& in_memory_plan) const {
    return {planned_.budget, reserve(), in_memory_plan.candidate.finished.instructions(), candidates_.options().threads};
  }
  int64_t budget_of_machine(const Program& program, int64_t available) const;
  bool has_room_for(const Program& program) const;
  void limit_to_machine(const Program& in_memory);
  std::optional<PlannedCandidate> recomputing(PlannedCandidate& in_memory_plan);
  int64_t on_disk(const Program& program) const { return most_on_disk(disk_need(program, state_slots(options_)), before_, start_); }
  DiskLimits disk_limits(const Program& in_memory) const;
  std::optional<PlannedCandidate> with_disk(const PlannedCandidate& in_memory_plan);
  void settle_pinning(const Program& program);
  void check_peak();
  void check_resident();
  [[noreturn]] void refuse(const PlannedCandidate& in_memory_plan);
  [[noreturn]] void refuse_disk(int64_t disk_bytes, int64_t memory) const;
  PlannedJob adopt(PlannedCandidate placed);
  bool is_within_budget() const { return planned_.budget == 0 || planned_.budget >= planned_.least.budget; }

  Job& job_;
  const Options& options_;
  const RunStart& start_;
  const DeviceChoice& on_;
  CpuDevice& device_;
  MachineRates& rates_;
  const Note& note_;
  Candidates candidates_;
  int64_t feed_bytes_ = 0;  // what feeds take
  StateBefore before_{};    // what the checkpoints in the output folder have on the disk
  PlannedJob planned_{};
};

PlannedJob JobPlanner::on_processor() {
  PlannedCandidate in_memory_plan = candidates_.in_memory();
  settle_reserve(in_memory_plan, /*with_disk=*/false);
  const Program& program = in_memory_plan.planned.program;
  const int64_t memory = whole_pages(program.memory().bytes);
  job_.peak.run_trial(
      [&] { rates_.measure_processor(planned_.budget > 0 ? std::min(memory, planned_.budget - planned_.reserve) : memory); });
  planned_.least = budget_in_memory(in_memory_plan);
  if (planned_.budget == 0) limit_to_machine(program);
  std::optional<PlannedCandidate> other;
  if (gains_by_disk(in_memory_plan))
    other = with_disk(in_memory_plan);
  else if (options_.recompute == "auto")
    other = recomputing(in_memory_plan);
  if (!is_within_budget()) refuse(in_memory_plan);
  check_peak();
  if (!other) return adopt(std::move(in_memory_plan));
  in_memory_plan = {};
  return adopt(std::move(*other));
}

// Of a device's memory, for page tables that map so much of the host's.
int64_t JobPlanner::table_bytes(int64_t host) const { return on_.mapping > 0 ? round_up(divided_up(host, on_.mapping), on_.page) : 0; }

// About what steps leave to one another: weights and optimizer state.
int64_t JobPlanner::state_bytes() const {
  const Graph& graph = candidates_.first_entries().entries[0].built.graph;
  int64_t bytes = 0;
  for (const ValueKind kind : {ValueKind::parameter, ValueKind::optimizer_state}) {
    for (const ValueId id : graph.values_of(kind)) bytes += graph.value(id).bytes();
  }
  return bytes;
}

// The fastest plan that leaves the device's memory room for its page tables. How much these take depends on the plan, so that is guessed.
DiscretePlan JobPlanner::plan_beside_page_tables(const DeviceMemories& memories) const {
  const auto plan_beside = [&](int64_t tables) {
    DeviceMemories left = memories;
    left.device = std::max<int64_t>(memories.device - tables, 0);
    return candidates_.discrete(
        left, [this](const Program& program) { return on_disk(program); }, options_.nvme_budget);
  };
  const auto tables_of = [&](const DiscretePlan& plan) { return table_bytes(plan.placed->planned.program.spaces[kHost].bytes); };
  const auto has_room = [&](const DiscretePlan& plan) {
    return plan.placed && plan.placed->planned.program.memory().bytes + tables_of(plan) <= memories.device;
  };
  constexpr int64_t kAnyHost = 1;  // byte: takes one page of tables
  const int64_t state = state_bytes();
  DiscretePlan plan = plan_beside(table_bytes(state > memories.device ? std::min(state, memories.host) : kAnyHost));
  if (on_.mapping == 0 || has_room(plan)) return plan;
  if (plan.placed) {
    const int64_t tables = tables_of(plan) + on_.page;  // with less of the device's memory a plan may take more of the host's
    plan.placed.reset();                                // two plans are never in memory
    plan = plan_beside(tables);
    if (has_room(plan)) return plan;
  }
  if (memories.device < plan.least_device) return plan;
  // At last, room for the page tables that the named smallest budget counts. A plan without a disk may pin more of the host's memory; then
  // its tables take from the reserve, and the driver's count decides.
  plan.placed.reset();
  return plan_beside(table_bytes(whole_pages(plan.least_host)));
}

// On a device with memory of its own, the host's and, with a disk, a file.
PlannedJob JobPlanner::on_device() {
  constexpr int64_t kTrial = int64_t{64} << 20;  // bytes that the host computes on to be measured
  DeviceMemories memories = on_.memories;
  planned_.reserve = on_.reserve;
  planned_.page = on_.page;
  planned_.device = on_.name;
  planned_.footprint = {.threads = device_.workers().threads()};
  rates_.measure_processor(kTrial);
  memories.host_compute = rates_.processor();
  rates_.compute_on_gpu(memories.compute);
  if (!options_.nvme_path.empty()) {
    rates_.measure_disk(memories.host);
    planned_.disk = rates_.disk();
    memories.disk = rates_.stream();
  }
  if (options_.nvme_budget > 0) before_ = state_before(options_);
  DiscretePlan plan = plan_beside_page_tables(memories);
  const int64_t least_host = whole_pages(plan.least_host);
  planned_.least = device_budget(planned_.reserve + table_bytes(least_host), plan.least_device, on_.page);
  const auto refuse = [&](const std::string& what) {
    throw error(
        ErrorCode::budget,
        "{}; the smallest budget that would do is {} bytes (`budget` {}), of which {} are the context and the kernels, with {} bytes "
        "of the host's memory (`host_budget` {})",
        what, grouped(planned_.least.budget), planned_.least.budget, grouped(planned_.reserve), grouped(least_host), least_host);
  };
  if (!plan.placed && plan.disk_bytes > 0) refuse_disk(plan.disk_bytes, memories.device + planned_.reserve);
  if (!plan.placed)
    refuse(fmt::format("{} bytes of the GPU's memory and {} of the host's can't hold this job", grouped(memories.device + planned_.reserve),
                       grouped(memories.host)));
  if (plan.placed->planned.program.file().bytes > 0 && options_.nvme_path.empty())
    throw error(
        ErrorCode::budget,
        "beside {} bytes of the GPU's memory this job takes more than {} bytes of the host's: give it more (`host_budget`), or a disk "
        "(`nvme_path`)",
        grouped(memories.device + planned_.reserve), grouped(memories.host));
  const Program& program = plan.placed->planned.program;
  planned_.tables = std::min(table_bytes(program.spaces[kHost].bytes), memories.device - program.memory().bytes);
  planned_.reserve += planned_.tables;
  return adopt(std::move(*plan.placed));
}

PlannedJob JobPlanner::adopt(PlannedCandidate placed) {
  if (placed.overlapped && has_room_for(*placed.overlapped)) placed.planned.program = std::move(*placed.overlapped);
  PlannedEntries chosen = candidates_.adopt(std::move(placed));
  planned_.set = std::move(chosen.set);
  planned_.program = std::move(chosen.planned.program);
  planned_.forecasts = std::move(chosen.planned.forecasts);
  planned_.bound = chosen.planned.bound;
  planned_.recomputed = std::move(chosen.recomputed);
  if (planned_.set.strategy.joined_batches == 1 && options_.dump_after.contains("micro_batches"))
    throw error(ErrorCode::usage,
                "`dump_after` micro_batches: that pass did not run, since micro-batches run one by one: set `micro_batches` vertical");
  if (on_.make) planned_.discrete_device = on_.make(planned_.program, planned_.set.graphs());
  const Device& computing = planned_.discrete_device ? *planned_.discrete_device : device_;
  verify(planned_.program, planned_.set.graphs(), [&](SpaceKind kind) { return computing.kernels(kind); });
  job_.model.release_graphs();
  if (!on_.make) check_resident();
  return std::move(planned_);
}

// What the program itself takes, now that kernels are prepared for a first plan.
void JobPlanner::settle_reserve(const PlannedCandidate& placed, bool with_disk) {
  const Program& program = placed.planned.program;
  ProcessFootprint& job = planned_.footprint;
  job = {.whole_process = options_.budget_is_process,
         .disk = with_disk,
         .threads = device_.workers().threads(),
         .instructions = placed.candidate.finished.instructions(),
         .kernels = 0,
         .file_nodes = job_.model.info.nodes,
         .parameters = static_cast<int64_t>(job_.model.weights.size()),
         .constant_bytes = 0,
         .data_bytes = job_.data.memory_bytes() + feed_bytes_,
         .merging_bytes = merging_bytes(job_.model.adapters, job_.model.weights)};
  for (const Graph& graph : placed.candidate.finished.graphs) job.constant_bytes += constant_bytes(graph);
  const Executor executor(program, placed.candidate.finished.pointers(), device_);
  job.kernels = static_cast<int64_t>(executor.prepared_kernels());
  planned_.reserve = reserve_for(job);
  if (!options_.budget_is_process) return;
  release_free_heap();
  const ProcessMemory memory = process_memory();
  planned_.rss_after_planning = memory.resident;
  planned_.reserve =
      raised_reserve(planned_.reserve, std::max(memory.resident + job.data_bytes, job_.peak.bytes() - whole_pages(program.memory().bytes)));
}

Reserve JobPlanner::reserve() const {
  return [base = planned_.reserve, size = planned_.footprint](int64_t instructions) {
    ProcessFootprint other = size;
    other.instructions = instructions;
    return base + reserve_for(other) - reserve_for(size);
  };
}

// What there is, where the machine has less left than the program takes; else 0.
int64_t JobPlanner::budget_of_machine(const Program& program, int64_t available) const {
  return budget_by_machine(takes(program), options_.budget_is_process ? planned_.rss_after_planning : 0, available);
}

bool JobPlanner::has_room_for(const Program& program) const {
  return planned_.budget > 0 ? takes(program) <= planned_.budget : budget_of_machine(program, available_memory()) == 0;
}

// Without a budget a job takes what it wants, up to what there is: beyond that it is planned as for a budget of what there is.
void JobPlanner::limit_to_machine(const Program& in_memory) {
  const int64_t available = available_memory();
  const int64_t budget = budget_of_machine(in_memory, available);
  if (budget == 0) return;
  planned_.budget = budget;
  planned_.budget_is_machines = true;
  note_(fmt::format("the job would take {} bytes and this machine has {} available: it is planned for `budget` {}",
                    grouped(takes(in_memory)), grouped(available), budget));
}

// Frees the plan in memory where it finds another one. Where there is no room for two plans, frees it during the search, too.
std::optional<PlannedCandidate> JobPlanner::recomputing(PlannedCandidate& in_memory_plan) {
  constexpr int64_t kAmple = 4;
  int64_t room = whole_pages(in_memory_plan.planned.program.memory().bytes);  // the arena's, which isn't there yet
  if (planned_.budget > 0) room = std::min(room, planned_.budget - planned_.reserve);
  const bool has_room_for_two = room >= kAmple * planning_bytes(planned_.footprint);
  if (!has_room_for_two) in_memory_plan = {};
  const bool fits = is_within_budget();
  const Reserve reserve = this->reserve();
  RecomputeBudgets budgets(candidates_, reserve, planned_.least);
  planned_.least = budgets.smallest();
  if (fits || !is_within_budget()) {
    if (!has_room_for_two) in_memory_plan = candidates_.in_memory();
    return std::nullopt;
  }
  PlannedCandidate placed = candidates_.in_memory(budgets.first_within(planned_.budget), /*overlapped=*/true);
  in_memory_plan = {};
  planned_.reserve = reserve(placed.candidate.finished.instructions());
  return placed;
}

// --- with a disk ------------------------------------------------------------------------------------------------------------------------

DiskLimits JobPlanner::disk_limits(const Program& in_memory) const {
  return {.budget = planned_.budget,
          .reserve = reserve(),
          .disk_bytes = options_.nvme_budget,
          .updates_can_wait_longer = job_.graphs.has_weights_used_late(),
          .on_disk = [this](const Program& program) { return on_disk(program); },
          .estimated_on_disk =
              [this, slots = state_slots(options_), &in_memory](const PlanEstimate& estimate) {
                return most_on_disk(disk_need(estimate, in_memory, slots), before_, start_);
              }};
}

// False where the search for a plan with a disk takes as much memory as all tensors together.
bool JobPlanner::gains_by_disk(const PlannedCandidate& in_memory_plan) const {
  return !options_.nvme_path.empty() && planning_bytes(planned_.footprint) < whole_pages(in_memory_plan.planned.program.memory().bytes);
}

// A smaller arena, and a disk for the rest, where the budget asks for it. None: nothing asks for it, or the budget is too small.
std::optional<PlannedCandidate> JobPlanner::with_disk(const PlannedCandidate& in_memory_plan) {
  constexpr double kAmple = 1.25, kPinnable = 1.05;  // times the smallest budget: a refusal is unlikely; there may be room to pin memory
  settle_reserve(in_memory_plan, /*with_disk=*/true);
  planned_.least = budget_in_memory(in_memory_plan);
  raise_for_planning(planned_.least);
  if (options_.nvme_budget > 0) before_ = state_before(options_);
  const DiskLimits limits = disk_limits(in_memory_plan.planned.program);
  const PlanningRoom room = planning_room(in_memory_plan);
  SmallestWithDisk smallest(candidates_, limits.reserve, room);
  DiskSearch search(candidates_, in_memory_plan, limits, room, smallest);
  const auto take_least = [&] {
    SmallestBudget least = smallest.get();
    raise_for_planning(least);
    if (least.budget < planned_.least.budget) planned_.least = least;
  };
  // Where a refusal is unlikely, the smallest budget is computed beside the plan.
  const bool least_first = search.fits() || !room.for_two || smallest.times(planned_.budget) < kAmple;
  if (!least_first) {
    smallest.search_in_background();
  } else {
    take_least();
    if (!is_within_budget() || search.fits()) return std::nullopt;
  }
  const int64_t memory = planned_.budget - planned_.reserve;
  if (smallest.times(planned_.budget) >= kPinnable && may_pin(memory)) planned_.pinning = whole_pages(pinning_bytes(memory));
  job_.peak.run_trial([&] { rates_.measure_disk(memory - planned_.pinning); });
  planned_.disk = rates_.disk();
  DiskPlan plan = search.best(rates_.compute(), rates_.stream(), planned_.pinning, /*dumps=*/!options_.dump_problem.empty());
  if (!least_first) {
    take_least();
    if (!is_within_budget()) return std::nullopt;
  }
  if (!plan.placed) refuse_disk(plan.disk_bytes, planned_.budget);
  if (!plan.problems.empty()) {
    write_report(options_.dump_problem, plan.problems);
  }
  planned_.reserve = limits.reserve(plan.placed->candidate.finished.instructions());
  settle_pinning(plan.placed->planned.program);
  return std::move(plan.placed);
}

// Nothing is pinned where the plan doesn't need it after all, or has no room for it.
void JobPlanner::settle_pinning(const Program& program) {
  if (program.file().bytes == 0 || program.memory().bytes > planned_.budget - planned_.reserve - planned_.pinning) planned_.pinning = 0;
  planned_.reserve += planned_.pinning;
}

// --- refusals ---------------------------------------------------------------------------------------------------------------------------

void JobPlanner::refuse(const PlannedCandidate& in_memory_plan) {
  const MemoryPeak peak = memory_peak(in_memory_plan.planned.program, in_memory_plan.candidate.finished.pointers());
  const auto bytes = [&](Purpose purpose) { return peak.bytes[static_cast<size_t>(purpose)]; };
  SmallestBudget least = planned_.least;
  const int64_t taken = options_.budget_is_process ? job_.peak.bytes_outside_trials() : 0;
  least.raise_above(taken);
  std::string more;
  if (options_.nvme_path.empty()) {  // as it would be found with one
    settle_reserve(in_memory_plan, /*with_disk=*/true);
    const Reserve reserve = this->reserve();
    SmallestBudget with_disk = SmallestWithDisk(candidates_, reserve, planning_room(in_memory_plan)).get();
    raise_for_planning(with_disk);
    with_disk.raise_above(taken);
    if (with_disk.budget < least.budget)
      more = fmt::format("; with `nvme_path` on a disk, {} (`budget` {})", grouped(with_disk.budget), with_disk.budget);
  }
  constexpr int64_t kNotable = 10;  // one part of so many
  std::string unpacked;
  if (const int64_t of_data = job_.data.unpacked_bytes(); of_data > least.budget / kNotable)
    unpacked =
        fmt::format(", of which {} are the data's compressed arrays (numpy.savez instead of savez_compressed leaves them on the disk)",
                    grouped(of_data));
  throw error(ErrorCode::budget,
              "{}{} bytes can't hold this job: at the peak, weights, gradients and optimizer state take {} bytes; the smallest budget that "
              "would do is {} bytes (`budget` {}){}, set by {}{}",
              planned_.budget_is_machines ? "the memory that this machine has left is too little: " : "", grouped(planned_.budget),
              grouped(bytes(Purpose::weights) + bytes(Purpose::gradients) + bytes(Purpose::optimizer)), grouped(least.budget), least.budget,
              unpacked, least.set_by(), more);
}

// Importing and planning have taken what they take in any case, unless the process is inside another allocator or library.
void JobPlanner::check_peak() {
  if (!options_.budget_is_process) return;
  planned_.least.raise_above(job_.peak.bytes_outside_trials());
  const int64_t peak = job_.peak.bytes();
  if (options_.budget == 0 || peak <= options_.budget) return;
  const int64_t enough = budget_above(peak);
  throw error(ErrorCode::budget,
              "importing and planning took {} bytes, more than `budget` {}: the smallest budget that would do is {} bytes (`budget` {})",
              grouped(peak), options_.budget, grouped(enough), enough);
}

// What the process still holds after planning, and the arena, mustn't pass the budget together: the reserve has room for that, unless the
// search has left more in pieces of memory that can't be given back.
void JobPlanner::check_resident() {
  if (!options_.budget_is_process) return;
  release_free_heap();
  planned_.rss_after_planning = process_memory().resident;
  const int64_t together = planned_.rss_after_planning + whole_pages(planned_.program.memory().bytes);
  if (options_.budget == 0 || together <= options_.budget) return;
  const int64_t enough = budget_above(together);
  throw error(
      ErrorCode::budget,
      "after planning the process holds {} bytes, which with the arena are {}, more than `budget` {}: try {} bytes or more (`budget` {})",
      grouped(planned_.rss_after_planning), grouped(together), options_.budget, grouped(enough), enough);
}

void JobPlanner::refuse_disk(int64_t disk_bytes, int64_t memory) const {
  const int slots = state_slots(options_);
  const std::string fewer = slots > 2
                                ? fmt::format(" (`save_total_limit` {}: {} slots for each weight and its optimizer state; 1 takes two)",
                                              options_.save_total_limit, slots)
                                : "";
  const std::string old = before_.held() > 0 ? fmt::format(", of which {} hold the checkpoints in '{}' until the next one is saved",
                                                           grouped(before_.held()), options_.output_dir)
                                             : std::string();
  throw error(
      ErrorCode::budget,
      "within {} bytes of memory this job takes up to {} bytes on the disk{}, more than `nvme_budget` {}{}: raise that, or `budget`, "
      "so that less goes to the disk",
      grouped(memory), grouped(disk_bytes), old, options_.nvme_budget, fewer);
}

}  // namespace

PlannedJob plan_job(Job& job, const RunStart& start, const DeviceChoice& on, CpuDevice& device, MachineRates& rates, const Note& note) {
  JobPlanner planner(job, start, on, device, rates, note);
  return on.make ? planner.on_device() : planner.on_processor();
}

}  // namespace ort_train
