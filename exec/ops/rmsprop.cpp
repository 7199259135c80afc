// RMSprop{weight_decay, centered}(p, g, factor, scalars, mean square, mean?, buffer?) -> p, mean square, mean, buffer: torch.optim.RMSprop
// (Tieleman & Hinton, 2012), see exec/ops/element_update.h. The mean is there where it is centered, the buffer with momentum. `scalars` are
// those of exec/ops/rmsprop.h.

#include "exec/ops/rmsprop.h"

#include <algorithm>
#include <cmath>

#include "exec/op_list.h"
#include "exec/ops/element_update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T, bool centered, bool has_momentum> struct RmspropRule {
  static constexpr size_t kStates = 1 + centered + has_momentum;
  T rate, weight_decay, alpha, gain, momentum, epsilon;

  HOST_DEVICE RmspropRule(float decay, const float* scalars)
      : rate(scalars[kRmspropRate]),
        weight_decay(decay),
        alpha(scalars[kRmspropAlpha]),
        gain(scalars[kRmspropOneMinusAlpha]),
        momentum(scalars[kRmspropMomentum]),
        epsilon(scalars[kRmspropEpsilon]) {}

  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    g = g + weight_decay * p;
    T variance = state[0] = alpha * state[0] + gain * g * g;
    if constexpr (centered) {
      state[1] = state[1] + gain * (g - state[1]);
      variance = variance - state[1] * state[1];
      variance = variance < 0 ? T(0) : variance;  // by rounding, of gradients that are all the same
    }
    T step = g / (std::sqrt(variance) + epsilon);
    if constexpr (has_momentum) step = state[kStates - 1] = momentum * state[kStates - 1] + step;
    p = p - rate * step;
  }
};
template <typename T> struct RmspropPlainRule : RmspropRule<T, false, false> { using RmspropRule<T, false, false>::RmspropRule; };
template <typename T> struct RmspropMomentumRule : RmspropRule<T, false, true> { using RmspropRule<T, false, true>::RmspropRule; };
template <typename T> struct RmspropCenteredRule : RmspropRule<T, true, false> { using RmspropRule<T, true, false>::RmspropRule; };
template <typename T> struct RmspropCenteredMomentumRule : RmspropRule<T, true, true> { using RmspropRule<T, true, true>::RmspropRule; };

KernelRun prepare_rmsprop(const KernelSpec& spec) {
  if (spec.attributes.get("centered", 0) == 0)
    return spec.outputs.size() > 2 ? prepare_element_update<RmspropMomentumRule>(spec) : prepare_element_update<RmspropPlainRule>(spec);
  return spec.outputs.size() > 3 ? prepare_element_update<RmspropCenteredMomentumRule>(spec)
                                 : prepare_element_update<RmspropCenteredRule>(spec);
}

}  // namespace

constexpr OpDef kRMSprop{
    .name = "RMSprop",
    .infer = infer_element_update<kRmspropScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kRMSpropKernel{
    .types = kUpdated,
    .background = true,
    .cost = element_update_cost<14>,
    .prepare = prepare_rmsprop,
};

ORT_TRAIN_OPS_END
