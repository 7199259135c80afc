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
// rounded stochastically (exec/stochastic_rounding.h). Its states are float32.
//
// It runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result.

#pragma once

#include <array>

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
    check_input(context, i, computed);
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

template <typename T, typename Rule>
void update_elements(const Rule rule, T factor, const T* g, T* p, const std::array<T*, Rule::kStates> states, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    T of_element[Rule::kStates + 1];
#pragma GCC unroll 4
    for (size_t s = 0; s < Rule::kStates; ++s) of_element[s] = states[s][i];
    T value = p[i];
    rule(g[i] * factor, value, of_element);
    p[i] = value;
#pragma GCC unroll 4
    for (size_t s = 0; s < Rule::kStates; ++s) states[s][i] = of_element[s];
  }
}

// A few elements at a time are made float32, updated and rounded.
template <template <typename> class Rule, typename G> KernelRun prepare_rounded_update(const KernelSpec& spec) {
  const int64_t scalars = spec.inputs[kNumbersInput].shape[0] - kStepNumbers;
  return [n = element_count(spec.inputs[kParameterInput].shape), attributes = spec.attributes, scalars,
          rounding = StochasticRounding(spec.attributes)](const KernelArgs& args) {
    const float factor = *args.in<float>(kFactorInput);
    if (is_skipped(factor)) return;
    const Rule<float> rule(attributes, args.in<float>(kNumbersInput));
    const float* const step = args.in<float>(kNumbersInput) + scalars;
    args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
      constexpr int64_t kFew = 512;
      float p[kFew], g[kFew];
      for (; begin < end; begin += kFew) {
        const int64_t count = std::min(kFew, end - begin);
        const G* const gradient = args.in<G>(kGradientInput) + begin;
        bfloat16* const parameter = args.out<bfloat16>(0) + begin;
        for (int64_t i = 0; i < count; ++i) p[i] = load(parameter[i]);
        for (int64_t i = 0; i < count; ++i) g[i] = load(gradient[i]);
        std::array<float*, Rule<float>::kStates> states;
        for (size_t s = 0; s < states.size(); ++s) states[s] = args.out<float>(1 + s) + begin;
        update_elements<float>(rule, factor, g, p, states, count);
        rounding.round(step, begin, count, p, parameter);
      }
    });
  };
}

template <template <typename> class Rule> KernelRun prepare_element_update(const KernelSpec& spec) {
  if (is_half(spec.inputs[kParameterInput].dtype)) {
    return for_type(Types<float, bfloat16>{}, spec.inputs[kGradientInput].dtype,
                    [&]<typename G>() { return prepare_rounded_update<Rule, G>(spec); });
  }
  return for_type(Wide{}, spec.inputs[kParameterInput].dtype, [&]<typename T>() -> KernelRun {
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
