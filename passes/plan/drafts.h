// Draft: the order of nodes and the memory model of one entry, before addresses. RunDraft: the same as planning::Run (blocks and pieces),
// and what leads from those back to buffers. emit.h makes programs of them.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/kernel_specs.h"
#include "passes/cost.h"
#include "passes/memory_model.h"
#include "passes/persistent_values.h"
#include "passes/plan/problem.h"
#include "passes/plan_entry.h"

namespace ort_train {

// The kernels that nodes run by: those of the device, and the host's where it may update.
class NodeKernels {
 public:
  NodeKernels(const KernelTable& table, int threads);

  const KernelTable& table() const { return specs_.table(); }
  // Bytes that do wherever the node is computed. Throws Error(unsupported) where there is no kernel for it.
  int64_t workspace(const Graph& graph, const Node& node);

 private:
  KernelSpecs specs_;
  std::optional<KernelSpecs> host_;  // none: the device is the host
};

// One entry on its way: what is known before addresses are.
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

// Gives the graph its planned order.
Draft make_draft(const PlanEntry& entry, NodeKernels& kernels);

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
  std::vector<PieceOf> values;  // by Piece::value
  std::vector<bool> backing;    // by position in Draft::order: it computes in the backing memory
  // Of the run's blocks, and of those of the backing memory: a buffer, or the workspace of a step.
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
