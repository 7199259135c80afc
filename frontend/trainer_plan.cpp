// From a job's graphs to a proven plan: what is recomputed, where every byte lives, what of the budget is the program's own.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <map>

#include "frontend/budget.h"
#include "frontend/file.h"
#include "frontend/memory.h"
#include "frontend/trainer_impl.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "passes/both.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (ValueId id : graph.values_of(ValueKind::constant)) bytes += graph.value(id).bytes();
  return bytes;
}

// Rungs of a ladder, as indices: `parts` + 1 of those that keep all boundaries, evenly, and those behind them.
std::vector<size_t> sampled(const std::vector<RecomputeChoice>& ladder, size_t parts) {
  const auto all = std::find(ladder.begin(), ladder.end(), RecomputeChoice{.groups = kAllGroups, .every = 1});
  const auto end = static_cast<size_t>(all - ladder.begin());
  std::vector<size_t> rungs;
  for (size_t part = 0; part <= parts; ++part) {
    if (rungs.empty() || rungs.back() != end * part / parts) rungs.push_back(end * part / parts);
  }
  return rungs;
}

// Of what was found: another that can't take less than this has to be better by too little to be looked at.
constexpr double kClose = 0.998;

}  // namespace

std::vector<PlanEntry> Trainer::Impl::wanted_entries() const {
  std::vector<PlanEntry> wanted;
  for (const auto& entry : entries) {
    std::vector<ValueId> keep;
    if (!options.save_gradients.empty() && entry->name.starts_with("train") && !deferred) {
      for (const auto& [parameter, gradient] : entry->job.gradients) keep.push_back(gradient);
    }
    constexpr double kNowAndThen = 1e-2;  // hardly counts
    wanted.push_back({.name = entry->name,
                      .graph = &entry->job.graph,
                      .keep = std::move(keep),
                      .weight = std::max(kNowAndThen, runs_per_step(entry->name)),
                      .ordered = is_together(entry->name)});
  }
  return wanted;
}

double Trainer::Impl::runs_per_step(std::string_view entry) const {
  const auto batches = static_cast<double>(options.gradient_accumulation_steps);
  const double runs = batches / static_cast<double>(together);
  if (entry == "update") return deferred ? 0 : 1;
  if (entry == (together > 1 ? kTogether : "train")) return deferred ? 1 : runs;
  return entry == (together > 1 ? kFirstTogether : "train-first") ? runs - 1 : 0;
}

void Trainer::Impl::plan_memory() {
  for (const auto& entry : entries) drafts.push_back(entry->job.graph);
  std::unique_ptr<Planner> planner = adopt_first();
  use(planner->resident());
  settle_reserve();
  measure(whole_pages(program.arena_bytes));
  least = least_of(reserve + whole_pages(program.arena_bytes), program, graph_pointers());
  if (!options.nvme_path.empty())
    stream(std::move(planner));
  else if (options.recompute == "auto")
    recompute_to_fit(std::move(planner));
  if (options.budget > 0 && options.budget < least.budget) refuse_budget();
  drafts.clear();
  forwards.clear();
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
    entries[i]->together = finish_train(*entries[i], graph, choice, i == 0 ? &recomputed : nullptr,
                                        i == 0 || is_together(entries[i]->name) ? dump : PassOptions{});
  }
}

std::unique_ptr<Planner> Trainer::Impl::adopt(const RecomputeChoice& choice) {
  recompute_entries(choice);
  return std::make_unique<Planner>(wanted_entries(), plan_options());
}

PlanOptions Trainer::Impl::plan_options() const {
  return {.threads = workers.threads(), .planners = roomy && workers.threads() > 1 ? 2 : 1, .careful = roomy};
}

std::unique_ptr<Planner> Trainer::Impl::adopt_first() {
  return adopt(options.recompute == "auto" ? RecomputeChoice{} : recompute_mode(options.recompute));
}

