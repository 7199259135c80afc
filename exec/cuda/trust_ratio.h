// Trust ratios and the norms for them on CUDA: see exec/ops/trust_ratio.h, which includes this.

#pragma once

#include <array>

#include "exec/cuda/element_update.h"
#include "exec/cuda/squares.h"
#include "exec/cuda/sum_inputs.h"
#include "exec/cuda/unroll.h"

ORT_TRAIN_OPS_BEGIN

inline Workspace trust_workspace(const KernelSpec&) { return {.shared = 2 * sizeof(double)}; }

template <typename Ratio> struct PutTrust {
  Ratio ratio;
  const double* sum;  // of the first half of the squares
  const float *factor, *scalars;
  float* to;
  int64_t count, at;
  HOST_DEVICE void operator()(double of_parameter) const {
    for (int64_t i = 0; i < count; ++i) to[i] = scalars[i];
    to[at] = static_cast<float>(ratio(math::sqrt(*sum), math::sqrt(of_parameter), factor ? double{*factor} : 1.0));
  }
};

template <int64_t scalars, size_t first, int64_t at, typename Ratio> KernelRun prepare_trust(const KernelSpec& spec, const Ratio& ratio) {
  return [counts = counts_of(spec), ratio](const KernelArgs& args) {
    const size_t second = first + (counts.size() - first) / 2;
    auto* const sum = reinterpret_cast<double*>(args.workspace);
    launch_input_sum(args, counts, first, second, sum, KeepSum{sum});
    launch_input_sum(args, counts, second, counts.size(), sum + 1,
                     PutTrust<Ratio>{.ratio = ratio,
                                     .sum = sum,
                                     .factor = first > 1 ? args.in<float>(1) : nullptr,
                                     .scalars = args.in<float>(0),
                                     .to = args.out<float>(0),
                                     .count = scalars,
                                     .at = at});
  };
}

// --- the norm of an update that isn't made yet ------------------------------------------------------------------------------------------

template <typename Rule, typename T> struct DirectionAndParameter {
  using Stored = T;
  static constexpr int kSums = 2, kStates = static_cast<int>(Rule::kStates);
  struct Values {
    T of[kSums];
  };

  const T *g, *p;
  std::array<const void*, kStates + 1> states;
  StoredStates<Rule::kStates> stored;
  const float *factor, *scalars;
  float decay;

  HOST_DEVICE bool skips() const { return is_skipped(*factor); }
  HOST_DEVICE Values operator()(int64_t i) const {
    const Rule rule(decay, scalars);
    T of_element[kStates + 1];
    ORT_TRAIN_UNROLL
    for (int s = 0; s < kStates; ++s) of_element[s] = state_of(s, i);
    return {{rule.direction(g[i] * static_cast<T>(*factor), p[i], of_element), p[i]}};
  }
  HOST_DEVICE T state_of(int s, int64_t i) const {
    const dynamic8::Coding& coding = stored.coding[s];
    if (!coding.is_quantized) return static_cast<const T*>(states[s])[i];
    const auto* const state = static_cast<const uint8_t*>(states[s]);
    return coding.number(state[dynamic8::code_at(i)], dynamic8::scale_at(state, i));
  }
};

template <template <typename> class Rule> KernelRun prepare_direction_squares(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[kParameterInput].dtype, [&]<typename T>() -> KernelRun {
    return [shape = spec.inputs[kParameterInput].shape, stored = stored_states_of<Rule<T>::kStates>(spec),
            decay = weight_decay_of(spec)](const KernelArgs& args) {
      DirectionAndParameter<Rule<T>, T> of{.g = args.in<T>(kGradientInput),
                                           .p = args.in<T>(kParameterInput),
                                           .states = {},
                                           .stored = stored,
                                           .factor = args.in<float>(kFactorInput),
                                           .scalars = args.in<float>(kNumbersInput),
                                           .decay = decay};
      for (size_t s = 0; s < Rule<T>::kStates; ++s) of.states[s] = args.inputs[kFirstStateInput + s];
      launch_norm_squares(of, shape, args, args.out<double>(0), args.out<double>(1));
    };
  });
}

ORT_TRAIN_OPS_END
