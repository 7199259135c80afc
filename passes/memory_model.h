// MemoryModel: what one entry graph asks of memory, whatever the order of its nodes, and what a given order makes of it.
//
// Values are grouped into classes, the pieces of memory: a view belongs to what it views (unless that is changed while the view is still
// wanted: then it is a copy), an output that `writes` an input belongs to that input. In-place outputs depend on the order; simulate()
// decides them. Dense and immutable once made, because the scheduler simulates hundreds of orders.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "exec/kernel.h"
#include "exec/program.h"

namespace ort_train {

struct MemoryClass {
  ValueId root = kNone;     // its first value
  int64_t bytes = 0;        // as the arena counts them
  bool persistent = false;  // lives across runs: not the schedule's business
  bool fed = false;         // a graph input: there from the start
  bool kept = false;        // must be intact at the end
  uint32_t readers = 0;     // distinct steps that read it, views of it included
};

struct PersistentUse {
  uint32_t of = 0;       // the class
  bool reads = false;    // its content as it was before
  bool changes = false;  // leaves another one
};

// One node, with what it does to memory. Classes are named by their index.
struct MemoryStep {
  NodeId node = kNone;
  int64_t workspace = 0;                                // as the arena counts it
  std::vector<uint32_t> defines;                        // transient classes that come to be here
  std::vector<uint32_t> reads;                          // transient classes that are read here, each once
  std::vector<PersistentUse> persistents;               // persistent classes that are used here, each once
  std::vector<std::pair<uint32_t, uint32_t>> in_place;  // (defined class, read class) that the op allows and the sizes fit
  std::vector<uint32_t> before, after;                  // steps that must run before and after this one: data, and reads before a change
};

struct MemoryModel {
  std::vector<MemoryStep> steps;  // by position in the graph's own order, which is one that obeys before and after
  std::vector<MemoryClass> classes;
  std::vector<uint32_t> class_of;  // by ValueId; kNone for values that need no place
  std::vector<int64_t> offset_of;  // by ValueId: where in its class a view begins
};

// `workspaces`: bytes by position in the graph's order. `kernels`: they say what may be written over. Throws Error(internal) where the
// graph reads state after it was changed.
MemoryModel make_memory_model(const Graph& graph, const std::vector<ValueId>& keep, const std::vector<int64_t>& workspaces,
                              const KernelTable& kernels = cpu_kernels());

using StepOrder = std::vector<uint32_t>;  // a permutation of the steps

// The live bytes of an order's peak, persistent ones left out, and how many steps reach it.
struct Peak {
  int64_t bytes = 0;
  int32_t at = 0;  // the first step that reaches it, as a position in the order
  int32_t times = 0;
  bool operator<(const Peak& other) const { return bytes != other.bytes ? bytes < other.bytes : times < other.times; }
};

// A piece of transient memory under a fixed order: classes, each written over the one before.
struct Buffer {
  std::vector<uint32_t> classes;
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
  bool fed = false, kept = false;  // one of the classes is
};

// Transient bytes around a step.
struct StepLoad {
  int64_t before = 0, during = 0;
};

// Runs an order; fills `buffers` (if given) with the storages it leads to, and `loads` by position.
Peak simulate(const MemoryModel& model, const StepOrder& order, std::vector<Buffer>* buffers = nullptr,
              std::vector<StepLoad>* loads = nullptr);

}  // namespace ort_train
