// SquaredError on CUDA; exec/ops/mean_squared_error.cpp says what it is. A block of elements is a row (exec/cuda/rows.h), summed in double
// in its 32 lanes; one thread adds the blocks' sums in ascending order: the processor's.

#include "exec/ops/mean_squared_error.h"

#include "exec/cuda/ordered_sum.h"
#include "exec/cuda/rows.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct SquaredErrorBlocks {
  static constexpr int kThreads = LongRows::kThreads;
  using Shared = LongRows::Shared<double, double>;
  LongRows rows;
  const T *a, *b;
  double* partial;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> sum;
    rows.sum<T>(
        block,
        [&]<int w>(const Spot& s, Width<w>) {
          const auto of_a = loaded<w>(a + s.at), of_b = loaded<w>(b + s.at);
          Neighbours<double, w> squares;
          for (int k = 0; k < w; ++k) squares.at[k] = squared_difference(of_a.at[k], of_b.at[k]);
          return squares;
        },
        [](double square, double& lane) { lane += square; }, sum);
    rows.lead(block, [&](int t, int64_t row) { partial[row] = sum[t]; });
  }
};

KernelRun make_squared_error(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [n = element_count(spec.inputs[0].shape), blocks = squares_blocks(spec)](const KernelArgs& args) {
      auto* partial = reinterpret_cast<double*>(args.workspace);
      const LongRows rows{.rows = blocks, .n = kSquaresBlock, .elements = n};
      launch(SquaredErrorBlocks<T>{rows, args.in<T>(0), args.in<T>(1), partial}, blocks, args);
      launch(OrderedSum<SumOf<NumberAt, Compute<T>>>{{{partial}, blocks, args.out<Compute<T>>(0)}}, 1, args);
    };
  });
}

}  // namespace

constexpr Kernel kSquaredErrorKernel{
    .types = kFloating,
    .cost = elementwise_cost<3>,
    .workspace = squared_error_workspace,
    .prepare = make_squared_error,
};

ORT_TRAIN_OPS_END
