// What the optimizers' ops share.

#pragma once

#include <cmath>

#include "exec/element_types.h"
#include "exec/kernel.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kUpdateBlock = 8192;  // elements of a task
inline constexpr const char* kNoSecondOrder = "updates are not differentiated";

// Of the number that multiplies a step's gradients (UpdateFactor): where they aren't finite it is NaN, and updates change nothing.
HOST_DEVICE inline bool is_skipped(float factor) { return factor != factor; }

inline void check_same(const InferContext& context, size_t a, size_t b) {
  if (context.input(a) != context.input(b)) {
    throw error(ErrorCode::unsupported, "input {} is {}, input {} is {}", a, to_string(context.input(a)), b, to_string(context.input(b)));
  }
}
inline void check_input(const InferContext& context, size_t i, const TensorType& wanted) {
  if (context.input(i) != wanted)
    throw error(ErrorCode::unsupported, "input {} is {}, not {}", i, to_string(context.input(i)), to_string(wanted));
}

// The inputs from `first` on are sums of squares of a tensor's blocks: float64 [...], ...
inline void check_squares(const InferContext& context, size_t first) {
  for (size_t i = first; i < context.inputs.size(); ++i) {
    if (context.input(i).dtype != DType::float64 || context.input(i).shape.size() != 1)
      throw error(ErrorCode::unsupported, "input {} is no float64 vector", i);
  }
}
inline std::vector<int64_t> counts_of(const KernelSpec& spec) {
  std::vector<int64_t> counts;
  for (const TensorType& input : spec.inputs) counts.push_back(element_count(input.shape));
  return counts;
}
// Of the inputs [first, end): in their order, each in ascending order.
inline double sum_of_inputs(const KernelArgs& args, const std::vector<int64_t>& counts, size_t first, size_t end) {
  double sum = 0;
  for (size_t i = first; i < end; ++i) {
    const double* const squares = args.in<double>(i);
    for (int64_t k = 0; k < counts[i]; ++k) sum += squares[k];
  }
  return sum;
}

template <template <typename> class Make> KernelRun for_floats(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return Make<T>{}(spec); });
}

template <int bytes_per_element, int flops_per_element> Cost per_element(const KernelSpec& spec) {
  const auto n = static_cast<double>(element_count(spec.inputs[0].shape));
  return {.flops = flops_per_element * n, .bytes = bytes_per_element * n};
}

ORT_TRAIN_OPS_END
