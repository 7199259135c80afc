// Updates of single elements on CUDA: see exec/ops/element_update.h, which includes this.
//
// One launch over all elements. Learning rate, factor and step are in device memory: each thread reads them and makes the rule. What the
// memory has to move bounds both kernels: 28 bytes an element for AdamW, 16 with states in 8 bits.

#pragma once

#include <array>

#include "exec/block.h"
#include "exec/cuda/dynamic8.h"
#include "exec/cuda/pack.h"
#include "exec/cuda/unroll.h"
#include "exec/ops/update.h"
#include "exec/stochastic_rounding.h"

ORT_TRAIN_OPS_BEGIN

// --- states of numbers ------------------------------------------------------------------------------------------------------------------

template <typename Rule, typename T> struct NumbersUpdate {
  static constexpr int kThreads = 256, kPack = 16 / sizeof(T), kEach = 2;  // packs of a thread
  static constexpr int64_t kElements = int64_t{kThreads} * kPack * kEach;  // of a block
  static constexpr int kStates = static_cast<int>(Rule::kStates);
  using Shared = NoShared;

  const T* g;
  T* p;
  std::array<T*, kStates + 1> states;
  const float *factor, *scalars;
  float decay;
  int64_t n;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      if (is_skipped(*factor)) return;
      const T multiplier = *factor;
      const Rule rule(decay, scalars);
      for (int k = 0; k < kEach; ++k) {
        const int64_t begin = block.index * kElements + (k * kThreads + t) * kPack;
        if (begin + kPack <= n) {
          update_pack(rule, multiplier, begin);
        } else {
          for (int64_t i = begin; i < n; ++i) update_one(rule, multiplier, i);
        }
      }
    });
  }

  HOST_DEVICE void update_pack(const Rule& rule, T multiplier, int64_t begin) const {
    const auto gradient = load_pack<kPack>(g + begin);
    auto parameter = load_pack<kPack>(p + begin);
    Pack<T, kPack> state[kStates + 1];
    for (int s = 0; s < kStates; ++s) state[s] = load_pack<kPack>(states[s] + begin);
    for (int i = 0; i < kPack; ++i) {
      T of_element[kStates + 1];
      for (int s = 0; s < kStates; ++s) of_element[s] = state[s].of[i];
      rule(gradient.of[i] * multiplier, parameter.of[i], of_element);
      for (int s = 0; s < kStates; ++s) state[s].of[i] = of_element[s];
    }
    store_pack(p + begin, parameter);
    for (int s = 0; s < kStates; ++s) store_pack(states[s] + begin, state[s]);
  }
  HOST_DEVICE void update_one(const Rule& rule, T multiplier, int64_t i) const {
    T of_element[kStates + 1];
    for (int s = 0; s < kStates; ++s) of_element[s] = states[s][i];
    rule(g[i] * multiplier, p[i], of_element);
    for (int s = 0; s < kStates; ++s) states[s][i] = of_element[s];
  }
};

template <template <typename> class Rule, typename T> KernelRun prepare_update_of_numbers(const KernelSpec& spec) {
  using Update = NumbersUpdate<Rule<T>, T>;
  return [n = element_count(spec.inputs[kParameterInput].shape), decay = weight_decay_of(spec)](const KernelArgs& args) {
    Update update{.g = args.in<T>(kGradientInput),
                  .p = args.out<T>(0),
                  .states = {},
                  .factor = args.in<float>(kFactorInput),
                  .scalars = args.in<float>(kNumbersInput),
                  .decay = decay,
                  .n = n};
    for (size_t s = 0; s < Rule<T>::kStates; ++s) update.states[s] = args.out<T>(1 + s);
    launch(update, (n + Update::kElements - 1) / Update::kElements, args);
  };
}

// --- states in 8 bits, parameters in 16 -------------------------------------------------------------------------------------------------

