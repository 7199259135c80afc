#include "exec/cuda/gpu.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/device.h"
#include "exec/cuda/kernels.h"
#include "exec/cuda/memory.h"
#include "exec/cuda/status.h"
#include "exec/program.h"
#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

using cuda::check;

constexpr int kLeastMajor = 8;  // compute capability: Ampere

// The driver's count of a GPU's memory, which needs no context. NVIDIA's management library is the driver's: it is opened where it is.
class Nvml {
 public:
  explicit Nvml(const std::string& bus) {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    const auto init = find<int()>("nvmlInit_v2");
    const auto by_bus = find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    info_ = find<int(void*, Memory*)>("nvmlDeviceGetMemoryInfo");
    if (init == nullptr || by_bus == nullptr || info_ == nullptr || init() != 0 || by_bus(bus.c_str(), &handle_) != 0) info_ = nullptr;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (library_ == nullptr) return;
    if (const auto shutdown = find<int()>("nvmlShutdown")) shutdown();
    dlclose(library_);
  }

  // Bytes in use by all processes; -1 where it can't be asked.
  int64_t used() const {
    Memory memory{};
    return info_ != nullptr && info_(handle_, &memory) == 0 ? static_cast<int64_t>(memory.used) : -1;
  }

 private:
  struct Memory {
    unsigned long long total, free, used;
  };  // nvmlMemory_t
  template <typename Function> Function* find(const char* name) const { return reinterpret_cast<Function*>(dlsym(library_, name)); }

  void* library_ = nullptr;
  void* handle_ = nullptr;
  int (*info_)(void*, Memory*) = nullptr;
};

std::string bus_of(int number) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), number), "it has no address");
  return text.data();
}

void require_gpu(int number) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0) throw error(ErrorCode::device, "there is no NVIDIA driver on this machine, which `device` cuda needs");
    throw error(ErrorCode::device,
                "`device` cuda: the NVIDIA driver is for CUDA {}.{}, this build of ort-train needs {}.{}: install a newer driver",
                driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    throw error(ErrorCode::device, "`device` cuda: there is no NVIDIA GPU that this process may use (is CUDA_VISIBLE_DEVICES set?)");
  check(status, "CUDA can't be started");
  if (number < 0 || number >= count)
    throw error(ErrorCode::device, "`device` cuda:{}: there {} {} GPU{} here, numbered from 0", number, count == 1 ? "is" : "are", count,
                count == 1 ? "" : "s");
}

class CudaGpu : public Gpu {
 public:
  explicit CudaGpu(int number) : nvml_(bus_of(number)) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, number), "it can't be asked what it is");
    facts_ = {.name = properties.name,
              .number = number,
              .major = properties.major,
              .minor = properties.minor,
              .processors = properties.multiProcessorCount,
              .bytes = static_cast<int64_t>(properties.totalGlobalMem)};
    if (properties.major < kLeastMajor)
      throw error(ErrorCode::device, "{} has compute capability {}.{}; ort-train's kernels need {}.0", properties.name, properties.major,
                  properties.minor, kLeastMajor);
    before_ = nvml_.used();
    check(cudaSetDevice(number), "it can't be used");
    // What no kernel of ours uses: a heap and a buffer for printing.
    check(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 0), "no context can be made");
    check(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4096), "no context can be made");
    check(cudaFree(nullptr), "no context can be made");
    load_kernels();
    taken_ = used_bytes();
  }

  int64_t taken_bytes() const override { return std::max(taken_, used_bytes()); }
  int64_t used_bytes() const override {
    const int64_t now = nvml_.used();
    if (now >= 0 && before_ >= 0) return std::max<int64_t>(now - before_, 0);
    return facts_.bytes - free_bytes();
  }
  int64_t free_bytes() const override {
    size_t left = 0, all = 0;
    check(cudaMemGetInfo(&left, &all), "it can't be asked for its memory");
    return static_cast<int64_t>(left);
  }
  LinkRates measure_link(int64_t bytes) override;
  ComputeRates measure_compute(bool halves, int64_t bytes) override;
  std::string start_cudnn() override {
    check(cudaSetDevice(facts_.number), "it can't be used");
    return cuda::start_cudnn();
  }
  const KernelTable& kernels() const override { return cuda_kernels(); }
  std::unique_ptr<Device> device(const Program& program, int threads) override {
    return std::make_unique<cuda::CudaDevice>(program, *this, threads);
  }

 private:
  // Kernels are loaded when they are first asked for, which takes memory: all of them now.
  void load_kernels() const {
    for (const void* kernel : block_kernels()) {
      cudaFuncAttributes attributes{};
      const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
      if (status == cudaErrorNoKernelImageForDevice)
        throw error(ErrorCode::device,
                    "this build of ort-train has no kernels for {} (compute capability {}.{}): build it with CMAKE_CUDA_ARCHITECTURES={}{}",
                    facts_.name, facts_.major, facts_.minor, facts_.major, facts_.minor);
      check(status, "a kernel can't be loaded");
    }
  }

  Nvml nvml_;
  int64_t before_ = -1, taken_ = 0;
};

