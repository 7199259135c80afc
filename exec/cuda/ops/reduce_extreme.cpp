// The largest and the least on CUDA: exec/ops/reduce.cpp has the meaning, exec/cuda/reduce.h the kernels and their order, which is the
// processor's, so that of 0 and -0 the same one is left.

#include "exec/cuda/reduce.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

constexpr Kernel kReduceMaxKernel = reduction_kernel<MaxKind, MaxKind, false, ReducedOrdered>;
constexpr Kernel kReduceMinKernel = reduction_kernel<MinKind, MinKind, false, ReducedOrdered>;

ORT_TRAIN_OPS_END
