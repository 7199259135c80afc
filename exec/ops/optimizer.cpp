// What every optimizer's update has: the norm of the gradients, clipping, accumulators. The optimizers' own ops have files of their own.
// Each runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result.
//
//   SumSquares(x) -> float64 [blocks]              each block (exec/norm_block.h) in lanes of double (exec/lanes.h)
//   GlobalNorm(s...) -> float32 []                 sqrt of the sum, in the order of the inputs, each in ascending order
//   UpdateFactor{max_norm}(norm, loss_scale?, norm_of_all?) -> float32 []
//                                                  what the updates multiply gradients by. Clips as torch.nn.utils.clip_grad_norm_:
//                                                  min(1, max_norm / (norm + 1e-6)) (max_norm 0: 1). With a loss scale (exec/loss_scale.h)
//                                                  norm and gradients are those of the scaled loss, and the factor takes it out, too.
//                                                  NaN, which skips the updates, where the norm isn't finite; where it is one weight's,
//                                                  norm_of_all may have the step skipped as one
//   Accumulate(sum, x)                             sum += x in place; the sum of 16-bit numbers is float32
//   Clear(sum)                                     sum = 0 in place
//   Store(place, x)                                place = x, in its place: what a later run of an entry reads

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exec/lanes.h"
#include "exec/loss_scale.h"
#include "exec/norm_block.h"
#include "exec/op_list.h"
#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- norms ----------------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_sum_squares(const InferContext& context) { return {{DType::float64, {norm_blocks(context.input(0).shape)}}}; }

// In double. The square of a float is exact there: added in one step it gives the same bits.
template <typename T> double sum_squares(const T* x, int64_t n) {
  constexpr int64_t kAhead = 16384, kLine = 64;                                      // bytes
  constexpr int64_t kEach = kLanes * int64_t{sizeof(T)} * (sizeof(T) == 2 ? 8 : 1);  // from one fetch to the next
  return fold_row<T>(
      n, 0.0,
      [&](double lane, int64_t i) {
        const auto value = static_cast<double>(load(x[i]));
        return sizeof(T) < sizeof(double) ? std::fma(value, value, lane) : lane + value * value;
      },
      [](double a, double b) { return a + b; },
      [&](int64_t i) {
        const auto* const at = reinterpret_cast<const std::byte*>(x + i) + kAhead;
        for (int64_t line = 0; line < kEach; line += kLine) __builtin_prefetch(at + line, 0, 3);
      });
}

KernelRun make_sum_squares(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const Shape& shape = spec.inputs[0].shape;
    return [n = element_count(shape), block = norm_block(shape)](const KernelArgs& args) {
      args.blocks(n, block, [x = args.in<T>(0), squares = args.out<double>(0), block](int64_t begin, int64_t end) {
        squares[begin / block] = sum_squares(x + begin, end - begin);
      });
    };
  });
}

std::vector<TensorType> infer_global_norm(const InferContext& context) {
  check_squares(context, 0);
  return {{DType::float32, {}}};
}

KernelRun make_global_norm(const KernelSpec& spec) {
  return [counts = counts_of(spec)](const KernelArgs& args) {
    *args.out<float>(0) = static_cast<float>(std::sqrt(sum_of_inputs(args, counts, 0, counts.size())));
  };
}

std::vector<TensorType> infer_update_factor(const InferContext& context) {
  const TensorType number{DType::float32, {}};
  check_input(context, 0, number);
  for (const size_t i : {1, 2}) {
    if (context.has(i)) check_input(context, i, number);
  }
  return {number};
}

KernelRun make_update_factor(const KernelSpec& spec) {
  return [max_norm = spec.attributes.get("max_norm", 0.0f), is_scaled = spec.has(1), is_of_one = spec.has(2)](const KernelArgs& args) {
    *args.out<float>(0) =
        update_factor(max_norm, *args.in<float>(0), *args.in<float>(is_of_one ? 2 : 0), is_scaled ? *args.in<float>(1) : 1.0f);
  };
}

// --- accumulators -------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_accumulate(const InferContext& context) {
  const TensorType& x = context.input(1);
  if (context.input(0) != TensorType{compute_type(x.dtype), x.shape}) check_same(context, 0, 1);
  return {context.input(0)};
}
std::vector<TensorType> infer_store(const InferContext& context) {
  check_same(context, 0, 1);
  return {context.input(0)};
}

template <typename X, typename T> void accumulate_loop(const X* __restrict x, T* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] + load(x[i]);
}

KernelRun make_accumulate(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename X>() -> KernelRun {
    return [n = element_count(spec.inputs[0].shape)](const KernelArgs& args) {
      args.blocks(n, kUpdateBlock, [x = args.in<X>(1), sum = args.out<Compute<X>>(0)](int64_t begin, int64_t end) {
        accumulate_loop(x + begin, sum + begin, end - begin);
      });
    };
  });
}

KernelRun make_store(const KernelSpec& spec) {
  return [n = spec.inputs[0].bytes()](const KernelArgs& args) {
    args.blocks(n, 4 * kUpdateBlock, [to = args.out<std::byte>(0), from = args.in<std::byte>(1)](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  };
}

KernelRun make_clear(const KernelSpec& spec) {
  return [n = spec.inputs[0].bytes()](const KernelArgs& args) {
    args.blocks(n, 4 * kUpdateBlock, [to = args.out<std::byte>(0)](int64_t begin, int64_t end) {
      std::memset(to + begin, 0, static_cast<size_t>(end - begin));
    });
  };
}

}  // namespace

constexpr OpDef kSumSquares{
    .name = "SumSquares",
    .infer = infer_sum_squares,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kSumSquaresKernel{
    .types = kFloating,
    .background = true,
    .cost = per_element<4, 2>,
    .prepare = make_sum_squares,
};
constexpr OpDef kGlobalNorm{
    .name = "GlobalNorm",
    .infer = infer_global_norm,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kGlobalNormKernel{
    .types = {DType::float64},
    .cost = per_element<8, 1>,
    .prepare = make_global_norm,
};
constexpr OpDef kUpdateFactor{
    .name = "UpdateFactor",
    .infer = infer_update_factor,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kUpdateFactorKernel{
    .types = {DType::float32},
    .cost = per_element<8, 3>,
    .prepare = make_update_factor,
};
constexpr OpDef kAccumulate{
    .name = "Accumulate",
    .infer = infer_accumulate,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
};
constexpr Kernel kAccumulateKernel{
    .types = kWide,
    .background = true,
    .cost = per_element<12, 1>,
    .prepare = make_accumulate,
};
constexpr OpDef kClear{
    .name = "Clear",
    .infer = infer_same_as_input,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
    .overwrites = true,
};
constexpr Kernel kClearKernel{
    .types = kAnyType,
    .background = true,
    .cost = per_element<4, 0>,
    .prepare = make_clear,
};
constexpr OpDef kStore{
    .name = "Store",
    .infer = infer_store,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
    .overwrites = true,
};
constexpr Kernel kStoreKernel{
    .types = kAnyType,
    .background = true,
    .cost = per_element<8, 0>,
    .prepare = make_store,
};

ORT_TRAIN_OPS_END