// What an entry's graph still needs: what is recomputed, then micro-batches side by side.
MicroBatches Trainer::Impl::finish_train(const JobEntry& entry, Graph& graph, const RecomputeChoice& choice, Recomputed* counted,
                                         const PassOptions& passes) const {
  MicroBatches batches;
  if (!entry.name.starts_with("train")) return batches;
  const bool joined = is_together(entry.name);
  run_pass("recompute", graph, joined ? PassOptions{} : passes, [&] { return recompute(graph, choice, counted); });
  if (joined) {
    run_pass("micro_batches", graph, passes, [&] {
      batches = join_micro_batches(graph, static_cast<size_t>(together), {entry.job.inverse_count, entry.job.pending_scalars});
      return true;
    });
  }
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
      trial.seconds += wanted[i].weight * work_of(*wanted[i].graph, wanted[i].graph->node(id), workers.threads(), machine).seconds;
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
    known[rung] = least_of(reserve_with(trial.instructions) + whole_pages(made.arena_bytes), made, trial.pointers());
    return known[rung].budget;
  };
  planner.reset();
  constexpr size_t kParts = 8;
  std::vector<size_t> rungs = sampled(ladder, kParts);
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
      std::max<int64_t>(0, reserve + whole_pages(program.arena_bytes) - foreseen);  // the process has grown beyond what was foreseen
}

// --- the disk -------------------------------------------------------------------------------------------------------------------------

