// Adagrad{weight_decay}(p, g, factor, scalars, sum) -> p, sum: torch.optim.Adagrad (Duchi, Hazan & Singer, JMLR 12, 2011), see
// exec/ops/element_update.h. `scalars` are those of exec/ops/adagrad.h.

#include "exec/ops/adagrad.h"

#include <cmath>

#include "exec/op_list.h"
#include "exec/ops/element_update.h"
#include "exec/ops/onnx_training.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct AdagradRule {
  static constexpr size_t kStates = 1;
  T rate, weight_decay, epsilon;

  HOST_DEVICE AdagradRule(float decay, const float* scalars)
      : rate(scalars[kAdagradRate]), weight_decay(decay), epsilon(scalars[kAdagradEpsilon]) {}

  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    g = g + weight_decay * p;
    state[0] = state[0] + g * g;
    p = p - rate * (g / (std::sqrt(state[0]) + epsilon));
  }
};

}  // namespace

constexpr OpDef kAdagrad{
    .name = "Adagrad",
    .onnx = {{.domain = kTrainingDomain, .name = "Adagrad", .since = 1, .lower = lower_onnx_adagrad}},
    .infer = infer_element_update<kAdagradScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kAdagradKernel{
    .types = kUpdated,
    .background = true,
    .cost = element_update_cost<10>,
    .prepare = prepare_element_update<AdagradRule>,
};

ORT_TRAIN_OPS_END
