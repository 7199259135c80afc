// Convolutions and their gradients whose operands are of 16 bits, or are rounded to these, on tensor cores (exec/cuda/cudnn_plan.h). What
// cuDNN doesn't make is made by the kernels of exec/cuda/ops, as on the host: parts of a weight, padding that isn't the same on both sides.
//
// cuDNN's results are of 16 bits: results of float32 are widened, a bias is added to what was rounded.

#pragma once

#ifdef __CUDACC__

#include <optional>

#include "exec/cuda/convolution.h"
#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/half_tensors.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

struct HalfConvolution {
  const cuda::CudnnPlan* plan = nullptr;
  halves::HalfTensor a, b, result;
  int64_t library_at = 0, bytes = 0;  // of the workspace

  // Up to `result` as cuDNN makes it, whose place it returns.
  std::byte* make(const KernelArgs& args) const {
    const std::array<void*, 3> tensors{halves::rounded_input(a, 0, args), halves::rounded_input(b, 1, args),
                                       halves::output_place(result, 0, args)};
    plan->run(tensors, halves::workspace_of(args) + library_at, args.queue);
    return static_cast<std::byte*>(tensors[2]);
  }
  void run(const KernelArgs& args) const {
    make(args);
    halves::widen_output(result, 0, args);
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

inline void add_bias(const HalfConvolution& half, const Layout& l, const OperandTensor<float>& bias, const std::byte* made,
                     const KernelArgs& args) {
  const auto add = [&]<typename To, typename From>(To, From) {
    const AddBias<To, From> element{.from = reinterpret_cast<const From*>(made),
                                    .to = args.out<To>(0),
                                    .bias = bias,
                                    .plane = Size(l.windows.out_size()),
                                    .channels = Size(l.total),
                                    .small = half.result.elements <= INT32_MAX};
    launch_elements(element, half.result.elements, args);
  };
  const bool is_float = half.result.is_copied();
  if (half.result.type == DType::bfloat16)
    is_float ? add(float{}, bfloat16{}) : add(bfloat16{}, bfloat16{});
  else
    is_float ? add(float{}, float16{}) : add(float16{}, float16{});
}

}  // namespace convolution
ORT_TRAIN_OPS_END

#endif
