// What optimizers share that multiply the learning rate of each tensor by a ratio of norms. The ratio gets to the update as one of its
// scalars:
//
//   OPTrust{...}(scalars, ..., squares..., squares of p...) -> scalars      of each part of the tensor
//   OP{...}(p, g, factor, those scalars, states...)                         an update of single elements

#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "exec/lanes.h"
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

// Of both, of the whole tensor.
inline std::array<double, 2> two_norms(const KernelArgs& args, const std::vector<int64_t>& counts, size_t first) {
  const size_t second = first + (counts.size() - first) / 2;
  return {std::sqrt(sum_of_inputs(args, counts, first, second)), std::sqrt(sum_of_inputs(args, counts, second, counts.size()))};
}

template <int64_t scalars> void put_trust(const KernelArgs& args, size_t input, int64_t at, double ratio) {
  std::copy_n(args.in<float>(input), scalars, args.out<float>(0));
  args.out<float>(0)[at] = static_cast<float>(ratio);
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

template <typename T, typename Rule>
std::array<double, 2> direction_squares(const Rule rule, T factor, const T* __restrict g, const T* __restrict p,
                                        const std::array<const T*, Rule::kStates> states, int64_t n) {
  double of_direction[kLanes] = {}, of_parameter[kLanes] = {};
  each_in_lanes<T>(
      n, [&](int l, int64_t i) __attribute__((always_inline)) {
        T of_element[Rule::kStates];
#pragma GCC unroll 4
        for (size_t s = 0; s < Rule::kStates; ++s) of_element[s] = states[s][i];
        const auto u = static_cast<double>(rule.direction(g[i] * factor, p[i], of_element)), x = static_cast<double>(p[i]);
        of_direction[l] += u * u;
        of_parameter[l] += x * x;
      });
  const auto add = [](double a, double b) { return a + b; };
  return {join_lanes(of_direction, add), join_lanes(of_parameter, add)};
}

template <template <typename> class Rule> KernelRun prepare_direction_squares(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[kParameterInput].dtype, [&]<typename T>() -> KernelRun {
    const Shape& shape = spec.inputs[kParameterInput].shape;
    return [n = element_count(shape), block = norm_block(shape), blocks = norm_blocks(shape),
            attributes = spec.attributes](const KernelArgs& args) {
      const float factor = *args.in<float>(kFactorInput);
      if (is_skipped(factor)) return;
      const Rule<T> rule(attributes, args.in<float>(kNumbersInput));
      args.workers().parallel_for(blocks, [&](int64_t task, int) {
        const int64_t from = task * block;
        std::array<const T*, Rule<T>::kStates> states;
        for (size_t s = 0; s < states.size(); ++s) states[s] = args.in<T>(kFirstStateInput + s) + from;
        const auto [u, p] = direction_squares<T>(rule, static_cast<T>(factor), args.in<T>(kGradientInput) + from,
                                                 args.in<T>(kParameterInput) + from, states, std::min(block, n - from));
        args.out<double>(0)[task] = u;
        args.out<double>(1)[task] = p;
      });
    };
  });
}

ORT_TRAIN_OPS_END
