#include "passes/plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "passes/background.h"
#include "passes/plan/backing.h"
#include "passes/plan/emit.h"
#include "passes/plan/search.h"

namespace ort_train {

struct Planner::Impl {
  explicit Impl(const PlanOptions& given) : options(given), kernels(given.kernels ? *given.kernels : cpu_kernels(), given.threads) {}

  PlanOptions options;
  NodeKernels kernels;
  PersistentValues persistents;
  std::vector<Draft> drafts;

  // A job with so much memory and such a machine; what is found out about it serves outlook() and streamed().
  struct Job {
    std::vector<RunDraft> drafts{};  // by entry; their runs are in the problem
    std::vector<bool> movable{};     // by persistent value
    planning::Problem problem{};
    int64_t floor = 0;
    JobMachine machine{};
    std::unique_ptr<planning::Search> search{};

    // The memory is at least the floor. `enough`: of a bound; no higher one is looked for. Arguments count on the first call alone.
    planning::Search& search_once(double enough, int64_t most) {
      if (!search) search = std::make_unique<planning::Search>(problem, enough, most);
      return *search;
    }
  };
  std::unique_ptr<Job> last_job;

  std::unique_ptr<Job> make_job(int64_t limit, const JobMachine& machine, const StreamRates& disk) const {
    auto job = std::make_unique<Job>(Job{.movable = std::vector<bool>(persistents.size()), .machine = machine});
    planning::Problem& problem = job->problem;
    problem.memory = limit;
    problem.disk = disk;
    std::vector<bool> used_in_backing(persistents.size());
    std::vector<std::vector<bool>> steps;
    for (const Draft& draft : drafts) steps.push_back(backing_steps(draft, persistents, machine.backing, used_in_backing));
    for (size_t i = 0; i < drafts.size(); ++i) {
      job->drafts.push_back(make_run_draft(drafts[i], persistents, machine, steps[i], used_in_backing));
      problem.runs.push_back(std::move(job->drafts.back().run));
      const planning::Run& run = problem.runs.back();
      for (const planning::Piece& piece : run.pieces) {
        if (piece.lasting >= 0) job->movable[static_cast<size_t>(piece.lasting)] = true;
      }
    }
    for (size_t i = 0; i < persistents.size(); ++i) {
      if (used_in_backing[i]) job->movable[i] = true;
      const int64_t bytes = persistents[i].type.bytes();
      problem.lasting.push_back(
          {.name = persistents[i].name, .bytes = whole_sectors(bytes), .held = aligned(bytes), .may_be_resident = !used_in_backing[i]});
      if (!job->movable[i]) problem.immovable += aligned(bytes);
    }
    job->floor = planning::floor_bytes(problem);
    return job;
  }

  Job& job(int64_t limit, const ComputeRates& compute, const StreamRates& disk) {
    const bool is_last =
        last_job && last_job->problem.memory == limit && last_job->machine.rates == compute && last_job->problem.disk == disk;
    if (!is_last) last_job = make_job(limit, {.threads = options.threads, .rates = compute}, disk);
    return *last_job;
  }

  // Where each value that lives across runs does.
  std::vector<SpaceId> homes(const Job& job, const planning::HierarchyPlan& layers) const {
    std::vector<SpaceId> result(job.movable.size(), kMemory);
    for (size_t i = 0; i < result.size(); ++i) {
      if (!job.movable[i] || layers.plans[0].resident[i]) continue;
      result[i] = layers.plans.size() > 1 && layers.plans[1].resident[i] ? kHost : kFile;
    }
    return result;
  }

  // Sets the bytes on the disk.
  void count_disk(const Job& job, const planning::Plan& plan, StreamOutlook& result) const {
    int64_t most = 0;
    for (size_t i = 0; i < job.movable.size(); ++i) {
      if (!job.movable[i] || plan.resident[i]) continue;
      const int64_t bytes = whole_sectors(persistents[i].type.bytes());
      result.disk_bytes += bytes;
      if (survives(persistents[i])) result.state_bytes += bytes;
    }
    for (size_t r = 0; r < plan.runs.size(); ++r) {
      const std::vector<planning::Piece>& pieces = job.problem.runs[r].pieces;
      std::set<uint32_t> written;
      for (const planning::Stay& stay : plan.runs[r].stays) {
        if (stay.writes && pieces[stay.piece].lasting < 0) written.insert(stay.piece);
      }
      int64_t bytes = 0;
      for (const uint32_t piece : written) bytes += pieces[piece].bytes;
      most = std::max(most, bytes);
    }
    result.disk_bytes += most;
  }

