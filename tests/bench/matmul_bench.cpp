// The matrix products of a GPT-2 124M training step at 256 tokens: ours against oneDNN's own threads, in turns in the same run.
//
//   bench-matmul_bench [threads] [seconds a shape]
//
// Prints one JSON line a shape (GFLOP/s, best of the run) and one for the whole step; checks each result against oneDNN's. Operands are
// rotated through 160 MB of copies, so that weights come from memory as they do in a step.

#include <omp.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "exec/kernel.h"

namespace ort_train {
namespace {

struct Shape3 {
  const char* name;
  int count;  // in a step
  int64_t rows, columns, depth;
  bool trans_a, trans_b;
};

// 12 layers; dX and dW of each product; the head shares its weight with the embedding, stored (vocabulary, 768).
constexpr Shape3 kShapes[] = {
    {"qkv", 12, 256, 2304, 768, false, false}, {"qkv dX", 12, 256, 768, 2304, false, true},   {"qkv dW", 12, 768, 2304, 256, true, false},
    {"proj", 12, 256, 768, 768, false, false}, {"proj dX", 12, 256, 768, 768, false, true},   {"proj dW", 12, 768, 768, 256, true, false},
    {"fc", 12, 256, 3072, 768, false, false},  {"fc dX", 12, 256, 768, 3072, false, true},    {"fc dW", 12, 768, 3072, 256, true, false},
    {"fc2", 12, 256, 768, 3072, false, false}, {"fc2 dX", 12, 256, 3072, 768, false, true},   {"fc2 dW", 12, 3072, 768, 256, true, false},
    {"head", 1, 256, 50257, 768, false, true}, {"head dX", 1, 256, 768, 50257, false, false}, {"head dW", 1, 50257, 768, 256, true, false},
};

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float[], Free>;
Buffer make_buffer(int64_t n, uint32_t seed) {
  Buffer buffer(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>((n * 4 + 63) / 64 * 64))));
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525 + 1013904223;
    buffer[i] = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return buffer;
}

// Copies of one operand, used in turn.
class Rotation {
 public:
  explicit Rotation(int64_t n) {
    for (int64_t copies = std::max<int64_t>(1, 40'000'000 / n); copies > 0; --copies) buffers_.push_back(make_buffer(n, 1));
  }
  float* next() { return buffers_[at_ = (at_ + 1) % buffers_.size()].get(); }

 private:
  std::vector<Buffer> buffers_;
  size_t at_ = 0;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Result {
  double ours = 1e9, onednn = 1e9, difference = 0;
};

Result measure(const Shape3& s, Workers& workers, double limit) {
  const OpDef& op = op_named("MatMul");
  KernelSpec spec{.attributes = {{"trans_a", int64_t{s.trans_a}}, {"trans_b", int64_t{s.trans_b}}}};
  spec.inputs = {{DType::float32, s.trans_a ? Shape{s.depth, s.rows} : Shape{s.rows, s.depth}},
                 {DType::float32, s.trans_b ? Shape{s.columns, s.depth} : Shape{s.depth, s.columns}}};
  spec.present = {true, true};
  spec.constants = {nullptr, nullptr};
  spec.outputs = {{DType::float32, {s.rows, s.columns}}};
  const Kernel& kernel = cpu_kernels().at(op, spec);
  const KernelRun run = prepare(kernel, spec);
  const Buffer workspace = make_buffer(workspace_bytes(kernel, spec, workers.threads()) / 4 + 16, 0);

  using dnnl::memory;
  omp_set_num_threads(workers.threads());
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto f32 = memory::data_type::f32;
  const memory::desc a_desc({s.rows, s.depth}, f32, s.trans_a ? memory::dims{1, s.rows} : memory::dims{s.depth, 1});
  const memory::desc b_desc({s.depth, s.columns}, f32, s.trans_b ? memory::dims{1, s.depth} : memory::dims{s.columns, 1});
  const memory::desc c_desc({s.rows, s.columns}, f32, memory::dims{s.columns, 1});
  const dnnl::matmul primitive(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, c_desc), engine));
  dnnl::stream stream(engine);

  Rotation a(s.rows * s.depth), b(s.depth * s.columns), c(s.rows * s.columns);
  Result result;
  const double until = seconds() + limit;
  for (int i = 0; i < 3 || seconds() < until; ++i) {
    float* theirs = c.next();
    memory a_memory(a_desc, engine, a.next()), b_memory(b_desc, engine, b.next()), c_memory(c_desc, engine, theirs);
    double start = seconds();
    primitive.execute(stream, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
    stream.wait();
    result.onednn = std::min(result.onednn, seconds() - start);
    const Buffer expected = i == 0 ? make_buffer(s.rows * s.columns, 0) : nullptr;
    if (i == 0) std::copy_n(theirs, s.rows * s.columns, expected.get());

    const void* in[] = {a.next(), b.next()};
    float* ours = c.next();
    void* out[] = {ours};
    start = seconds();
    run({.inputs = in, .outputs = out, .workspace = reinterpret_cast<std::byte*>(workspace.get()), .queue = &workers});
    result.ours = std::min(result.ours, seconds() - start);
    if (i == 0) {
      double error = 0, size = 0;
      for (int64_t x = 0; x < s.rows * s.columns; ++x) {
        error += std::pow(double{ours[x]} - double{expected[x]}, 2);
        size += std::pow(double{expected[x]}, 2);
      }
      result.difference = std::sqrt(error / size);
    }
  }
  return result;
}

int run(int threads, double limit) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Workers workers(threads);
  double flops = 0, ours = 0, onednn = 0;
  bool right = true;
  for (const Shape3& s : kShapes) {
    const Result r = measure(s, workers, limit);
    const double one = 2e-9 * static_cast<double>(s.rows) * static_cast<double>(s.columns) * static_cast<double>(s.depth);
    std::printf(
        "{\"product\": \"%s\", \"rows\": %ld, \"columns\": %ld, \"depth\": %ld, \"threads\": %d, \"gflops\": %.1f, \"onednn_gflops\": "
        "%.1f, "
        "\"ratio\": %.3f, \"difference\": %.1e}\n",
        s.name, s.rows, s.columns, s.depth, threads, one / r.ours, one / r.onednn, r.onednn / r.ours, r.difference);
    std::fflush(stdout);
    right &= r.difference < 1e-6;
    flops += s.count * one;
    ours += s.count * r.ours;
    onednn += s.count * r.onednn;
  }
  std::printf(
      "{\"product\": \"step\", \"gflop\": %.1f, \"threads\": %d, \"gflops\": %.1f, \"onednn_gflops\": %.1f, \"ratio\": %.3f, \"right\": "
      "%s}\n",
      flops, threads, flops / ours, flops / onednn, onednn / ours, right ? "true" : "false");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) { return ort_train::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atof(argv[2]) : 0.5); }
