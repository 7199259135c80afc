// From a job's graphs to a proven plan: what is recomputed, where every byte lives, what of the budget is the program's own. With a disk:
// trainer_stream.cpp.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "frontend/budget.h"
#include "frontend/calibrate.h"
#include "frontend/file.h"
#include "frontend/machine.h"
#include "frontend/memory.h"
#include "frontend/trainer_impl.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (ValueId id : graph.values_of(ValueKind::constant)) bytes += graph.value(id).bytes();
  return bytes;
}

}  // namespace

std::vector<PlanEntry> Trainer::Impl::wanted_entries() const {
  std::vector<PlanEntry> wanted;
  for (const auto& entry : entries) {
    std::vector<ValueId> keep;
    if (!options.save_gradients.empty() && entry->job.role.kind == EntryKind::train && !deferred) {
      for (const auto& [parameter, gradient] : entry->job.gradients) keep.push_back(gradient);
    }
    constexpr double kNowAndThen = 1e-2;  // hardly counts
    wanted.push_back({.name = entry->name,
                      .graph = &entry->job.graph,
                      .keep = std::move(keep),
                      .weight = std::max(kNowAndThen, runs_per_step(*entry)),
                      .ordered = entry->joined,
                      .role = entry->job.role});
  }
  return wanted;
}

double Trainer::Impl::runs_per_step(const JobEntry& entry) const {
  const EntryRole& role = entry.job.role;
  if (role.kind == EntryKind::update) return deferred ? 0 : 1;
  if (role.kind != EntryKind::train || entry.remainder || entry.joined != (together > 1)) return 0;
  const double runs = static_cast<double>(options.gradient_accumulation_steps) / static_cast<double>(together);
  return !deferred ? runs : role.completes_update ? 1 : runs - 1;
}

void Trainer::Impl::plan_memory() {
  for (const auto& entry : entries) drafts.push_back(entry->job.graph);
  on.make ? plan_apart() : plan_here();
  drafts.clear();
  forwards.clear();
}

void Trainer::Impl::plan_here() {
  std::unique_ptr<Planner> planner = adopt_first();
  use(planner->resident());
  settle_reserve();
  measure(whole_pages(program.memory().bytes));
  least = least_of(reserve + whole_pages(program.memory().bytes), program, graph_pointers());
  if (options.budget == 0) limit_to_machine();
  if (!options.nvme_path.empty())
    stream(std::move(planner));
  else if (options.recompute == "auto")
    recompute_to_fit(std::move(planner));
  if (options.budget > 0 && options.budget < least.budget) refuse_budget();
}

void Trainer::Impl::plan_apart() {
  use(adopt_first()->apart(on.memories));
  settle_reserve();
  least = least_of(reserve + whole_pages(program.memory().bytes), program, graph_pointers());
}

// --- recompute ------------------------------------------------------------------------------------------------------------------------

void Trainer::Impl::recompute_entries(const RecomputeChoice& choice) {
  recompute_choice = choice;
  executor.reset();  // it refers to the graphs
  PassOptions dump;
  if (!deferred) dump.dump_after = options.dump_after;
  for (size_t i = 0; i < entries.size(); ++i) {
    Graph& graph = entries[i]->job.graph;
    graph = drafts[i];
    entries[i]->together =
        finish_train(*entries[i], graph, choice, i == 0 ? &recomputed : nullptr, i == 0 || entries[i]->joined ? dump : PassOptions{});
  }
}

std::unique_ptr<Planner> Trainer::Impl::adopt(const RecomputeChoice& choice) {
  recompute_entries(choice);
  return std::make_unique<Planner>(wanted_entries(), plan_options());
}

PlanOptions Trainer::Impl::plan_options() const { return {.threads = workers.threads(), .careful = roomy}; }

std::unique_ptr<Planner> Trainer::Impl::adopt_first() {
  return adopt(options.recompute == "auto" ? RecomputeChoice{} : recompute_mode(options.recompute));
}