  static constexpr int64_t kSpare = 16 * kSector;  // at least, where something is brought to a device by it

  // Between runs a tensor that the host can't touch where it lives is looked at above what always stays in its memory; of accumulators,
  // two.
  void add_staging(const std::vector<Persistent>& values, Program& program) const {
    const bool is_discrete = program.memory().kind == SpaceKind::device;
    Space& host = program.spaces[is_discrete ? kHost : kMemory];
    int64_t largest = 0, accumulator = 0, begin = whole_sectors(host.persistent_bytes);
    bool fills = false;  // what lives on a device is first brought there by the spare memory
    for (const Persistent& value : values) {
      if (!is_far(program, value.home)) continue;
      fills |= is_discrete && !is_in_file(value);
      if (value.initial) continue;
      largest = std::max(largest, whole_sectors(value.home.bytes));
      if (value.purpose == Purpose::gradients) accumulator = std::max(accumulator, whole_sectors(value.home.bytes));
    }
    for (size_t i = 0; is_discrete && i < drafts.size(); ++i) {  // what is looked at after a run
      for (const ValueId value : drafts[i].keep) {
        const Place& place = program.entries[i].value_places[value];
        if (is_far(program, place))
          largest = std::max(largest, whole_sectors(place.bytes));
        else
          begin = std::max(begin, whole_sectors(place.end()));
      }
    }
    const SpaceId space = is_discrete ? kHost : kMemory;
    program.staging[0] = {.offset = begin, .bytes = largest, .space = space};
    program.staging[1] = {.offset = begin + (is_discrete ? largest : accumulator), .bytes = accumulator, .space = space};
    for (const Place& area : program.staging) host.bytes = std::max(host.bytes, area.bytes > 0 ? area.end() : 0);
    if (!is_discrete) {
      program.spare = {.offset = begin, .bytes = std::max<int64_t>(0, host.bytes - begin) / kSector * kSector};
      return;
    }
    const int64_t end = program.staging[1].end();
    if (fills) host.bytes = std::max(host.bytes, end + kSpare);
    program.spare = {.offset = end, .bytes = std::max<int64_t>(0, host.bytes - end) / kSector * kSector, .space = kHost};
  }

  Program make(const Job& job, const planning::HierarchyPlan& layers) const {
    Program program = layers.plans.size() > 1 ? discrete_program() : Program{};
    program.threads = options.threads;
    std::vector<Persistent> values = persistents.lay_out(homes(job, layers), program);
    for (Space& space : program.spaces) {
      if (space.kind == SpaceKind::file) continue;
      if (job.machine.moves) space.persistent_bytes = whole_sectors(space.persistent_bytes);
      space.bytes = space.persistent_bytes;
    }
    program.spaces[kMemory].bytes += aligned(layers.plans[0].bytes);  // what a plan is given, whether its addresses reach there or not
    for (size_t i = 0; i < drafts.size(); ++i) {
      const PlannedRun planned{.draft = &job.drafts[i], .layers = layers.of_run(job.problem, i)};
      program.entries.push_back(make_entry(drafts[i], values, planned, program));
      for (const Storage& storage : program.entries.back().storages) {
        int64_t& bytes = program.spaces[storage.place.space].bytes;
        bytes = std::max(bytes, aligned(storage.place.end()));
      }
    }
    add_staging(values, program);
    const auto memory_offset = [](const Persistent& value) { return is_in_file(value) ? 0 : value.home.offset; };
    std::stable_sort(values.begin(), values.end(),
                     [&](const Persistent& a, const Persistent& b) { return memory_offset(a) < memory_offset(b); });
    program.persistent = std::move(values);
    return program;
  }

