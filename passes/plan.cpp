#include "passes/plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "passes/plan/search.h"
#include "passes/plan_draft.h"
#include "passes/plan_entry.h"

namespace ort_train {

struct Planner::Impl {
  explicit Impl(const PlanOptions& given) : options(given), kernels(cpu_kernels(), given.threads) {}

  PlanOptions options;
  KernelSpecs kernels;
  PersistentValues persistents;
  std::vector<Draft> drafts;

  // A job with so much memory and such a machine; what is found out about it serves outlook() and streamed().
  struct Job {
    std::vector<std::vector<PieceOf>> pieces{};  // by entry and piece of its run
    std::vector<bool> movable{};                 // by persistent value
    planning::Problem problem{};
    int64_t floor = 0;
    ComputeRates compute{};
    std::unique_ptr<planning::Search> search{};

    // The memory is at least the floor. `enough`: of a bound; no higher one is looked for.
    planning::Search& find_search(double enough) {
      if (!search) search = std::make_unique<planning::Search>(problem, enough);
      return *search;
    }
  };
  std::unique_ptr<Job> last_job;

  std::unique_ptr<Job> make_job(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
    auto job = std::make_unique<Job>(Job{.movable = std::vector<bool>(persistents.size()), .compute = compute});
    planning::Problem& problem = job->problem;
    problem.memory = limit;
    problem.disk = disk;
    for (const Draft& draft : drafts) {
      RunDraft of = make_run_draft(draft, persistents, options.threads, compute);
      job->pieces.push_back(std::move(of.pieces));
      problem.runs.push_back(std::move(of.run));
      for (const planning::Piece& piece : problem.runs.back().pieces) {
        if (piece.lasting >= 0) job->movable[static_cast<size_t>(piece.lasting)] = true;
      }
    }
    for (size_t i = 0; i < persistents.size(); ++i) {
      const int64_t bytes = persistents[i].type.bytes();
      problem.lasting.push_back({.name = persistents[i].name, .bytes = whole_sectors(bytes), .held = aligned(bytes)});
      if (!job->movable[i]) problem.always += aligned(bytes);
    }
    job->floor = planning::floor_bytes(problem);
    return job;
  }

  Job& job(int64_t limit, const ComputeRates& compute, const StreamRates& disk) {
    const bool is_last = last_job && last_job->problem.memory == limit && last_job->compute == compute && last_job->problem.disk == disk;
    if (!is_last) last_job = make_job(limit, compute, disk);
    return *last_job;
  }

  std::vector<bool> on_disk(const Job& job, const planning::Plan& plan) const {
    std::vector<bool> result(job.movable.size());
    for (size_t i = 0; i < result.size(); ++i) result[i] = job.movable[i] && !plan.resident[i];
    return result;
  }

