#include "exec/cuda/gpu.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/device.h"
#include "exec/cuda/kernels.h"
#include "exec/cuda/memory.h"
#include "exec/cuda/status.h"
#include "exec/cuda/tensor_product.h"
#include "exec/cuda/trial.h"
#include "exec/pages.h"
#include "exec/program.h"
#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

using cuda::check;
using cuda::Trial;

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
    processes_ = find<int(void*, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3");
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
  // By this process; -1 where the driver lists none of its number. In a container it may list another of that number, or none.
  int64_t used_by_this() const {
    if (info_ == nullptr || processes_ == nullptr) return -1;
    constexpr int kTooFew = 7;  // NVML_ERROR_INSUFFICIENT_SIZE
    std::vector<Process> listed(64);
    auto count = static_cast<unsigned>(listed.size());
    int status = processes_(handle_, &count, listed.data());
    for (; status == kTooFew && count < 65'536; status = processes_(handle_, &count, listed.data())) listed.resize(count += 64);
    if (status != 0) return -1;
    listed.resize(std::min<size_t>(count, listed.size()));
    const auto found =
        std::find_if(listed.begin(), listed.end(), [](const Process& one) { return one.pid == static_cast<unsigned>(getpid()); });
    constexpr unsigned long long kUnknown = ~0ull;
    return found == listed.end() || found->bytes == kUnknown ? -1 : static_cast<int64_t>(found->bytes);
  }

 private:
  struct Memory {
    unsigned long long total, free, used;
  };  // nvmlMemory_t
  struct Process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute_instance;
  };  // nvmlProcessInfo_t
  template <typename Function> Function* find(const char* name) const { return reinterpret_cast<Function*>(dlsym(library_, name)); }

  void* library_ = nullptr;
  void* handle_ = nullptr;
  int (*info_)(void*, Memory*) = nullptr;
  int (*processes_)(void*, unsigned*, Process*) = nullptr;
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

// Whether somebody in the process uses the GPU already, whose context it then is.
bool has_context(int number) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 12000, cudaEnableDefault, &result) != cudaSuccess)
    (void)cudaGetLastError();
  if (found == nullptr) return true;
  unsigned flags = 0;
  int is_active = 0;
  return reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(found)(number, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

double rate_of(Trial product) { return product.cost().flops / product.seconds(2); }

// Of a product of squares, which fit into the memory with cuBLAS's workspace.
double half_rate(const TensorType& square, const cuda::DeviceMemory& memory) {
  const int64_t n = square.shape[0];
  AlgorithmTable algorithms;  // of its own: by which a run makes its products is decided later
  const auto product = cuda::prepare_product(
      {.rows = n, .columns = n, .depth = n, .a_pitch = n, .b_pitch = n, .d_pitch = n, .result = square.dtype}, algorithms);
  const auto run = [&](const KernelArgs& args) {
    product->run(args.inputs[0], args.inputs[1], nullptr, nullptr, args.outputs[0], args.workspace, args.queue);
  };
  const double flops = 2 * static_cast<double>(n * n) * static_cast<double>(n);
  return rate_of(Trial(run, {.flops = flops}, {square, square}, {square}, cuda::library_limits().product_workspace, memory));
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
    const int64_t own_before = std::max<int64_t>(nvml_.used_by_this(), 0);
    held_before_ = cuda::DeviceMemory::held(number);
    const bool is_new = !has_context(number);
    use();
    if (is_new) {  // what no kernel of ours uses: a heap and a buffer for printing
      for (const auto& [limit, bytes] : {std::pair(cudaLimitMallocHeapSize, size_t{0}), {cudaLimitPrintfFifoSize, size_t{4096}}}) {
        if (cudaDeviceSetLimit(limit, bytes) != cudaSuccess) (void)cudaGetLastError();
      }
    }
    check(cudaFree(nullptr), "no context can be made");
    load_kernels();
    first_free_ = free_bytes();
    // Whether it is this process that the driver lists: it has taken about as much as all have.
    constexpr int64_t kLeastContext = int64_t{32} << 20;
    const int64_t own = nvml_.used_by_this() - own_before;
    if (own >= kLeastContext && own <= used_bytes() + kLeastContext) own_before_ = own_before;
    taken_ = used_bytes();
  }

  int64_t taken_bytes() const override { return std::max(taken_, used_bytes()); }
  int64_t used_bytes() const override {
    const int64_t others = cuda::DeviceMemory::held(facts_.number) - held_before_ - *memory_of_devices_;  // more, or less, since then
    return std::max<int64_t>(grown_bytes() - others, 0);
  }
  int64_t free_bytes() const override {
    use();
    size_t left = 0, all = 0;
    check(cudaMemGetInfo(&left, &all), "it can't be asked for its memory");
    return static_cast<int64_t>(left);
  }
  LinkRates measure_link(int64_t bytes) override;
  ComputeRates measure_compute(bool halves, int64_t bytes) override;
  std::string start_libraries() override {
    use();
    const std::string lacking = cuda::start_cudnn();
    // cuBLAS is loaded by a first product, here a small one, whatever the budget.
    const cuda::DeviceMemory memory(cuda::library_limits().product_workspace + kDevicePage);
    (void)half_rate({DType::bfloat16, {512, 512}}, memory);
    return lacking;
  }
  std::string makes_products() const override {
    return fmt::format("{} with {} SMs, {}, {}", facts_.name, facts_.processors, cuda::tensor_library(), cuda::cudnn_library());
  }
  AlgorithmTable& algorithms() const override { return cuda::algorithms_of(facts_.number); }
  const KernelTable& kernels() const override { return cuda_kernels(); }
  std::unique_ptr<Device> device(const Program& program, int threads) override {
    return std::make_unique<cuda::CudaDevice>(program, *this, threads);
  }

 private:
  void use() const { check(cudaSetDevice(facts_.number), "it can't be used"); }  // from this thread
  // What the GPU has in use more than before this was made: of the process, or of all where the driver doesn't tell them apart.
  int64_t grown_bytes() const {
    if (const int64_t own = own_before_ >= 0 ? nvml_.used_by_this() : -1; own >= 0) return own - own_before_;
    const int64_t now = nvml_.used();
    if (now >= 0 && before_ >= 0) return now - before_;
    constexpr int64_t kContext = int64_t{600} << 20;  // about what one takes, which can't be asked without NVML
    return kContext + first_free_ - free_bytes();
  }
  // Kernels are loaded when they are first asked for, which takes memory: all of them now.
  void load_kernels() const {
    for (const void* kernel : block_kernels()) {
      cudaFuncAttributes attributes{};
      const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
      if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction)
        throw error(ErrorCode::device,
                    "this build of ort-train has no kernels for {} (compute capability {}.{}): build it with CMAKE_CUDA_ARCHITECTURES={}{}",
                    facts_.name, facts_.major, facts_.minor, facts_.major, facts_.minor);
      check(status, "a kernel can't be loaded");
    }
  }

  Nvml nvml_;
  int64_t before_ = -1;      // in use by all processes before the context was made; -1: the driver doesn't tell
  int64_t own_before_ = -1;  // by this one; -1: the driver doesn't tell processes apart
  int64_t held_before_ = 0;  // in DeviceMemory
  int64_t first_free_ = 0;   // once the context was there
  int64_t taken_ = 0;
};

// Of 64 MiB each way, or what there is, the best of a few.
Gpu::LinkRates CudaGpu::measure_link(int64_t bytes) {
  use();
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

ComputeRates CudaGpu::measure_compute(bool halves, int64_t bytes) {
  use();
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
  const auto square_in = [](DType type, int64_t room) {
    int64_t n = 4096;
    while (4 * n * n * size_of(type) > room && n > 128) n /= 2;
    return TensorType{type, {n, n}};
  };
  const TensorType large{DType::float32, {memory.bytes() / 16}}, small{DType::float32, {32}};
  Trial sweep = trial("Add", {large, large}, large), elements = trial("Gelu", {large}, large), tiny = trial("Add", {small, small}, small);
  const TensorType square = square_in(DType::float32, memory.bytes());
  const double moved = sweep.cost().bytes / sweep.seconds(2), flops = rate_of(trial("MatMul", {square, square}, square));
  const int64_t room = memory.bytes() - kWorkspace;
  return {.flops = flops,
          .half_flops = !halves                 ? 0
                        : room > kWorkspace / 2 ? half_rate(square_in(DType::bfloat16, room), memory)
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
const KernelTable& gpu_kernels() { return cuda_kernels(); }

}  // namespace ort_train
