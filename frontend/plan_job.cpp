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
#include "passes/disk_search.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const ValueId id : graph.values_of(ValueKind::constant)) bytes += graph.value(id).bytes();
  return bytes;
}

SearchOptions search_options(const Options& options, const DeviceChoice& on, int threads) {
  return {.threads = threads,
          .kernels = on.kernels,
          .recompute = options.recompute,
          .micro_batches = options.micro_batches,
          .keeps_gradients = !options.save_gradients.empty(),
          .passes = {.skip = options.skip_passes, .dump_after = options.dump_after}};
}

// For plans with everything in memory.
EntrySet first_entries(Job& job) {
  EntrySet set = job.entries({});
  const int64_t joined = job.options.micro_batches == "vertical" ? most_together(set) : 1;
  return joined > 1 ? job.entries({.joined_batches = joined}) : std::move(set);
}

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
        search_(
            first_entries(job), [&job](const StepStrategy& strategy) { return job.entries(strategy); },
            search_options(job.options, on, device.workers().threads())) {
    made_.budget = options_.budget;
    for (const auto& feed : job_.feeds(search_.first())) feed_bytes_ += feed ? feed->memory_bytes() : 0;
  }

  PlannedJob on_processor();
  PlannedJob on_device();

 private:
  void settle_reserve(const PlannedCandidate& placed, bool with_disk);
  bool gains_by_disk(const PlannedCandidate& in_memory_plan) const;
  Reserve reserve() const;
  int64_t least_for_planning() const { return made_.reserve + planning_bytes(made_.footprint); }
  void raise_for_planning(SmallestBudget& least) const;
  int64_t takes(const Program& program) const { return made_.reserve + whole_pages(program.memory().bytes); }
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
  bool is_within_budget() const { return made_.budget == 0 || made_.budget >= made_.least.budget; }

  Job& job_;
  const Options& options_;
  const RunStart& start_;
  const DeviceChoice& on_;
  CpuDevice& device_;
  MachineRates& rates_;
  const Note& note_;
  PlanSearch search_;
  int64_t feed_bytes_ = 0;  // what feeds take
  StateBefore before_{};    // what the checkpoints in the output folder have on the disk
  PlannedJob made_{};
};