// A smaller arena, and a disk for the rest, where the budget asks for it.
void Trainer::Impl::stream(std::unique_ptr<Planner> planner) {
  settle_reserve(/*with_disk=*/true);
  planner.reset();
  least.budget = reserve + whole_pages(program.arena_bytes);
  const bool fits = options.budget == 0 || options.budget - reserve >= program.arena_bytes;
  const LeastSearch search = least_with_disk();
  // Where a refusal is unlikely, the smallest budget is looked for beside the plan.
  constexpr double kAmple = 1.25, kRoomy = 1.05;
  const auto budget = static_cast<double>(options.budget);
  roomy = is_roomy(search.planning);
  const bool is_beside = !fits && plan_options().planners > 1 && budget >= kAmple * static_cast<double>(search.ways.begin()->first);
  std::future<Least> searched = std::async(is_beside ? std::launch::async : std::launch::deferred, [&] { return search.run(); });
  const auto is_refused = [&] {
    if (Least with_disk = searched.get(); with_disk.budget < least.budget) least = std::move(with_disk);
    return options.budget > 0 && options.budget < least.budget;
  };
  if (!is_beside && (is_refused() || fits)) return;
  if (budget >= kRoomy * static_cast<double>(search.ways.begin()->first)) plan_pinning();
  measure_disk_of_job();
  const StreamRates rates = stream_rates();

  const int64_t state = program.persistent_bytes;  // which every plan without a disk holds
  executor.reset();
  std::vector<StreamChoice> choices;
  std::vector<Variant> variants(1);  // the first: the entries as they are
  std::vector<double> bounds;        // of the variants with their first rung: on the others of the best one time is spent
  const auto add_variant = [&](Deferral defer, int64_t joined) {
    exchange(variants[0]);
    build_entries(defer);
    if (joined > 1) add_together(joined);
    for (const auto& entry : entries) drafts.push_back(entry->job.graph);
    bounds.push_back(add_choices(variants.size(), rates, Rungs::first, choices));
    exchange(variants.emplace_back());
    exchange(variants[0]);
  };
  bounds.push_back(INFINITY);
  // The plain one comes last: mostly it is not the best, and of what is worse little has to be looked at.
  // An update behind its step waits for the disk; before the next step's uses it hides behind computing.
  const int64_t most = options.micro_batches == "horizontal" ? 1 : most_together();
  if (options.gradient_accumulation_steps == 1) {
    if (options.save_gradients.empty()) add_variant(Deferral::most, 1);  // else all gradients are kept
    add_variant(Deferral::all, 1);
  } else {
    if (most > together) add_variant(Deferral::none, most);
    // These are planned where memory is left for it.
    const auto batch = static_cast<int64_t>(entries[0]->job.graph.order().size());
    JobSize planned = job_size;
    planned.instructions = instructions() + most * batch;
    const auto add_deferred = [&](int64_t joined, int64_t batches) {
      planned.instructions += batches * batch;
      if (planning_need(planned) <= options.budget) add_variant(Deferral::all, joined);
    };
    if (together == 1) add_deferred(1, 1);
    if (most > 1) add_deferred(most, 1 + 2 * most);
  }
  bounds[0] = add_choices(0, rates, Rungs::first, choices);
  const auto best = static_cast<size_t>(std::min_element(bounds.begin(), bounds.end()) - bounds.begin());
  for (size_t variant = variants.size(); variant-- > 0;) {
    const bool is_best = variant == best || bounds[best] == INFINITY;
    if (!is_best && (variant > 0 || state > options.budget - reserve)) continue;
    exchange(variants[0]);
    exchange(variants[variant]);
    add_choices(variant, rates, is_best ? Rungs::others : Rungs::others_in_memory, choices);
    exchange(variants[variant]);
    exchange(variants[0]);
  }
  if (is_beside && is_refused()) return;
  const auto rank = [](const StreamChoice& choice) { return choice.is_plain() ? kClose * choice.seconds : choice.seconds; };
  std::stable_sort(choices.begin(), choices.end(), [&](const StreamChoice& a, const StreamChoice& b) { return rank(a) < rank(b); });
  // With addresses: the first that finds room.
  int64_t disk_bytes = 0;
  for (StreamChoice& choice : choices) {
    if (choice.seconds < INFINITY) {
      const int64_t limit = options.budget - reserve_with(choice.trial.instructions);
      StreamedProgram made;
      if (choice.trial.planner->resident_bytes() <= limit) made.program = choice.trial.planner->resident();
      if (made.program.entries.empty() || made.program.arena_bytes > limit) made = choice.trial.planner->streamed(limit, machine, rates);
      if (made.program.arena_bytes > limit) continue;
      choice.disk_bytes = disk_need(made.program).total();
      if (options.nvme_budget == 0 || choice.disk_bytes <= options.nvme_budget) {
        if (choice.variant > 0) exchange(variants[choice.variant]);
        adopt_as(choice.trial);
        use(std::move(made));
        settle_pinning();
        return;
      }
    }
    disk_bytes = disk_bytes > 0 ? std::min(disk_bytes, choice.disk_bytes) : choice.disk_bytes;
  }
  if (disk_bytes == 0) {  // none found room in memory; what the smallest budget was computed from does
    StreamedProgram made = adopt(least.recompute)->streamed(0, machine, rates);
    disk_bytes = disk_need(made.program).total();
    if (options.nvme_budget == 0 || disk_bytes <= options.nvme_budget) {
      reserve = reserve_with(instructions());
      use(std::move(made));
      settle_pinning();
      return;
    }
  }
  throw error(ErrorCode::budget, "within {} bytes of memory this job takes {} bytes on the disk, more than --nvme-budget {}",
              grouped(options.budget), grouped(disk_bytes), options.nvme_budget);
}

// Whether there is memory for more than one plan at a time: `planning` is what one takes.
bool Trainer::Impl::is_roomy(int64_t planning) const {
  constexpr int64_t kMuch = 4;
  return options.budget / kMuch >= planning;
}

// Sets aside what the kernel takes to pin the arena, where it may be pinned.
void Trainer::Impl::plan_pinning() {
  const int64_t memory = options.budget - reserve;
  if (!may_pin(memory)) return;
  pinning = whole_pages(pinning_bytes(memory));
  reserve += pinning;
}

// The plan doesn't need it after all, or has no room for it.
void Trainer::Impl::settle_pinning() {
  if (program.disk_bytes > 0 && program.arena_bytes <= options.budget - reserve) return;
  reserve -= pinning;
  pinning = 0;
}

