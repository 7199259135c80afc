#include "frontend/calibrate.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "exec/kernel.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "offload/calibration.h"
#include "passes/plan.h"

namespace ort_train {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of one of many runs, in all about `seconds`: the median of samples. A step runs at what the machine keeps up, not at its best.
template <typename Run> double usual(double seconds, Run run) {
  constexpr double kSample = 1e-3;  // seconds: of short runs, many at once
  const auto time_of = [&](int64_t runs) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < runs; ++i) run();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto begin = Clock::now();
  run();  // warms up
  const auto runs = static_cast<int64_t>(std::max(1.0, kSample / std::max(time_of(1), 1e-9)));
  std::vector<double> samples;
  do {
    samples.push_back(time_of(runs) / static_cast<double>(runs));
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return median(std::move(samples));
}

// One op, by the kernel that a step runs it with.
class OpTrial {
 public:
  OpTrial(CpuDevice& device, const char* op, const std::vector<Shape>& inputs) {
    for (const Shape& shape : inputs) {
      const std::string name = fmt::format("x{}", graph_.inputs.size());
      graph_.inputs.push_back(graph_.add_value({.name = name, .dtype = DType::float32, .shape = shape, .kind = ValueKind::input}));
    }
    graph_.outputs = {Builder(graph_).emit(op, graph_.inputs)};
    program_ = plan({{.name = op, .graph = &graph_, .keep = graph_.inputs}}, {.threads = device.workers().threads()});
    executor_ = std::make_unique<Executor>(program_, std::vector<const Graph*>{&graph_}, device);
    memory_ = device.allocate(SpaceKind::host, program_.memory().bytes);
    executor_->attach(*memory_);
    for (const ValueId input : graph_.inputs) {  // pages that were never written all are the same one, which is in the cache
      const std::span<std::byte> bytes = executor_->input(0, input);
      std::fill_n(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float), 1.0f);
    }
  }

  OpTrial(const OpTrial&) = delete;
  OpTrial& operator=(const OpTrial&) = delete;

  void run() { executor_->run(0); }
  // What it takes at once.
  Cost work() const {
    const Node& node = graph_.node(graph_.value(graph_.outputs[0]).producer);
    return cpu_kernels().find(*node.op)->cost(make_spec(graph_, node));
  }
  double seconds_each(double seconds) {
    return usual(seconds, [&] { run(); });
  }

 private:
  Graph graph_;
  Program program_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Memory> memory_;
};

constexpr int64_t kFloat = sizeof(float);

// Of two matrices of n x n, n as large as `memory` bytes permit.
std::shared_ptr<OpTrial> product_of(CpuDevice& device, int64_t memory) {
  int64_t n = 1024;
  while (n > 64 && 4 * n * n * kFloat > memory) n /= 2;  // a quarter for the workspace
  return std::make_shared<OpTrial>(device, "MatMul", std::vector<Shape>{{n, n}, {n, n}});
}

// Sums over so many bytes.
std::shared_ptr<OpTrial> sums_of(CpuDevice& device, int64_t bytes) {
  const Shape third{bytes / 3 / kFloat};
  return std::make_shared<OpTrial>(device, "Add", std::vector<Shape>{third, third});
}

double product_rate(CpuDevice& device, int64_t memory, double seconds) {
  const auto product = product_of(device, memory);
  return product->work().flops / product->seconds_each(seconds);
}

double element_rate(CpuDevice& device, int64_t n, double seconds) {
  OpTrial gelu(device, "Gelu", {{n}});
  return gelu.work().flops / gelu.seconds_each(seconds);
}

double memory_rate(CpuDevice& device, int64_t bytes, double seconds) {
  const auto sums = sums_of(device, bytes);
  return sums->work().bytes / sums->seconds_each(seconds);
}

constexpr int64_t kNear = int64_t{48} << 20, kFar = int64_t{256} << 20;  // bytes: in caches in part, in none
constexpr int64_t kLeast = 3 << 12;

}  // namespace

void measure_device(CpuDevice& device, int64_t memory, double seconds) {
  const int64_t elements = device.workers().threads() * int64_t{1 << 16};  // in the threads' own caches
  const double most = 0.55 * seconds, little = 0.15 * seconds;
  ComputeRates& rates = device.rates;
  rates = {.flops = product_rate(device, memory, most),
           .element_flops = element_rate(device, std::clamp<int64_t>(memory / 16, 1 << 10, elements), little),
           .bytes_per_second = memory_rate(device, std::clamp(memory, kLeast, kNear), little)};
  rates.far_bytes_per_second = memory > kNear ? memory_rate(device, std::min(memory, kFar), little) : rates.bytes_per_second;
}

std::function<void()> sample_work(CpuDevice& device, int64_t memory) {
  constexpr int kSweeps = 3;  // beside a product of 1,024 rows they take a fifth of the time, about as in a training step
  return [product = product_of(device, memory / 2), sums = sums_of(device, std::clamp(memory / 2, kLeast, kNear))] {
    product->run();
    for (int i = 0; i < kSweeps; ++i) sums->run();
  };
}

}  // namespace ort_train
