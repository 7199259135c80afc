// Optimizer updates in which no element depends on another one. An optimizer gives its rule, the arithmetic of one element; the loops over
// tensors, and how states are stored, are here.
//
//   OP{...}(p, g, factor, scalars, states...) -> p, states...     changed in place
//
//   factor   float32 []: multiplies the gradient; NaN: nothing changes (UpdateFactor, exec/ops/optimizer.cpp)
//   scalars  float32 [n]: the numbers of the step, as OptimizerDef::scalars makes them
//
// A rule is a template over the type in which it computes:
//
//   template <typename T> struct AdamWRule {
//     static constexpr size_t kStates = 2;
//     AdamWRule(const Attributes&, const float* scalars);            once a run
//     HOST_DEVICE void operator()(T g, T& p, T* states) const;       branch-free; kStates of them
//   };
//
// A parameter may be bfloat16: the rule computes in float32 from it and from its gradient, which is bfloat16 or float32, and the result is
// rounded stochastically (exec/stochastic_rounding.h). Its states are what a float32 parameter's are.
//
// It runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result.
//
// No two rules have the same name, in whatever files: of functions that are made of a template in an unnamed namespace, GCC 12 keeps one
// for all files.
//
// States may be stored as dynamic8 (graph/dynamic8.h), each block of which is made numbers, updated and rounded again. The parameter is
// updated by the numbers before they are rounded, as in bitsandbytes, whose rounding the attribute `bitsandbytes` asks for.

#pragma once

#include <algorithm>
#include <array>
#include <tuple>

#include "exec/dynamic8.h"
#include "exec/ops/update.h"
#include "exec/stochastic_rounding.h"

ORT_TRAIN_OPS_BEGIN

enum ElementUpdateInput : size_t { kParameterInput, kGradientInput, kFactorInput, kNumbersInput, kFirstStateInput };

template <int64_t scalars> std::vector<TensorType> infer_element_update(const InferContext& context) {
  const TensorType parameter = context.input(kParameterInput), computed{compute_type(parameter.dtype), parameter.shape};
  if (context.input(kGradientInput) != computed) check_same(context, kParameterInput, kGradientInput);
  check_input(context, kFactorInput, {DType::float32, {}});
  const bool has_step = context.input(kNumbersInput).shape == Shape{scalars + kStepNumbers};
  if (!has_step || context.input(kNumbersInput).dtype != DType::float32) check_input(context, kNumbersInput, {DType::float32, {scalars}});
  if (is_half(parameter.dtype) && !(has_step && parameter.dtype == DType::bfloat16))
    throw error(ErrorCode::unsupported, "{} isn't updated: the number of the step, by which it is rounded, is missing",
                to_string(parameter));
  std::vector<TensorType> outputs{parameter};
  for (size_t i = kFirstStateInput; i < context.inputs.size(); ++i) {
    const DType stored = context.input(i).dtype;
    check_input(context, i, is_quantized(stored) ? TensorType{stored, parameter.shape} : computed);
    outputs.push_back(context.input(i));
  }
  return outputs;
}

inline constexpr List<Alias, 4> kElementUpdateWrites{{.output = 0, .input = kParameterInput},
                                                     {.output = 1, .input = kFirstStateInput},
                                                     {.output = 2, .input = kFirstStateInput + 1},
                                                     {.output = 3, .input = kFirstStateInput + 2}};

// The gradient is read, the rest read and written.
inline constexpr DTypes kUpdated{DType::float32, DType::float64, DType::bfloat16};  // parameters

template <int flops> Cost element_update_cost(const KernelSpec& spec) {
  int64_t bytes = spec.inputs[kGradientInput].bytes();
  for (const TensorType& output : spec.outputs) bytes += 2 * output.bytes();
  return {.flops = static_cast<double>(flops * element_count(spec.inputs[kParameterInput].shape)), .bytes = static_cast<double>(bytes)};
}

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
inline bool has_quantized_state(const KernelSpec& spec) {
  return std::any_of(spec.inputs.begin(), spec.inputs.end(), [](const TensorType& type) { return is_quantized(type.dtype); });
}

template <template <typename> class Rule, typename P, typename G> KernelRun prepare_update_in_blocks(const KernelSpec& spec) {
  static_assert(kUpdateBlock % kDynamic8Block == 0);
  return [n = element_count(spec.inputs[kParameterInput].shape), attributes = spec.attributes, stored = stored_states<Rule<float>>(spec),
          step_at = spec.inputs[kNumbersInput].shape[0] - kStepNumbers,
          rounding = StochasticRounding(spec.attributes)](const KernelArgs& args) {
    const float factor = *args.in<float>(kFactorInput);
    if (is_skipped(factor)) return;
    const Rule<float> rule(attributes, args.in<float>(kNumbersInput));
    const Rounding to_parameter{.rounding = rounding, .step = args.in<float>(kNumbersInput) + step_at};
    args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
      update_blocks<Rule<float>, P, G>(rule, factor, args, stored, to_parameter, begin, end);
    });
  };
}

template <template <typename> class Rule> KernelRun prepare_element_update(const KernelSpec& spec) {
  const DType parameter = spec.inputs[kParameterInput].dtype;
  if (is_half(parameter)) {
    return for_type(Types<float, bfloat16>{}, spec.inputs[kGradientInput].dtype,
                    [&]<typename G>() { return prepare_update_in_blocks<Rule, bfloat16, G>(spec); });
  }
  if (has_quantized_state(spec)) return prepare_update_in_blocks<Rule, float, float>(spec);
  return for_type(Wide{}, parameter, [&]<typename T>() -> KernelRun {
    require(spec.inputs.size() == kFirstStateInput + Rule<T>::kStates, "an update has as many states as its rule");
    return [n = element_count(spec.inputs[kParameterInput].shape), attributes = spec.attributes](const KernelArgs& args) {
      const float factor = *args.in<float>(kFactorInput);
      if (is_skipped(factor)) return;
      const Rule<T> rule(attributes, args.in<float>(kNumbersInput));
      args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
        std::array<T*, Rule<T>::kStates> states;
        for (size_t s = 0; s < states.size(); ++s) states[s] = args.out<T>(1 + s) + begin;
        update_elements<T>(rule, factor, args.in<T>(kGradientInput) + begin, args.out<T>(0) + begin, states, end - begin);
      });
    };
  });
}

ORT_TRAIN_OPS_END
