// Tensors of 16 bits for libraries on devices: operands of float32 that are rounded when they are read, and results that are to be of
// float32, have copies of 16 bits in the workspace.

#pragma once

#include <cstdint>

#include "exec/block.h"
#include "exec/product_types.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN
namespace halves {

inline constexpr int64_t kAlignment = 256;  // bytes: what libraries want of a workspace

// What an operand is when it is multiplied.
inline DType operand_type(const KernelSpec& spec, size_t input) {
  const DType stored = spec.inputs[input].dtype;
  return stored == DType::float32 ? type_from(spec.attributes, "compute", DType::float32) : stored;
}

// A tensor as a library takes it, or makes it.
struct HalfTensor {
  DType stored = DType::float32, type = DType::bfloat16;
  int64_t elements = 0;
  int64_t at = 0;  // of the copy, in bytes from the workspace's beginning

  bool is_copied() const { return stored != type; }
};

// Whose what of the workspace is. Counts from the first multiple of the alignment on.
struct HalfWorkspace {
  int64_t bytes = 0;

  int64_t take(int64_t size) {
    const int64_t at = bytes;
    bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  HalfTensor tensor(const TensorType& stored, DType type) {
    HalfTensor tensor{.stored = stored.dtype, .type = type, .elements = element_count(stored.shape)};
    if (tensor.is_copied()) tensor.at = take(bytes_of(type, tensor.elements));
    return tensor;
  }
  int64_t all() const { return bytes + kAlignment; }
};
inline std::byte* workspace_of(const KernelArgs& args) {
  const auto place = reinterpret_cast<uintptr_t>(args.workspace);
  return args.workspace + (kAlignment - place % kAlignment) % kAlignment;
}

#ifdef __CUDACC__

template <typename To, typename From> struct RoundElement {
  const From* from;
  To* to;
  HOST_DEVICE void operator()(int64_t i) const { to[i] = store<To>(load(from[i])); }
};

template <typename To> void round_elements(const void* from, DType stored, void* to, int64_t n, const KernelArgs& args) {
  if (stored == DType::float32)
    launch_elements(RoundElement<To, float>{static_cast<const float*>(from), static_cast<To*>(to)}, n, args);
  else if (stored == DType::bfloat16)
    launch_elements(RoundElement<To, bfloat16>{static_cast<const bfloat16*>(from), static_cast<To*>(to)}, n, args);
  else
    launch_elements(RoundElement<To, float16>{static_cast<const float16*>(from), static_cast<To*>(to)}, n, args);
}

// To float32 or to 16 bits.
inline void round_to(DType type, const void* from, DType stored, void* to, int64_t n, const KernelArgs& args) {
  if (type == DType::float32)
    round_elements<float>(from, stored, to, n, args);
  else if (type == DType::bfloat16)
    round_elements<bfloat16>(from, stored, to, n, args);
  else
    round_elements<float16>(from, stored, to, n, args);
}

// Where the library reads an input; rounded there, if that is a copy.
inline std::byte* rounded_input(const HalfTensor& tensor, size_t input, const KernelArgs& args) {
  if (!tensor.is_copied()) return const_cast<std::byte*>(args.in<std::byte>(input));
  std::byte* const copy = workspace_of(args) + tensor.at;
  round_to(tensor.type, args.inputs[input], tensor.stored, copy, tensor.elements, args);
  return copy;
}
// Where it writes an output, which is widened behind it, if that is a copy.
inline std::byte* output_place(const HalfTensor& tensor, size_t output, const KernelArgs& args) {
  return tensor.is_copied() ? workspace_of(args) + tensor.at : args.out<std::byte>(output);
}
inline void widen_output(const HalfTensor& tensor, size_t output, const KernelArgs& args) {
  if (tensor.is_copied()) round_to(tensor.stored, workspace_of(args) + tensor.at, tensor.type, args.outputs[output], tensor.elements, args);
}

#endif

}  // namespace halves
ORT_TRAIN_OPS_END