  static std::optional<planning::HierarchyPlan> layers_of(const Job& job, std::optional<planning::Plan> plan) {
    if (!plan) return std::nullopt;
    planning::HierarchyPlan layers{.plans = {std::move(*plan)}};
    set_forecasts(job.problem, layers);
    return layers;
  }

  // Many plans take about the least time. Drives pause, and share with others: this is one for a slower disk, where it takes about as long
  // as any while the disk is as fast as it was measured.
  std::optional<planning::HierarchyPlan> for_slower_disk(const Job& job, double bound) const {
    constexpr double kSlower = 0.8;
    constexpr double kNear = 1.01;  // of the bound: a slower disk must make so little of a difference
    planning::Problem slower = job.problem;
    slower.disk.read *= kSlower;
    slower.disk.write *= kSlower;
    planning::Search search(slower, kNear * bound, options.search_bytes);
    if (search.bound() >= kNear * bound) return std::nullopt;
    return layers_of(job, search.best());
  }

  std::optional<planning::HierarchyPlan> best(Job& job) const {
    constexpr double kGood = 1.002;  // times the bound, or the fastest plan
    planning::Search& search = job.search_once(std::numeric_limits<double>::infinity(), options.search_bytes);
    std::optional<planning::HierarchyPlan> patient;
    if (options.for_slower_disk) patient = for_slower_disk(job, search.bound());
    if (patient && patient->seconds <= kGood * search.bound()) return patient;
    std::optional<planning::HierarchyPlan> fastest = layers_of(job, search.best());
    return patient && (!fastest || patient->seconds <= kGood * fastest->seconds) ? std::move(patient) : std::move(fastest);
  }

  // --- a device with memory of its own ----------------------------------------------------------------------------------------------

  // Bytes of the host's memory that are taken between runs (add_staging).
  int64_t between_runs() const {
    int64_t largest = 0, accumulator = 0;
    for (size_t i = 0; i < persistents.size(); ++i) {
      const int64_t bytes = whole_sectors(persistents[i].type.bytes());
      largest = std::max(largest, bytes);
      if (persistents[i].purpose == Purpose::gradients) accumulator = std::max(accumulator, bytes);
    }
    for (const Draft& draft : drafts) {
      for (const ValueId value : draft.keep) largest = std::max(largest, whole_sectors(draft.graph->value(value).bytes()));
    }
    return largest + accumulator + kSpare;
  }

  std::unique_ptr<Job> make_discrete(const DeviceMemories& memories, const BackingCompute& computed) const {
    std::unique_ptr<Job> job =
        make_job(memories.device, {.threads = options.threads, .rates = memories.compute, .backing = computed}, memories.link);
    job->problem.backing = {{.name = "host", .bytes = memories.host, .between_runs = between_runs(), .store = memories.disk}};
    return job;
  }

  std::optional<PlannedProgram> discrete(const DeviceMemories& memories, const BackingCompute& computed) const {
    const std::unique_ptr<Job> job = make_discrete(memories, computed);
    // With staging areas (add_staging) above inputs that are kept, the second may fit where the first doesn't.
    for (const bool least : {false, true}) {
      const std::optional<planning::HierarchyPlan> layers =
          least ? planning::smallest_hierarchy(job->problem) : planning::plan_hierarchy(job->problem);
      if (!layers) continue;
      PlannedProgram made{
          .program = make(*job, *layers), .forecasts = layers->forecasts, .seconds = layers->seconds, .bound = layers->bound};
      if (made.program.memory().bytes <= memories.device && made.program.spaces[kHost].bytes <= memories.host) return made;
    }
    return std::nullopt;
  }

