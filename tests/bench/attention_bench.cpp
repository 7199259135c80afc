// Attention of a GPT-2 124M training step, forward and backward: ours in float32 and in bfloat16, in turns in the same run.
//
//   bench-attention_bench [threads] [seconds a shape]
//
// Prints one JSON line a shape and kind (milliseconds, best of the run); checks the results in bfloat16 against those in float32.

#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "exec/kernel.h"
#include "graph/half.h"

namespace ort_train {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The same numbers, those of bfloat16, in either type.
Tensor numbers(const Shape& shape, DType type, uint32_t seed) {
  Tensor tensor(type, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    seed = seed * 1664525 + 1013904223;
    const bfloat16 x = to_bfloat16(static_cast<float>(seed >> 8) * 0x1p-23f - 1);
    if (type == DType::bfloat16)
      tensor.data<bfloat16>()[static_cast<size_t>(i)] = x;
    else
      tensor.data<float>()[static_cast<size_t>(i)] = to_float(x);
  }
  return tensor;
}

// One of our kernels, its operands, results and workspace.
class Ours {
 public:
  Ours(const char* op, std::vector<Tensor> inputs, const std::vector<TensorType>& outputs, Workers& workers)
      : inputs_(std::move(inputs)), workers_(workers) {
    KernelSpec spec{.attributes = {{"scale", 0.125f}, {"causal", int64_t{1}}}, .outputs = outputs};
    for (const Tensor& input : inputs_) {
      spec.inputs.push_back(input.type());
      spec.present.push_back(true);
      spec.constants.push_back(nullptr);
      in_.push_back(input.bytes.data());
    }
    for (const TensorType& type : outputs) results.emplace_back(type.dtype, type.shape);
    for (Tensor& result : results) out_.push_back(result.bytes.data());
    const Kernel& kernel = cpu_kernels().at(op_named(op), spec);
    run_ = prepare(kernel, spec);
    workspace_.resize(static_cast<size_t>(workspace_bytes(kernel, spec, workers.threads())) + 64);
  }

  void run() {
    auto* const place = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace_.data()) + 63) / 64 * 64);
    const double start = seconds();
    run_({.inputs = in_, .outputs = out_, .workspace = place, .queue = &workers_});
    best = std::min(best, seconds() - start);
  }

  std::vector<Tensor> results;
  double best = 1e9;

 private:
  std::vector<Tensor> inputs_;
  Workers& workers_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  std::vector<std::byte> workspace_;
  KernelRun run_;
};

bool near(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_double(), y = b.to_double();
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(error) <= 0x1p-6 * std::sqrt(size);
}

bool compare(const char* kind, int64_t length, Ours& wide, Ours& narrow, double limit, int threads) {
  const double until = seconds() + limit;
  for (int i = 0; i < 3 || seconds() < until; ++i) {
    wide.run();
    narrow.run();
  }
  bool right = true;
  for (size_t i = 0; i < wide.results.size(); ++i) right &= near(narrow.results[i], wide.results[i]);
  std::printf(
      "{\"kind\": \"%s\", \"heads\": 12, \"length\": %ld, \"width\": 64, \"threads\": %d, \"ms\": %.3f, \"bf16_ms\": %.3f, \"bf16_ratio\": "
      "%.3f, \"right\": %s}\n",
      kind, length, threads, 1e3 * wide.best, 1e3 * narrow.best, wide.best / narrow.best, right ? "true" : "false");
  std::fflush(stdout);
  return right;
}

int run(int threads, double limit) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Workers workers(threads);
  bool right = true;
  for (const int64_t length : {256, 1024}) {
    const Shape shape{1, 12, length, 64}, rows{1, 12, length};
    const auto forward = [&](DType type) {
      return Ours("Attention", {numbers(shape, type, 1), numbers(shape, type, 2), numbers(shape, type, 3)},
                  {{type, shape}, {DType::float32, rows}}, workers);
    };
    Ours wide = forward(DType::float32), narrow = forward(DType::bfloat16);
    right &= compare("forward", length, wide, narrow, limit, threads);
    const auto backward = [&](DType type, const Ours& from) {
      return Ours("AttentionGrad",
                  {numbers(shape, type, 4), numbers(shape, type, 1), numbers(shape, type, 2), numbers(shape, type, 3), from.results[0],
                   from.results[1]},
                  std::vector<TensorType>(3, {type, shape}), workers);
    };
    Ours wide_gradient = backward(DType::float32, wide), narrow_gradient = backward(DType::bfloat16, narrow);
    right &= compare("backward", length, wide_gradient, narrow_gradient, limit, threads);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) { return ort_train::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atof(argv[2]) : 0.5); }
