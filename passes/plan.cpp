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

  // The problem of one limit and one machine, with what has been computed for it; outlook() and streamed() share it.
  struct Instance {
    std::vector<RunDraft> run_drafts{};  // by entry; their runs are in the problem
    std::vector<bool> movable{};         // by persistent value
    planning::Problem problem{};
    int64_t floor = 0;
    JobMachine machine{};
    std::unique_ptr<planning::Search> search{};

    // Made by the first call; later ones ignore the arguments. The memory is at least the floor. `enough`: no higher bound is looked for.
    planning::Search& search_once(double enough, int64_t most) {
      if (!search) search = std::make_unique<planning::Search>(problem, enough, most);
      return *search;
    }
  };
  std::unique_ptr<Instance> last_instance;

  std::unique_ptr<Instance> make_instance(int64_t limit, const JobMachine& machine, const StreamRates& disk) const {
    auto instance = std::make_unique<Instance>(Instance{.movable = std::vector<bool>(persistents.size()), .machine = machine});
    planning::Problem& problem = instance->problem;
    problem.memory = limit;
    problem.store = disk;
    std::vector<bool> used_in_backing(persistents.size());
    std::vector<std::vector<bool>> steps;
    for (const Draft& draft : drafts) steps.push_back(backing_steps(draft, persistents, machine.backing, used_in_backing));
    for (size_t i = 0; i < drafts.size(); ++i) {
      instance->run_drafts.push_back(make_run_draft(drafts[i], persistents, machine, steps[i], used_in_backing));
      problem.runs.push_back(std::move(instance->run_drafts.back().run));
      const planning::Run& run = problem.runs.back();
      for (const planning::Piece& piece : run.pieces) {
        if (piece.lasting >= 0) instance->movable[static_cast<size_t>(piece.lasting)] = true;
      }
    }
    for (size_t i = 0; i < persistents.size(); ++i) {
      if (used_in_backing[i]) instance->movable[i] = true;
      const int64_t bytes = persistents[i].type.bytes();
      problem.lasting.push_back(
          {.name = persistents[i].name, .bytes = whole_sectors(bytes), .held = aligned(bytes), .may_be_resident = !used_in_backing[i]});
      if (!instance->movable[i]) problem.immovable += aligned(bytes);
    }
    instance->floor = planning::floor_bytes(problem);
    return instance;
  }

  Instance& instance(int64_t limit, const ComputeRates& compute, const StreamRates& disk) {
    const bool is_last = last_instance && last_instance->problem.memory == limit && last_instance->machine.rates == compute &&
                         last_instance->problem.store == disk;
    if (!is_last) last_instance = make_instance(limit, {.threads = options.threads, .rates = compute}, disk);
    return *last_instance;
  }

  // Where each value that lives across runs does.
  std::vector<SpaceId> homes(const Instance& instance, const planning::HierarchyPlan& levels) const {
    std::vector<SpaceId> result(instance.movable.size(), kMemory);
    for (size_t i = 0; i < result.size(); ++i) {
      if (!instance.movable[i] || levels.plans[0].resident[i]) continue;
      result[i] = levels.plans.size() > 1 && levels.plans[1].resident[i] ? kHost : kFile;
    }
    return result;
  }

  // Sets the bytes on the disk.
  void count_disk(const Instance& instance, const planning::Plan& plan, StreamOutlook& result) const {
    int64_t most = 0;
    for (size_t i = 0; i < instance.movable.size(); ++i) {
      if (!instance.movable[i] || plan.resident[i]) continue;
      const int64_t bytes = whole_sectors(persistents[i].type.bytes());
      result.disk_bytes += bytes;
      if (survives(persistents[i])) result.state_bytes += bytes;
    }
    for (size_t r = 0; r < plan.runs.size(); ++r) {
      const std::vector<planning::Piece>& pieces = instance.problem.runs[r].pieces;
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

  // Reserves host memory for tensors that the host can't address in place (on a disk or a device), above what always lives there. An
  // accumulator gets a second area.
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

  Program make(const Instance& instance, const planning::HierarchyPlan& levels) const {
    Program program = levels.plans.size() > 1 ? discrete_program() : Program{};
    program.threads = options.threads;
    std::vector<Persistent> values = persistents.lay_out(homes(instance, levels), program);
    for (Space& space : program.spaces) {
      if (space.kind == SpaceKind::file) continue;
      if (instance.machine.moves) space.persistent_bytes = whole_sectors(space.persistent_bytes);
      space.bytes = space.persistent_bytes;
    }
    program.spaces[kMemory].bytes += aligned(levels.plans[0].bytes);  // what a plan is given, whether its addresses reach there or not
    for (size_t i = 0; i < drafts.size(); ++i) {
      const PlannedRun planned{.run_draft = &instance.run_drafts[i], .levels = levels.of_run(instance.problem, i)};
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

  static std::optional<planning::HierarchyPlan> one_level(const Instance& instance, std::optional<planning::Plan> plan) {
    if (!plan) return std::nullopt;
    planning::HierarchyPlan levels{.plans = {std::move(*plan)}};
    set_forecasts(instance.problem, levels);
    return levels;
  }

  // Many plans take about the least time. A drive sometimes stalls, and others use it, too: this is one for a slower disk, where it takes
  // about as long as any while the disk is as fast as it was measured.
  std::optional<planning::HierarchyPlan> for_slower_disk(const Instance& instance, double bound) const {
    constexpr double kSlower = 0.8;
    constexpr double kNear = 1.01;  // of the bound: a slower disk must make so little of a difference
    planning::Problem slower = instance.problem;
    slower.store.read *= kSlower;
    slower.store.write *= kSlower;
    planning::Search search(slower, kNear * bound, options.search_bytes);
    if (search.bound() >= kNear * bound) return std::nullopt;
    return one_level(instance, search.best());
  }

  std::optional<planning::HierarchyPlan> best(Instance& instance) const {
    constexpr double kGood = 1.002;  // times the bound, or the fastest plan
    planning::Search& search = instance.search_once(std::numeric_limits<double>::infinity(), options.search_bytes);
    std::optional<planning::HierarchyPlan> patient;
    if (options.for_slower_disk) patient = for_slower_disk(instance, search.bound());
    if (patient && patient->seconds <= kGood * search.bound()) return patient;
    std::optional<planning::HierarchyPlan> fastest = one_level(instance, search.best());
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

  std::unique_ptr<Instance> make_discrete(const DeviceMemories& memories, const BackingCompute& computed) const {
    std::unique_ptr<Instance> instance =
        make_instance(memories.device, {.threads = options.threads, .rates = memories.compute, .backing = computed}, memories.link);
    instance->problem.backing = {{.name = "host", .bytes = memories.host, .between_runs = between_runs(), .store = memories.disk}};
    return instance;
  }

  std::optional<PlannedProgram> discrete(const DeviceMemories& memories, const BackingCompute& computed) const {
    const std::unique_ptr<Instance> instance = make_discrete(memories, computed);
    // With staging areas (add_staging) above inputs that are kept, the second may fit where the first doesn't.
    for (const bool least : {false, true}) {
      const std::optional<planning::HierarchyPlan> levels =
          least ? planning::least_hierarchy(instance->problem) : planning::plan_hierarchy(instance->problem);
      if (!levels) continue;
      PlannedProgram made{
          .program = make(*instance, *levels), .forecasts = levels->forecasts, .seconds = levels->seconds, .bound = levels->bound};
      if (made.program.memory().bytes <= memories.device && made.program.spaces[kHost].bytes <= memories.host) return made;
    }
    return std::nullopt;
  }

  std::pair<int64_t, int64_t> least_discrete() const {
    const std::unique_ptr<Instance> instance = make_discrete({}, {});
    const planning::HierarchyPlan levels = planning::least_hierarchy(instance->problem);
    const Program program = make(*instance, levels);
    return {std::max(program.memory().bytes, planning::bytes_of(instance->problem, levels.plans[0])),
            std::max(program.spaces[kHost].bytes, planning::bytes_of(levels.backing[0], levels.plans[1]))};
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
  impl_->last_instance.reset();
  for (Draft& draft : impl_->drafts) overlap_updates_of(draft, impl_->options.threads);
}

Program Planner::all_in_memory() const {
  const auto instance = impl_->make_instance(0, {.threads = impl_->options.threads, .moves = false}, {});
  planning::Plan plan{.resident = std::vector<bool>(impl_->persistents.size(), true)};
  for (const planning::Run& run : instance->problem.runs)
    plan.runs.push_back({.stays = {}, .block_offsets = place_tightly(run, {}).offsets});
  return impl_->make(*instance, {.plans = {std::move(plan)}});
}

int64_t Planner::bytes_in_memory() const {
  int64_t persistent = 0, most = 0;
  for (size_t i = 0; i < impl_->persistents.size(); ++i) persistent += aligned(impl_->persistents[i].type.bytes());
  for (const Draft& draft : impl_->drafts) most = std::max(most, simulate(draft.model, draft.order).bytes);
  return persistent + most;
}

int64_t Planner::least_bytes() const { return impl_->make_instance(0, {.threads = impl_->options.threads}, {})->floor; }

StreamOutlook Planner::outlook(int64_t limit, const ComputeRates& compute, const StreamRates& disk, double beat) const {
  Impl::Instance& instance = impl_->instance(limit, compute, disk);
  StreamOutlook result;
  if (limit < instance.floor) return result;
  result.bound = planning::step_seconds(instance.problem, [&](size_t r) { return planning::computing(instance.problem.runs[r]); });
  if (result.bound >= beat) return result;
  planning::Search& search = instance.search_once(beat, impl_->options.search_bytes);
  result.bound = search.bound();
  if (result.bound >= beat) return result;
  const planning::Plan plan = search.outlook();
  result.seconds = plan.seconds;
  impl_->count_disk(instance, plan, result);
  return result;
}

PlannedProgram Planner::streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  Impl::Instance& instance = impl_->instance(limit, compute, disk);
  PlannedProgram result;
  std::optional<planning::HierarchyPlan> levels;
  if (limit >= instance.floor) {
    levels = impl_->best(instance);
    result.bound = instance.search->bound();
  }
  if (levels) result.program = impl_->make(instance, *levels);
  if (!levels || result.program.memory().bytes > limit) {
    levels = Impl::one_level(instance, planning::least_plan(instance.problem));
    result.program = impl_->make(instance, *levels);
  }
  result.forecasts = std::move(levels->forecasts);
  result.seconds = levels->seconds;
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
  return impl_->instance(limit, compute, disk).problem;
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).all_in_memory(); }

}  // namespace ort_train
