// Chooses the instruction set, once, and finds ops by name. Until then no initializer of the op files has run (see CMakeLists.txt): those
// of x86-64-v4 must not on a smaller processor.

#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/error.h"
#include "graph/op_def.h"

#define ORT_TRAIN_DECLARE_ISA(isa)                                                                       \
  extern "C" __attribute__((weak, visibility("hidden"))) void (*const __start_ort_train_init_##isa[])(); \
  extern "C" __attribute__((weak, visibility("hidden"))) void (*const __stop_ort_train_init_##isa[])();  \
  namespace ort_train::isa_##isa {                                                                       \
    const std::vector<const OpDef*>& ops(); /* exec/op_list.cpp */                                       \
  }
#ifdef ORT_TRAIN_HAS_v3
ORT_TRAIN_DECLARE_ISA(v3)
#endif
#ifdef ORT_TRAIN_HAS_v4
ORT_TRAIN_DECLARE_ISA(v4)
#endif

namespace ort_train {
namespace {

using Initializer = void (*const)();
using Ops = const std::vector<const OpDef*>& (*)();

const std::vector<const OpDef*>& initialized(Initializer* begin, Initializer* end, Ops ops) {
  for (Initializer* initializer = begin; initializer != end; ++initializer) (*initializer)();
  return ops();
}

const std::vector<const OpDef*>& choose() {
  __builtin_cpu_init();
#ifdef ORT_TRAIN_HAS_v4
  if (__builtin_cpu_supports("x86-64-v4")) return initialized(__start_ort_train_init_v4, __stop_ort_train_init_v4, isa_v4::ops);
#endif
#ifdef ORT_TRAIN_HAS_v3
  if (__builtin_cpu_supports("x86-64-v3")) return initialized(__start_ort_train_init_v3, __stop_ort_train_init_v3, isa_v3::ops);
#endif
  throw error(ErrorCode::device, "this processor lacks AVX2 and FMA (x86-64-v3), which ort-train's kernels need");
}

}  // namespace

const std::vector<const OpDef*>& all_ops() {
  static const std::vector<const OpDef*>& ops = choose();
  return ops;
}

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
  if (op == nullptr) throw error(ErrorCode::device, "internal error: there is no op '{}'; please report this", name);
  return *op;
}

}  // namespace ort_train
