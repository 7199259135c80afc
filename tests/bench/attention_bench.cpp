// Attention forward and backward, causal, heads of 64: ours in float32 and in bfloat16, in turns in the same run, beside the rate of large
// float32 products. First of a GPT-2 124M training step, then long sequences, some whose keys and values serve groups of heads.
//
//   bench-attention_bench [threads] [seconds a shape] [longest sequence]
//
// Prints one JSON line a shape and kind (milliseconds, best of the run; "of_products": the rate of its products, of which causal attention
// has half, as a share of that of large ones). Checks some rows of the results in float32 against plain sums in double, and the results in
// bfloat16 against those in float32.

#include <sys/mman.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
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

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Free>;
Buffer make_buffer(size_t bytes) {
  constexpr size_t kPage = size_t{2} << 20;  // huge, as an arena's are
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kPage, whole)));
  madvise(buffer.get(), whole, MADV_HUGEPAGE);
  std::memset(buffer.get(), 0, whole);
  return buffer;
}

// One of our kernels, its operands, results and workspace, which lie as they do in an arena.
class Ours {
 public:
  Ours(const char* op, const Attributes& attributes, std::vector<Tensor> operands, const std::vector<TensorType>& outputs, Workers& workers)
      : inputs(std::move(operands)), workers_(workers) {
    KernelSpec spec{.attributes = attributes, .outputs = outputs};
    size_t bytes = 0;
    const auto take = [&](size_t more) { return std::exchange(bytes, bytes + (more + 63) / 64 * 64); };
    std::vector<size_t> in, out;
    for (const Tensor& input : inputs) {
      spec.inputs.push_back(input.type());
      spec.present.push_back(true);
      spec.constants.push_back(nullptr);
      in.push_back(take(input.bytes.size()));
    }
    for (const TensorType& type : outputs) out.push_back(take(results_.emplace_back(type.dtype, type.shape).bytes.size()));
    const Kernel& kernel = cpu_kernels().at(op_named(op), spec);
    run_ = prepare(kernel, spec);
    workspace = workspace_bytes(kernel, spec, workers.threads());
    const size_t workspace_at = take(static_cast<size_t>(workspace));
    memory_ = make_buffer(bytes);
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::memcpy(memory_.get() + in[i], inputs[i].bytes.data(), inputs[i].bytes.size());
      in_.push_back(memory_.get() + in[i]);
    }
    for (const size_t at : out) out_.push_back(memory_.get() + at);
    workspace_ = memory_.get() + workspace_at;
  }

  void run() {
    const double start = seconds();
    run_({.inputs = in_, .outputs = out_, .workspace = workspace_, .queue = &workers_});
    best = std::min(best, seconds() - start);
  }
  const std::vector<Tensor>& results() {
    for (size_t i = 0; i < results_.size(); ++i) std::memcpy(results_[i].bytes.data(), out_[i], results_[i].bytes.size());
    return results_;
  }

  std::vector<Tensor> inputs;
  int64_t workspace = 0;  // bytes
  double best = 1e9;

 private:
  Workers& workers_;
  std::vector<Tensor> results_;
  Buffer memory_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  std::byte* workspace_ = nullptr;
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

// --- what is right --------------------------------------------------------------------------------------------------------------------

constexpr float kScale = 0.125f;
constexpr int64_t kWidth = 64;

struct Shapes {
  int64_t heads, key_heads, length;

  Shape queries() const { return {1, heads, length, kWidth}; }
  Shape keys() const { return {1, key_heads, length, kWidth}; }
  int64_t group() const { return heads / key_heads; }
  double flops(int products) const { return 2.0 * products * static_cast<double>(heads * length * length / 2 * kWidth); }
};

const float* row_of(const Tensor& tensor, int64_t head, int64_t row) {
  return tensor.data<float>().data() + (head * tensor.shape[2] + row) * kWidth;
}
double dot(const float* a, const float* b) {
  double sum = 0;
  for (int64_t e = 0; e < kWidth; ++e) sum += double{a[e]} * double{b[e]};
  return sum;
}
void add(double factor, const float* x, std::vector<double>& to) {
  for (int64_t e = 0; e < kWidth; ++e) to[static_cast<size_t>(e)] += factor * double{x[e]};
}
bool near(const float* row, const std::vector<double>& right) {
  double error = 0, size = 0;
  for (int64_t e = 0; e < kWidth; ++e) {
    error += std::pow(double{row[e]} - right[static_cast<size_t>(e)], 2);
    size += std::pow(right[static_cast<size_t>(e)], 2);
  }
  return std::sqrt(error) <= 1e-5 * std::sqrt(size);
}
// Rows that are looked at: at the beginning, the end, and between.
std::vector<int64_t> some_rows(int64_t length) { return {0, 1, length / 3, length / 2 + 127, length - 1}; }

bool is_right(const Shapes& shapes, Ours& forward) {
  const Tensor &q = forward.inputs[0], &k = forward.inputs[1], &v = forward.inputs[2];
  const Tensor& results = forward.results()[0];
  bool right = true;
  for (const int64_t head : {int64_t{0}, shapes.heads - 1})
    for (const int64_t row : some_rows(shapes.length)) {
      std::vector<double> o(kWidth);
      double all = 0;
      for (int64_t j = 0; j <= row; ++j) {
        const double weight = std::exp(kScale * dot(row_of(q, head, row), row_of(k, head / shapes.group(), j)));
        add(weight, row_of(v, head / shapes.group(), j), o);
        all += weight;
      }
      for (double& x : o) x /= all;
      right &= near(row_of(results, head, row), o);
    }
  return right;
}