  // Sets the bytes on the disk.
  void count_disk(const Job& job, const planning::Plan& plan, StreamOutlook& result) const {
    int64_t most = 0;
    const std::vector<bool> moved = on_disk(job, plan);
    for (size_t i = 0; i < moved.size(); ++i) {
      if (!moved[i]) continue;
      const int64_t bytes = whole_sectors(persistents[i].type.bytes());
      result.disk_bytes += bytes;
      if (persistents[i].purpose == Purpose::weights || persistents[i].purpose == Purpose::optimizer) result.state_bytes += bytes;
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

  // Between runs a tensor of the disk is looked at above what always stays; of accumulators, two.
  static void add_desks(const std::vector<Persistent>& values, Program& program) {
    int64_t largest = 0, accumulator = 0;
    for (const Persistent& value : values) {
      largest = std::max(largest, file_bytes(value));
      if (value.purpose == Purpose::gradients) accumulator = std::max(accumulator, file_bytes(value));
    }
    const int64_t begin = whole_sectors(program.memory().persistent_bytes);
    program.desks[0] = {.offset = begin, .bytes = largest};
    program.desks[1] = {.offset = begin + accumulator, .bytes = accumulator};
    for (const Place& desk : program.desks) program.memory().bytes = std::max(program.memory().bytes, desk.bytes > 0 ? desk.end() : 0);
    program.spare = {.offset = begin, .bytes = std::max<int64_t>(0, program.memory().bytes - begin) / kSector * kSector};
  }

  // `plan`: null where everything is in memory.
  Program make(const Job* job, const planning::Plan* plan) const {
    Program program;
    program.threads = options.threads;
    std::vector<Persistent> values = persistents.lay_out(plan ? on_disk(*job, *plan) : std::vector<bool>(persistents.size()), program);
    if (plan) program.memory().persistent_bytes = whole_sectors(program.memory().persistent_bytes);
    program.memory().bytes = program.memory().persistent_bytes;
    for (size_t i = 0; i < drafts.size(); ++i) {
      const PlannedRun planned{.pieces = plan ? &job->pieces[i] : nullptr, .plan = plan ? &plan->runs[i] : nullptr};
      program.entries.push_back(make_entry(drafts[i], values, plan ? &planned : nullptr, program));
      for (const Storage& storage : program.entries.back().storages)
        program.memory().bytes = std::max(program.memory().bytes, aligned(storage.place.end()));
    }
    add_desks(values, program);
    const auto memory_offset = [](const Persistent& value) { return is_in_file(value) ? 0 : value.home.offset; };
    std::stable_sort(values.begin(), values.end(),
                     [&](const Persistent& a, const Persistent& b) { return memory_offset(a) < memory_offset(b); });
    program.persistent = std::move(values);
    return program;
  }

  // Many plans take about the least time. Drives pause, and share with others: this is one for a slower disk, where it takes about as long
  // as any while the disk is as fast as it was measured.
  std::optional<planning::Plan> careful(const Job& job, double bound) const {
    constexpr double kSlower = 0.8;
    constexpr double kNear = 1.01;  // of the bound: a slower disk must make so little of a difference
    planning::Problem slower = job.problem;
    slower.disk.read *= kSlower;
    slower.disk.write *= kSlower;
    planning::Search search(slower, kNear * bound);
    if (search.bound() >= kNear * bound) return std::nullopt;
    std::optional<planning::Plan> plan = search.best();
    if (plan) set_forecasts(job.problem, *plan);
    return plan;
  }

  std::optional<planning::Plan> best(Job& job) const {
    constexpr double kGood = 1.002;  // times the bound, or the fastest plan
    planning::Search& search = job.find_search(std::numeric_limits<double>::infinity());
    std::optional<planning::Plan> patient;
    if (options.careful) patient = careful(job, search.bound());
    if (patient && patient->seconds <= kGood * search.bound()) return patient;
    std::optional<planning::Plan> fastest = search.best();
    return patient && (!fastest || patient->seconds <= kGood * fastest->seconds) ? std::move(patient) : std::move(fastest);
  }
};

Planner::Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options) : impl_(std::make_unique<Impl>(options)) {
  for (const PlanEntry& entry : entries) {
    Draft draft = make_draft(entry, impl_->kernels);
    for (const MemoryClass& c : draft.model.classes) {
      draft.persistent_of_class.push_back(c.persistent ? impl_->persistents.add(entry.name, entry.graph->value(c.root)) : 0);
      if (c.persistent && c.kept) impl_->persistents.keep(draft.persistent_of_class.back());
    }
    impl_->drafts.push_back(std::move(draft));
  }
}
Planner::~Planner() = default;

Program Planner::resident() const { return impl_->make(nullptr, nullptr); }

int64_t Planner::resident_bytes() const {
  int64_t persistent = 0, most = 0;
  for (size_t i = 0; i < impl_->persistents.size(); ++i) persistent += aligned(impl_->persistents[i].type.bytes());
  for (const Draft& draft : impl_->drafts) most = std::max(most, simulate(draft.model, draft.order).bytes);
  return persistent + most;
}

int64_t Planner::least_bytes() const { return impl_->make_job(0, {}, {})->floor; }

StreamOutlook Planner::outlook(int64_t limit, const ComputeRates& compute, const StreamRates& disk, double beat) const {
  constexpr double kWorth = 0.998;  // of what is to be beaten
  Impl::Job& job = impl_->job(limit, compute, disk);
  StreamOutlook result;
  if (limit < job.floor) return result;
  std::vector<double> seconds;
  for (const planning::Run& run : job.problem.runs) seconds.push_back(planning::computing(run));
  result.bound = planning::step_seconds(job.problem, seconds);
  if (result.bound >= kWorth * beat) return result;
  planning::Search& search = job.find_search(kWorth * beat);
  result.bound = search.bound();
  if (result.bound >= kWorth * beat) return result;
  const planning::Plan plan = search.outlook();
  result.seconds = plan.seconds;
  impl_->count_disk(job, plan, result);
  return result;
}

StreamedProgram Planner::streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  Impl::Job& job = impl_->job(limit, compute, disk);
  StreamedProgram result;
  std::optional<planning::Plan> plan;
  if (limit >= job.floor) {
    plan = impl_->best(job);
    result.bound = job.search->bound();
  }
  if (plan) result.program = impl_->make(&job, &*plan);
  if (!plan || result.program.memory().bytes > limit) {
    plan = planning::least_plan(job.problem);
    result.program = impl_->make(&job, &*plan);
  }
  result.forecasts = std::move(plan->forecasts);
  return result;
}

planning::Problem Planner::problem(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  return impl_->job(limit, compute, disk).problem;
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).resident(); }

}  // namespace ort_train