// What an entry's graph still needs: what is recomputed, micro-batches side by side, updates early. Those that were left behind stand as
// late as they may already.
MicroBatches Trainer::Impl::finish_train(const JobEntry& entry, Graph& graph, const RecomputeChoice& choice, Recomputed* counted,
                                         const PassOptions& passes) const {
  MicroBatches batches;
  const EntryRole& role = entry.job.role;
  const auto move_updates = [&] {
    PassOptions with = passes;
    with.skip = options.skip_passes;
    run_pass("early_updates", graph, with, [&] { return early_updates(graph, with); });
  };
  if (role.kind == EntryKind::update) move_updates();
  if (role.kind != EntryKind::train) return batches;
  const bool joined = entry.joined;
  run_pass("recompute", graph, joined ? PassOptions{} : passes, [&] { return recompute(graph, choice, counted); });
  if (joined) {
    run_pass("micro_batches", graph, passes, [&] {
      const JobGraph& job = entry.job;
      std::vector<ValueId> shared = job.pending_scalars;
      for (const JobLoss& loss : job.losses) shared.push_back(loss.inverse_count);
      shared.insert(shared.end(), {job.loss_scale, job.pending_loss_scale});
      batches = join_micro_batches(graph, static_cast<size_t>(together), shared);
      return true;
    });
  }
  if (!role.completes_update) move_updates();
  return batches;
}

// The trial's graphs become those of the entries.
void Trainer::Impl::adopt_as(const Trial& trial) {
  recompute_entries(trial.recompute);
  for (size_t i = 0; i < entries.size(); ++i) entries[i]->job.graph.set_order(trial.graphs[i]->order());
  reserve = reserve_with(instructions());
}

Trainer::Impl::Trial Trainer::Impl::try_out(const RecomputeChoice& choice, double beat) const {
  Trial trial{.recompute = choice};
  std::vector<PlanEntry> wanted = wanted_entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    trial.graphs.push_back(std::make_unique<Graph>(drafts[i]));
    wanted[i].graph = trial.graphs.back().get();
    finish_train(*entries[i], *wanted[i].graph, choice, nullptr, {});
    trial.instructions += static_cast<int64_t>(wanted[i].graph->order().size());
    if (wanted[i].weight < kRarely) continue;
    for (NodeId id : wanted[i].graph->order()) {
      trial.seconds += wanted[i].weight * work_of(*wanted[i].graph, wanted[i].graph->node(id), workers.threads(), device.rates).seconds;
    }
  }
  if (trial.seconds < beat) trial.planner = std::make_unique<Planner>(wanted, plan_options());
  return trial;
}

int64_t Trainer::Impl::reserve_with(int64_t instructions) const {
  JobSize other = job_size;
  other.instructions = instructions;
  return reserve + reserve_for(other) - reserve_for(job_size);
}

// The cheapest rung that fits. The smallest budget is that of the rung that takes least.
void Trainer::Impl::recompute_to_fit(std::unique_ptr<Planner> planner) {
  const std::vector<RecomputeChoice> ladder = recompute_ladder(drafts[0]);
  std::map<size_t, Least> known{{0, least}};
  const auto budget_of = [&](size_t rung) {
    if (const auto found = known.find(rung); found != known.end()) return found->second.budget;
    const Trial trial = try_out(ladder[rung]);
    const Program made = trial.planner->resident();
    known[rung] = least_of(reserve_with(trial.instructions) + whole_pages(made.memory().bytes), made, trial.pointers());
    return known[rung].budget;
  };
  planner.reset();
  constexpr size_t kParts = 8;
  std::vector<size_t> rungs = sampled_rungs(ladder, kParts);
  const size_t all = rungs.back();
  for (size_t rung = all + 1; rung < ladder.size(); ++rung) rungs.push_back(rung);
  if (budget_of(all) >= budget_of(0)) rungs.clear();  // activations don't make the peak
  size_t smallest = 0;
  for (size_t rung : rungs) {
    if (budget_of(rung) < budget_of(smallest)) smallest = rung;
  }
  const bool fits = options.budget == 0 || options.budget >= budget_of(0);
  least = known[smallest];
  if (fits || smallest == 0) return;
  size_t below = 0, chosen = smallest;  // one that doesn't fit, one that does
  while (options.budget >= least.budget && chosen - below > 1) {
    const size_t between = below + (chosen - below) / 2;
    (budget_of(between) <= options.budget ? chosen : below) = between;
  }
  const int64_t foreseen = budget_of(chosen);
  use(adopt(ladder[chosen])->resident());
  settle_reserve();
  least.budget +=
      std::max<int64_t>(0, reserve + whole_pages(program.memory().bytes) - foreseen);  // the process has grown beyond what was foreseen
}

