// Memory of a CUDA device, and of the host where devices copy to and from at full speed.

#pragma once

#include <atomic>
#include <memory>

#include "exec/arena.h"

namespace ort_train::cuda {

class DeviceMemory : public Memory {
 public:
  // All zeros. Its pages count in `owners` while it lives. Throws Error(budget).
  explicit DeviceMemory(int64_t bytes, std::shared_ptr<std::atomic<int64_t>> owners = nullptr);
  ~DeviceMemory() override;

  // Bytes of that device's pages in all of the process's DeviceMemory, whoever made it.
  static int64_t held(int device);

 private:
  void count(int64_t bytes) const;

  int device_ = 0;  // the thread's current one when it was taken
  std::shared_ptr<std::atomic<int64_t>> owners_;
};

// Mapped, touched, then registered: twice as fast as cudaMallocHost, and of exactly the size.
class PinnedMemory : public Memory {
 public:
  // All zeros. Throws Error(budget).
  explicit PinnedMemory(int64_t bytes);
  ~PinnedMemory() override;

 private:
  Arena arena_;
};

}  // namespace ort_train::cuda