template <size_t states> struct StoredStates { std::array<dynamic8::Coding, states + 1> coding; };
template <size_t states> StoredStates<states> stored_states_of(const KernelSpec& spec) {
  StoredStates<states> stored{};
  for (size_t s = 0; s < states; ++s) {
    const DType dtype = spec.inputs[kFirstStateInput + s].dtype;
    stored.coding[s] = {.is_quantized = is_quantized(dtype),
                        .is_signed = dtype == DType::dynamic8,
                        .as_bitsandbytes = spec.attributes.get("bitsandbytes", int64_t{0}) != 0};
  }
  return stored;
}

// A warp takes a block of dynamic8, each of its threads two times four neighbouring elements, 64 apart: those whose random bits are halves
// of the same words.
template <typename Rule, typename P, typename G> struct BlocksUpdate {
  static constexpr int kThreads = 128;
  static constexpr int64_t kElements = kThreads / 32 * kDynamic8Block;  // of a block of threads
  static constexpr int kStates = static_cast<int>(Rule::kStates), kQuad = 4;
  using Shared = NoShared;
  using Quad = Pack<float, kQuad>;
  struct Numbers {
    Quad of[kStates + 1][2];
  };

  const G* g;
  P* p;
  std::array<void*, kStates + 1> states;
  StoredStates<Rule::kStates> stored;
  const float *factor, *scalars, *step;
  float decay;
  StochasticRounding rounding;
  int64_t n;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<Numbers> numbers;
    typename Block::template Own<float> largest[kStates + 1];  // of each state's elements
    const auto first_of = [&](int t) { return block.index * kElements + t / 32 * kDynamic8Block + t % 32 / 16 * 128 + t % 16 * kQuad; };
    block.each([&](int t) {
      ORT_TRAIN_UNROLL
      for (int s = 0; s < kStates; ++s) largest[s][t] = 0;
      if (is_skipped(*factor)) return;
      update(first_of(t), numbers[t]);
      ORT_TRAIN_UNROLL
      for (int s = 0; s < kStates; ++s) {
        ORT_TRAIN_UNROLL
        for (int i = 0; i < 2 * kQuad; ++i) {
          const float x = math::abs(numbers[t].of[s][i / kQuad].of[i % kQuad]);
          largest[s][t] = x > largest[s][t] ? x : largest[s][t];
        }
      }
    });
    ORT_TRAIN_UNROLL
    for (int s = 0; s < kStates; ++s) block.template fold<32>(largest[s], Larger{});
    block.each([&](int t) {
      if (is_skipped(*factor)) return;
      ORT_TRAIN_UNROLL
      for (int s = 0; s < kStates; ++s) {
        if (stored.coding[s].is_quantized) put_codes(s, first_of(t), numbers[t].of[s], largest[s][t], t % 32 == 0);
      }
    });
  }

  HOST_DEVICE void update(int64_t first, Numbers& numbers) const {
    const Rule rule(decay, scalars);
    const float multiplier = *factor;
    uint32_t random[2 * kQuad] = {};
    if constexpr (!std::is_same_v<P, float>) rounding.random_bits(StochasticRounding::number_of(step), first, random);
    ORT_TRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t at = first + half * 64;
      const Quad gradient = numbers_of(g, at);
      Quad parameter = numbers_of(p, at);
      ORT_TRAIN_UNROLL
      for (int s = 0; s < kStates; ++s) numbers.of[s][half] = state_of(s, at);
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        float of_element[kStates + 1];
        ORT_TRAIN_UNROLL
        for (int s = 0; s < kStates; ++s) of_element[s] = numbers.of[s][half].of[i];
        rule(gradient.of[i] * multiplier, parameter.of[i], of_element);
        ORT_TRAIN_UNROLL
        for (int s = 0; s < kStates; ++s) numbers.of[s][half].of[i] = at + i < n ? of_element[s] : 0;
      }
      put_parameter(at, parameter, random + half * kQuad);
      ORT_TRAIN_UNROLL
      for (int s = 0; s < kStates; ++s) {
        if (!stored.coding[s].is_quantized) put(static_cast<float*>(states[s]), at, numbers.of[s][half]);
      }
    }
  }

  // Four elements from `at` on; zeros behind the last.
  template <typename T> HOST_DEVICE Quad numbers_of(const T* x, int64_t at) const {
    Quad numbers{};
    if (at + kQuad <= n) {
      const auto pack = load_pack<kQuad>(x + at);
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kQuad; ++i) numbers.of[i] = load(pack.of[i]);
    } else {
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        if (at + i < n) numbers.of[i] = load(x[at + i]);
      }
    }
    return numbers;
  }
  template <typename T> HOST_DEVICE void put(T* to, int64_t at, const Pack<T, kQuad>& pack) const {
    if (at + kQuad <= n) {
      store_pack(to + at, pack);
    } else {
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        if (at + i < n) to[at + i] = pack.of[i];
      }
    }
  }
  HOST_DEVICE void put_parameter(int64_t at, const Quad& numbers, const uint32_t* random) const {
    if constexpr (std::is_same_v<P, float>) {
      put(p, at, numbers);
    } else {
      Pack<P, kQuad> rounded;
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kQuad; ++i) rounded.of[i].bits = round_stochastically(numbers.of[i], random[i]);
      put(p, at, rounded);
    }
  }

  HOST_DEVICE Quad state_of(int s, int64_t at) const {
    const dynamic8::Coding& coding = stored.coding[s];
    if (!coding.is_quantized) return numbers_of(static_cast<const float*>(states[s]), at);
    Quad numbers{};
    if (at >= n) return numbers;
    const auto* const state = static_cast<const uint8_t*>(states[s]);
    const float scale = dynamic8::scale_at(state, at);
    const auto codes = load_pack<kQuad>(state + dynamic8::code_at(at));
    ORT_TRAIN_UNROLL
    for (int i = 0; i < kQuad; ++i) numbers.of[i] = coding.number(codes.of[i], scale);
    return numbers;
  }
  HOST_DEVICE void put_codes(int s, int64_t first, const Quad (&numbers)[2], float scale, bool puts_scale) const {
    auto* const state = static_cast<uint8_t*>(states[s]);
    const int64_t block = first / kDynamic8Block * kDynamic8Block;
    if (block >= n) return;
    const float inverse = dynamic8::inverse_of(scale);
    ORT_TRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      Pack<uint8_t, kQuad> codes;
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kQuad; ++i) codes.of[i] = stored.coding[s].code(numbers[half].of[i], scale, inverse);
      store_pack(state + dynamic8::code_at(first + half * 64), codes);
    }
    if (puts_scale) *reinterpret_cast<float*>(state + dynamic8::code_at(block) + kDynamic8Block) = scale;
  }
};

template <template <typename> class Rule, typename P, typename G> KernelRun prepare_update_in_blocks(const KernelSpec& spec) {
  using Update = BlocksUpdate<Rule<float>, P, G>;
  return [n = element_count(spec.inputs[kParameterInput].shape), decay = weight_decay_of(spec),
          stored = stored_states_of<Rule<float>::kStates>(spec), step_at = spec.inputs[kNumbersInput].shape[0] - kStepNumbers,
          rounding = StochasticRounding(spec.attributes)](const KernelArgs& args) {
    Update update{.g = args.in<G>(kGradientInput),
                  .p = args.out<P>(0),
                  .states = {},
                  .stored = stored,
                  .factor = args.in<float>(kFactorInput),
                  .scalars = args.in<float>(kNumbersInput),
                  .step = args.in<float>(kNumbersInput) + step_at,
                  .decay = decay,
                  .rounding = rounding,
                  .n = n};
    for (size_t s = 0; s < Rule<float>::kStates; ++s) update.states[s] = args.out<void>(1 + s);
    launch(update, (n + Update::kElements - 1) / Update::kElements, args);
  };
}

ORT_TRAIN_OPS_END
