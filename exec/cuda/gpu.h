// Gpu: one NVIDIA GPU with a context of this process, and how much of its memory that takes. Makes Devices that run programs on it.
//
// Programs built without CUDA have open_gpu() too: it says so. A Gpu outlives the devices that it made. One thread at a time.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "exec/device.h"

namespace ort_train {

struct GpuFacts {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int number = 0;            // as CUDA counts: CUDA_VISIBLE_DEVICES has been applied
  int major = 0, minor = 0;  // compute capability
  int processors = 0;        // SMs
  int64_t bytes = 0;         // of memory, in all
};

class Gpu {
 public:
  virtual ~Gpu() = default;
  const GpuFacts& facts() const { return facts_; }

  // Bytes of device memory that the process takes for its context, the kernels' code and libraries, while there is no Device and no memory
  // of one.
  virtual int64_t taken_bytes() const = 0;
  // The same with the memory of its devices, now, by the driver's count of the process; memory of other Gpus' devices is left out. Where
  // the driver doesn't tell processes apart (in containers, say), or the process had a context already, it is the whole GPU's less what was
  // in use before this was made: other processes that come or go meanwhile are counted.
  virtual int64_t used_bytes() const = 0;
  // That are left.
  virtual int64_t free_bytes() const = 0;
  // Copies of the memory's link: bytes a second to the device and back, one at a time, and both at once (each way).
  struct LinkRates {
    double up = 0, down = 0, both = 0;
  };
  // In at most so many bytes of the device's memory, and as many of the host's, which are given back.
  virtual LinkRates measure_link(int64_t bytes) = 0;
  // How fast it computes, likewise. halves: products of 16 bits are wanted, too; they are guessed where there is no room for them.
  virtual ComputeRates measure_compute(bool halves, int64_t bytes) = 0;
  // Starts cuBLAS and cuDNN, by which products, attention and convolutions of 16 bits are made, so that taken_bytes() counts what they
  // take. Returns why there is no cuDNN, in a sentence; empty: there is.
  virtual std::string start_libraries() = 0;

  // Of products of 16 bits on it: what Device::makes_products() says of its devices, and by which algorithms the libraries make them.
  virtual std::string makes_products() const = 0;
  virtual AlgorithmTable& algorithms() const = 0;

  virtual const KernelTable& kernels() const = 0;
  // For runs of that program, in spaces of the device, the host and a file. `threads`: of the host, where it computes.
  virtual std::unique_ptr<Device> device(const Program& program, int threads) = 0;

  // Where its devices count the bytes of the memory that they make.
  const std::shared_ptr<std::atomic<int64_t>>& memory_of_devices() const { return memory_of_devices_; }

 protected:
  GpuFacts facts_;
  std::shared_ptr<std::atomic<int64_t>> memory_of_devices_ = std::make_shared<std::atomic<int64_t>>(0);
};

// The GPU of that number, with everything loaded that its kernels need, so that what it takes doesn't grow. Throws Error(device): this
// build has no CUDA, no driver or too old a one, no such GPU, one that is too old, or no memory for a context.
std::unique_ptr<Gpu> open_gpu(int number);

// What GPUs compute with, which can be asked without one. Throws Error(device): this build has no CUDA.
const KernelTable& gpu_kernels();

}  // namespace ort_train
