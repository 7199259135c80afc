#include "tests/gpu/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "exec/cuda/gpu.h"
#include "exec/cuda/kernels.h"
#include "exec/cuda/memory.h"
#include "exec/cuda/trial.h"
#include "graph/error.h"

namespace ort_train {
namespace {

constexpr int kRuns = 10;

struct Size {
  const char* name;
  int64_t width, heads;
};

KernelSpec spec_of(const Attributes& attributes, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
  KernelSpec spec{.attributes = attributes};
  for (const Shape& shape : inputs) spec.inputs.push_back({DType::bfloat16, shape});
  for (const Shape& shape : outputs) spec.outputs.push_back({DType::bfloat16, shape});
  spec.present.assign(inputs.size(), true);
  spec.constants.assign(inputs.size(), nullptr);
  return spec;
}

// Numbers of all kinds, from 2^-7 to 2 in magnitude: products of zeros take less power, so they are faster, and those of NaN tell nothing.
void fill(const cuda::DeviceMemory& memory) {
  static const std::vector<uint16_t> numbers = [] {
    std::vector<uint16_t> made(size_t{1} << 24);
    uint32_t state = 1;
    for (uint16_t& number : made) {
      state = state * 1'664'525u + 1'013'904'223u;
      number = static_cast<uint16_t>(0x3c00u + (state >> 22) + ((state >> 21 & 1u) << 15));
    }
    return made;
  }();
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(uint16_t));
  for (int64_t at = 0; at < memory.bytes(); at += bytes) {
    const auto count = static_cast<size_t>(std::min(bytes, memory.bytes() - at));
    cuda::check(cudaMemcpy(memory.data() + at, numbers.data(), count, cudaMemcpyHostToDevice), "it can't be filled");
  }
}

void print(const Size& size, const std::string& what, const char* op, const KernelSpec& spec, double flops,
           const cuda::DeviceMemory& memory) {
  fill(memory);  // what the one before made lies where this one reads
  const double seconds = cuda::Trial(cuda_kernels(), op, spec, memory).seconds(kRuns);
  fmt::print("{}\n", fmt::format(R"({{"size": "{}", "what": "{}", "ms": {:.4f}, "tflops": {:.1f}}})", size.name, what, seconds * 1e3,
                                 flops / seconds * 1e-12));
}

// Of a layer, in `tokens` rows: what it gives, and the gradients of its input and of its weight.
void products(const Size& size, int64_t tokens, int64_t in, int64_t out, const cuda::DeviceMemory& memory) {
  const double flops = 2 * static_cast<double>(tokens) * static_cast<double>(in * out);
  const Shape x{tokens, in}, w{in, out}, y{tokens, out};
  const auto name = [&](const char* result) { return fmt::format("{} {} x {} x {}", result, tokens, in, out); };
  print(size, name("y"), "MatMul", spec_of({}, {x, w}, {y}), flops, memory);
  print(size, name("dx"), "MatMul", spec_of({{"trans_b", int64_t{1}}}, {y, w}, {x}), flops, memory);
  print(size, name("dw"), "MatMul", spec_of({{"trans_a", int64_t{1}}}, {x, y}, {w}), flops, memory);
}

void attention(const Size& size, int64_t batch, int64_t length, const cuda::DeviceMemory& memory) {
  const int64_t depth = size.width / size.heads;
  const Shape q{batch, size.heads, length, depth}, lse{batch, size.heads, length};
  const Attributes causal{{"scale", 0.125f}, {"causal", int64_t{1}}};
  const double product = static_cast<double>(batch * size.heads * length) * static_cast<double>(length * depth);  // half of the square
  KernelSpec forward = spec_of(causal, {q, q, q}, {q, lse}), backward = spec_of(causal, {q, q, q, q, q, lse}, {q, q, q});
  forward.outputs[1].dtype = backward.inputs[5].dtype = DType::float32;
  const auto name = [&](const char* which) { return fmt::format("{} {} x {} x {} x {}", which, batch, size.heads, length, depth); };
  print(size, name("attention"), "Attention", forward, 2 * product, memory);
  print(size, name("attention_gradient"), "AttentionGrad", backward, 5 * product, memory);
}

void print_all() {
  constexpr int64_t kMemory = int64_t{1} << 30, kBatch = 4, kLength = 512, kTokens = kBatch * kLength;
  const std::unique_ptr<Gpu> gpu = open_gpu(0);
  if (const std::string none = gpu->start_libraries(); !none.empty()) fmt::print(stderr, "{}\n", none);
  const cuda::DeviceMemory memory(kMemory);
  for (const Size& size : {Size{"124M", 768, 12}, Size{"xl", 1600, 25}}) {
    for (const auto& [in, out] :
         {std::pair{size.width, 3 * size.width}, {size.width, size.width}, {size.width, 4 * size.width}, {4 * size.width, size.width}})
      products(size, kTokens, in, out, memory);
    attention(size, kBatch, kLength, memory);
  }
}

}  // namespace

int print_rates() {
  try {
    print_all();
    return 0;
  } catch (const Error& problem) {
    fmt::print(stderr, "{}\n", problem.what());
    return 1;
  }
}

}  // namespace ort_train
