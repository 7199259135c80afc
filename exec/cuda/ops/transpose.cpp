// Transpose: rows of words, or tiles in shared memory (exec/cuda/strided_copy.h). Its meaning: exec/ops/transpose.cpp.

#include "exec/ops/transpose.h"

#include "exec/cuda/strided_copy.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

KernelRun prepare(const KernelSpec& spec) {
  return [move = StridedMove(transpose_layout(spec))](const KernelArgs& args) { move.run(args, args.outputs[0], args.inputs[0]); };
}

}  // namespace

constexpr Kernel kTransposeKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
