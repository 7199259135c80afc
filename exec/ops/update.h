// What the optimizers' ops share.

#pragma once

#include "exec/element_types.h"
#include "exec/kernel.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kUpdateBlock = 32768;  // elements of a task
inline constexpr const char* kNoSecondOrder = "updates are not differentiated";

inline void check_same(const InferContext& context, size_t a, size_t b) {
  if (context.input(a) != context.input(b)) {
    throw error(ErrorCode::unsupported, "input {} is {}, input {} is {}", a, to_string(context.input(a)), b, to_string(context.input(b)));
  }
}
inline void check_input(const InferContext& context, size_t i, const TensorType& wanted) {
  if (context.input(i) != wanted)
    throw error(ErrorCode::unsupported, "input {} is {}, not {}", i, to_string(context.input(i)), to_string(wanted));
}

template <template <typename> class Make> KernelRun for_floats(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return Make<T>{}(spec); });
}

template <int bytes_per_element, int flops_per_element> Cost per_element(const KernelSpec& spec) {
  const auto n = static_cast<double>(element_count(spec.inputs[0].shape));
  return {.flops = flops_per_element * n, .bytes = bytes_per_element * n};
}

ORT_TRAIN_OPS_END
