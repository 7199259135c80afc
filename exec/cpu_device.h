// CpuDevice: the processor and its memory as a Device. The thread that issues work does it, with the workers; work in the background is put
// aside for these, who do it during later work.

#pragma once

#include <string>
#include <string_view>

#include "exec/device.h"
#include "exec/workers.h"

namespace ort_train {

// By which of its instructions the processor multiplies bfloat16, which the last bits of such products depend on: "AMX-BF16",
// "AVX512-BF16", or "float32", in which all others agree.
std::string_view cpu_bfloat16_products();

class CpuDevice : public Device {
 public:
  // The workers must outlive it.
  explicit CpuDevice(Workers& workers) : Device(workers.threads(), /*is_synchronous=*/true), workers_(workers) {}

  Workers& workers() const { return workers_; }

  std::unique_ptr<Memory> allocate(SpaceKind kind, int64_t bytes) override;
  const KernelTable* kernels(SpaceKind where) const override;
  void issue(const Work& work) override;
  void wait(int32_t number) override { workers_.finish_aside(number); }
  void finish() override { workers_.finish_aside(); }
  void time_work() override { workers_.time_tasks(); }
  TaskTimes tasks() override { return workers_.times(); }
  void record_background(bool on) override { workers_.record_aside(on); }
  std::span<const AsideSpan> background_spans() const override { return workers_.aside_spans(); }
  void transfer(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill(std::byte* at, std::byte value, int64_t bytes) override;
  std::string makes_products(DType type) const override {
    return std::string(type == DType::bfloat16 ? cpu_bfloat16_products() : "float32");
  }

 private:
  Workers& workers_;
  DataError wrong_;  // of the kernel that runs
};

}  // namespace ort_train
