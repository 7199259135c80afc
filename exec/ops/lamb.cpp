// LAMB's update (You et al., arXiv 1904.00962) in phases, because a tensor's trust ratio needs sums over all of it. u is Adam's direction
// with weight decay: what is subtracted from the parameter, but for learning rate and trust ratio.
//
//   LambSquares{weight_decay}(p, g, factor, scalars, m, v) -> float64 [blocks], float64 [blocks]
//     of u and of p, in the blocks of exec/norm_block.h; nothing changes
//
//   LambTrust(scalars, squares of u..., squares of p...) -> scalars
//     with the ratio |p| / |u| of the tensor whose parts the squares are; 1 where one of the norms is 0
//
//   Lamb{weight_decay}(p, g, factor, scalars, m, v) -> p, m, v
//     p -= rate * trust * u, see exec/ops/element_update.h
//
// `scalars` are those of exec/ops/lamb.h.

#include "exec/ops/lamb.h"

#include <cmath>

#include "exec/op_list.h"
#include "exec/ops/element_update.h"
#include "exec/ops/trust_ratio.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct LambRule {
  static constexpr size_t kStates = 2;
  T step, weight_decay, beta1, gain1, beta2, gain2, inverse1, inverse_root2, epsilon;

  HOST_DEVICE LambRule(float decay, const float* scalars)
      : step(static_cast<T>(scalars[kLambRate]) * static_cast<T>(scalars[kLambTrustRatio])),
        weight_decay(decay),
        beta1(scalars[kLambBeta1]),
        gain1(scalars[kLambGain1]),
        beta2(scalars[kLambBeta2]),
        gain2(scalars[kLambOneMinusBeta2]),
        inverse1(scalars[kLambInverseBias1]),
        inverse_root2(scalars[kLambInverseRootBias2]),
        epsilon(scalars[kLambEpsilon]) {}

  HOST_DEVICE T direction(T g, T p, T* state) const {
    T &m = state[0], &v = state[1];
    m = beta1 * m + gain1 * g;
    v = beta2 * v + gain2 * g * g;
    return m * inverse1 / (std::sqrt(v) * inverse_root2 + epsilon) + weight_decay * p;
  }
  HOST_DEVICE void operator()(T g, T& p, T* state) const { p = p - step * direction(g, p, state); }
};

struct LambRatio {
  HOST_DEVICE double operator()(double u, double p, double) const { return u > 0 && p > 0 ? p / u : 1; }
};
KernelRun prepare_lamb_trust(const KernelSpec& spec) { return prepare_trust<kLambScalars, 1, kLambTrustRatio>(spec, LambRatio{}); }

}  // namespace

constexpr OpDef kLambSquares{
    .name = "LambSquares",
    .infer = infer_direction_squares<kLambScalars, 2>,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kLambSquaresKernel{
    .types = kWide,
    .cost = direction_squares_cost<18>,
    .prepare = prepare_direction_squares<LambRule>,
};
constexpr OpDef kLambTrust{
    .name = "LambTrust",
    .infer = infer_trust<kLambScalars, 1>,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kLambTrustKernel{
    .types = {DType::float32},
    .cost = trust_cost,
    .workspace = trust_workspace,
    .prepare = prepare_lamb_trust,
};
constexpr OpDef kLamb{
    .name = "Lamb",
    .infer = infer_element_update<kLambScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kLambKernel{
    .types = kWide,
    .background = true,
    .cost = element_update_cost<16>,
    .prepare = prepare_element_update<LambRule>,
};

ORT_TRAIN_OPS_END
