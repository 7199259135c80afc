// CpuDevice: the processor and its memory as a Device. The thread that issues work does it, with the workers.

#pragma once

#include "exec/device.h"
#include "exec/workers.h"

namespace ort_train {

class CpuDevice : public Device {
 public:
  // The workers must outlive it.
  explicit CpuDevice(Workers& workers) : Device(workers.threads(), /*is_synchronous=*/true), workers_(workers) {}

  Workers& workers() const { return workers_; }

  std::unique_ptr<Memory> allocate(SpaceKind kind, int64_t bytes) override;
  const KernelTable* kernels(SpaceKind where) const override;
  void issue(const Work& work) override;
  void wait(int32_t) override {}
  void finish() override {}
  void transfer(std::byte* to, const std::byte* from, int64_t bytes) override;

 private:
  Workers& workers_;
  DataError wrong_;  // of the kernel that runs
};

}  // namespace ort_train