// The entries and their drafts against others.
void Trainer::Impl::exchange(Variant& other) {
  std::swap(entries, other.entries);
  std::swap(drafts, other.drafts);
  std::swap(deferred, other.deferred);
  std::swap(together, other.together);
}

// What is recomputed needn't be moved: of a few rungs those whose step may take less than that of all choices so far. Where the bound says
// that it can't, or the disk has no room, a choice's time is infinite. Returns the least bound of those that need a disk.
double Trainer::Impl::add_choices(size_t variant, const StreamRates& rates, Rungs which, std::vector<StreamChoice>& choices) const {
  constexpr size_t kParts = 4;
  std::vector<RecomputeChoice> rungs{recompute_choice};
  if (options.recompute == "auto") {
    rungs.clear();
    const std::vector<RecomputeChoice> ladder = recompute_ladder(drafts[0]);
    for (const size_t rung : sampled(ladder, kParts)) rungs.push_back(ladder[rung]);
  }
  if (which == Rungs::first)
    rungs.resize(1);
  else
    rungs.erase(rungs.begin());
  // What is better by less than a little isn't worth looking at; the plain may be worse by that.
  const auto to_beat = [&](const StreamChoice& choice) {
    double beat = INFINITY;
    for (const StreamChoice& other : choices)
      beat = std::min(beat, choice.is_plain() && !other.is_plain() ? other.seconds / kClose : kClose * other.seconds);
    return beat;
  };
  const auto look_at = [&](const RecomputeChoice& rung, StreamChoice& choice, double& least) {
    const double beat = to_beat(choice);
    choice.trial = try_out(rung, beat);
    if (!choice.trial.planner) return;
    const int64_t limit = options.budget - reserve_with(choice.trial.instructions);
    if (choice.trial.planner->resident_bytes() <= limit) {
      choice.expected = choice.seconds = choice.trial.seconds;
    } else if (which != Rungs::others_in_memory) {
      const StreamOutlook outlook = choice.trial.planner->outlook(limit, machine, rates, beat);
      least = outlook.bound;
      choice.expected = outlook.seconds;
      choice.disk_bytes = disk_need(outlook, program).total();
      if (options.nvme_budget == 0 || choice.disk_bytes <= options.nvme_budget) choice.seconds = outlook.seconds;
    }
  };
  double bound = INFINITY;
  for (size_t i = 0; i < rungs.size(); i += 2) {  // of two that are looked at together neither knows of the other
    StreamChoice two[2];
    double least[2] = {INFINITY, INFINITY};
    const size_t count = std::min<size_t>(2, rungs.size() - i);
    for (StreamChoice& choice : two) choice.variant = variant, choice.deferred = deferred, choice.together = together;
    const auto look = [&](size_t of) {
      if (of < count) look_at(rungs[i + of], two[of], least[of]);
    };
    call_both(
        plan_options().planners > 1 && count > 1, [&] { look(0); }, [&] { look(1); });
    for (size_t of = 0; of < count; ++of) {
      bound = std::min(bound, least[of]);
      if (two[of].expected < to_beat(two[of])) choices.push_back(std::move(two[of]));
    }
  }
  return bound;
}

Trainer::Impl::LeastSearch Trainer::Impl::least_with_disk() const {
  JobSize planned = job_size;
  if (options.micro_batches != "horizontal") {
    const auto batch = static_cast<int64_t>(entries[0]->job.graph.order().size());
    planned.instructions = std::max(planned.instructions, instructions() + most_together() * batch);
  }
  LeastSearch search{.planning = planning_need(planned), .ways = {}};
  std::vector<RecomputeChoice> choices{recompute_choice};
  if (options.recompute == "auto") choices = {recompute_mode("none"), recompute_mode("all")};
  std::vector<Trial> trials(choices.size());
  call_both(
      choices.size() > 1 && workers.threads() > 1 && is_roomy(search.planning), [&] { trials.front() = try_out(choices.front()); },
      [&] {
        if (choices.size() > 1) trials.back() = try_out(choices.back());
      });
  for (Trial& trial : trials) {
    const int64_t besides = reserve_with(trial.instructions);
    const int64_t floor = std::max(search.planning, besides + whole_pages(trial.planner->least_bytes()));
    search.ways.emplace(floor, LeastSearch::Way{.trial = std::move(trial), .besides = besides});
  }
  return search;
}

