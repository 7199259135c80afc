// SGD{weight_decay, nesterov}(p, g, factor, scalars, buffer?) -> p, buffer: torch.optim.SGD, see exec/ops/element_update.h. `scalars` are
// those of exec/ops/sgd.h.

#include "exec/ops/sgd.h"

#include "exec/op_list.h"
#include "exec/ops/element_update.h"
#include "exec/ops/onnx_training.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct SgdRule {
  static constexpr size_t kStates = 0;
  T rate, weight_decay;

  HOST_DEVICE SgdRule(float decay, const float* scalars) : rate(scalars[kSgdRate]), weight_decay(decay) {}
  HOST_DEVICE void operator()(T g, T& p, T*) const { p = p - rate * (g + weight_decay * p); }
};

// The buffer is zero at first, so that the first step's is the gradient.
template <typename T, bool nesterov> struct BufferRule {
  static constexpr size_t kStates = 1;
  T rate, weight_decay, momentum, gain;

  HOST_DEVICE BufferRule(float decay, const float* scalars)
      : rate(scalars[kSgdRate]), weight_decay(decay), momentum(scalars[kSgdMomentum]), gain(scalars[kSgdGain]) {}
  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    g = g + weight_decay * p;
    state[0] = momentum * state[0] + gain * g;
    p = p - rate * (nesterov ? g + momentum * state[0] : state[0]);
  }
};
template <typename T> struct SgdMomentumRule : BufferRule<T, false> { using BufferRule<T, false>::BufferRule; };
template <typename T> struct SgdNesterovRule : BufferRule<T, true> { using BufferRule<T, true>::BufferRule; };

KernelRun prepare_sgd(const KernelSpec& spec) {
  if (spec.outputs.size() == 1) return prepare_element_update<SgdRule>(spec);
  return spec.attributes.get("nesterov", 0) != 0 ? prepare_element_update<SgdNesterovRule>(spec)
                                                 : prepare_element_update<SgdMomentumRule>(spec);
}

}  // namespace

constexpr OpDef kSGD{
    .name = "SGD",
    .onnx = {{.domain = kTrainingDomain, .name = "Momentum", .since = 1, .lower = lower_onnx_momentum}},
    .infer = infer_element_update<kSgdScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kSGDKernel{
    .types = kUpdated,
    .background = true,
    .cost = element_update_cost<8>,
    .prepare = prepare_sgd,
};

ORT_TRAIN_OPS_END
