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
// It runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result.

#pragma once

#include <array>

#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN

enum ElementUpdateInput : size_t { kParameterInput, kGradientInput, kFactorInput, kNumbersInput, kFirstStateInput };

template <int64_t scalars> std::vector<TensorType> infer_element_update(const InferContext& context) {
  check_same(context, kParameterInput, kGradientInput);
  check_input(context, kFactorInput, {DType::float32, {}});
  check_input(context, kNumbersInput, {DType::float32, {scalars}});
  std::vector<TensorType> outputs{context.input(kParameterInput)};
  for (size_t i = kFirstStateInput; i < context.inputs.size(); ++i) {
    check_same(context, kParameterInput, i);
    outputs.push_back(context.input(i));
  }
  return outputs;
}

inline constexpr List<Alias, 4> kElementUpdateWrites{{.output = 0, .input = kParameterInput},
                                                     {.output = 1, .input = kFirstStateInput},
                                                     {.output = 2, .input = kFirstStateInput + 1},
                                                     {.output = 3, .input = kFirstStateInput + 2}};

// The gradient is read, the rest read and written.
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

template <template <typename> class Rule> KernelRun prepare_element_update(const KernelSpec& spec) {
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