Trainer::Impl::Least Trainer::Impl::LeastSearch::run() const {
  Least smallest{.budget = INT64_MAX};
  for (const auto& [floor, way] : ways) {
    if (floor >= smallest.budget) break;
    const Program made = way.trial.planner->streamed(0, ComputeRates{}, StreamRates{}).program;
    const int64_t run = way.besides + whole_pages(made.arena_bytes), budget = std::max(planning, run);
    if (budget >= smallest.budget) continue;
    smallest = least_of(budget, made, way.trial.pointers());
    if (planning > run) smallest.op = "what it takes to make the plan", smallest.entry.clear();
    smallest.recompute = way.trial.recompute;
  }
  return smallest;
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
  verify(program, graphs);
  executor = std::make_unique<Executor>(program, graphs, workers);
}

void Trainer::Impl::refuse_budget() {
  const MemoryPeak peak = memory_peak(program, graph_pointers());
  const auto bytes = [&](Purpose purpose) { return peak.bytes[static_cast<size_t>(purpose)]; };
  std::string more;
  if (options.nvme_path.empty()) {  // as it would be found with one
    use(adopt_first()->resident());
    settle_reserve(/*with_disk=*/true);
    const int64_t with_disk = least_with_disk().run().budget;
    if (with_disk < least.budget) more = fmt::format("; with --nvme-path on a disk, {} (--budget {})", grouped(with_disk), with_disk);
  }
  throw error(ErrorCode::budget,
              "{} bytes can't hold this job: at its peak weights, gradients and optimizer state alone take {} bytes; the smallest budget "
              "that would do is {} bytes (--budget {}), set by {}{}",
              grouped(options.budget), grouped(bytes(Purpose::weights) + bytes(Purpose::gradients) + bytes(Purpose::optimizer)),
              grouped(least.budget), least.budget, least.set_by(), more);
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
    machine = {.flops = rates.flops,
               .element_flops = rates.element_flops,
               .bytes_per_second = rates.bytes_per_second,
               .far_bytes_per_second = rates.far_bytes_per_second};
    return;
  }
  constexpr double kKept = 1.5, kOnce = 0.2;  // seconds for figures to remember, or for this run alone
  machine = measure_machine(workers, memory, options.profile.empty() ? kOnce : kKept);
  constexpr int64_t kEnough = int64_t{64} << 20;  // in less, everything is in the cache: no figure to remember
  if (memory < kEnough) return;
  profile.processor[threads] = {.flops = machine.flops,
                                .element_flops = machine.element_flops,
                                .bytes_per_second = machine.bytes_per_second,
                                .far_bytes_per_second = machine.far_bytes_per_second};
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
    trial.work = sample_work(workers, memory - trial.buffer_bytes);
    known = profile.disks.insert_or_assign(key, measure_disk(options.nvme_path, trial)).first;
    keep_profile();
  }
  disk_rates = known->second;
}

StreamRates Trainer::Impl::stream_rates() const {
  return {.read = disk_rates.read,
          .write = disk_rates.write,
          .read_beside = disk_rates.read_beside,
          .write_beside = disk_rates.write_beside,
          .slowed_by_read = disk_rates.slowed_by_read,
          .slowed_by_write = disk_rates.slowed_by_write,
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
  if (pinning > 0) engine.memory = {arena->data(), static_cast<size_t>(arena->bytes())};
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
        raised_reserve(reserve, std::max(memory.resident + job.data_bytes, memory.peak - whole_pages(program.arena_bytes)));
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
