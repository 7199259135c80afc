// The matrix products of a GPT-2 124M training step at 256 tokens: ours, in float32 and in bfloat16, against oneDNN's own threads, in turns
// in the same run.
//
//   bench-matmul_bench [threads] [seconds a shape]
//
// Prints one JSON line a shape (GFLOP/s, best of the run) and one for the whole step; checks each result against oneDNN's in float32.
// Operands are rotated through 160 MB of copies, so that weights come from memory as they do in a step.
//
//   bf16      operands and result are bfloat16
//   masters   mixed precision: weights are float32 and are rounded as they are read, their gradients are float32, all else is bfloat16

#include <omp.h>
#include <sys/mman.h>
#include <tbb/global_control.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "exec/kernel.h"
#include "graph/half.h"

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
using Buffer = std::unique_ptr<std::byte, Free>;
Buffer make_buffer(int64_t bytes) {
  constexpr int64_t kPage = int64_t{2} << 20;  // huge, as an arena's are
  const auto whole = static_cast<size_t>((bytes + kPage - 1) / kPage * kPage);
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kPage), whole)));
  madvise(buffer.get(), whole, MADV_HUGEPAGE);
  std::memset(buffer.get(), 0, static_cast<size_t>(bytes));
  return buffer;
}
float* floats(std::byte* at) { return reinterpret_cast<float*>(at); }
bfloat16* halves(std::byte* at) { return reinterpret_cast<bfloat16*>(at); }

// Copies of one operand, used in turn. The numbers are those of bfloat16 in both types.
class Rotation {
 public:
  Rotation(DType type, int64_t n) {
    const int64_t bytes = n * size_of(type);
    for (int64_t copies = std::max<int64_t>(1, 160'000'000 / bytes); copies > 0; --copies) {
      buffers_.push_back(make_buffer(bytes));
      uint32_t seed = 1;
      for (int64_t i = 0; i < n; ++i) {
        seed = seed * 1664525 + 1013904223;
        const bfloat16 x = to_bfloat16(static_cast<float>(seed >> 8) * 0x1p-23f - 1);
        if (type == DType::bfloat16)
          halves(buffers_.back().get())[i] = x;
        else
          floats(buffers_.back().get())[i] = to_float(x);
      }
    }
  }
  std::byte* next() { return buffers_[at_ = (at_ + 1) % buffers_.size()].get(); }

 private:
  std::vector<Buffer> buffers_;
  size_t at_ = 0;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One way to make the product: the best time, and how far its result is from oneDNN's in float32, in the 2-norm.
struct Result {
  double seconds = 1e9, difference = 0;
};

// Our kernel on operands of these types.
class Ours {
 public:
  Ours(const Shape3& s, DType a, DType b, DType to, Workers& workers)
      : to_(to),
        depth_(s.depth),
        n_(s.rows * s.columns),
        workers_(workers),
        a_(a, s.rows * s.depth),
        b_(b, s.depth * s.columns),
        c_(to, n_) {
    const OpDef& op = op_named("MatMul");
    KernelSpec spec{.attributes = {{"trans_a", int64_t{s.trans_a}}, {"trans_b", int64_t{s.trans_b}}, {"to", static_cast<int64_t>(to)}}};
    if (a != b) spec.attributes.set("compute", static_cast<int64_t>(DType::bfloat16));
    spec.inputs = {{a, s.trans_a ? Shape{s.depth, s.rows} : Shape{s.rows, s.depth}},
                   {b, s.trans_b ? Shape{s.columns, s.depth} : Shape{s.depth, s.columns}}};
    spec.present = {true, true};
    spec.constants = {nullptr, nullptr};
    spec.outputs = {{to, {s.rows, s.columns}}};
    const Kernel& kernel = cpu_kernels().at(op, spec);
    run_ = prepare(kernel, spec);
    workspace_ = make_buffer(workspace_bytes(kernel, spec, workers.threads()) + 64);
  }

  void run(const std::vector<float>* expected) {
    const void* in[] = {a_.next(), b_.next()};
    std::byte* const c = c_.next();
    void* out[] = {c};
    const double start = seconds();
    run_({.inputs = in, .outputs = out, .workspace = workspace_.get(), .queue = &workers_});
    result.seconds = std::min(result.seconds, seconds() - start);
    if (!expected) return;
    double error = 0, size = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const double wanted = (*expected)[static_cast<size_t>(i)];
      error += std::pow((to_ == DType::bfloat16 ? to_float(halves(c)[i]) : floats(c)[i]) - wanted, 2);
      size += wanted * wanted;
    }
    result.difference = std::sqrt(error / size);
  }
  // In float32 within what a sum in one chain, as oneDNN's may be, rounds away: sqrt(depth) of 2^-24, and no less than a few.
  bool is_right() const {
    return result.difference < (to_ == DType::bfloat16 ? 0x1p-8 : 0x1p-24 * std::max(16.0, std::sqrt(static_cast<double>(depth_))));
  }

  Result result;

 private:
  const DType to_;
  const int64_t depth_, n_;
  Workers& workers_;
  Rotation a_, b_, c_;
  KernelRun run_;
  Buffer workspace_;
};

