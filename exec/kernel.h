// Kernel: how an op runs on one kind of device. What the op means is its OpDef (graph/op_def.h).
//
// A kernel is prepared once from a KernelSpec, then run with views, workspace and the device's queue. Running never allocates and never
// throws: everything about shapes and types is checked and chosen when the kernel is prepared, and what is wrong with the data (an index
// outside its axis) goes to a DataError, which is looked at where the device is waited for. A prepared kernel may be run by one thread at a
// time.

#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "exec/data_error.h"
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

// What a kernel is chosen by. Nothing of the machine is in it, so neither threads nor budgets show in a result.
struct KernelSpec {
  Attributes attributes;
  std::vector<TensorType> inputs;  // dtype float32, shape {} where absent: ask has()
  std::vector<bool> present;       // inputs that are there
  std::vector<TensorType> outputs;
  std::vector<const Tensor*> constants;  // of host_inputs; null else

  bool has(size_t i) const { return i < present.size() && present[i]; }
};

struct KernelArgs {
  std::span<const void* const> inputs;  // null where absent
  std::span<void* const> outputs;       // null where absent
  std::byte* workspace = nullptr;       // 64-byte aligned, as many bytes as workspace_bytes() said
  void* queue = nullptr;                // of the device: a CPU's Workers
  DataError* error = nullptr;           // where the device can write it
  int32_t put_aside = -1;               // a CPU's: not negative: blocks() leaves its loop to the Workers, by this number

  template <typename T> const T* in(size_t i) const { return static_cast<const T*>(inputs[i]); }
  template <typename T> T* out(size_t i) const { return static_cast<T*>(outputs[i]); }
  Workers& workers() const { return *static_cast<Workers*>(queue); }

  // Workers::parallel_blocks(), at once or, where Kernel::background allows it, later: the body has copies of what it needs that ends with
  // the kernel's run.
  template <typename Body> void blocks(int64_t n, int64_t block, const Body& body) const {
    if (put_aside < 0) return workers().parallel_blocks(n, block, body);
    workers().put_aside(put_aside, (n + block - 1) / block, [n, block, body](int64_t task, int) {
      const int64_t begin = task * block;
      body(begin, begin + block < n ? begin + block : n);
    });
  }
};

using KernelRun = std::function<void(const KernelArgs&)>;

struct Cost {
  double flops = 0;
  double bytes = 0;  // read and written
};

// Bytes that a kernel needs while it runs.
struct Workspace {
  int64_t shared = 0;
  int64_t each = 0;  // for each worker, behind it
};

// An elementwise kernel on n elements that lie one behind another: of each input those, or one for all where it has one element and the
// result has more. The result may lie where an input does. Serves several threads at once.
using Elements = std::function<void(const void* const* inputs, void* result, int64_t n)>;

inline constexpr int kResult = -1;  // Kernel::typed: the first output

// A constant, as an OpDef is.
struct Kernel {
  DTypes types{};                  // of the elements of input `typed` (kResult: of the first output) that it takes
  int typed = 0;                   //
  bool halves_by_float32 = false;  // takes float16 and bfloat16, too, by way of float32 copies in its workspace
  bool reads_blocks = false;       // takes matrices that are stored in blocks (graph/weight_blocks.h)
  bool background = false;         // all its work is one KernelArgs::blocks(), bound by memory: it may be done beside later nodes
  List<Alias, 4> in_place{};       // output may overwrite input
  Cost (*cost)(const KernelSpec&) = nullptr;
  double (*efficiency)(const KernelSpec&, int workers) = nullptr;  // of large float32 products' rate, that its products reach; null: none
  Workspace (*workspace)(const KernelSpec&) = nullptr;             // null: none
  // Chooses tiles, creates library primitives: everything slow. A fixed function of the spec; never of the budget.
  KernelRun (*prepare)(const KernelSpec&) = nullptr;
  Elements (*elements)(const KernelSpec&) = nullptr;  // of one that may be fused with others (graph/fused_elementwise.h)
};

// The kernels of one kind of device. Constant once made.
class KernelTable {
 public:
  // By op, as all_ops() has them; null where the device has none.
  KernelTable(std::string_view device, const Kernel* const* kernels);

  std::string_view device() const { return device_; }
  const Kernel* find(const OpDef& op) const;  // null where there is none
  // Why the device can't run the op on this spec; empty where it can.
  std::string refusal(const OpDef& op, const KernelSpec& spec) const;
  // Throws Error(unsupported) with the refusal.
  const Kernel& at(const OpDef& op, const KernelSpec& spec) const;

 private:
  std::string_view device_;
  std::unordered_map<const OpDef*, const Kernel*> kernels_;
};

// That of this processor, by its instruction set.
const KernelTable& cpu_kernels();

// A kernel on a spec that it takes (KernelTable::at).
KernelRun prepare(const Kernel& kernel, const KernelSpec& spec);
int64_t workspace_bytes(const Kernel& kernel, const KernelSpec& spec, int workers);

// The spec of a node in its graph.
KernelSpec make_spec(const Graph& graph, const Node& node);

// Runs one node on constants, with ordinary memory: for folding and for tests. Throws where there is no kernel, or data is wrong.
std::vector<Tensor> evaluate(const OpDef& op, const Attributes& attributes, const std::vector<const Tensor*>& inputs, size_t outputs,
                             Workers& workers);
// What folding may take: of one node and of all together. Files say how much there is to fold, so it has an end.
struct FoldingLimits {
  int64_t node_bytes = int64_t{256} << 20;  // a node's results and workspace
  int64_t bytes = int64_t{4} << 30;         // all results
  double work = 0x1p36;                     // operations and bytes moved
};
// A Folder (graph/builder.h) on top of it: leaves as nodes what would go beyond the limits.
Folder make_folder(Workers& workers, const FoldingLimits& limits = {});

}  // namespace ort_train
