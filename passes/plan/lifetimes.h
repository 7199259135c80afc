// What the planner knows of a job before addresses are: the values that live across runs, each entry's order and memory, and what of it may
// move. emit.h makes programs of it.

#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/kernel_specs.h"
#include "passes/memory_model.h"
#include "passes/plan.h"

namespace ort_train {

Purpose purpose_of(ValueKind kind);

// What lives across runs, collected from all entries and then laid at the bottom of the arena.
class PersistentValues {
 public:
  // The number of the value, known already or new.
  size_t add(const std::string& entry, const Value& value);

  // Some entry writes it.
  void change(size_t i) { values_[i].read_only = false; }
  // What a caller looks at after a run is where the run left it: it never moves.
  void keep(size_t i) { kept_.insert(i); }
  bool movable(size_t i) const;
  // Whatever its size: neither a constant nor kept.
  bool may_move(size_t i) const { return !values_[i].initial && kept_.count(i) == 0; }

  size_t size() const { return values_.size(); }
  const Persistent& operator[](size_t i) const { return values_[i]; }

  // Gives each its place, in the space that `homes` says. Sets the bytes that they take there.
  std::vector<Persistent> lay_out(const std::vector<SpaceId>& homes, Program& program) const;

 private:
  size_t add_constant(const Value& value);

  std::vector<Persistent> values_;
  std::set<size_t> kept_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::unordered_multimap<size_t, size_t> constants_;
};

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
  double weight = 1;
  MemoryModel model;
  StepOrder order;
  std::vector<Chain> chains;                // transient storages, by step of the order
  std::vector<int64_t> workspaces;          // by position in the order, as the kernels want them
  std::vector<bool> beside;                 // by position in the order: Kernel::beside
  std::vector<size_t> persistent_of_class;  // by class; meaningful where the class is persistent
};

// Gives the graph its planned order.
Draft make_draft(const PlanEntry& entry, NodeKernels& kernels);

// Keeps what steps beside read until some others of them have come: so what is made meanwhile needn't wait for its place.
void keep_for_beside(Draft& draft);

// Values by class, in the order in which they come to be.
std::vector<std::vector<ValueId>> values_by_class(const Graph& graph, const MemoryModel& model);

// A piece's memory in terms of the draft: a chain, or a persistent class.
struct PieceOf {
  bool is_chain = true;
  uint32_t index = 0;
};

// Nodes that compute in the memory behind, and how fast that is. None where there is no such memory.
struct ComputedBehind {
  std::function<bool(const Graph&, const Node&)> wanted = nullptr;
  ComputeRates rates{};
};

// What a draft asks of the memory where some of it may move.
struct RunDraft {
  planning::Run run;            // pieces that last have the numbers of PersistentValues
  std::vector<PieceOf> values;  // by Piece::value
  std::vector<bool> behind;     // by step: it computes in the memory behind
  // Of the run's blocks, and of those behind: a chain, or the workspace of a step.
  struct BlockOf {
    int32_t chain = -1, step = -1;
  };
  std::vector<BlockOf> blocks{}, blocks_behind{};
};

// By step: whether it computes in the memory behind, as is wanted and what it uses allows. Adds to `used`, by number of PersistentValues,
// what lives across runs and is used there.
std::vector<bool> steps_behind(const Draft& draft, const PersistentValues& persistents, const ComputedBehind& behind,
                               std::vector<bool>& used);

// `steps`: those that compute behind. `used`: what lives across runs and is used there by any entry.
RunDraft make_run_draft(const Draft& draft, const PersistentValues& persistents, int threads, const ComputeRates& rates,
                        const ComputedBehind& behind, const std::vector<bool>& steps, const std::vector<bool>& used);

}  // namespace ort_train
