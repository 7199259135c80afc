// Finds ops by name, and chooses the CPU's kernels by the processor's instruction set, once.

#include <string_view>
#include <unordered_map>

#include "exec/cpu_device.h"
#include "exec/kernel.h"
#include "exec/program.h"
#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train {

// exec/op_list.cpp, one copy for each instruction set
#ifdef ORT_TRAIN_HAS_v3
namespace isa_v3 {
extern const Kernel* const kKernels[];
std::string_view bfloat16_products();
}  // namespace isa_v3
#endif
#ifdef ORT_TRAIN_HAS_v4
namespace isa_v4 {
extern const Kernel* const kKernels[];
std::string_view bfloat16_products();
}  // namespace isa_v4
#endif

namespace {

struct InstructionSet {
  const Kernel* const* kernels;
  std::string_view (*bfloat16_products)();
};

InstructionSet choose() {
  __builtin_cpu_init();
#ifdef ORT_TRAIN_HAS_v4
  if (__builtin_cpu_supports("x86-64-v4")) return {isa_v4::kKernels, isa_v4::bfloat16_products};
#endif
#ifdef ORT_TRAIN_HAS_v3
  if (__builtin_cpu_supports("x86-64-v3")) return {isa_v3::kKernels, isa_v3::bfloat16_products};
#endif
  throw error(ErrorCode::device, "this processor lacks AVX2 and FMA (x86-64-v3), which ort-train's kernels need");
}

}  // namespace

const KernelTable& cpu_kernels() {
  static const KernelTable table("CPU", choose().kernels);
  return table;
}

std::string_view cpu_bfloat16_products() { return choose().bfloat16_products(); }

const KernelTable* cpu_kernels_for(SpaceKind where) { return where == SpaceKind::host ? &cpu_kernels() : nullptr; }

const OpDef* find_op(std::string_view name) {
  static const auto& by_name = *new std::unordered_map<std::string_view, const OpDef*>([] {
    std::unordered_map<std::string_view, const OpDef*> map;
    for (const OpDef* op : all_ops()) map.emplace(op->name, op);
    return map;
  }());
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

const OpDef& op_named(std::string_view name) {
  const OpDef* op = find_op(name);
  if (op == nullptr) throw internal_error("there is no op '{}'", name);
  return *op;
}

}  // namespace ort_train
