// AdamW's update of one large tensor, with its state in float32 and in 8 bits, against a loop that reads and writes the same memory and
// computes next to nothing; in turns in the same run.
//
//   bench-optimizer_bench [threads] [seconds]
//
// Prints one JSON line for each (parameters and bytes a second, best of the run; `of_memory`: of the rate of the loop over its bytes). The
// result of the first two steps is checked: float32 against the double kernel, 8 bits against float32.

#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "exec/arena.h"
#include "exec/kernel.h"
#include "passes/optimizer.h"

namespace ort_train {
namespace {

// 128 MB a float32 tensor. Not a power of two: tensors that are such a distance apart meet in the same banks of the memory.
constexpr int64_t kElements = 125'003 * 256, kChecked = 1 << 16;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A place in memory that is laid out as a job's is: at multiples of 64 bytes.
struct Place {
  std::byte* data = nullptr;
  TensorType type{};
  template <typename T> T* as() const { return reinterpret_cast<T*>(data); }
};

class Memory {
 public:
  explicit Memory(int64_t bytes) : arena_(bytes) {}
  Place take(DType dtype, int64_t n) {
    const Place place{arena_.data() + used_, {dtype, {n}}};
    used_ += (place.type.bytes() + 63) / 64 * 64;
    require(used_ <= arena_.bytes(), "a benchmark that takes more memory than it has");
    std::memset(place.data, 0, static_cast<size_t>(place.type.bytes()));
    return place;
  }

 private:
  Arena arena_;
  int64_t used_ = 0;
};

Place numbers(Memory& memory, DType dtype, int64_t n, double size, uint32_t seed) {
  const Place place = memory.take(dtype, n);
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525 + 1013904223;
    const auto x = static_cast<float>(size * (static_cast<double>(seed >> 8) * 0x1p-23 - 1));
    if (dtype == DType::float32)
      place.as<float>()[i] = x;
    else
      place.as<double>()[i] = x;
  }
  return place;
}

// One tensor's parameters, gradient and state, and the kernel that updates it.
struct Update {
  Place p, g, m, v;
  Tensor factor = scalar_tensor(1.0f), scalars;
  KernelRun run;
  Workers& workers;
  double bytes = 0;

  Update(Memory& memory, DType dtype, bool quantized, int64_t n, Workers& by)
      : p(numbers(memory, dtype, n, 1, 1)),
        g(numbers(memory, dtype, n, 0.01, 2)),
        m(memory.take(quantized ? DType::dynamic8 : dtype, n)),
        v(memory.take(quantized ? DType::dynamic8_unsigned : dtype, n)),
        workers(by) {
    const std::vector<float> of_step = make_optimizer("adamw").scalars(10, 1e-3);
    scalars = make_tensor<float>({static_cast<int64_t>(of_step.size())}, of_step);
    KernelSpec spec{
        .attributes = {{"weight_decay", 0.01f}}, .inputs = {}, .present = std::vector<bool>(6, true), .outputs = {}, .constants = {}};
    spec.inputs = {p.type, g.type, factor.type(), scalars.type(), m.type, v.type};
    spec.outputs = {p.type, m.type, v.type};
    spec.constants.resize(6);
    const Kernel& kernel = cpu_kernels().at(op_named("AdamW"), spec);
    bytes = kernel.cost(spec).bytes;
    run = prepare(kernel, spec);
  }
  void operator()() {
    const void* const in[] = {p.data, g.data, factor.bytes.data(), scalars.bytes.data(), m.data, v.data};
    void* const out[] = {p.data, m.data, v.data};
    DataError wrong;
    run({.inputs = in, .outputs = out, .workspace = nullptr, .queue = &workers, .error = &wrong});
  }
};

// The mean of how far the first elements are apart.
double distance(const Place& a, const Place& b) {
  double sum = 0;
  for (size_t i = 0; i < kChecked; ++i) {
    const double x = a.as<float>()[i], y = b.type.dtype == DType::float64 ? b.as<double>()[i] : b.as<float>()[i];
    sum += std::abs(x - y);
  }
  return sum / kChecked;
}

void pass_over(const float* __restrict g, float* __restrict p, float* __restrict m, float* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] += g[i], m[i] += g[i], v[i] += g[i];
}

bool measure(Workers& workers, double limit) {
  Memory memory(48 * kElements);
  Update exact(memory, DType::float64, false, kChecked, workers), wide(memory, DType::float32, false, kElements, workers),
      narrow(memory, DType::float32, true, kElements, workers);
  const Place p = memory.take(DType::float32, kElements), m = memory.take(DType::float32, kElements),
              v = memory.take(DType::float32, kElements);
  // The first step's state is exact in neither; the second's parameters show what was lost.
  for (int step = 0; step < 2; ++step) exact(), wide(), narrow();
  const double of_wide = distance(wide.p, exact.p), of_narrow = distance(narrow.p, wide.p);
  const bool wide_right = of_wide<1e-7, narrow_right = of_narrow> 0 && of_narrow < 6e-5;

  double best[3] = {1e9, 1e9, 1e9};
  const auto timed = [&](size_t which, auto&& body) {
    const double start = seconds();
    body();
    best[which] = std::min(best[which], seconds() - start);
  };
  for (const double end = seconds() + limit; seconds() < end;) {
    timed(0, [&] {
      workers.parallel_blocks(kElements, 32768, [&](int64_t begin, int64_t stop) {
        pass_over(wide.g.as<float>() + begin, p.as<float>() + begin, m.as<float>() + begin, v.as<float>() + begin, stop - begin);
      });
    });
    timed(1, wide);
    timed(2, narrow);
  }
  const double rate = wide.bytes / best[0];
  const auto print = [&](const char* name, double bytes, double time, bool correct) {
    std::printf(
        "{\"op\": \"%s\", \"threads\": %d, \"ms\": %.2f, \"gparam_per_s\": %.3f, \"gb_per_s\": %.1f, \"of_memory\": %.3f, \"of_float32\": "
        "%.3f, "
        "\"correct\": %s}\n",
        name, workers.threads(), time * 1e3, 1e-9 * kElements / time, bytes / time * 1e-9, bytes / time / rate, best[1] / time,
        correct ? "true" : "false");
  };
  print("memory", wide.bytes, best[0], true);
  print("AdamW", wide.bytes, best[1], wide_right);
  print("AdamW 8 bits", narrow.bytes, best[2], narrow_right);
  return wide_right && narrow_right;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  using namespace ort_train;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double limit = argc > 2 ? std::atof(argv[2]) : 10;
  tbb::global_control allow(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(std::max(threads, 1)));
  Workers workers(threads);
  return measure(workers, limit) ? 0 : 1;
}
