// Convolutions and their gradients whose operands are of 16 bits, or are rounded to these, on tensor cores (exec/cuda/cudnn_plan.h). What
// cuDNN doesn't make is made by the kernels of exec/cuda/ops: parts of a weight, padding that isn't the same on both sides.
//
// cuDNN's results are of 16 bits: results of float32 are widened, a bias is added to what was rounded.

#pragma once

#include <array>
#include <optional>

#include "exec/cuda/convolution.h"
#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/half_tensors.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// y of one type from that of another, or from itself.
template <typename To, typename From> struct AddBias {
  const From* from;
  To* to;
  OperandTensor<float> bias;
  Size plane, channels;
  bool small;

  HOST_DEVICE void operator()(int64_t i) const {
    const int64_t channel = channels.split(plane.split(i, small).above, small).place;
    to[i] = store<To>(load(from[i]) + bias.at(channel));
  }
};

struct HalfConvolution {
  const cuda::CudnnPlan* plan = nullptr;
  halves::HalfTensor a, b, result;
  int64_t library_at = 0, bytes = 0;  // of the workspace
  // Input 2, which is added to y: the elements of a channel, and how many channels there are.
  bool has_bias = false;
  Element bias = Element::own;
  int64_t plane = 0, channels = 0;

  void run(const KernelArgs& args) const {
    const std::array<void*, 3> tensors{halves::rounded_input(a, 0, args), halves::rounded_input(b, 1, args),
                                       halves::output_place(result, 0, args)};
    plan->run(tensors, halves::workspace_of(args) + library_at, args.queue);
    if (!has_bias)
      halves::widen_output(result, 0, args);
    else if (result.type == DType::bfloat16)
      result.is_copied() ? add_bias<float, bfloat16>(tensors[2], args) : add_bias<bfloat16, bfloat16>(tensors[2], args);
    else
      result.is_copied() ? add_bias<float, float16>(tensors[2], args) : add_bias<float16, float16>(tensors[2], args);
  }

 private:
  template <typename To, typename From> void add_bias(const void* made, const KernelArgs& args) const {
    const AddBias<To, From> element{.from = static_cast<const From*>(made),
                                    .to = args.out<To>(0),
                                    .bias = {args.in<std::byte>(2), bias},
                                    .plane = Size(plane),
                                    .channels = Size(channels),
                                    .small = result.elements <= INT32_MAX};
    launch_elements(element, result.elements, args);
  }
};

// `goes_on`: the input by which a result goes on from another.
inline std::optional<HalfConvolution> half_convolution(const KernelSpec& spec, const Layout& l, cuda::ConvolutionProblem::Result result,
                                                       size_t goes_on) {
  const DType type = halves::operand_type(spec, 0), made = spec.outputs[0].dtype;
  if (!is_half(type) || halves::operand_type(spec, 1) != type || (made != type && made != DType::float32)) return std::nullopt;
  const auto& [h, w] = l.windows;
  const bool is_whole = l.first == 0 && l.is_last() && !spec.has(goes_on);
  const bool is_empty = l.batch == 0 || h.in == 0 || w.in == 0;
  if (!is_whole || is_empty || h.begin != h.end || w.begin != w.end) return std::nullopt;
  HalfConvolution half{.plan = cuda::find_plan({.result = result,
                                                .batch = l.batch,
                                                .groups = l.groups,
                                                .in_channels = l.in_channels,
                                                .out_channels = l.out_channels,
                                                .in = {h.in, w.in},
                                                .out = {h.out, w.out},
                                                .kernel = {h.kernel, w.kernel},
                                                .stride = {h.stride, w.stride},
                                                .padding = {h.begin, w.begin},
                                                .dilation = {h.dilation, w.dilation},
                                                .type = type})};
  if (half.plan == nullptr) return std::nullopt;
  halves::HalfWorkspace workspace;
  half.a = workspace.tensor(spec.inputs[0], type);
  half.b = workspace.tensor(spec.inputs[1], type);
  half.result = workspace.tensor(spec.outputs[0], type);
  half.library_at = workspace.take(half.plan->workspace_bytes());
  half.bytes = workspace.all();
  return half;
}

inline std::optional<HalfConvolution> half_y(const KernelSpec& spec) {
  const Layout l = layout_of_y(spec);
  std::optional<HalfConvolution> half = half_convolution(spec, l, cuda::ConvolutionProblem::Result::y, /*goes_on=*/3);
  if (!half || !spec.has(2)) return half;
  half->has_bias = true;
  half->bias = element_of(spec.inputs[2].dtype);
  half->plane = l.windows.out_size();
  half->channels = l.total;
  return half;
}
inline std::optional<HalfConvolution> half_dx(const KernelSpec& spec) {
  return half_convolution(spec, layout_of_dx(spec), cuda::ConvolutionProblem::Result::dx, /*goes_on=*/2);
}
inline std::optional<HalfConvolution> half_dw(const KernelSpec& spec) {
  constexpr size_t kNoBaseInput = 2;
  return half_convolution(spec, layout_of_dw(spec), cuda::ConvolutionProblem::Result::dw, kNoBaseInput);
}

}  // namespace convolution
ORT_TRAIN_OPS_END
