// Optimizer updates in which no element depends on another one. An optimizer gives its rule, the arithmetic of one element, to
// prepare_element_update: there are loops over tensors for the processor (exec/ops/element_update_loops.h) and, where ORT_TRAIN_BLOCKS is
// defined, for CUDA (exec/cuda/element_update.h).
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
//     HOST_DEVICE AdamWRule(float weight_decay, const float* scalars);
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
// States of parameters that are computed with in float32 may be stored as dynamic8 (graph/dynamic8.h), each block of which is made numbers,
// updated and rounded again. The parameter is updated by the numbers before they are rounded, as in bitsandbytes, whose rounding the
// attribute `bitsandbytes` asks for.

#pragma once

#include <algorithm>

#include "exec/ops/update.h"
#include "exec/random.h"

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
    if (is_quantized(stored) && computed.dtype != DType::float32)
      throw error(ErrorCode::unsupported, "{} isn't updated with state in 8 bits, which is computed with in float32", to_string(parameter));
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

inline bool has_quantized_state(const KernelSpec& spec) {
  return std::any_of(spec.inputs.begin(), spec.inputs.end(), [](const TensorType& type) { return is_quantized(type.dtype); });
}
inline float weight_decay_of(const KernelSpec& spec) { return spec.attributes.get("weight_decay", 0.0f); }

ORT_TRAIN_OPS_END

#ifdef ORT_TRAIN_BLOCKS
#include "exec/cuda/element_update.h"
#else
#include "exec/ops/element_update_loops.h"
#endif

ORT_TRAIN_OPS_BEGIN

template <template <typename> class Rule> KernelRun prepare_element_update(const KernelSpec& spec) {
  const DType parameter = spec.inputs[kParameterInput].dtype;
  require(spec.inputs.size() == kFirstStateInput + Rule<float>::kStates, "an update has as many states as its rule");
  if (is_half(parameter)) {
    return for_type(Types<float, bfloat16>{}, spec.inputs[kGradientInput].dtype,
                    [&]<typename G>() { return prepare_update_in_blocks<Rule, bfloat16, G>(spec); });
  }
  if (has_quantized_state(spec)) return prepare_update_in_blocks<Rule, float, float>(spec);
  return for_type(Wide{}, parameter, [&]<typename T>() { return prepare_update_of_numbers<Rule, T>(spec); });
}

ORT_TRAIN_OPS_END
