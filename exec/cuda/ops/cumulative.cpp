// CumSum, CumProd and CumProdGrad. Their meaning: exec/ops/generate.cpp, exec/ops/cumprod.cpp.
//
// A thread takes a line from its first element to its last, as the processor does: sums and products of floats in double have its bits. It
// has the next elements loaded before it adds the first of them. Where lines are rows, which neighbouring threads would read far apart, 32
// of them go through shared memory, some columns at a time.

#include "exec/ops/cumulative.h"

#include "exec/block.h"
#include "exec/op_list.h"
#include "exec/scatter.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using Cumulable = Types<float, double, float16, bfloat16, int64_t, int32_t>;
template <typename T> using Running = CumulatedIn<Compute<T>>;

struct SumOfLine : AddTo {
  static constexpr int kStart = 0;
};
struct ProductOfLine : MultiplyBy {
  static constexpr int kStart = 1;
};

// The element with the next one taken in.
template <typename Op, typename T> HOST_DEVICE inline T cumulated(Running<T>& running, T x, bool exclusive) {
  const Running<T> before = running;
  running = Op::combine(before, static_cast<Running<T>>(load(x)));
  return store<T>(static_cast<Compute<T>>(exclusive ? before : running));
}

template <typename Op, typename T> struct CumulatedLines {
  static constexpr int kThreads = 64, kAhead = 8;
  using Shared = NoShared;
  AxisLines lines;
  const T* x;
  T* y;
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t line = block.index * kThreads + t;
      if (line >= lines.count()) return;
      const int64_t base = lines.base(line), step = lines.step();
      Running<T> running = Op::kStart;
      for (int64_t from = 0; from < lines.length; from += kAhead) {
        T next[kAhead];
        for (int k = 0; k < kAhead; ++k) next[k] = from + k < lines.length ? x[base + (from + k) * step] : T{};
        for (int k = 0; k < kAhead; ++k) {
          if (from + k < lines.length) y[base + (from + k) * step] = cumulated<Op>(running, next[k], lines.exclusive);
        }
      }
    });
  }
};

template <typename Op, typename T> struct CumulatedRows {
  static constexpr int kThreads = 256, kRows = 32, kColumns = 64;
  struct Shared {
    T tile[kRows][kColumns + 1];
  };
  AxisLines lines;
  const T* x;
  T* y;

  // f(element of the tile, its place) for those of a thread's elements that are in the tensor; column k is the k-th that is taken in.
  template <class Block, typename F> HOST_DEVICE void each_of_tile(Block& block, int64_t from, F&& f) const {
    block.each([&](int t) {
      for (int i = t; i < kRows * kColumns; i += kThreads) {
        const int r = i / kColumns, k = i % kColumns;
        const int64_t row = block.index * kRows + r;
        if (row < lines.outer && from + k < lines.length) f(block.shared.tile[r][k], lines.base(row) + (from + k) * lines.step());
      }
    });
  }
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<Running<T>> running;
    block.each([&](int t) { running[t] = Op::kStart; });
    for (int64_t from = 0; from < lines.length; from += kColumns) {
      each_of_tile(block, from, [&](T& element, int64_t at) { element = x[at]; });
      block.each([&](int t) {
        if (t >= kRows || block.index * kRows + t >= lines.outer) return;
        const int64_t count = lines.length - from < kColumns ? lines.length - from : kColumns;
        for (int k = 0; k < count; ++k) block.shared.tile[t][k] = cumulated<Op>(running[t], block.shared.tile[t][k], lines.exclusive);
      });
      each_of_tile(block, from, [&](T& element, int64_t at) { y[at] = element; });
    }
  }
};

template <typename Op> KernelRun prepare(const KernelSpec& spec) {
  return for_type(Cumulable{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [lines = AxisLines(spec)](const KernelArgs& args) {
      using Rows = CumulatedRows<Op, T>;
      using Lines = CumulatedLines<Op, T>;
      if (lines.inner == 1)
        launch(Rows{lines, args.in<T>(0), args.out<T>(0)}, (lines.outer + Rows::kRows - 1) / Rows::kRows, args);
      else
        launch(Lines{lines, args.in<T>(0), args.out<T>(0)}, (lines.count() + Lines::kThreads - 1) / Lines::kThreads, args);
    };
  });
}

// S_i of exec/ops/cumprod.cpp from the last element to the first; then, from the first on, times before_i.
template <typename T> struct ProductGradientLines {
  static constexpr int kThreads = 64;
  using Shared = NoShared;
  AxisLines lines;
  const T *dy, *x;
  T* dx;
  double* sums;  // S_i

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t line = block.index * kThreads + t, n = lines.length;
      if (line >= lines.count()) return;
      const int64_t base = lines.base(line), step = lines.step();
      double sum = 0;
      for (int64_t i = n - 1; i >= 0; --i) {
        const int64_t from = lines.exclusive ? i + 1 : i;
        const double next = i + 1 < n ? static_cast<double>(load(x[base + (i + 1) * step])) : 0;
        sum = (from < n ? static_cast<double>(load(dy[base + from * step])) : 0) + next * sum;
        sums[base + i * step] = sum;
      }
      double before = 1;
      for (int64_t i = 0; i < n; ++i) {
        dx[base + i * step] = store<T>(static_cast<Compute<T>>(sums[base + i * step] * before));
        before *= static_cast<double>(load(x[base + i * step]));
      }
    });
  }
};

Workspace gradient_workspace(const KernelSpec& spec) {
  return {.shared = element_count(spec.outputs[0].shape) * static_cast<int64_t>(sizeof(double))};
}

KernelRun prepare_gradient(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [lines = AxisLines(spec)](const KernelArgs& args) {
      using Lines = ProductGradientLines<T>;
      launch(Lines{lines, args.in<T>(0), args.in<T>(1), args.out<T>(0), reinterpret_cast<double*>(args.workspace)},
             (lines.count() + Lines::kThreads - 1) / Lines::kThreads, args);
    };
  });
}

}  // namespace

constexpr Kernel kCumSumKernel{
    .types = kNumbers,
    .in_place = {{.output = 0, .input = 0}},
    .cost = comparison_cost,
    .prepare = prepare<SumOfLine>,
};
constexpr Kernel kCumProdKernel{
    .types = kNumbers,
    .in_place = {{.output = 0, .input = 0}},
    .cost = comparison_cost,
    .prepare = prepare<ProductOfLine>,
};
constexpr Kernel kCumProdGradKernel{
    .types = kFloating,
    .cost = comparison_cost,
    .workspace = gradient_workspace,
    .prepare = prepare_gradient,
};

ORT_TRAIN_OPS_END