// oneDNN's on operands of one type; some processors have no kernels for bfloat16.
class Theirs {
 public:
  using memory = dnnl::memory;
  Theirs(const Shape3& s, DType type, Workers& workers)
      : n_(s.rows * s.columns), a_(type, s.rows * s.depth), b_(type, s.depth * s.columns), c_(type, n_) {
    omp_set_num_threads(workers.threads());
    const auto of = type == DType::bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
    a_desc_ = {{s.rows, s.depth}, of, s.trans_a ? memory::dims{1, s.rows} : memory::dims{s.depth, 1}};
    b_desc_ = {{s.depth, s.columns}, of, s.trans_b ? memory::dims{1, s.depth} : memory::dims{s.columns, 1}};
    c_desc_ = {{s.rows, s.columns}, of, memory::dims{s.columns, 1}};
    try {
      primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc_, b_desc_, c_desc_), engine_));
      there = true;
    } catch (const dnnl::error&) {
    }
  }

  const std::byte* run() {
    if (!there) return nullptr;
    std::byte* const c = c_.next();
    memory a_memory(a_desc_, engine_, a_.next()), b_memory(b_desc_, engine_, b_.next()), c_memory(c_desc_, engine_, c);
    const double start = seconds();
    primitive_.execute(stream_, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
    stream_.wait();
    best = std::min(best, seconds() - start);
    return c;
  }

  bool there = false;
  double best = 1e9;

 private:
  const int64_t n_;
  const dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  memory::desc a_desc_, b_desc_, c_desc_;
  dnnl::matmul primitive_;
  Rotation a_, b_, c_;
};

// In the order of kWays.
constexpr const char* kWays[] = {"gflops", "bf16_gflops", "masters_gflops", "onednn_gflops", "onednn_bf16_gflops"};
struct Measured {
  double seconds[std::size(kWays)] = {1e9, 1e9, 1e9, 1e9, 1e9};
  bool right = true;
};

Measured measure(const Shape3& s, Workers& workers, double limit) {
  const bool is_dw = s.trans_a;  // else the second operand is a weight
  constexpr DType wide = DType::float32, narrow = DType::bfloat16;
  Ours ours[] = {{s, wide, wide, wide, workers},
                 {s, narrow, narrow, narrow, workers},
                 {s, narrow, is_dw ? narrow : wide, is_dw ? wide : narrow, workers}};
  Theirs theirs(s, wide, workers), theirs_narrow(s, narrow, workers);
  std::vector<float> expected(static_cast<size_t>(s.rows * s.columns));
  const double until = seconds() + limit;
  for (int i = 0; i < 3 || seconds() < until; ++i) {
    const auto* const result = reinterpret_cast<const float*>(theirs.run());
    theirs_narrow.run();
    if (i == 0) std::copy_n(result, expected.size(), expected.begin());
    for (Ours& one : ours) one.run(i == 0 ? &expected : nullptr);
  }
  Measured all;
  for (size_t i = 0; i < std::size(ours); ++i) {
    all.seconds[i] = ours[i].result.seconds;
    all.right &= ours[i].is_right();
  }
  all.seconds[3] = theirs.best;
  all.seconds[4] = theirs_narrow.there ? theirs_narrow.best : 0;
  return all;
}

void print(const char* name, const char* sizes, int threads, double flops, const double* seconds, bool right) {
  std::printf("{\"product\": \"%s\", %s\"threads\": %d", name, sizes, threads);
  for (size_t i = 0; i < std::size(kWays); ++i) {
    if (seconds[i] > 0) std::printf(", \"%s\": %.1f", kWays[i], 1e-9 * flops / seconds[i]);
  }
  std::printf(", \"ratio\": %.3f, \"bf16_ratio\": %.3f, \"masters_ratio\": %.3f, \"right\": %s}\n", seconds[3] / seconds[0],
              seconds[0] / seconds[1], seconds[0] / seconds[2], right ? "true" : "false");
  std::fflush(stdout);
}

int run(int threads, double limit) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Workers workers(threads);
  double flops = 0, step[std::size(kWays)] = {};
  bool right = true;
  for (const Shape3& s : kShapes) {
    const Measured m = measure(s, workers, limit);
    const double one = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.columns) * static_cast<double>(s.depth);
    char sizes[100];
    std::snprintf(sizes, sizeof sizes, "\"rows\": %ld, \"columns\": %ld, \"depth\": %ld, ", s.rows, s.columns, s.depth);
    print(s.name, sizes, threads, one, m.seconds, m.right);
    right &= m.right;
    flops += s.count * one;
    for (size_t i = 0; i < std::size(kWays); ++i) step[i] += s.count * m.seconds[i];
  }
  print("step", "", threads, flops, step, right);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  // oneDNN's threads would wait for their next product by spinning, on the processors that ours run on meanwhile. OpenMP reads this when it
  // is loaded.
  if (!std::getenv("OMP_WAIT_POLICY")) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
  }
  return ort_train::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atof(argv[2]) : 0.5);
}
