// SGD{weight_decay}(p, g, factor, scalars, buffer?) -> p, buffer: torch.optim.SGD with dampening 0, see exec/ops/element_update.h.
// `scalars` are those of exec/ops/sgd.h.

#include "exec/ops/sgd.h"

#include "exec/op_list.h"
#include "exec/ops/element_update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct SgdRule {
  static constexpr size_t kStates = 0;
  T rate, weight_decay;

  SgdRule(const Attributes& attributes, const float* scalars)
      : rate(scalars[kSgdRate]), weight_decay(static_cast<T>(attributes.get("weight_decay", 0.0f))) {}
  HOST_DEVICE void operator()(T g, T& p, T*) const { p = p - rate * (g + weight_decay * p); }
};

// The buffer is zero at first, so that the first step's is the gradient.
template <typename T> struct MomentumRule {
  static constexpr size_t kStates = 1;
  T rate, weight_decay, momentum;

  MomentumRule(const Attributes& attributes, const float* scalars)
      : rate(scalars[kSgdRate]), weight_decay(static_cast<T>(attributes.get("weight_decay", 0.0f))), momentum(scalars[kSgdMomentum]) {}
  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    state[0] = momentum * state[0] + (g + weight_decay * p);
    p = p - rate * state[0];
  }
};

KernelRun prepare_sgd(const KernelSpec& spec) {
  return spec.outputs.size() > 1 ? prepare_element_update<MomentumRule>(spec) : prepare_element_update<SgdRule>(spec);
}

}  // namespace

constexpr OpDef kSGD{
    .name = "SGD",
    .infer = infer_element_update<kSgdScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kSGDKernel{
    .types = kUpdated,
    .cost = element_update_cost<6>,
    .prepare = prepare_sgd,
};

ORT_TRAIN_OPS_END
