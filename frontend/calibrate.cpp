#include "frontend/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
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

class Product {
 public:
  // Of two matrices of n x n, n as large as `memory` bytes permit.
  Product(CpuDevice& device, int64_t memory) {
    while (n_ > 64 && 4 * n_ * n_ * static_cast<int64_t>(sizeof(float)) > memory) n_ /= 2;  // a quarter for the workspace
    for (const char* name : {"a", "b"})
      graph_.inputs.push_back(graph_.add_value({.name = name, .dtype = DType::float32, .shape = {n_, n_}, .kind = ValueKind::input}));
    graph_.outputs = {Builder(graph_).emit("MatMul", graph_.inputs)};
    program_ = plan({{.name = "product", .graph = &graph_, .keep = {}}}, {.threads = device.workers().threads()});
    executor_ = std::make_unique<Executor>(program_, std::vector<const Graph*>{&graph_}, device);
    memory_ = device.allocate(SpaceKind::host, program_.memory().bytes);
    executor_->attach(*memory_);
  }

  void run() { executor_->run(0); }
  double flops() const { return 2 * std::pow(static_cast<double>(n_), 3); }

 private:
  int64_t n_ = 1024;
  Graph graph_;
  Program program_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Memory> memory_;
};

double product_rate(CpuDevice& device, int64_t memory, double seconds) {
  Product product(device, memory);
  return product.flops() / usual(seconds, [&] { product.run(); });
}

double element_rate(CpuDevice& device, int64_t n, double seconds) {
  const int threads = device.workers().threads();
  Graph graph;
  graph.inputs = {graph.add_value({.name = "x", .dtype = DType::float32, .shape = {n}, .kind = ValueKind::input})};
  const ValueId y = Builder(graph).emit("Gelu", graph.inputs);
  graph.outputs = {y};
  const Program program = plan({{.name = "gelu", .graph = &graph, .keep = {}}}, {.threads = threads});
  Executor executor(program, {&graph}, device);
  const std::unique_ptr<Memory> memory = device.allocate(SpaceKind::host, program.memory().bytes);
  executor.attach(*memory);
  const Node& node = graph.node(graph.value(y).producer);
  return cpu_kernels().find(*node.op)->cost(make_spec(graph, node)).flops / usual(seconds, [&] { executor.run(0); });
}

// c = a + b over so many bytes.
class Sweep {
 public:
  Sweep(Workers& workers, int64_t bytes)
      : workers_(workers), n_(bytes / 3 / static_cast<int64_t>(sizeof(float))), arena_(3 * n_ * static_cast<int64_t>(sizeof(float))) {}

  void run() {
    const float* const a = reinterpret_cast<const float*>(arena_.data());
    const float* const b = a + n_;
    float* const c = reinterpret_cast<float*>(arena_.data()) + 2 * n_;
    workers_.parallel_blocks(n_, 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
    });
  }
  double bytes() const { return static_cast<double>(arena_.bytes()); }

 private:
  Workers& workers_;
  const int64_t n_;
  const Arena arena_;
};

double memory_rate(Workers& workers, int64_t bytes, double seconds) {
  Sweep sweep(workers, bytes);
  return sweep.bytes() / usual(seconds, [&] { sweep.run(); });
}

constexpr int64_t kNear = int64_t{48} << 20, kFar = int64_t{256} << 20;  // bytes: in caches in part, in none
constexpr int64_t kLeast = 3 << 12;

}  // namespace

void measure_device(CpuDevice& device, int64_t memory, double seconds) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const double most = 0.55 * seconds, little = 0.15 * seconds;
  ComputeRates& rates = device.rates;
  rates = {.flops = product_rate(device, memory, most),
           .element_flops = element_rate(device, std::clamp<int64_t>(memory / 16, 1 << 10, kElements), little),
           .bytes_per_second = memory_rate(device.workers(), std::clamp(memory, kLeast, kNear), little)};
  rates.far_bytes_per_second = memory > kNear ? memory_rate(device.workers(), std::min(memory, kFar), little) : rates.bytes_per_second;
}

std::function<void()> sample_work(CpuDevice& device, int64_t memory) {
  constexpr int kSweeps = 3;  // beside a product of 1,024 rows they take a fifth of the time, about as in a training step
  return [product = std::make_shared<Product>(device, memory / 2),
          sweep = std::make_shared<Sweep>(device.workers(), std::clamp(memory / 2, kLeast, kNear))] {
    product->run();
    for (int i = 0; i < kSweeps; ++i) sweep->run();
  };
}

}  // namespace ort_train