  std::pair<int64_t, int64_t> least_discrete() const {
    const std::unique_ptr<Job> job = make_discrete({}, {});
    const planning::HierarchyPlan layers = planning::smallest_hierarchy(job->problem);
    const Program program = make(*job, layers);
    return {std::max(program.memory().bytes, planning::bytes_of(job->problem, layers.plans[0])),
            std::max(program.spaces[kHost].bytes, planning::bytes_of(layers.backing[0], layers.plans[1]))};
  }
};

Planner::Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options) : impl_(std::make_unique<Impl>(options)) {
  for (const PlanEntry& entry : entries) {
    Draft draft = make_draft(entry, impl_->kernels);
    for (const MemoryClass& c : draft.model.classes) {
      draft.persistent_of_class.push_back(c.persistent ? impl_->persistents.add(entry.name, entry.graph->value(c.root)) : 0);
      if (c.persistent && c.kept) impl_->persistents.keep(draft.persistent_of_class.back());
    }
    for (const MemoryStep& step : draft.model.steps) {
      for (const PersistentUse& use : step.persistents) {
        if (use.changes) impl_->persistents.change(draft.persistent_of_class[use.of]);
      }
    }
    impl_->drafts.push_back(std::move(draft));
  }
}
Planner::~Planner() = default;

void Planner::overlap_updates() {
  impl_->last_job.reset();
  for (Draft& draft : impl_->drafts) overlap_updates_of(draft, impl_->options.threads);
}

Program Planner::resident() const {
  const auto job = impl_->make_job(0, {.threads = impl_->options.threads, .moves = false}, {});
  planning::Plan plan{.resident = std::vector<bool>(impl_->persistents.size(), true)};
  for (const planning::Run& run : job->problem.runs) plan.runs.push_back({.stays = {}, .block_offsets = place_tightly(run, {}).offsets});
  return impl_->make(*job, {.plans = {std::move(plan)}});
}

int64_t Planner::resident_bytes() const {
  int64_t persistent = 0, most = 0;
  for (size_t i = 0; i < impl_->persistents.size(); ++i) persistent += aligned(impl_->persistents[i].type.bytes());
  for (const Draft& draft : impl_->drafts) most = std::max(most, simulate(draft.model, draft.order).bytes);
  return persistent + most;
}

int64_t Planner::least_bytes() const { return impl_->make_job(0, {.threads = impl_->options.threads}, {})->floor; }

StreamOutlook Planner::outlook(int64_t limit, const ComputeRates& compute, const StreamRates& disk, double beat) const {
  Impl::Job& job = impl_->job(limit, compute, disk);
  StreamOutlook result;
  if (limit < job.floor) return result;
  result.bound = planning::step_seconds(job.problem, [&](size_t r) { return planning::computing(job.problem.runs[r]); });
  if (result.bound >= beat) return result;
  planning::Search& search = job.search_once(beat, impl_->options.search_bytes);
  result.bound = search.bound();
  if (result.bound >= beat) return result;
  const planning::Plan plan = search.outlook();
  result.seconds = plan.seconds;
  impl_->count_disk(job, plan, result);
  return result;
}

PlannedProgram Planner::streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  Impl::Job& job = impl_->job(limit, compute, disk);
  PlannedProgram result;
  std::optional<planning::HierarchyPlan> layers;
  if (limit >= job.floor) {
    layers = impl_->best(job);
    result.bound = job.search->bound();
  }
  if (layers) result.program = impl_->make(job, *layers);
  if (!layers || result.program.memory().bytes > limit) {
    layers = Impl::layers_of(job, planning::least_plan(job.problem));
    result.program = impl_->make(job, *layers);
  }
  result.forecasts = std::move(layers->forecasts);
  result.seconds = layers->seconds;
  return result;
}

std::optional<PlannedProgram> Planner::discrete(const DeviceMemories& memories) const {
  std::optional<PlannedProgram> best = impl_->discrete(memories, {});
  if (memories.host_updates) {
    const auto updates = [](const Graph&, const Node& node) { return updates_state(node); };
    std::optional<PlannedProgram> other = impl_->discrete(memories, {.wanted = updates, .rates = memories.host_compute});
    if (other && (!best || other->seconds < best->seconds)) best = std::move(other);
  }
  return best;
}

std::pair<int64_t, int64_t> Planner::least_discrete() const { return impl_->least_discrete(); }

planning::Problem Planner::problem(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  return impl_->job(limit, compute, disk).problem;
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).resident(); }

}  // namespace ort_train
