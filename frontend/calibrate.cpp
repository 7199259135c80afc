#include "frontend/calibrate.h"

#include <algorithm>
#include <chrono>

#include "exec/executor.h"
#include "exec/kernel.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/plan.h"

namespace ort_train {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of the fastest of several runs, in all about `seconds`.
template <typename Run> double fastest(double seconds, Run run) {
  double best = 0;
  const auto begin = Clock::now();
  for (int i = 0; i < 2 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++i) {
    const auto start = Clock::now();
    run();
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    if (i == 1 || (i > 1 && took < best)) best = took;  // the first one warms up
  }
  return best;
}

double product_rate(Workers& workers, int64_t n) {
  Graph graph;
  for (const char* name : {"a", "b"})
    graph.inputs.push_back(graph.add_value({.name = name, .dtype = DType::float32, .shape = {n, n}, .kind = ValueKind::input}));
  graph.outputs = {Builder(graph).emit("MatMul", graph.inputs)};
  const Program program = plan({{.name = "product", .graph = &graph, .keep = {}}}, {.threads = workers.threads()});
  Executor executor(program, {&graph}, workers);
  Arena arena(program.arena_bytes);
  executor.attach(arena);
  const double size = static_cast<double>(n);
  return 2 * size * size * size / fastest(0.06, [&] { executor.run(0); });
}

double element_rate(Workers& workers, int64_t n) {
  Graph graph;
  graph.inputs = {graph.add_value({.name = "x", .dtype = DType::float32, .shape = {n}, .kind = ValueKind::input})};
  const ValueId y = Builder(graph).emit("Gelu", graph.inputs);
  graph.outputs = {y};
  const Program program = plan({{.name = "gelu", .graph = &graph, .keep = {}}}, {.threads = workers.threads()});
  Executor executor(program, {&graph}, workers);
  Arena arena(program.arena_bytes);
  executor.attach(arena);
  const Node& node = graph.node(graph.value(y).producer);
  return node.op->cost(make_spec(graph, node, workers.threads())).flops / fastest(0.03, [&] { executor.run(0); });
}

double memory_rate(Workers& workers, int64_t bytes) {
  const int64_t n = bytes / 3 / static_cast<int64_t>(sizeof(float));
  Arena arena(3 * n * static_cast<int64_t>(sizeof(float)));
  float* a = reinterpret_cast<float*>(arena.data());
  float *b = a + n, *c = b + n;
  const double seconds = fastest(0.04, [&] {
    workers.parallel_blocks(n, 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
    });
  });
  return static_cast<double>(3 * n) * sizeof(float) / seconds;
}

}  // namespace

ComputeRates measure_machine(Workers& workers, int64_t memory) {
  int64_t n = 1024;
  while (n > 64 && 4 * n * n * static_cast<int64_t>(sizeof(float)) > memory) n /= 2;  // a quarter for the workspace
  constexpr int64_t kNear = int64_t{48} << 20, kFar = int64_t{256} << 20;
  constexpr int64_t kElements = int64_t{1} << 20, kLeast = 3 << 12;
  ComputeRates rates{.flops = product_rate(workers, n),
                     .element_flops = element_rate(workers, std::clamp<int64_t>(memory / 16, 1 << 10, kElements)),
                     .bytes_per_second = memory_rate(workers, std::clamp(memory, kLeast, kNear))};
  rates.far_bytes_per_second = memory > kNear ? memory_rate(workers, std::min(memory, kFar)) : rates.bytes_per_second;
  return rates;
}

}  // namespace ort_train