// --- programs and budgets -------------------------------------------------------------------------------------------------------------

std::vector<const Graph*> Trainer::Impl::graph_pointers() const {
  std::vector<const Graph*> graphs;
  for (const auto& entry : entries) graphs.push_back(&entry->job.graph);
  return graphs;
}

Trainer::Impl::Least Trainer::Impl::least_of(int64_t budget, const Program& made, const std::vector<const Graph*>& graphs) {
  const MemoryPeak peak = memory_peak(made, graphs);
  return {.budget = budget, .op = peak.op, .entry = made.entries[peak.entry].name};
}

void Trainer::Impl::use(StreamedProgram made) {
  forecasts = std::move(made.forecasts);
  bound = made.bound;
  use(std::move(made.program));
}

void Trainer::Impl::use(Program made) {
  const std::vector<const Graph*> graphs = graph_pointers();
  executor.reset();  // it refers to the program
  program = std::move(made);
  apart = on.make ? on.make(program, graphs) : nullptr;
  verify(program, graphs, [this](SpaceKind kind) { return computing().kernels(kind); });
  executor = std::make_unique<Executor>(program, graphs, computing());
}

// Without a budget a job takes what it wants, up to what there is: beyond that it is planned as for a budget of so much.
void Trainer::Impl::limit_to_machine() {
  const int64_t wanted = reserve + whole_pages(program.memory().bytes), available = available_memory();
  const int64_t budget = budget_by_machine(wanted, options.budget_is_process ? resident_planned : 0, available);
  if (budget == 0) return;
  options.budget = budget;
  limited_by_machine = true;
  note(fmt::format("the job takes {} bytes as it is, this machine has {} left: it is planned as with `budget` {}", grouped(wanted),
                   grouped(available), budget));
}

void Trainer::Impl::refuse_budget() {
  const MemoryPeak peak = memory_peak(program, graph_pointers());
  const auto bytes = [&](Purpose purpose) { return peak.bytes[static_cast<size_t>(purpose)]; };
  std::string more;
  if (options.nvme_path.empty()) {  // as it would be found with one
    use(adopt_first()->resident());
    settle_reserve(/*with_disk=*/true);
    const int64_t with_disk = least_with_disk().budget;
    if (with_disk < least.budget) more = fmt::format("; with `nvme_path` on a disk, {} (`budget` {})", grouped(with_disk), with_disk);
  }
  throw error(ErrorCode::budget,
              "{}{} bytes can't hold this job: at its peak weights, gradients and optimizer state alone take {} bytes; the smallest budget "
              "that would do is {} bytes (`budget` {}), set by {}{}",
              limited_by_machine ? "the memory that this machine has left is too little: " : "", grouped(options.budget),
              grouped(bytes(Purpose::weights) + bytes(Purpose::gradients) + bytes(Purpose::optimizer)), grouped(least.budget), least.budget,
              least.set_by(), more);
}

// What the profile says of the machine, or what is measured now.
void Trainer::Impl::measure(int64_t memory) {
  memory = std::min(memory, available_memory() / 2);  // where the job's own doesn't fit, a sentence says so later
  if (options.budget > 0) memory = std::min(memory, options.budget - reserve);
  memory = std::max(memory, kPage);
  if (!options.profile.empty() && !options.recalibrate) profile = load_profile(options.profile).value_or(MachineProfile{});
  const int threads = workers.threads();
  if (const auto known = profile.processor.find(threads); known != profile.processor.end() && known->second.flops > 0) {
    const ProcessorRates& rates = known->second;
    device.rates = {.flops = rates.flops,
                    .element_flops = rates.element_flops,
                    .bytes_per_second = rates.bytes_per_second,
                    .far_bytes_per_second = rates.far_bytes_per_second};
    return;
  }
  constexpr double kKept = 1.5, kOnce = 0.2;  // seconds for figures to remember, or for this run alone
  measure_device(device, memory, options.profile.empty() ? kOnce : kKept);
  constexpr int64_t kEnough = int64_t{64} << 20;  // in less, everything is in the cache: no figure to remember
  if (memory < kEnough) return;
  profile.processor[threads] = {.flops = device.rates.flops,
                                .element_flops = device.rates.element_flops,
                                .bytes_per_second = device.rates.bytes_per_second,
                                .far_bytes_per_second = device.rates.far_bytes_per_second};
  keep_profile();
}

