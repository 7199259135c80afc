// Lion{weight_decay}(p, g, factor, scalars, m) -> p, m: steps by the sign of a mean (Chen et al., arXiv 2302.06675), see
// exec/ops/element_update.h. `scalars` are those of exec/ops/lion.h.

#include "exec/ops/lion.h"

#include "exec/op_list.h"
#include "exec/ops/element_update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct LionRule {
  static constexpr size_t kStates = 1;
  T keep, rate, beta1, gain1, beta2, gain2;

  HOST_DEVICE LionRule(float decay, const float* scalars)
      : keep(static_cast<T>(1 - double{scalars[kLionRate]} * double{decay})),
        rate(scalars[kLionRate]),
        beta1(scalars[kLionBeta1]),
        gain1(scalars[kLionOneMinusBeta1]),
        beta2(scalars[kLionBeta2]),
        gain2(scalars[kLionOneMinusBeta2]) {}

  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    T& m = state[0];
    const T c = beta1 * m + gain1 * g;
    p = p * keep - rate * (c > 0 ? T(1) : c < 0 ? T(-1) : c);  // NaN stays one
    m = beta2 * m + gain2 * g;
  }
};

}  // namespace

constexpr OpDef kLion{
    .name = "Lion",
    .infer = infer_element_update<kLionScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kLionKernel{
    .types = kUpdated,
    .background = true,
    .cost = element_update_cost<9>,
    .prepare = prepare_element_update<LionRule>,
};

ORT_TRAIN_OPS_END
