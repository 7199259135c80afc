#include "exec/cuda/memory.h"

#include <array>
#include <utility>

#include "exec/cuda/status.h"
#include "exec/pages.h"
#include "graph/error.h"
#include "graph/rounding.h"

namespace ort_train::cuda {

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // of errors that don't last, the next call is free
  const bool is_memory = status == cudaErrorMemoryAllocation;
  throw error(is_memory ? ErrorCode::budget : ErrorCode::device, "the GPU: {}: {} ({})", what, cudaGetErrorString(status),
              cudaGetErrorName(status));
}

namespace {

constexpr int kMostDevices = 256;
std::array<std::atomic<int64_t>, kMostDevices>& held_of_all() {
  static std::array<std::atomic<int64_t>, kMostDevices> bytes{};
  return bytes;
}

}  // namespace

int64_t DeviceMemory::held(int device) { return held_of_all().at(static_cast<size_t>(device)); }

void DeviceMemory::count(int64_t bytes) const {
  held_of_all().at(static_cast<size_t>(device_)) += bytes;
  if (owners_) *owners_ += bytes;
}

DeviceMemory::DeviceMemory(int64_t bytes, std::shared_ptr<std::atomic<int64_t>> owners) : Memory(bytes), owners_(std::move(owners)) {
  if (bytes == 0) return;
  check(cudaGetDevice(&device_), "no device is chosen");
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t left = 0, all = 0;
    (void)cudaMemGetInfo(&left, &all);
    throw error(ErrorCode::budget, "the GPU has {} bytes of memory left, and {} are wanted: does another process use it?", left, bytes);
  }
  check(status, "no memory");
  // On a stream of its own: another trainer may be recording on one of the device's, and must not be waited for.
  cudaStream_t stream = nullptr;
  cudaError_t cleared = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (cleared == cudaSuccess) cleared = cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream);
  if (cleared == cudaSuccess) cleared = cudaStreamSynchronize(stream);
  if (stream != nullptr) (void)cudaStreamDestroy(stream);
  if (cleared != cudaSuccess) (void)cudaFree(data);
  check(cleared, "memory can't be cleared");
  data_ = static_cast<std::byte*>(data);
  count(round_up(bytes, kDevicePage));
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  (void)cudaSetDevice(device_);
  (void)cudaFree(data_);
  count(-round_up(bytes_, kDevicePage));
}

PinnedMemory::PinnedMemory(int64_t bytes) : Memory(bytes), arena_(bytes) {
  data_ = arena_.data();
  if (bytes > 0)
    check(cudaHostRegister(data_, static_cast<size_t>(bytes), cudaHostRegisterPortable), "the host's memory can't be pinned (ulimit -l?)");
}

PinnedMemory::~PinnedMemory() {
  if (bytes_ > 0) (void)cudaHostUnregister(data_);
}

}  // namespace ort_train::cuda