PlannedJob JobPlanner::on_processor() {
  PlannedCandidate in_memory_plan = search_.all_in_memory();
  settle_reserve(in_memory_plan, /*with_disk=*/false);
  const Program& program = in_memory_plan.made.program;
  const int64_t memory = whole_pages(program.memory().bytes);
  rates_.measure_processor(made_.budget > 0 ? std::min(memory, made_.budget - made_.reserve) : memory);
  made_.least = least_of(takes(program), program, in_memory_plan.of.finished.pointers());
  if (made_.budget == 0) limit_to_machine(program);
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

// On a device with memory of its own, the host's and, with a disk, a file.
PlannedJob JobPlanner::on_device() {
  constexpr int64_t kTrial = int64_t{64} << 20;  // bytes that the host computes on to be measured
  DeviceMemories memories = on_.memories;
  made_.reserve = on_.reserve;
  made_.page = on_.page;
  made_.device = on_.name;
  made_.footprint = {.threads = device_.workers().threads()};
  rates_.measure_processor(kTrial);
  memories.host_compute = rates_.processor();
  rates_.compute_on_gpu(memories.compute);
  if (!options_.nvme_path.empty()) {
    rates_.measure_disk(memories.host);
    made_.disk = rates_.disk();
    memories.disk = rates_.stream();
  }
  if (options_.nvme_budget > 0) before_ = state_before(options_);
  DiscretePlan plan = search_.discrete(
      memories, [this](const Program& program) { return on_disk(program); }, options_.nvme_budget);
  const int64_t pages = (whole_pages(plan.least_device) + on_.page - 1) / on_.page;
  made_.least = {.budget = made_.reserve + pages * on_.page, .op = "", .entry = ""};
  const auto refuse = [&](const std::string& what) {
    throw error(
        ErrorCode::budget,
        "{}; the smallest budget that would do is {} bytes (`budget` {}), of which {} are the context and the kernels, with {} bytes "
        "of the host's memory (`host_budget` {})",
        what, grouped(made_.least.budget), made_.least.budget, grouped(made_.reserve), grouped(plan.least_host), plan.least_host);
  };
  if (!plan.placed && plan.disk_bytes > 0) refuse_disk(plan.disk_bytes, memories.device + made_.reserve);
  if (!plan.placed)
    refuse(fmt::format("{} bytes of the GPU's memory and {} of the host's can't hold this job", grouped(memories.device + made_.reserve),
                       grouped(memories.host)));
  if (plan.placed->made.program.file().bytes > 0 && options_.nvme_path.empty())
    throw error(
        ErrorCode::budget,
        "beside {} bytes of the GPU's memory this job takes more than {} bytes of the host's: give it more (`host_budget`), or a disk "
        "(`nvme_path`)",
        grouped(memories.device + made_.reserve), grouped(memories.host));
  return adopt(std::move(*plan.placed));
}

PlannedJob JobPlanner::adopt(PlannedCandidate placed) {
  if (placed.overlapped && has_room_for(*placed.overlapped)) placed.made.program = std::move(*placed.overlapped);
  PlannedEntries planned = search_.adopt(std::move(placed));
  made_.set = std::move(planned.set);
  made_.program = std::move(planned.made.program);
  made_.forecasts = std::move(planned.made.forecasts);
  made_.bound = planned.made.bound;
  made_.recomputed = std::move(planned.recomputed);
  if (made_.set.strategy.joined_batches == 1 && options_.dump_after.contains("micro_batches"))
    throw error(ErrorCode::usage,
                "`dump_after` micro_batches: that pass did not run, since micro-batches run one by one: set `micro_batches` vertical");
  if (on_.make) made_.discrete_device = on_.make(made_.program, made_.set.graphs());
  const Device& computing = made_.discrete_device ? *made_.discrete_device : device_;
  verify(made_.program, made_.set.graphs(), [&](SpaceKind kind) { return computing.kernels(kind); });
  job_.end_planning();
  if (!on_.make) check_resident();
  return std::move(made_);
}

// What the program itself takes, now that kernels are prepared for a first plan.
void JobPlanner::settle_reserve(const PlannedCandidate& placed, bool with_disk) {
  const Program& program = placed.made.program;
  ProcessFootprint& job = made_.footprint;
  job = {.whole_process = options_.budget_is_process,
         .disk = with_disk,
         .threads = device_.workers().threads(),
         .instructions = placed.of.finished.instructions(),
         .kernels = 0,
         .file_nodes = job_.info.nodes,
         .parameters = static_cast<int64_t>(job_.weights.size()),
         .constant_bytes = 0,
         .data_bytes = job_.data_bytes() + feed_bytes_,
         .merging_bytes = merging_bytes(job_.adapters, job_.weights)};
  for (const Graph& graph : placed.of.finished.graphs) job.constant_bytes += constant_bytes(graph);
  const Executor executor(program, placed.of.finished.pointers(), device_);
  job.kernels = static_cast<int64_t>(executor.prepared_kernels());
  made_.reserve = reserve_for(job);
  if (!options_.budget_is_process) return;
  release_free_heap();
  const ProcessMemory memory = process_memory();
  made_.rss_after_planning = memory.resident;
  made_.reserve =
      raised_reserve(made_.reserve, std::max(memory.resident + job.data_bytes, job_.peak.bytes() - whole_pages(program.memory().bytes)));
}

Reserve JobPlanner::reserve() const {
  return [base = made_.reserve, size = made_.footprint](int64_t instructions) {
    ProcessFootprint other = size;
    other.instructions = instructions;
    return base + reserve_for(other) - reserve_for(size);
  };
}

// What there is, where the machine has less left than the program takes; else 0.
int64_t JobPlanner::budget_of_machine(const Program& program, int64_t available) const {
  return budget_by_machine(takes(program), options_.budget_is_process ? made_.rss_after_planning : 0, available);
}

bool JobPlanner::has_room_for(const Program& program) const {
  return made_.budget > 0 ? takes(program) <= made_.budget : budget_of_machine(program, available_memory()) == 0;
}

// Without a budget a job takes what it wants, up to what there is: beyond that it is planned as for a budget of so much.
void JobPlanner::limit_to_machine(const Program& in_memory) {
  const int64_t available = available_memory();
  const int64_t budget = budget_of_machine(in_memory, available);
  if (budget == 0) return;
  made_.budget = budget;
  made_.budget_is_machines = true;
  note_(fmt::format("the job would take {} bytes and this machine has {} available: it is planned for `budget` {}",
                    grouped(takes(in_memory)), grouped(available), budget));
}

// Frees the plan in memory where it finds another one. Where there is no room for two plans, frees it during the search, too.
std::optional<PlannedCandidate> JobPlanner::recomputing(PlannedCandidate& in_memory_plan) {
  constexpr int64_t kAmple = 4;
  int64_t room = whole_pages(in_memory_plan.made.program.memory().bytes);  // the arena's, which isn't there yet
  if (made_.budget > 0) room = std::min(room, made_.budget - made_.reserve);
  const bool has_room_for_two = room >= kAmple * planning_bytes(made_.footprint);
  if (!has_room_for_two) in_memory_plan = {};
  std::optional<PlannedCandidate> placed = search_.recomputing(made_.budget, reserve(), made_.least);
  if (!placed && !has_room_for_two) in_memory_plan = search_.all_in_memory();
  if (!placed) return placed;
  in_memory_plan = {};
  made_.reserve = reserve()(placed->of.finished.instructions());
  return placed;
}

// --- with a disk ------------------------------------------------------------------------------------------------------------------------

DiskLimits JobPlanner::disk_limits(const Program& in_memory) const {
  return {.budget = made_.budget,
          .reserve = reserve(),
          .disk_bytes = options_.nvme_budget,
          .updates_can_wait_longer = job_.has_weights_used_late(),
          .on_disk = [this](const Program& program) { return on_disk(program); },
          .expected_on_disk =
              [this, slots = state_slots(options_), &in_memory](const StreamOutlook& outlook) {
                return most_on_disk(disk_need(outlook, in_memory, slots), before_, start_);
              }};
}

// Not where the search for a plan with a disk takes as much memory as all tensors together.
bool JobPlanner::gains_by_disk(const PlannedCandidate& in_memory_plan) const {
  return !options_.nvme_path.empty() && planning_bytes(made_.footprint) < whole_pages(in_memory_plan.made.program.memory().bytes);
}

// Where planning with a disk needs more than the plan.
void JobPlanner::raise_for_planning(SmallestBudget& least) const {
  if (least.budget < least_for_planning())
    least = {.budget = least_for_planning(), .op = "planning itself", .entry = "", .recompute = least.recompute};
}

// A smaller arena, and a disk for the rest, where the budget asks for it. None: nothing asks for it, or the budget is too small.
std::optional<PlannedCandidate> JobPlanner::with_disk(const PlannedCandidate& in_memory_plan) {
  settle_reserve(in_memory_plan, /*with_disk=*/true);
  made_.least.budget = takes(in_memory_plan.made.program);
  raise_for_planning(made_.least);
  if (options_.nvme_budget > 0) before_ = state_before(options_);
  const DiskLimits limits = disk_limits(in_memory_plan.made.program);
  DiskSearch search(search_, in_memory_plan, limits);
  const auto take_least = [&] {
    SmallestBudget least = search.least();
    raise_for_planning(least);
    if (least.budget < made_.least.budget) made_.least = least;
  };
  const bool least_first = !search.finds_least_meanwhile();
  if (least_first) {
    take_least();
    if (!is_within_budget() || search.fits()) return std::nullopt;
  }
  const int64_t memory = made_.budget - made_.reserve;
  if (search.leaves_room_to_pin() && may_pin(memory)) made_.pinning = whole_pages(pinning_bytes(memory));
  rates_.measure_disk(memory - made_.pinning);
  made_.disk = rates_.disk();
  DiskPlan plan = search.best(rates_.compute(), rates_.stream(), made_.pinning, /*dumps=*/!options_.dump_problem.empty());
  if (!least_first) {
    take_least();
    if (!is_within_budget()) return std::nullopt;
  }
  if (!plan.placed) refuse_disk(plan.disk_bytes, made_.budget);
  if (!plan.problems.empty()) {
    write_report(options_.dump_problem, plan.problems);
  }
  made_.reserve = limits.reserve(plan.placed->of.finished.instructions());
  settle_pinning(plan.placed->made.program);
  return std::move(plan.placed);
}

// Not where the plan doesn't need it after all, or has no room for it.
void JobPlanner::settle_pinning(const Program& program) {
  if (program.file().bytes == 0 || program.memory().bytes > made_.budget - made_.reserve - made_.pinning) made_.pinning = 0;
  made_.reserve += made_.pinning;
}

// --- refusals ---------------------------------------------------------------------------------------------------------------------------

void JobPlanner::refuse(const PlannedCandidate& in_memory_plan) {
  const MemoryPeak peak = memory_peak(in_memory_plan.made.program, in_memory_plan.of.finished.pointers());
  const auto bytes = [&](Purpose purpose) { return peak.bytes[static_cast<size_t>(purpose)]; };
  SmallestBudget least = made_.least;
  const int64_t taken = options_.budget_is_process ? job_.peak.bytes() : 0;
  if (taken > least.budget) least.budget = budget_above(taken);
  std::string more;
  if (options_.nvme_path.empty()) {  // as it would be found with one
    settle_reserve(in_memory_plan, /*with_disk=*/true);
    const DiskLimits limits = disk_limits(in_memory_plan.made.program);
    int64_t with_disk = std::max(DiskSearch(search_, in_memory_plan, limits).least().budget, least_for_planning());
    if (taken > with_disk) with_disk = budget_above(taken);
    if (with_disk < least.budget) more = fmt::format("; with `nvme_path` on a disk, {} (`budget` {})", grouped(with_disk), with_disk);
  }
  throw error(ErrorCode::budget,
              "{}{} bytes can't hold this job: at the peak, weights, gradients and optimizer state take {} bytes; the smallest budget that "
              "would do is {} bytes (`budget` {}), set by {}{}",
              made_.budget_is_machines ? "the memory that this machine has left is too little: " : "", grouped(made_.budget),
              grouped(bytes(Purpose::weights) + bytes(Purpose::gradients) + bytes(Purpose::optimizer)), grouped(least.budget), least.budget,
              least.set_by(), more);
}

// Importing and planning have taken what they take in any case, unless the process is inside another allocator or library.
void JobPlanner::check_peak() {
  if (!options_.budget_is_process) return;
  const int64_t peak = job_.peak.bytes();
  if (peak > made_.least.budget) made_.least.budget = budget_above(peak);
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
  made_.rss_after_planning = process_memory().resident;
  const int64_t together = made_.rss_after_planning + whole_pages(made_.program.memory().bytes);
  if (options_.budget == 0 || together <= options_.budget) return;
  const int64_t enough = budget_above(together);
  throw error(
      ErrorCode::budget,
      "after planning the process holds {} bytes, which with the arena are {}, more than `budget` {}: try {} bytes or more (`budget` {})",
      grouped(made_.rss_after_planning), grouped(together), options_.budget, grouped(enough), enough);
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
