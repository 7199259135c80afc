// The planner: from the entry graphs of one candidate to a Program. In order:
//
//   draft_job()      an order of each entry's nodes, and what that asks of memory (plan/drafts.h)
//   make_instance()  the problem: which memory is wanted when, what may leave it, how much of it there is (plan/instance.h)
//   fastest_plan()   with a disk: what leaves the memory and when, and where all of it lies (plan/fastest_plan.h, plan/search.h);
//                    plan_hierarchy() where a device has a memory of its own (plan/backing.h)
//   make_program()   the Program of that plan (plan/make_program.h)
//
// Orders and kernels are a fixed function of the graphs and the number of threads, which sizes workspaces; the machine's rates and the
// limit decide where bytes are, and when. A planner is for one thread at a time; const calls share a cache, too.

#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/program.h"
#include "passes/cost.h"
#include "passes/plan/problem.h"
#include "passes/plan_entry.h"
#include "passes/stream.h"

namespace ort_train {

struct PlanOptions {
  int threads = 1;                       // for workspaces per worker
  const KernelTable* kernels = nullptr;  // that most nodes run by; null: the CPU's
  // Bytes that the linear program of a plan may take.
  int64_t search_bytes = std::numeric_limits<int64_t>::max();
  bool for_slower_disk = false;  // of plans of about the same time, take one that works well on a slower disk, too; takes more memory
};

struct PlannedProgram {
  Program program;
  std::vector<StreamForecast> forecasts;  // by entry
  double seconds = 0;                     // of an optimizer step
  double bound = 0;  // seconds: no plan in this memory takes less for an optimizer step; 0: none holds what must be there at once
};

// What a program will take, before there is one.
struct PlanEstimate {
  double bound = std::numeric_limits<double>::infinity();    // as above; infinite where the memory is below the floor
  double seconds = std::numeric_limits<double>::infinity();  // of an optimizer step; infinite where there is no such plan
  int64_t disk_bytes = 0;
  int64_t state_bytes = 0;  // of these, of what survives the process: weights that change, optimizer state
};

// A device with memory of its own, behind it the host's, behind that a disk.
struct DeviceMemories {
  int64_t device = 0, host = 0;  // bytes
  ComputeRates compute{}, host_compute{};
  StreamRates link{.read = 2e10, .write = 2e10, .duplex = 2};  // host to device, and back
  StreamRates disk{};
  bool host_updates = false;  // the host may update state (updates_state), where it is then, beside the device
};

class Planner {
 public:
  // Persistent values are matched across entries by name and type, constants by content. Throws Error(unsupported) for a node whose op has
  // no kernel, Error(internal) for entries that contradict each other. The graphs must outlive it.
  Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options);
  ~Planner();

  // Everything in memory.
  Program all_in_memory() const;
  // What is planned from here on takes more memory, so that less has to wait for what is done in the background (Queue::background).
  void overlap_updates();
  // The least that it could take, and the least with a disk.
  int64_t bytes_in_memory() const;
  int64_t least_bytes() const;
  // The fastest plan that it finds in an arena of `limit` bytes with a disk. Where it finds none (as with a limit of 0), the one of least
  // memory, which is larger than the limit.
  PlannedProgram streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const;
  // Programs in three spaces (exec/program.h): the fastest that it finds; none where the memories are too small.
  std::optional<PlannedProgram> discrete(const DeviceMemories& memories) const;
  // The least of a device's memory, and of the host's with that, that discrete() finds plans for.
  std::pair<int64_t, int64_t> least_discrete() const;
  // What streamed() solves.
  planning::Problem problem(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const;
  // About what streamed() will take, made quickly: without addresses. Where the bound is no less than `beat` seconds, that alone.
  PlanEstimate estimate(int64_t limit, const ComputeRates& compute, const StreamRates& disk, double beat) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Planner(entries, options).all_in_memory().
Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options);

}  // namespace ort_train
