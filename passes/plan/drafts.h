// From the entries' graphs to what the planner solves. draft_job(): the order of nodes and the memory model of each entry (Draft), and what
// lives across runs of any of them. make_run_draft(): the same as planning::Run, in blocks and pieces, and what leads from those back to
// the graph (RunDraft), which emit.h needs.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "passes/cost.h"
#include "passes/memory_model.h"
#include "passes/persistent_values.h"
#include "passes/plan/problem.h"
#include "passes/plan_entry.h"

namespace ort_train {

// One entry, before anything has an address.
struct Draft {
  std::string name;
  EntryRole role{};
  const Graph* graph = nullptr;
  std::vector<ValueId> keep;
  double runs_per_step = 1;
  MemoryModel model;
  StepOrder order;
  std::vector<Buffer> buffers;              // transient memory; first and last are positions in `order`
  std::vector<int64_t> workspaces;          // bytes that the kernels ask for, by index in model.steps
  std::vector<bool> background;             // Kernel::background, by index in model.steps
  std::vector<size_t> persistent_of_class;  // by class; meaningful where the class is persistent
};

// All entries of a job.
struct JobDraft {
  std::vector<Draft> drafts{};  // by entry
  PersistentValues persistents{};
};

// Gives the graphs their planned order. Throws Error(unsupported) for a node without a kernel, Error(internal) for entries that contradict
// each other.
JobDraft draft_job(const std::vector<PlanEntry>& entries, const KernelTable& kernels, int threads);

// Values by class, in the order in which they come to be.
std::vector<std::vector<ValueId>> values_by_class(const Graph& graph, const MemoryModel& model);

// A piece's memory in terms of the draft: a buffer, or a persistent class.
struct PieceOf {
  bool is_buffer = true;
  uint32_t index = 0;
};

// Nodes that compute in the backing memory, and how fast that is. None where there is no such memory.
struct BackingCompute {
  std::function<bool(const Graph&, const Node&)> wanted = nullptr;
  ComputeRates rates{};
};

// Where a job's nodes compute.
struct JobMachine {
  int threads = 1;
  ComputeRates rates{};
  BackingCompute backing{};
  bool moves = true;  // there is more than one memory
};

// What a draft asks of the memory where some of it may move.
struct RunDraft {
  planning::Run run;            // pieces that last have the numbers of PersistentValues
  std::vector<PieceOf> values;  // by Piece::value_number
  std::vector<bool> backing;    // by position in Draft::order: it computes in the backing memory
  // What a block is, here or in the backing memory: a buffer, or the workspace of a step.
  struct BlockOf {
    int32_t buffer = -1, step = -1;
  };
  std::vector<BlockOf> blocks{}, backing_blocks{};
};

// By step: whether it computes in the backing memory, as is wanted and what it uses allows. Adds to `used`, by number of PersistentValues,
// what lives across runs and is used there.
std::vector<bool> backing_steps(const Draft& draft, const PersistentValues& persistents, const BackingCompute& backing,
                                std::vector<bool>& used);

// `in_backing_memory`: by step, whether it computes there. `used`: what lives across runs and is used there by any entry.
RunDraft make_run_draft(const Draft& draft, const PersistentValues& persistents, const JobMachine& machine,
                        const std::vector<bool>& in_backing_memory, const std::vector<bool>& used);

}  // namespace ort_train
