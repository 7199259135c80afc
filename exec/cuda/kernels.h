// The kernels of CUDA devices: those of op files that are made from functors (exec/elementwise.h), and of exec/cuda/ops.
//
// Their views are device memory, their queue is a cudaStream_t. Running one only launches it: whoever runs it asks cudaGetLastError().

#pragma once

#include <vector>

#include "exec/kernel.h"

namespace ort_train {

const KernelTable& cuda_kernels();
// What they launch, as CUDA's functions take it.
const std::vector<const void*>& block_kernels();
// The same sources compiled for the host, for tests: a loop stands for the threads (exec/block.h). Their queue is a CPU's Workers.
const KernelTable& cuda_kernels_on_host();
// Whether those run threads and blocks from the last to the first.
void run_cuda_kernels_backwards(bool backwards);

}  // namespace ort_train
