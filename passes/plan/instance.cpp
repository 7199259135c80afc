#include "passes/plan/instance.h"

#include <algorithm>
#include <set>
#include <utility>

#include "exec/program.h"

namespace ort_train {
namespace {

// The runs of all entries. Sets by persistent value whether steps in the backing memory use it.
void add_runs(const JobDraft& job, Instance& instance, std::vector<bool>& used_in_backing) {
  std::vector<std::vector<bool>> steps;  // by draft: which of its steps compute in the backing memory
  for (const Draft& draft : job.drafts) steps.push_back(backing_steps(draft, job.persistents, instance.machine.backing, used_in_backing));
  for (size_t i = 0; i < job.drafts.size(); ++i) {
    instance.run_drafts.push_back(make_run_draft(job.drafts[i], job.persistents, instance.machine, steps[i], used_in_backing));
    instance.problem.runs.push_back(std::move(instance.run_drafts.back().run));
  }
}

void add_lasting(const PersistentValues& persistents, const std::vector<bool>& used_in_backing, Instance& instance) {
  planning::Problem& problem = instance.problem;
  instance.movable = used_in_backing;
  for (const planning::Run& run : problem.runs) {
    for (const planning::Piece& piece : run.pieces) {
      if (piece.lasting >= 0) instance.movable[static_cast<size_t>(piece.lasting)] = true;
    }
  }
  for (size_t i = 0; i < persistents.size(); ++i) {
    const int64_t bytes = persistents[i].type.bytes();
    problem.lasting.push_back(
        {.name = persistents[i].name, .bytes = whole_sectors(bytes), .held = aligned(bytes), .may_be_resident = !used_in_backing[i]});
    if (!instance.movable[i]) problem.immovable += aligned(bytes);
  }
}

}  // namespace

Instance make_instance(const JobDraft& job, int64_t memory, const JobMachine& machine, const StreamRates& store) {
  Instance instance{.machine = machine, .problem = {.memory = memory, .store = store}};
  std::vector<bool> used_in_backing(job.persistents.size());
  add_runs(job, instance, used_in_backing);
  add_lasting(job.persistents, used_in_backing, instance);
  return instance;
}

DiskBytes bytes_on_disk(const JobDraft& job, const Instance& instance, const planning::Plan& plan) {
  DiskBytes result;
  for (size_t i = 0; i < instance.movable.size(); ++i) {
    if (!instance.movable[i] || plan.resident[i]) continue;
    const int64_t bytes = whole_sectors(job.persistents[i].type.bytes());
    result.all += bytes;
    if (survives(job.persistents[i])) result.state += bytes;
  }
  int64_t of_runs = 0;  // of what doesn't live across runs: the same place for all runs
  for (size_t r = 0; r < plan.runs.size(); ++r) {
    const std::vector<planning::Piece>& pieces = instance.problem.runs[r].pieces;
    std::set<uint32_t> written;
    for (const planning::Stay& stay : plan.runs[r].stays) {
      if (stay.writes && pieces[stay.piece].lasting < 0) written.insert(stay.piece);
    }
    int64_t bytes = 0;
    for (const uint32_t piece : written) bytes += pieces[piece].bytes;
    of_runs = std::max(of_runs, bytes);
  }
  result.all += of_runs;
  return result;
}

}  // namespace ort_train
