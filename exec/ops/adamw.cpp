// AdamW{weight_decay}(p, g, factor, scalars, m, v) -> p, m, v: torch.optim.AdamW (Loshchilov & Hutter, arXiv 1711.05101)
// Adam{weight_decay}(p, g, factor, scalars, m, v) -> p, m, v: torch.optim.Adam, where the decay is added to the gradient
//
// See exec/ops/element_update.h. `scalars` are those of exec/ops/adamw.h.

#include "exec/ops/adamw.h"

#include <cmath>

#include "exec/op_list.h"
#include "exec/ops/element_update.h"
#include "exec/ops/onnx_training.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct AdamWRule {
  static constexpr size_t kStates = 2;
  T keep, step, inverse_root, gain1, beta2, gain2, epsilon;

  HOST_DEVICE AdamWRule(float decay, const float* scalars)
      : keep(static_cast<T>(1 - double{scalars[kAdamWRate]} * double{decay})),
        step(scalars[kAdamWStep]),
        inverse_root(scalars[kAdamWInverseRootBias]),
        gain1(scalars[kAdamWOneMinusBeta1]),
        beta2(scalars[kAdamWBeta2]),
        gain2(scalars[kAdamWOneMinusBeta2]),
        epsilon(scalars[kAdamWEpsilon]) {}

  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    T &m = state[0], &v = state[1];
    m = m + gain1 * (g - m);
    v = beta2 * v + gain2 * g * g;
    p = p * keep - step * (m / (std::sqrt(v) * inverse_root + epsilon));
  }
};

template <typename T> struct AdamRule : AdamWRule<T> {
  T weight_decay;

  HOST_DEVICE AdamRule(float decay, const float* scalars) : AdamWRule<T>(0, scalars), weight_decay(decay) {}
  HOST_DEVICE void operator()(T g, T& p, T* state) const { AdamWRule<T>::operator()(g + weight_decay * p, p, state); }
};

}  // namespace

constexpr OpDef kAdamW{
    .name = "AdamW",
    .infer = infer_element_update<kAdamWScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kAdamWKernel{
    .types = kUpdated,
    .background = true,
    .cost = element_update_cost<15>,
    .prepare = prepare_element_update<AdamWRule>,
};
constexpr OpDef kAdam{
    .name = "Adam",
    .onnx = {{.domain = kTrainingDomain, .name = "Adam", .since = 1, .lower = lower_onnx_adam}},
    .infer = infer_element_update<kAdamWScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kAdamKernel{
    .types = kUpdated,
    .background = true,
    .cost = element_update_cost<16>,
    .prepare = prepare_element_update<AdamRule>,
};

ORT_TRAIN_OPS_END
