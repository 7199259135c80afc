// What optimizers share that multiply the learning rate of each tensor by a ratio of norms. The ratio gets to the update as one of its
// scalars:
//
//   OPTrust{...}(scalars, ..., squares..., squares of p...) -> scalars      of each part of the tensor
//   OP{...}(p, g, factor, those scalars, states...)                         an update of single elements
//
// The ratio is a functor, HOST_DEVICE: ratio(norm of the first half of the squares, norm of p, factor) -> double; factor is what is between
// scalars and squares, 1 where nothing is. For the processor its kernel, and that of the squares, are in exec/ops/trust_ratio_loops.h, for
// CUDA in exec/cuda/trust_ratio.h:
//
//   prepare_trust<scalars, first, at>(spec, ratio)       `at`: which of the scalars becomes the ratio
//   trust_workspace(spec)
//   prepare_direction_squares<Rule>(spec)

#pragma once

#include "exec/norm_block.h"
#include "exec/ops/element_update.h"

ORT_TRAIN_OPS_BEGIN

// `first`: where the squares begin; the scalars are followed by numbers.
template <int64_t scalars, size_t first> std::vector<TensorType> infer_trust(const InferContext& context) {
  check_input(context, 0, {DType::float32, {scalars}});
  for (size_t i = 1; i < first; ++i) check_input(context, i, {DType::float32, {}});
  if (context.inputs.size() <= first || (context.inputs.size() - first) % 2 != 0)
    throw error(ErrorCode::unsupported, "there are squares missing");
  check_squares(context, first);
  return {context.input(0)};
}

inline Cost trust_cost(const KernelSpec& spec) {
  double n = 0;
  for (const TensorType& input : spec.inputs) n += static_cast<double>(element_count(input.shape));
  return {.flops = n, .bytes = 8 * n};
}

// --- the norm of an update that isn't made yet ------------------------------------------------------------------------------------------
//
//   OPSquares{...}(p, g, factor, scalars, states...) -> float64 [blocks], float64 [blocks]
//
// Squares of what the rule's direction(g, p, states) gives, and of p. Nothing changes: the update computes the same direction again.

template <int64_t scalars, size_t states> std::vector<TensorType> infer_direction_squares(const InferContext& context) {
  infer_element_update<scalars>(context);
  if (context.inputs.size() != kFirstStateInput + states) throw error(ErrorCode::unsupported, "there are {} states to be", states);
  const TensorType squares{DType::float64, {norm_blocks(context.input(kParameterInput).shape)}};
  return {squares, squares};
}

template <int flops> Cost direction_squares_cost(const KernelSpec& spec) {
  int64_t bytes = 0;
  for (const TensorType& input : spec.inputs) bytes += input.bytes();
  return {.flops = static_cast<double>(flops * element_count(spec.inputs[kParameterInput].shape)), .bytes = static_cast<double>(bytes)};
}

ORT_TRAIN_OPS_END

#ifdef ORT_TRAIN_BLOCKS
#include "exec/cuda/trust_ratio.h"
#else
#include "exec/ops/trust_ratio_loops.h"
#endif
