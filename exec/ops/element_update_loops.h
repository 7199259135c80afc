// Updates of single elements on the processor: see exec/ops/element_update.h, which includes this.

#pragma once

#include <algorithm>
#include <array>
#include <tuple>

#include "exec/dynamic8.h"
#include "exec/ops/update.h"
#include "exec/stochastic_rounding.h"

ORT_TRAIN_OPS_BEGIN

// With each state a pointer of its own, the compiler keeps an element's states in registers and makes vectors of the loop.
template <typename T, typename Rule>
void update_elements(const Rule rule, T factor, const T* g, T* p, const std::array<T*, Rule::kStates> states, int64_t n) {
  const auto update = [&](auto*... state) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      T of_element[]{state[i]..., T()};
      T value = p[i];
      rule(g[i] * factor, value, of_element);
      p[i] = value;
      size_t s = 0;
      ((state[i] = of_element[s++]), ...);
    }
  };
  std::apply(update, states);
}

// A state that is stored in blocks, or as the numbers that it is.
struct StoredState {
  dynamic8::Codec codec{};
  bool is_quantized() const { return codec.decode != nullptr; }
};

// How a parameter of 16 bits is rounded.
struct Rounding {
  const StochasticRounding& rounding;
  const float* step;
};

// The same, block by block, from the first element of one on: what isn't float32 (parameter, gradient, states) is made so in between.
template <typename Rule, typename P, typename G, size_t states = Rule::kStates>
void update_blocks(const Rule& rule, float factor, const KernelArgs& args, const std::array<StoredState, states>& stored,
                   const Rounding& to_parameter, int64_t begin, int64_t end) {
  alignas(64) float numbers[states + 1][kDynamic8Block], parameter[kDynamic8Block], gradient[kDynamic8Block];
  for (; begin < end; begin += kDynamic8Block) {
    const int64_t n = std::min(kDynamic8Block, end - begin);
    std::array<uint8_t*, states> blocks{};
    std::array<float*, states> values;
    for (size_t s = 0; s < states; ++s) {
      values[s] = stored[s].is_quantized() ? numbers[s] : args.out<float>(1 + s) + begin;
      if (!stored[s].is_quantized()) continue;
      blocks[s] = args.out<uint8_t>(1 + s) + begin / kDynamic8Block * kDynamic8BlockBytes;
      stored[s].codec.decode(blocks[s], numbers[s]);
    }
    const float* g = gradient;
    if constexpr (std::is_same_v<G, float>)
      g = args.in<float>(kGradientInput) + begin;
    else
      for (int64_t i = 0; i < n; ++i) gradient[i] = load(args.in<G>(kGradientInput)[begin + i]);
    if constexpr (std::is_same_v<P, float>) {
      update_elements<float>(rule, factor, g, args.out<float>(0) + begin, values, n);
    } else {
      P* const p = args.out<P>(0) + begin;
      for (int64_t i = 0; i < n; ++i) parameter[i] = load(p[i]);
      update_elements<float>(rule, factor, g, parameter, values, n);
      to_parameter.rounding.round(to_parameter.step, begin, n, parameter, p);
    }
    for (size_t s = 0; s < states; ++s) {
      if (!stored[s].is_quantized()) continue;
      std::fill(numbers[s] + n, numbers[s] + kDynamic8Block, 0.0f);  // behind the last element
      stored[s].codec.encode(numbers[s], blocks[s]);
    }
  }
}

template <typename Rule> std::array<StoredState, Rule::kStates> stored_states(const KernelSpec& spec) {
  std::array<StoredState, Rule::kStates> stored;
  for (size_t s = 0; s < stored.size(); ++s) {
    const DType dtype = spec.inputs[kFirstStateInput + s].dtype;
    if (is_quantized(dtype)) stored[s].codec = dynamic8::codec(dtype, spec.attributes.get("bitsandbytes", int64_t{0}) != 0);
  }
  return stored;
}

template <template <typename> class Rule, typename P, typename G> KernelRun prepare_update_in_blocks(const KernelSpec& spec) {
  static_assert(kUpdateBlock % kDynamic8Block == 0);
  return [n = element_count(spec.inputs[kParameterInput].shape), decay = weight_decay_of(spec), stored = stored_states<Rule<float>>(spec),
          step_at = spec.inputs[kNumbersInput].shape[0] - kStepNumbers,
          rounding = StochasticRounding(spec.attributes)](const KernelArgs& args) {
    args.blocks(n, kUpdateBlock, [args, decay, &stored, step_at, &rounding](int64_t begin, int64_t end) {
      const float factor = *args.in<float>(kFactorInput);
      if (is_skipped(factor)) return;
      const Rule<float> rule(decay, args.in<float>(kNumbersInput));
      const Rounding to_parameter{.rounding = rounding, .step = args.in<float>(kNumbersInput) + step_at};
      update_blocks<Rule<float>, P, G>(rule, factor, args, stored, to_parameter, begin, end);
    });
  };
}

template <template <typename> class Rule, typename T> KernelRun prepare_update_of_numbers(const KernelSpec& spec) {
  return [n = element_count(spec.inputs[kParameterInput].shape), decay = weight_decay_of(spec)](const KernelArgs& args) {
    args.blocks(n, kUpdateBlock, [args, decay](int64_t begin, int64_t end) {
      const float factor = *args.in<float>(kFactorInput);
      if (is_skipped(factor)) return;
      const Rule<T> rule(decay, args.in<float>(kNumbersInput));
      std::array<T*, Rule<T>::kStates> states;
      for (size_t s = 0; s < states.size(); ++s) states[s] = args.out<T>(1 + s) + begin;
      update_elements<T>(rule, factor, args.in<T>(kGradientInput) + begin, args.out<T>(0) + begin, states, end - begin);
    });
  };
}

ORT_TRAIN_OPS_END