void Trainer::Impl::measure_disk_of_job() {
  const std::string key = disk_key(options.nvme_path, workers.threads());
  constexpr int64_t kMB = int64_t{1} << 20;
  DiskTrial trial;
  // Within the budget, and within half of what a small disk has left.
  const int64_t memory = options.budget - reserve;
  trial.buffer_bytes = std::clamp<int64_t>(memory / 2, kSector, trial.buffer_bytes);
  auto known = profile.disks.find(key);
  if (known == profile.disks.end() || known->second.buffer_bytes < trial.buffer_bytes / 2) {
    note(fmt::format("measuring the disk of {} (a few seconds)", options.nvme_path));
    const std::filesystem::space_info space = std::filesystem::space(options.nvme_path);
    trial.file_bytes = std::clamp<int64_t>(static_cast<int64_t>(space.available) / 2 / kMB * kMB, kMB, trial.file_bytes);
    trial.work = sample_work(device, memory - trial.buffer_bytes);
    known = profile.disks.insert_or_assign(key, measure_disk(options.nvme_path, trial)).first;
    keep_profile();
  }
  disk_rates = known->second;
}

StreamRates Trainer::Impl::stream_rates() const {
  return {.read = disk_rates.read,
          .write = disk_rates.write,
          .beside = disk_rates.beside,
          .slowed = disk_rates.slowed,
          .read_latency = disk_rates.read_latency,
          .write_latency = disk_rates.write_latency};
}

void Trainer::Impl::keep_profile() const {
  if (options.profile.empty()) return;
  try {
    make_folders(folder_of(options.profile));
    save_profile(options.profile, profile);
  } catch (const Error& problem) {  // measured again the next time
    note(problem.what());
  }
}

DiskOptions Trainer::Impl::disk_engine() const {
  DiskOptions engine;
  if (disk_rates.block_bytes > 0) engine.block_bytes = disk_rates.block_bytes;
  if (disk_rates.depth > 0) engine.depth = disk_rates.depth;
  // A step never waits because too many requests are outstanding; a thousand take 150 KB.
  engine.requests = static_cast<int>(std::clamp<int64_t>(copies_under_way(program), engine.requests, 1024));
  const Memory& host = *memory.at(program.spare.space);  // which transfers lie in
  if (pinning > 0) engine.memory = {host.data(), static_cast<size_t>(host.bytes())};
  return engine;
}

void Trainer::Impl::settle_reserve(bool with_disk) {
  JobSize job{.whole_process = options.budget_is_process,
              .disk = with_disk,
              .threads = workers.threads(),
              .instructions = 0,
              .kernels = static_cast<int64_t>(executor->prepared_kernels()),
              .file_nodes = info.nodes,
              .parameters = static_cast<int64_t>(weights.size()),
              .constant_bytes = 0,
              .data_bytes = data.train->memory_bytes() + (data.valid ? data.valid->memory_bytes() : 0)};
  for (const auto& entry : entries) {
    job.instructions += static_cast<int64_t>(entry->job.graph.order().size());
    job.constant_bytes += constant_bytes(entry->job.graph);
    if (entry->feed) job.data_bytes += entry->feed->memory_bytes();
  }
  reserve = reserve_for(job);
  job_size = job;
  if (options.budget_is_process) {
    release_free_heap();
    const ProcessMemory memory = process_memory();
    resident_planned = memory.resident;
    const int64_t raised =
        raised_reserve(reserve, std::max(memory.resident + job.data_bytes, memory.peak - whole_pages(program.memory().bytes)));
    if (raised != reserve)
      note(fmt::format("the program takes more memory than foreseen: {} instead of {} bytes are set aside for it", raised, reserve));
    reserve = raised;
  }
}

int64_t Trainer::Impl::instructions() const {
  int64_t count = 0;
  for (const auto& entry : entries) count += static_cast<int64_t>(entry->job.graph.order().size());
  return count;
}

}  // namespace ort_train
