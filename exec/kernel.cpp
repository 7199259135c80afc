#include "exec/kernel.h"

#include <algorithm>
#include <utility>

#include "exec/workspace.h"

namespace ort_train {
namespace {

constexpr int64_t kBlock = 32768;  // elements that a task converts

// The type that a kernel is chosen by: that of input `typed`, or of the first output.
DType typed_by(const Kernel& kernel, const KernelSpec& spec) {
  const auto i = static_cast<size_t>(kernel.typed);
  return kernel.typed != kResult && spec.has(i) ? spec.inputs[i].dtype : spec.outputs.at(0).dtype;
}

bool by_float32(const Kernel& kernel, const KernelSpec& spec) {
  const DType type = typed_by(kernel, spec);
  return is_half(type) && kernel.halves_by_float32 && !kernel.types.has(type);
}

// --- kernels of float32 on 16-bit tensors, each of which has a float32 copy in the workspace --------------------------------------------

KernelSpec widened(KernelSpec spec) {
  for (auto* types : {&spec.inputs, &spec.outputs}) {
    for (TensorType& type : *types) type.dtype = compute_type(type.dtype);
  }
  return spec;
}

// Bytes of the float32 copies, whole lines each.
int64_t copies_bytes(const KernelSpec& spec) {
  int64_t bytes = 0;
  for (const auto* types : {&spec.inputs, &spec.outputs}) {
    for (const TensorType& type : *types)
      bytes += is_half(type.dtype) ? whole_lines(bytes_of(DType::float32, element_count(type.shape))) : 0;
  }
  return bytes;
}

template <typename T> void widen(const void* from, float* to, int64_t n, Workers& workers) {
  workers.parallel_blocks(n, kBlock, [&](int64_t begin, int64_t end) {
    const T* const in = static_cast<const T*>(from);
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) to[i] = to_float(in[i]);
  });
}

template <typename T> void narrow(const float* from, void* to, int64_t n, Workers& workers) {
  workers.parallel_blocks(n, kBlock, [&](int64_t begin, int64_t end) {
    T* const out = static_cast<T*>(to);
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) out[i] = store<T>(from[i]);
  });
}

KernelRun prepare_by_float32(const Kernel& kernel, const KernelSpec& spec) {
  std::vector<TensorType> in = spec.inputs, out = spec.outputs;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!spec.has(i)) in[i] = {};
  }
  return [run = kernel.prepare(widened(spec)), in = std::move(in), out = std::move(out), copies = copies_bytes(spec),
          inputs = std::vector<const void*>(spec.inputs.size()),
          outputs = std::vector<void*>(spec.outputs.size())](const KernelArgs& args) mutable {
    std::byte* at = args.workspace;
    const auto copy_of = [&](const TensorType& type) {
      return std::exchange(at, at + whole_lines(bytes_of(DType::float32, element_count(type.shape))));
    };
    std::copy(args.inputs.begin(), args.inputs.end(), inputs.begin());
    std::copy(args.outputs.begin(), args.outputs.end(), outputs.begin());
    for (size_t i = 0; i < in.size(); ++i) {
      if (!is_half(in[i].dtype)) continue;
      auto* const copy = reinterpret_cast<float*>(copy_of(in[i]));
      (in[i].dtype == DType::float16 ? widen<float16> : widen<bfloat16>)(args.inputs[i], copy, element_count(in[i].shape), args.workers());
      inputs[i] = copy;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      if (!is_half(out[i].dtype) || !outputs[i]) continue;
      outputs[i] = copy_of(out[i]);
      for (size_t j = 0; j < in.size(); ++j) {  // what is changed in place is so in the copy, too
        if (is_half(in[j].dtype) && args.inputs[j] == args.outputs[i]) outputs[i] = const_cast<void*>(inputs[j]);
      }
    }
    run({.inputs = inputs, .outputs = outputs, .workspace = args.workspace + copies, .queue = args.queue, .error = args.error});
    for (size_t i = 0; i < out.size(); ++i) {
      if (!is_half(out[i].dtype) || !outputs[i]) continue;
      (out[i].dtype == DType::float16 ? narrow<float16> : narrow<bfloat16>)(static_cast<const float*>(outputs[i]), args.outputs[i],
                                                                            element_count(out[i].shape), args.workers());
    }
  };
}

}  // namespace

KernelTable::KernelTable(std::string_view device, const Kernel* const* kernels) : device_(device) {
  for (const OpDef* op : all_ops()) {
    if (const Kernel* kernel = *kernels++) kernels_.emplace(op, kernel);
  }
}

const Kernel* KernelTable::find(const OpDef& op) const {
  const auto found = kernels_.find(&op);
  return found == kernels_.end() ? nullptr : found->second;
}

std::string KernelTable::refusal(const OpDef& op, const KernelSpec& spec) const {
  const Kernel* const kernel = find(op);
  if (!kernel) return fmt::format("{} can't be run on the {}", op.name, device_);
  for (const TensorType& input : spec.inputs) {
    if (is_weight_blocks(input.dtype) && !kernel->reads_blocks)
      return fmt::format("{} can't read {} on the {}", op.name, to_string(input.dtype), device_);
  }
  const DType type = typed_by(*kernel, spec);
  if (kernel->types.has(type) || by_float32(*kernel, spec)) return {};
  return fmt::format("{} of {} can't be run on the {}, which takes {}: cast to one of these", op.name, to_string(type), device_,
                     to_string(kernel->halves_by_float32 ? kernel->types | DTypes{DType::float16, DType::bfloat16} : kernel->types));
}

const Kernel& KernelTable::at(const OpDef& op, const KernelSpec& spec) const {
  const std::string why = refusal(op, spec);
  if (!why.empty()) throw error(ErrorCode::unsupported, "{}", why);
  return *find(op);
}

KernelRun prepare(const Kernel& kernel, const KernelSpec& spec) {
  require(!(kernel.background && by_float32(kernel, spec)), "a kernel whose copies end before its work is done");
  return by_float32(kernel, spec) ? prepare_by_float32(kernel, spec) : kernel.prepare(spec);
}

int64_t workspace_bytes(const Kernel& kernel, const KernelSpec& spec, int workers) {
  const bool copies = by_float32(kernel, spec);
  const Workspace own = !kernel.workspace ? Workspace{} : kernel.workspace(copies ? widened(spec) : spec);
  return (copies ? copies_bytes(spec) : 0) + own.shared + workers * own.each;
}

}  // namespace ort_train