bool is_right_gradient(const Shapes& shapes, Ours& backward) {
  const Tensor &dy = backward.inputs[0], &q = backward.inputs[1], &k = backward.inputs[2], &v = backward.inputs[3], &o = backward.inputs[4];
  const auto weight_and_slope = [&](int64_t head, int64_t row, int64_t key) {
    const int64_t of = head / shapes.group();
    const double lse = double{backward.inputs[5].data<float>()[static_cast<size_t>(head * shapes.length + row)]};
    const double weight = std::exp(kScale * dot(row_of(q, head, row), row_of(k, of, key)) - lse);
    const double slope = dot(row_of(dy, head, row), row_of(v, of, key)) - dot(row_of(dy, head, row), row_of(o, head, row));
    return std::pair(weight, kScale * weight * slope);
  };
  const std::vector<Tensor>& results = backward.results();
  bool right = true;
  for (const int64_t row : some_rows(shapes.length)) {
    if (row == 0) continue;  // it sees one key: no gradient but errors
    const int64_t head = shapes.heads - 1;
    std::vector<double> dq(kWidth);
    for (int64_t j = 0; j <= row; ++j) add(weight_and_slope(head, row, j).second, row_of(k, head / shapes.group(), j), dq);
    right &= near(row_of(results[0], head, row), dq);
  }
  for (const int64_t key : some_rows(shapes.length)) {
    const int64_t of = shapes.key_heads - 1;
    std::vector<double> dk(kWidth), dv(kWidth);
    for (int64_t head = of * shapes.group(); head < (of + 1) * shapes.group(); ++head)
      for (int64_t i = key; i < shapes.length; ++i) {
        const auto [weight, slope] = weight_and_slope(head, i, key);
        add(weight, row_of(dy, head, i), dv);
        add(slope, row_of(q, head, i), dk);
      }
    right &= near(row_of(results[1], of, key), dk) && near(row_of(results[2], of, key), dv);
  }
  return right;
}

// --- turns ----------------------------------------------------------------------------------------------------------------------------

struct Turn {
  const char* kind;
  int products;
  Ours &wide, &narrow, &product;
  bool (*check)(const Shapes&, Ours&);
};

constexpr int64_t kRows = 1024, kColumns = 1536, kDepth = 768;  // of the large product

bool compare(const Shapes& shapes, const Turn& turn, double limit, int threads) {
  const double until = seconds() + limit;
  for (int i = 0; i < 3 || seconds() < until; ++i) {
    turn.product.run();
    turn.wide.run();
    turn.narrow.run();
  }
  bool right = turn.check(shapes, turn.wide);
  for (size_t i = 0; i < turn.wide.results().size(); ++i) right &= near(turn.narrow.results()[i], turn.wide.results()[i]);
  const double rate = shapes.flops(turn.products) / turn.wide.best;
  const double products = 2.0 * kRows * kColumns * kDepth / turn.product.best;
  std::printf(
      "{\"kind\": \"%s\", \"heads\": %ld, \"key_heads\": %ld, \"length\": %ld, \"width\": %ld, \"threads\": %d, \"ms\": %.3f, \"gflops\": "
      "%.1f, \"product_gflops\": %.1f, \"of_products\": %.3f, \"bf16_ms\": %.3f, \"bf16_ratio\": %.3f, \"workspace_mb\": %.2f, "
      "\"bf16_workspace_mb\": %.2f, \"right\": %s}\n",
      turn.kind, shapes.heads, shapes.key_heads, shapes.length, kWidth, threads, 1e3 * turn.wide.best, rate * 1e-9, products * 1e-9,
      rate / products, 1e3 * turn.narrow.best, turn.wide.best / turn.narrow.best, static_cast<double>(turn.wide.workspace) * 1e-6,
      static_cast<double>(turn.narrow.workspace) * 1e-6, right ? "true" : "false");
  std::fflush(stdout);
  return right;
}

int run(int threads, double limit, int64_t longest) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Workers workers(threads);
  const Attributes attributes{{"scale", kScale}, {"causal", int64_t{1}}};
  Ours product("MatMul", {}, {numbers({kRows, kDepth}, DType::float32, 5), numbers({kDepth, kColumns}, DType::float32, 6)},
               {{DType::float32, {kRows, kColumns}}}, workers);
  bool right = true;
  for (const Shapes& shapes : {Shapes{12, 12, 256}, Shapes{12, 12, 1024}, Shapes{8, 8, 2048}, Shapes{8, 2, 2048}, Shapes{4, 4, 4096},
                               Shapes{2, 2, 8192}, Shapes{4, 1, 8192}, Shapes{1, 1, 16384}}) {
    if (shapes.length > longest) continue;
    const auto forward = [&](DType type) {
      return Ours("Attention", attributes,
                  {numbers(shapes.queries(), type, 1), numbers(shapes.keys(), type, 2), numbers(shapes.keys(), type, 3)},
                  {{type, shapes.queries()}, {DType::float32, {1, shapes.heads, shapes.length}}}, workers);
    };
    Ours wide = forward(DType::float32), narrow = forward(DType::bfloat16);
    right &= compare(shapes, {"forward", 2, wide, narrow, product, is_right}, limit, threads);
    const auto backward = [&](DType type, Ours& from) {
      return Ours(
          "AttentionGrad", attributes,
          {numbers(shapes.queries(), type, 4), from.inputs[0], from.inputs[1], from.inputs[2], from.results()[0], from.results()[1]},
          {{type, shapes.queries()}, {type, shapes.keys()}, {type, shapes.keys()}}, workers);
    };
    Ours wide_gradient = backward(DType::float32, wide), narrow_gradient = backward(DType::bfloat16, narrow);
    right &= compare(shapes, {"backward", 5, wide_gradient, narrow_gradient, product, is_right_gradient}, limit, threads);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  return ort_train::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atof(argv[2]) : 0.5, argc > 3 ? std::atoll(argv[3]) : 16384);
}
