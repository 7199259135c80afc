// What every optimizer's update has, on CUDA: exec/ops/optimizer.cpp has the meaning. Squares are added up in the lanes of their blocks
// (exec/cuda/squares.h), blocks in ascending order (exec/cuda/sum_inputs.h): the processor's order. The rest is element by element, by
// packs of 16 bytes, which the memory bounds.

#include <algorithm>
#include <cmath>

#include "exec/block.h"
#include "exec/cuda/copy.h"
#include "exec/cuda/pack.h"
#include "exec/cuda/squares.h"
#include "exec/cuda/sum_inputs.h"
#include "exec/loss_scale.h"
#include "exec/math.h"
#include "exec/op_list.h"
#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- norms ----------------------------------------------------------------------------------------------------------------------------

template <typename T> struct OfElements {
  using Stored = T;
  static constexpr int kSums = 1;
  struct Values {
    Compute<T> of[kSums];
  };
  const T* x;
  HOST_DEVICE bool skips() const { return false; }
  HOST_DEVICE Values operator()(int64_t i) const { return {{load(x[i])}}; }
};

KernelRun prepare_sum_squares(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [shape = spec.inputs[0].shape](const KernelArgs& args) {
      launch_norm_squares(OfElements<T>{args.in<T>(0)}, shape, args, args.out<double>(0));
    };
  });
}

struct RootOfSum {
  float* norm;
  HOST_DEVICE void operator()(double sum) const { *norm = static_cast<float>(math::sqrt(sum)); }
};

Workspace norm_workspace(const KernelSpec&) { return {.shared = sizeof(double)}; }

KernelRun prepare_global_norm(const KernelSpec& spec) {
  return [counts = counts_of(spec)](const KernelArgs& args) {
    launch_input_sum(args, counts, 0, counts.size(), reinterpret_cast<double*>(args.workspace), RootOfSum{args.out<float>(0)});
  };
}

struct FactorOfUpdate {
  float max_norm;
  const float *norm, *decides, *scale;  // scale: null where there is none
  float* factor;
  HOST_DEVICE void operator()(int64_t) const { *factor = update_factor(max_norm, *norm, *decides, scale ? *scale : 1.0f); }
};

KernelRun prepare_update_factor(const KernelSpec& spec) {
  return [max_norm = spec.attributes.get("max_norm", 0.0f), is_scaled = spec.has(1), is_of_one = spec.has(2)](const KernelArgs& args) {
    launch_elements(FactorOfUpdate{.max_norm = max_norm,
                                   .norm = args.in<float>(0),
                                   .decides = args.in<float>(is_of_one ? 2 : 0),
                                   .scale = is_scaled ? args.in<float>(1) : nullptr,
                                   .factor = args.out<float>(0)},
                    1, args);
  };
}

// --- accumulators, in place -------------------------------------------------------------------------------------------------------------

template <typename X> struct AddTo {
  static constexpr int kPack = 16 / sizeof(Compute<X>);
  const X* x;
  Compute<X>* sum;
  int64_t n;
  HOST_DEVICE void operator()(int64_t pack) const {
    const int64_t begin = pack * kPack;
    if (begin + kPack <= n) {
      const auto here = load_pack<kPack>(x + begin);
      auto sums = load_pack<kPack>(sum + begin);
      for (int i = 0; i < kPack; ++i) sums.of[i] = sums.of[i] + load(here.of[i]);
      store_pack(sum + begin, sums);
    } else {
      for (int64_t i = begin; i < n; ++i) sum[i] = sum[i] + load(x[i]);
    }
  }
};

KernelRun prepare_accumulate(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename X>() -> KernelRun {
    return [n = element_count(spec.inputs[0].shape)](const KernelArgs& args) {
      launch_elements(AddTo<X>{args.in<X>(1), args.out<Compute<X>>(0), n}, (n + AddTo<X>::kPack - 1) / AddTo<X>::kPack, args);
    };
  });
}

KernelRun prepare_store(const KernelSpec& spec) {
  return [n = spec.inputs[0].bytes()](const KernelArgs& args) { copy_bytes(args.outputs[0], args.inputs[1], n, args); };
}
KernelRun prepare_clear(const KernelSpec& spec) {
  return [n = spec.inputs[0].bytes()](const KernelArgs& args) { fill_zeros(args.outputs[0], n, args); };
}

}  // namespace

constexpr Kernel kSumSquaresKernel{
    .types = kFloating,
    .cost = per_element<4, 2>,
    .prepare = prepare_sum_squares,
};
constexpr Kernel kGlobalNormKernel{
    .types = {DType::float64},
    .cost = per_element<8, 1>,
    .workspace = norm_workspace,
    .prepare = prepare_global_norm,
};
constexpr Kernel kUpdateFactorKernel{
    .types = {DType::float32},
    .cost = per_element<8, 3>,
    .prepare = prepare_update_factor,
};
constexpr Kernel kAccumulateKernel{
    .types = kWide,
    .cost = per_element<12, 1>,
    .prepare = prepare_accumulate,
};
constexpr Kernel kClearKernel{
    .types = kAnyType,
    .cost = per_element<4, 0>,
    .prepare = prepare_clear,
};
constexpr Kernel kStoreKernel{
    .types = kAnyType,
    .cost = per_element<8, 0>,
    .prepare = prepare_store,
};

ORT_TRAIN_OPS_END
