// Expand and Tile: strided copies (exec/cuda/strided_copy.h) that read an element several times. Their meaning: exec/ops/expand_tile.cpp.

#include "exec/ops/expand_tile.h"

#include "exec/cuda/strided_copy.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <CopyLayout (*layout)(const KernelSpec&)> KernelRun prepare(const KernelSpec& spec) {
  return [move = StridedMove(layout(spec))](const KernelArgs& args) { move.run(args, args.outputs[0], args.inputs[0]); };
}

}  // namespace

constexpr Kernel kExpandKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare<expand_layout>,
};
constexpr Kernel kTileKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare<tile_layout>,
};

ORT_TRAIN_OPS_END
