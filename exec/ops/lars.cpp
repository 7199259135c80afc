// LARS's update (You, Gitman & Ginsburg, arXiv 1708.03888), whose trust ratio needs the norms of the whole tensor and of its gradient
// (SumSquares).
//
//   LarsTrust{trust_coefficient, epsilon, weight_decay}(scalars, factor, squares of g..., squares of p...) -> scalars
//     with the ratio trust_coefficient |p| / (|factor g| + weight_decay |p| + epsilon) of the tensor whose parts the squares are; 1 where
//     one of the norms is 0
//
//   Lars{weight_decay}(p, g, factor, scalars, buffer?) -> p, buffer
//     buffer = momentum buffer + rate * trust * (g + weight_decay p) ; p -= buffer, see exec/ops/element_update.h
//
// `scalars` are those of exec/ops/lars.h.

#include "exec/ops/lars.h"

#include "exec/math.h"
#include "exec/op_list.h"
#include "exec/ops/element_update.h"
#include "exec/ops/trust_ratio.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T, bool has_momentum> struct LarsRule {
  static constexpr size_t kStates = has_momentum;
  T step, weight_decay, momentum;

  HOST_DEVICE LarsRule(float decay, const float* scalars)
      : step(static_cast<T>(scalars[kLarsRate]) * static_cast<T>(scalars[kLarsTrustRatio])),
        weight_decay(decay),
        momentum(scalars[kLarsMomentum]) {}

  HOST_DEVICE void operator()(T g, T& p, T* state) const {
    T change = step * (g + weight_decay * p);
    if constexpr (has_momentum) change = state[0] = momentum * state[0] + change;
    p = p - change;
  }
};
template <typename T> struct LarsPlainRule : LarsRule<T, false> { using LarsRule<T, false>::LarsRule; };
template <typename T> struct LarsMomentumRule : LarsRule<T, true> { using LarsRule<T, true>::LarsRule; };

KernelRun prepare_lars(const KernelSpec& spec) {
  return spec.outputs.size() > 1 ? prepare_element_update<LarsMomentumRule>(spec) : prepare_element_update<LarsPlainRule>(spec);
}

struct LarsRatio {
  double coefficient, epsilon, weight_decay;
  HOST_DEVICE double operator()(double g, double p, double factor) const {
    g *= math::abs(factor);
    return g > 0 && p > 0 ? coefficient * p / (g + weight_decay * p + epsilon) : 1;
  }
};
KernelRun prepare_lars_trust(const KernelSpec& spec) {
  const auto number = [&](const char* name) { return double{spec.attributes.get(name, 0.0f)}; };
  return prepare_trust<kLarsScalars, 2, kLarsTrustRatio>(
      spec, LarsRatio{.coefficient = number("trust_coefficient"), .epsilon = number("epsilon"), .weight_decay = number("weight_decay")});
}

}  // namespace

constexpr OpDef kLarsTrust{
    .name = "LarsTrust",
    .infer = infer_trust<kLarsScalars, 2>,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kLarsTrustKernel{
    .types = {DType::float32},
    .cost = trust_cost,
    .workspace = trust_workspace,
    .prepare = prepare_lars_trust,
};
constexpr OpDef kLars{
    .name = "Lars",
    .infer = infer_element_update<kLarsScalars>,
    .no_gradient = kNoSecondOrder,
    .writes = kElementUpdateWrites,
};
constexpr Kernel kLarsKernel{
    .types = kWide,
    .background = true,
    .cost = element_update_cost<7>,
    .prepare = prepare_lars,
};

ORT_TRAIN_OPS_END
