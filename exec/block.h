// Kernels of blocks of threads, as a GPU runs them. A kernel is a functor over one block, cut into phases; the same source runs on a CUDA
// device and, for tests, on the host.
//
//   struct RowSums {
//     static constexpr int kThreads = 128;             // and perhaps kResident: blocks that a processor holds at once
//     struct Shared {};                                // the block's shared memory: at most 48 KiB
//     const float* x; float* sums; int64_t rows, n;    // what it works on: device addresses and sizes
//     template <class Block> HOST_DEVICE void operator()(Block& block) const {
//       typename Block::template Own<float> sum;       // one a thread, kept from phase to phase: a register
//       const auto row = [&](int t) { return block.index * 4 + t / 32; };
//       block.each([&](int t) { ... sum[t] = ... });   // f(thread) for every thread, then a barrier
//       block.template fold<32>(sum, Plus{});          // each group of 32 threads joined, in the tree of __shfl_down_sync, for all of it
//       block.each([&](int t) { if (t % 32 == 0 && row(t) < rows) sums[row(t)] = sum[t]; });
//     }
//   };
//   launch(RowSums{...}, blocks, args);                // block.index counts from 0 to blocks - 1
//
// Every thread reaches every phase: no return and no loop of a block depends on the thread. A kernel's result may depend on no order of
// threads within a phase, nor of blocks. On the host threads run in turn, forwards or backwards, in memory that is full of NaN.

#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "exec/kernel.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

struct NoShared {};

#ifdef __CUDACC__

template <int threads, class SharedMemory> struct DeviceBlock {
  template <class T> struct Own {
    T value;
    __device__ T& operator[](int) { return value; }
  };
  int64_t index;
  SharedMemory& shared;

  template <class F> __device__ void each(F&& f) {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <int width, class T, class Join> __device__ void fold(Own<T>& v, Join join) {
    static_assert(width <= 32 && threads % width == 0);
    for (int half = width / 2; half > 0; half /= 2) v.value = join(v.value, __shfl_down_sync(~0u, v.value, half, width));
    v.value = __shfl_sync(~0u, v.value, 0, width);
  }
};

// Blocks of a kernel that a processor holds at once, at least: what registers are given out for. A kernel may say kResident.
template <class Kernel> constexpr int resident_of() {
  if constexpr (requires { Kernel::kResident; })
    return Kernel::kResident;
  else
    return 1;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, resident_of<Kernel>()) block_kernel(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  DeviceBlock<Kernel::kThreads, typename Kernel::Shared> block{int64_t{blockIdx.x}, shared};
  kernel(block);
}

bool list_block_kernel(const void* kernel);
// Each kernel that launch() is compiled for is in the list of block_kernels() (exec/cuda/kernels.h) from the program's start.
template <class Kernel> inline const bool is_listed = list_block_kernel(reinterpret_cast<const void*>(&block_kernel<Kernel>));

// Whoever runs kernels asks for the launch's error (exec/cuda/device.cpp).
template <class Kernel> void launch(const Kernel& kernel, int64_t blocks, const KernelArgs& args) {
  if (is_listed<Kernel> && blocks > 0)
    block_kernel<Kernel><<<static_cast<unsigned>(blocks), Kernel::kThreads, 0, static_cast<cudaStream_t>(args.queue)>>>(kernel);
}

#else

// Of tests: threads and blocks run from the last to the first.
inline bool runs_backwards = false;

template <int threads, class SharedMemory> class HostBlock {
 public:
  template <class T> class Own {
    static_assert(std::is_trivially_copyable_v<T>);

   public:
    Own() : values_(threads) { std::memset(static_cast<void*>(values_.data()), 0xff, sizeof(T) * threads); }
    T& operator[](int thread) { return values_[static_cast<size_t>(thread)]; }

   private:
    std::vector<T> values_;
  };

  explicit HostBlock(int64_t block) : index(block) { std::memset(static_cast<void*>(&shared), 0xff, sizeof shared); }

  template <class F> void each(F&& f) {
    for (int k = 0; k < threads; ++k) f(runs_backwards ? threads - 1 - k : k);
  }
  template <int width, class T, class Join> void fold(Own<T>& values, Join join) {
    static_assert(width <= 32 && threads % width == 0);
    for (int first = 0; first < threads; first += width) {
      for (int half = width / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) values[first + lane] = join(values[first + lane], values[first + lane + half]);
      }
      for (int lane = 1; lane < width; ++lane) values[first + lane] = values[first];
    }
  }

  const int64_t index;
  SharedMemory shared;
};

template <class Kernel> void launch(const Kernel& kernel, int64_t blocks, const KernelArgs& args) {
  const auto run = [&](int64_t index) {
    const auto block = std::make_unique<HostBlock<Kernel::kThreads, typename Kernel::Shared>>(index);
    kernel(*block);
  };
  if (runs_backwards) {
    for (int64_t i = blocks; i-- > 0;) run(i);
  } else {
    args.workers().parallel_for(blocks, [&](int64_t i, int) { run(i); });
  }
}

#endif

// f(i) for each 0 <= i < n, in any order: what has a thread an element. F is a functor, HOST_DEVICE.
template <class F> struct EachElement {
  static constexpr int kThreads = 256, kEach = 4;
  using Shared = NoShared;
  F f;
  int64_t n;
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = (block.index * kEach + k) * kThreads + t;
        if (i < n) f(i);
      }
    });
  }
};
template <class F> void launch_elements(const F& f, int64_t n, const KernelArgs& args) {
  constexpr int64_t kBlock = EachElement<F>::kThreads * EachElement<F>::kEach;
  launch(EachElement<F>{f, n}, (n + kBlock - 1) / kBlock, args);
}

struct Plus {
  template <typename T> HOST_DEVICE T operator()(T a, T b) const { return a + b; }
};
struct Larger {
  template <typename T> HOST_DEVICE T operator()(T a, T b) const { return a > b ? a : b; }
};

ORT_TRAIN_OPS_END
