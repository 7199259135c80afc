// What the kernels of SoftmaxCrossEntropy, its parts, its gradient and CountLabels share on all devices: sizes, the order of sums, and what
// a row's loss and gradient are made of.

#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "exec/class_chunk.h"
#include "exec/element_types.h"
#include "exec/math.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kNothingIgnored = std::numeric_limits<int64_t>::min();  // ignore_index
// A row is summed in chunks: each in lanes, in the type of the arithmetic; the chunks in ascending order in double.
inline constexpr int kClassLanes = 16;

inline int64_t class_count(const KernelSpec& spec, size_t logits) { return spec.inputs[logits].shape.back(); }
inline int64_t label_count(const KernelSpec& spec, size_t logits) {
  return element_count(spec.inputs[logits].shape) / std::max<int64_t>(class_count(spec, logits), 1);
}

// A sum of exponentials of numbers, sum * 2^exponent, and the largest of these. Scaling by powers of two is exact: chunks are added in
// ascending order, each as it is made, and it doesn't matter which of them has the largest number.
struct ScaledSum {
  double sum = 0, exponent = 0, largest = -std::numeric_limits<double>::infinity();
};

// What is subtracted from the numbers of a chunk before e^ is taken.
template <typename C> HOST_DEVICE inline C base_of_chunk(C largest) {
  return largest > -std::numeric_limits<C>::infinity() ? largest : C(0);
}

// From 2^52 on, numbers that aren't equal are so far apart that the larger alone counts.
inline constexpr double kFarApart = 0x1p52;

// Of a chunk, the sum of e^(x - base_of_chunk(largest)).
template <typename C> HOST_DEVICE inline ScaledSum scaled_sum(C largest, C sum) {
  constexpr double kLn2Rest = 0x1.abc9e3b39803fp-56;
  const double x = static_cast<double>(base_of_chunk(largest)), exponent = math::floor(x * math::kLog2E);
  double rest = math::fma(-exponent, kLn2Rest, math::fma(-exponent, math::kLn2, x));
  if (!(math::abs(x) < kFarApart)) rest = 0;
  return {static_cast<double>(sum) * (std::is_same_v<C, double> ? math::exp(rest) : math::exp_for_float(rest)), exponent,
          static_cast<double>(largest)};
}

// 2^n for n <= 0; 0 where that is too little to count beside 1.
HOST_DEVICE inline double small_power_of_two(double n) {
  return n >= -1000 ? math::double_of(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52) : 0;
}

HOST_DEVICE inline ScaledSum operator+(const ScaledSum& a, const ScaledSum& b) {
  const double largest = a.largest > b.largest ? a.largest : b.largest;
  if (b.sum == 0) return {a.sum, a.exponent, largest};
  if (a.sum == 0) return {b.sum, b.exponent, largest};
  const double exponent = a.exponent > b.exponent ? a.exponent : b.exponent;
  return {a.sum * small_power_of_two(a.exponent - exponent) + b.sum * small_power_of_two(b.exponent - exponent), exponent, largest};
}

// log sum exp, for arithmetic in C.
template <typename C> HOST_DEVICE inline double log_of(const ScaledSum& exps) {
  if (!(math::abs(exps.largest) < kFarApart)) return exps.largest + 0 * exps.sum;  // of no numbers -infinity; NaN stays
  return math::fma(exps.exponent, math::kLn2, std::is_same_v<C, double> ? math::log(exps.sum) : math::log_for_float(exps.sum));
}

// What is known of a row when some of its classes have been seen. Its numbers are the last axis of a SoftmaxCrossEntropyPart's state.
struct RowState {
  ScaledSum exps;
  double plain = 0;     // the sum of the logits, where there is smoothing
  double at_label = 0;  // the logit of the label
};
inline constexpr int64_t kStateNumbers = sizeof(RowState) / sizeof(double);

// The `classes` of a loss, of which a node has some, from number `from` on.
struct ClassRange {
  int64_t from = 0, classes = 0;
  ClassRange() = default;
  ClassRange(const Attributes& attributes, int64_t own)
      : from(attributes.get("from", int64_t{0})), classes(attributes.get("classes", own)) {}
  HOST_DEVICE bool is_class(int64_t label) const { return label >= 0 && label < classes; }
  // Whether a node that has n of them has that one.
  HOST_DEVICE bool holds(int64_t label, int64_t n) const { return label >= from && label < from + n; }
};

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
    double loss = weighted_at(at_label, 1, lse) + z_loss * lse * lse;
    if (smoothing != 0) loss += smoothing * (at_label - sum / static_cast<double>(n));
    return loss;
  }
  // The same where they have. all: the sum of weighted_at() of all classes, in ascending order, where there is smoothing.
  HOST_DEVICE double weighted_loss(double lse, double at_label, double weight, double all, int64_t n) const {
    return (1 - smoothing) * weighted_at(at_label, weight, lse) + weight * z_loss * lse * lse + smoothing / static_cast<double>(n) * all;
  }
  HOST_DEVICE static double weighted_at(double x, double weight, double lse) {
    return lse < x ? 0 : weight * (lse - x);  // less by rounding
  }

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
