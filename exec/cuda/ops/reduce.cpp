// Sums, means and norms on CUDA: exec/ops/reduce.cpp has the meaning, exec/cuda/reduce.h the kernels and their order, the processor's.

#include "exec/cuda/reduce.h"

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

constexpr Kernel kReduceSumKernel = reduction_kernel<SumKind, MeanKind, false, ReducedNumbers>;
constexpr Kernel kReduceMeanKernel = reduction_kernel<SumKind, MeanKind, true, ReducedNumbers>;
constexpr Kernel kReduceSumSquareKernel = reduction_kernel<SumSquareKind, L2Kind, false, ReducedNumbers>;
constexpr Kernel kReduceL2Kernel = reduction_kernel<SumSquareKind, L2Kind, true, ReducedNumbers>;

ORT_TRAIN_OPS_END
