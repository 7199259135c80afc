// DoraScale: a thread a row. Its meaning: exec/ops/dora.cpp.

#include "exec/ops/dora.h"

#include "exec/block.h"
#include "exec/element_types.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [spec](const KernelArgs& args) { launch_elements(dora_rows<T>(spec, args), spec.inputs[0].shape[0], args); };
  });
}

}  // namespace

constexpr Kernel kDoraScaleKernel{
    .types = kWide,
    .cost = dora_cost,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
