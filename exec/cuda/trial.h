// Trial: how long a kernel takes on a GPU.

#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "exec/cuda/libraries.h"
#include "exec/cuda/memory.h"
#include "exec/cuda/status.h"
#include "exec/kernel.h"
#include "exec/program.h"
#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train::cuda {

// Runs of one kernel on memory of any content, in which everything it reads and makes lies from the beginning on.
class Trial {
 public:
  Trial(const KernelTable& kernels, const char* op, const KernelSpec& spec, const DeviceMemory& memory)
      : Trial(kernels.at(op_named(op), spec), spec, memory) {}
  Trial(const Kernel& kernel, const KernelSpec& spec, const DeviceMemory& memory)
      : Trial(prepare(kernel, spec), kernel.cost(spec), spec.inputs, spec.outputs, workspace_bytes(kernel, spec, 1), memory) {}
  Trial(KernelRun run, Cost cost, const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs, int64_t workspace,
        const DeviceMemory& memory)
      : run_(std::move(run)), cost_(cost) {
    const auto take = [&](int64_t bytes) {
      std::byte* const at = memory.data() + taken_;
      taken_ += (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
      return at;
    };
    for (const TensorType& type : inputs) inputs_.push_back(take(type.bytes()));
    for (const TensorType& type : outputs) outputs_.push_back(take(type.bytes()));
    taken_ = (taken_ + kLibraryAlignment - 1) / kLibraryAlignment * kLibraryAlignment;
    workspace_ = take(workspace);
    require(taken_ <= memory.bytes(), "a trial of a kernel that is larger than its memory");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "no stream");
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "no event");
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(stream_);
  }

  const Cost& cost() const { return cost_; }
  // Of one run: the best of a few times so many in a row.
  double seconds(int runs) {
    constexpr int kTurns = 4;
    float best = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      check(cudaEventRecord(events_[0], stream_), "it can't be timed");
      for (int i = 0; i < runs; ++i) run_({.inputs = inputs_, .outputs = outputs_, .workspace = workspace_, .queue = stream_});
      check(cudaPeekAtLastError(), "a kernel can't be launched");
      check(cudaEventRecord(events_[1], stream_), "it can't be timed");
      check(cudaStreamSynchronize(stream_), "a kernel failed");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "it can't be timed");
      if (turn == 1 || milliseconds < best) best = milliseconds;  // the first warms up
    }
    return static_cast<double>(best) * 1e-3 / runs;
  }

 private:
  KernelRun run_;
  Cost cost_;
  int64_t taken_ = 0;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::byte* workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 2> events_{};
};

}  // namespace ort_train::cuda
