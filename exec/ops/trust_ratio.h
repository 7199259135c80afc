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

// Added up in lanes.
struct TwoSquares {
  double of_direction[kLanes] = {}, of_parameter[kLanes] = {};
};

template <typename T, typename Rule>
void add_direction_squares(const Rule rule, T factor, const T* __restrict g, const T* __restrict p,
                           const std::array<const T*, Rule::kStates> states, int64_t n, TwoSquares& squares) {
  each_in_lanes<T>(
      n, [&](int l, int64_t i) __attribute__((always_inline)) {
        T of_element[Rule::kStates];
#pragma GCC unroll 4
        for (size_t s = 0; s < Rule::kStates; ++s) of_element[s] = states[s][i];
        const auto u = static_cast<double>(rule.direction(g[i] * factor, p[i], of_element)), x = static_cast<double>(p[i]);
        squares.of_direction[l] += u * u;
        squares.of_parameter[l] += x * x;
      });
}

// run(rule, from, n, squares) adds those of elements [from, from + n) of the tensor: one block.
template <typename Rule, typename Run> KernelRun each_direction_block(const KernelSpec& spec, const Run& run) {
  const Shape& shape = spec.inputs[kParameterInput].shape;
  return [n = element_count(shape), block = norm_block(shape), blocks = norm_blocks(shape), attributes = spec.attributes,
          run](const KernelArgs& args) {
    if (is_skipped(*args.in<float>(kFactorInput))) return;
    const Rule rule(attributes, args.in<float>(kNumbersInput));
    args.workers().parallel_for(blocks, [&](int64_t task, int) {
      const int64_t from = task * block;
      TwoSquares squares;
      run(args, rule, from, std::min(block, n - from), squares);
      const auto add = [](double a, double b) { return a + b; };
      args.out<double>(0)[task] = join_lanes(squares.of_direction, add);
      args.out<double>(1)[task] = join_lanes(squares.of_parameter, add);
    });
  };
}

// With state in blocks: as many elements at a time as a block has, wherever blocks begin.
template <typename Rule> KernelRun prepare_quantized_squares(const KernelSpec& spec) {
  static_assert(kDynamic8Block % kLanes == 0);
  return each_direction_block<Rule>(spec, [stored = stored_states<Rule>(spec)](const KernelArgs& args, const Rule& rule, int64_t from,
                                                                               int64_t n, TwoSquares& squares) {
    alignas(64) float numbers[Rule::kStates][2 * kDynamic8Block];
    for (const int64_t end = from + n; from < end; from += kDynamic8Block) {
      const int64_t count = std::min(kDynamic8Block, end - from), first = from / kDynamic8Block, last = (from + count - 1) / kDynamic8Block;
      std::array<const float*, Rule::kStates> states;
      for (size_t s = 0; s < states.size(); ++s) {
        const void* const state = args.inputs[kFirstStateInput + s];
        states[s] = static_cast<const float*>(state) + from;
        if (!stored[s].is_quantized()) continue;
        for (int64_t block = first; block <= last; ++block)
          stored[s].codec.decode(static_cast<const uint8_t*>(state) + block * kDynamic8BlockBytes,
                                 numbers[s] + (block - first) * kDynamic8Block);
        states[s] = numbers[s] + from % kDynamic8Block;
      }
      add_direction_squares<float>(rule, *args.in<float>(kFactorInput), args.in<float>(kGradientInput) + from,
                                   args.in<float>(kParameterInput) + from, states, count, squares);
    }
  });
}

template <template <typename> class Rule> KernelRun prepare_direction_squares(const KernelSpec& spec) {
  if (has_quantized_state(spec)) return prepare_quantized_squares<Rule<float>>(spec);
  return for_type(Wide{}, spec.inputs[kParameterInput].dtype, [&]<typename T>() -> KernelRun {
    return each_direction_block<Rule<T>>(
        spec, [](const KernelArgs& args, const Rule<T>& rule, int64_t from, int64_t n, TwoSquares& squares) {
          std::array<const T*, Rule<T>::kStates> states;
          for (size_t s = 0; s < states.size(); ++s) states[s] = args.in<T>(kFirstStateInput + s) + from;
          add_direction_squares<T>(rule, static_cast<T>(*args.in<float>(kFactorInput)), args.in<T>(kGradientInput) + from,
                                   args.in<T>(kParameterInput) + from, states, n, squares);
        });
  });
}

ORT_TRAIN_OPS_END
