// Where ort-train is built without CUDA.

#include "exec/cuda/gpu.h"
#include "graph/error.h"

namespace ort_train {

namespace {

Error no_gpu() {
  return error(ErrorCode::device,
               "`device` cuda: this build of ort-train runs on the processor only; on a machine with the CUDA Toolkit configure it with "
               "ORT_TRAIN_CUDA=ON");
}

}  // namespace

std::unique_ptr<Gpu> open_gpu(int) { throw no_gpu(); }
const KernelTable& gpu_kernels() { throw no_gpu(); }

}  // namespace ort_train
