// Trust ratios and the norms for them on the processor: see exec/ops/trust_ratio.h, which includes this.

#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "exec/lanes.h"
#include "exec/norm_block.h"
#include "exec/ops/element_update.h"

ORT_TRAIN_OPS_BEGIN

inline Workspace trust_workspace(const KernelSpec&) { return {}; }

template <int64_t scalars, size_t first, int64_t at, typename Ratio> KernelRun prepare_trust(const KernelSpec& spec, const Ratio& ratio) {
  return [counts = counts_of(spec), ratio](const KernelArgs& args) {
    const size_t second = first + (counts.size() - first) / 2;
    const double norm = std::sqrt(sum_of_inputs(args, counts, first, second)),
                 of_parameter = std::sqrt(sum_of_inputs(args, counts, second, counts.size()));
    std::copy_n(args.in<float>(0), scalars, args.out<float>(0));
    args.out<float>(0)[at] = static_cast<float>(ratio(norm, of_parameter, first > 1 ? double{*args.in<float>(1)} : 1.0));
  };
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
  return [n = element_count(shape), block = norm_block(shape), blocks = norm_blocks(shape), decay = weight_decay_of(spec),
          run](const KernelArgs& args) {
    if (is_skipped(*args.in<float>(kFactorInput))) return;
    const Rule rule(decay, args.in<float>(kNumbersInput));
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
