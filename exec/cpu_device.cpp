#include "exec/cpu_device.h"

#include <cstring>

#include "graph/error.h"

namespace ort_train {

std::unique_ptr<Memory> CpuDevice::allocate(SpaceKind kind, int64_t bytes) {
  require(kind == SpaceKind::host, "the processor has no memory but the host's");
  return std::make_unique<Arena>(bytes);
}

const KernelTable* CpuDevice::kernels(SpaceKind where) const { return cpu_kernels_for(where); }

void CpuDevice::issue(const Work& work) {
  for (const int32_t earlier : work.waits) wait(earlier);
  if (work.kernel == nullptr) return transfer(work.to, work.from, work.bytes);
  try {
    (*work.kernel)({.inputs = work.inputs,
                    .outputs = work.outputs,
                    .workspace = work.workspace,
                    .queue = &workers_,
                    .error = &wrong_,
                    .put_aside = work.background ? work.number : -1});
    wrong_.check();
  } catch (...) {
    failed_ = work.number;
    throw;
  }
}

void CpuDevice::transfer(std::byte* to, const std::byte* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }
void CpuDevice::fill(std::byte* at, std::byte value, int64_t bytes) { std::fill_n(at, bytes, value); }

}  // namespace ort_train
