// What the kernels of SoftmaxCrossEntropy, its gradient and CountLabels share on all devices: sizes, the order of sums, and what a row's
// loss and gradient are made of.

#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "exec/element_types.h"
#include "exec/math.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kNothingIgnored = std::numeric_limits<int64_t>::min();  // ignore_index
// A row is summed in chunks: each in lanes, in the type of the arithmetic; the chunks in ascending order in double.
inline constexpr int64_t kClassChunk = 1024;
inline constexpr int kClassLanes = 16;

inline int64_t class_count(const KernelSpec& spec, size_t logits) { return spec.inputs[logits].shape.back(); }
inline int64_t label_count(const KernelSpec& spec, size_t logits) {
  return element_count(spec.inputs[logits].shape) / std::max<int64_t>(class_count(spec, logits), 1);
}

// Of a row's sum of exponentials, for arithmetic in C.
template <typename C> HOST_DEVICE inline double log_of_exps(double sum) {
  return std::is_same_v<C, double> ? math::log(sum) : math::log_for_float(sum);
}

// Of a row: e^(x - lse) * of_softmax - of_all (times the class's weight, where there are weights); at its label
// e^(x - lse) * of_softmax - all_at_label - of_label. All of it times the loss's gradient.
template <typename C> struct CrossEntropySlope { C of_softmax, of_all, all_at_label, of_label; };

// What is added to the plain loss.
struct CrossEntropyTerms {
  double smoothing = 0, z_loss = 0;
  explicit CrossEntropyTerms(const Attributes& attributes)
      : smoothing(static_cast<double>(attributes.get("smoothing", 0.0f))), z_loss(static_cast<double>(attributes.get("z_loss", 0.0f))) {}

  // The loss of a row whose classes have no weights. sum: of its n logits, where there is smoothing.
  HOST_DEVICE double loss(double lse, double at_label, double sum, int64_t n) const {
    double loss = lse - at_label + z_loss * lse * lse;
    if (smoothing != 0) loss += smoothing * (at_label - sum / static_cast<double>(n));
    return loss;
  }
  // The same where they have. all: the sum of weighted_at() of all classes, in ascending order, where there is smoothing.
  HOST_DEVICE double weighted_loss(double lse, double at_label, double weight, double all, int64_t n) const {
    return (1 - smoothing) * weighted_at(at_label, weight, lse) + weight * z_loss * lse * lse + smoothing / static_cast<double>(n) * all;
  }
  HOST_DEVICE static double weighted_at(double x, double weight, double lse) { return weight * (lse - x); }

  template <typename C> HOST_DEVICE CrossEntropySlope<C> slope(C lse, int64_t n) const {
    const C of_all = C(smoothing / static_cast<double>(n));
    return {z_loss == 0 ? C(1) : C(1) + C(2 * z_loss) * lse, of_all, of_all, C(1 - smoothing)};
  }
  // weight: the label's; all_weights: their sum, in ascending order.
  template <typename C> HOST_DEVICE CrossEntropySlope<C> weighted_slope(C lse, C weight, double all_weights, int64_t n) const {
    const double at = static_cast<double>(weight), smoothed = smoothing / static_cast<double>(n);
    return {C((1 - smoothing) * at + smoothed * all_weights) + C(2 * z_loss * at) * lse, C(smoothed), C(smoothed) * weight,
            C((1 - smoothing) * at)};
  }
};

// One number a row.
inline Workspace cross_entropy_workspace(const KernelSpec& spec) { return {.shared = label_count(spec, 0) * int64_t{sizeof(double)}}; }

inline Cost cross_entropy_cost(const KernelSpec& spec) {
  double elements = 0;
  for (const TensorType& input : spec.inputs) elements = std::max(elements, static_cast<double>(element_count(input.shape)));
  return {.flops = 12 * elements, .bytes = 8 * elements};
}

ORT_TRAIN_OPS_END
