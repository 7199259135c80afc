// The contract between an op and a device: a kernel is prepared once from a KernelSpec, then run with views, workspace and workers.
//
// Running never allocates and never throws for reasons of data shape: everything is checked and chosen when the kernel is prepared.
// A prepared kernel may be run by one thread at a time.

#pragma once

#include <span>
#include <vector>

#include "exec/workers.h"
#include "graph/op_def.h"

// Op files are compiled once per instruction set; these give each copy a namespace of its own.
#ifndef ORT_TRAIN_ISA
#define ORT_TRAIN_ISA isa_v3
#endif
#define ORT_TRAIN_OPS_BEGIN \
  namespace ort_train {     \
  inline namespace ORT_TRAIN_ISA {
#define ORT_TRAIN_OPS_END \
  }                       \
  }

namespace ort_train {

struct KernelSpec {
  Attributes attributes;
  std::vector<TensorType> inputs;  // dtype float32, shape {} where absent: ask has()
  std::vector<bool> present;       // inputs that are there
  std::vector<TensorType> outputs;
  std::vector<const Tensor*> constants;  // of host_inputs; null else
  int threads = 1;                       // for workspaces per worker; never for choices that touch results

  bool has(size_t i) const { return i < present.size() && present[i]; }
};

struct KernelArgs {
  std::span<const void* const> inputs;  // null where absent
  std::span<void* const> outputs;       // null where absent
  std::byte* workspace = nullptr;       // 64-byte aligned, as many bytes as Kernel::workspace said
  Workers& workers;

  template <typename T> const T* in(size_t i) const { return static_cast<const T*>(inputs[i]); }
  template <typename T> T* out(size_t i) const { return static_cast<T*>(outputs[i]); }
};

// The spec of a node in its graph.
KernelSpec make_spec(const Graph& graph, const Node& node, int threads);

// Runs one node on constants, with ordinary memory: for folding and for tests. Throws where the op has no kernel.
std::vector<Tensor> evaluate(const OpDef& op, const Attributes& attributes, const std::vector<const Tensor*>& inputs, size_t outputs,
                             Workers& workers);
// What folding may take: of one node and of all together. Files say how much there is to fold, so it has an end.
struct FoldingLimits {
  int64_t node_bytes = int64_t{256} << 20;  // a node's results and workspace
  int64_t bytes = int64_t{1} << 30;         // all results
  double work = 0x1p34;                     // operations and bytes moved
};
// A Folder (graph/builder.h) on top of it: leaves as nodes what would go beyond the limits.
Folder make_folder(Workers& workers, const FoldingLimits& limits = {});

}  // namespace ort_train
