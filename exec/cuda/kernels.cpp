// Compiled twice: for the devices, and as the same kernels on the host.

#include "exec/cuda/kernels.h"

#include "exec/block.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

// Null where no source for CUDA defines the op's kernel.
#define ORT_TRAIN_PERHAPS(name) extern const Kernel k##name##Kernel __attribute__((weak));
ORT_TRAIN_EACH_OP(ORT_TRAIN_PERHAPS)

#define ORT_TRAIN_KERNEL_OF(name) &k##name##Kernel,
extern const Kernel* const kKernels[] = {ORT_TRAIN_EACH_OP(ORT_TRAIN_KERNEL_OF)};

ORT_TRAIN_OPS_END

#ifdef ORT_TRAIN_ON_HOST

namespace ort_train {

void run_cuda_kernels_backwards(bool backwards) { runs_backwards = backwards; }

const KernelTable& cuda_kernels_on_host() {
  static const KernelTable table("GPU", kKernels);
  return table;
}

}  // namespace ort_train

#else

ORT_TRAIN_OPS_BEGIN
namespace {

std::vector<const void*>& listed() {
  static std::vector<const void*> kernels;
  return kernels;
}

}  // namespace

bool list_block_kernel(const void* kernel) {
  listed().push_back(kernel);
  return true;
}

ORT_TRAIN_OPS_END

namespace ort_train {

const std::vector<const void*>& block_kernels() { return listed(); }

const KernelTable& cuda_kernels() {
  static const KernelTable table("GPU", kKernels);
  return table;
}

}  // namespace ort_train

#endif