// Of 64 MiB each way, or what there is, the best of a few.
Gpu::LinkRates CudaGpu::measure_link(int64_t bytes) {
  constexpr int64_t kMost = int64_t{64} << 20, kPage = 1 << 12;
  constexpr int kTurns = 4;
  const int64_t each = std::max(std::min(kMost, bytes / 2) / kPage, int64_t{1}) * kPage;
  const auto size = static_cast<size_t>(each);
  const cuda::DeviceMemory device(2 * each);
  const cuda::PinnedMemory host(2 * each);
  std::array<cudaStream_t, 2> streams{};
  std::array<cudaEvent_t, 2> events{};
  for (cudaStream_t& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no stream");
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "no event");
  const auto seconds = [&](bool up, bool down) {
    float best = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      check(cudaEventRecord(events[0], streams[0]), "it can't be timed");
      check(cudaStreamWaitEvent(streams[1], events[0], 0), "it can't be timed");
      if (up) check(cudaMemcpyAsync(device.data(), host.data(), size, cudaMemcpyHostToDevice, streams[0]), "a copy can't be made");
      if (down)
        check(cudaMemcpyAsync(host.data() + each, device.data() + each, size, cudaMemcpyDeviceToHost, streams[1]), "a copy can't be made");
      check(cudaEventRecord(events[1], streams[1]), "it can't be timed");
      check(cudaStreamWaitEvent(streams[0], events[1], 0), "it can't be timed");
      check(cudaEventRecord(events[1], streams[0]), "it can't be timed");
      check(cudaStreamSynchronize(streams[0]), "a copy failed");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, events[0], events[1]), "it can't be timed");
      if (best == 0 || milliseconds < best) best = milliseconds;
    }
    return static_cast<double>(best) * 1e-3;
  };
  const auto rate = [&](bool up, bool down) { return static_cast<double>(each) / seconds(up, down); };
  const LinkRates rates{.up = rate(true, false), .down = rate(false, true), .both = rate(true, true)};
  for (cudaEvent_t event : events) (void)cudaEventDestroy(event);
  for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  return rates;
}

// Runs of one kernel on memory of any content, in which everything it reads and makes lies from the beginning on.
class Trial {
 public:
  Trial(const KernelTable& kernels, const char* op, KernelSpec spec, const cuda::DeviceMemory& memory) : memory_(memory) {
    const Kernel& kernel = kernels.at(op_named(op), spec);
    cost_ = kernel.cost(spec);
    run_ = prepare(kernel, spec);
    const auto take = [&](int64_t bytes) {
      std::byte* const at = memory.data() + taken_;
      taken_ += (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
      return at;
    };
    for (const TensorType& type : spec.inputs) inputs_.push_back(take(type.bytes()));
    for (const TensorType& type : spec.outputs) outputs_.push_back(take(type.bytes()));
    workspace_ = take(workspace_bytes(kernel, spec, 1));
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
      check(cudaEventRecord(events_[1], stream_), "it can't be timed");
      check(cudaStreamSynchronize(stream_), "a kernel failed");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "it can't be timed");
      if (turn == 1 || milliseconds < best) best = milliseconds;  // the first warms up
    }
    return static_cast<double>(best) * 1e-3 / runs;
  }

 private:
  const cuda::DeviceMemory& memory_;
  KernelRun run_;
  Cost cost_;
  int64_t taken_ = 0;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::byte* workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 2> events_{};
};

ComputeRates CudaGpu::measure_compute(bool halves, int64_t bytes) {
  constexpr int64_t kMost = int64_t{256} << 20, kWorkspace = int64_t{48} << 20;  // of cuBLAS, and to spare
  constexpr double kTensorCores = 8;                                             // times as fast, at least
  const cuda::DeviceMemory memory(std::min(kMost, bytes));
  const auto trial = [&](const char* op, std::vector<TensorType> inputs, TensorType output) {
    const std::vector<bool> present(inputs.size(), true);
    const std::vector<const Tensor*> constants(inputs.size());
    return Trial(
        cuda_kernels(), op,
        {.attributes = {}, .inputs = std::move(inputs), .present = present, .outputs = {std::move(output)}, .constants = constants},
        memory);
  };
  const auto product_rate = [&](DType type, int64_t room) {
    int64_t n = 4096;
    while (4 * n * n * size_of(type) > room && n > 128) n /= 2;
    const TensorType square{type, {n, n}};
    Trial product = trial("MatMul", {square, square}, square);
    return product.cost().flops / product.seconds(2);
  };
  const TensorType large{DType::float32, {memory.bytes() / 16}}, small{DType::float32, {32}};
  Trial sweep = trial("Add", {large, large}, large), elements = trial("Gelu", {large}, large), tiny = trial("Add", {small, small}, small);
  const double moved = sweep.cost().bytes / sweep.seconds(2), flops = product_rate(DType::float32, memory.bytes());
  const int64_t room = memory.bytes() - kWorkspace;
  return {.flops = flops,
          .half_flops = !halves                 ? 0
                        : room > kWorkspace / 2 ? product_rate(DType::bfloat16, room)
                                                : kTensorCores * flops,
          .element_flops = elements.cost().flops / elements.seconds(2),
          .bytes_per_second = moved,
          .far_bytes_per_second = moved,
          .launch = tiny.seconds(200)};
}

}  // namespace

std::unique_ptr<Gpu> open_gpu(int number) {
  require_gpu(number);
  return std::make_unique<CudaGpu>(number);
}

}  // namespace ort_train
