// Matrix products whose operands are of 16 bits, or are rounded to these, on tensor cores (exec/cuda/tensor_product.h): MatMul and
// MatMulPart of devices. On the host (exec/block.h) they are those of exec/cuda/gemm.h.
//
// Operands of float32 are rounded, and sums added to where the library can't, in copies in the workspace. A bias is rounded to the
// result's type.

#pragma once

#include <memory>
#include <optional>

#include "exec/block.h"
#include "exec/cuda/tensor_product.h"
#include "exec/ops/matmul.h"
#include "exec/program.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace matmul {

inline constexpr int64_t kWorkspaceAlignment = 256;  // bytes: what cuBLASLt wants

// What of the workspace is whose, in bytes from its beginning.
struct HalfProduct {
  cuda::TensorProduct product{};
  Window window{};
  DType type = DType::bfloat16;  // of the operands
  bool converts_a = false, converts_b = false, converts_bias = false;
  DType bias_type = DType::float32;
  bool base_is_wider = false;  // y is rounded from what was added up in float32
  bool adds = false;
  int64_t a_elements = 0, b_elements = 0, columns = 0, y_elements = 0;
  int64_t a_at = 0, b_at = 0, bias_at = 0, sums_at = 0, library_at = 0, bytes = 0;
};

// How a product is made on tensor cores; none: it isn't.
inline std::optional<HalfProduct> half_product(const KernelSpec& spec) {
  const auto operand = [&](size_t i) {
    const DType stored = spec.inputs[i].dtype;
    return is_half(stored) ? stored : stored == DType::float32 ? type_from(spec.attributes, "compute", DType::float32) : stored;
  };
  const Layout l = part_layout(spec);
  if (!is_half(operand(0)) || operand(0) != operand(1) || l.is_empty() || l.depth == 0) return std::nullopt;
  const StridedLoop<2> items(l.batch, {l.a_strides, l.b_strides});
  if (l.items > 1 && items.rank > 1) return std::nullopt;  // no even steps from one to the next
  const DType y = spec.outputs[0].dtype;
  if (y != DType::float32 && y != operand(0)) return std::nullopt;
  const Rows pitch = rows_of(spec, l);
  HalfProduct p{.window = window_of(spec.attributes), .type = operand(0)};
  p.converts_a = !is_half(spec.inputs[0].dtype);
  p.converts_b = !is_half(spec.inputs[1].dtype);
  p.converts_bias = spec.has(2) && spec.inputs[2].dtype != y;
  if (spec.has(2)) p.bias_type = spec.inputs[2].dtype;
  p.adds = adds_to_base(spec);
  p.base_is_wider = p.adds && y != DType::float32;
  p.a_elements = element_count(spec.inputs[0].shape);
  p.b_elements = element_count(spec.inputs[1].shape);
  p.columns = element_count(spec.has(2) ? spec.inputs[2].shape : Shape{l.columns});
  p.y_elements = l.items * l.rows * l.columns;
  const auto alignment = [](int64_t elements, DType type) {  // of an address so far behind a place
    int64_t bytes = kPlaceAlignment;
    while (elements * size_of(type) % bytes != 0) bytes /= 2;
    return bytes;
  };
  const DType made = p.base_is_wider ? DType::float32 : y;
  p.product = {.rows = l.rows,
               .columns = l.columns,
               .depth = l.depth,
               .trans_a = l.trans_a,
               .trans_b = l.trans_b,
               .a_pitch = pitch.a,
               .b_pitch = pitch.b,
               .d_pitch = pitch.y,
               .items = l.items,
               .a_stride = l.items > 1 ? items.strides[0][0] : 0,
               .b_stride = l.items > 1 ? items.strides[0][1] : 0,
               .d_stride = l.rows * l.columns,
               .a_alignment = alignment(p.window.a_from, p.type),
               .b_alignment = kPlaceAlignment,
               .d_alignment = alignment(p.window.y_from, made),
               .operands = p.type,
               .result = made,
               .alpha = spec.attributes.get("alpha", 1.0f),
               .has_bias = spec.has(2),
               .adds = p.adds};
  const auto take = [&](int64_t elements, DType type) {
    const int64_t at = p.bytes;
    p.bytes += (bytes_of(type, elements) + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return at;
  };
  if (p.converts_a) p.a_at = take(p.a_elements, p.type);
  if (p.converts_b) p.b_at = take(p.b_elements, p.type);
  if (p.converts_bias) p.bias_at = take(p.columns, y);
  if (p.base_is_wider) p.sums_at = take(p.y_elements, DType::float32);
  p.library_at = p.bytes;
  p.bytes += cuda::kTensorWorkspace + kWorkspaceAlignment;  // from the first multiple of it on
  return p;
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

inline KernelRun make_half_product(const HalfProduct& p, DType y_type) {
  return [p, y_type, product = std::shared_ptr<const cuda::PreparedProduct>(cuda::prepare_product(p.product))](const KernelArgs& args) {
    const auto place = reinterpret_cast<uintptr_t>(args.workspace);
    std::byte* const workspace = args.workspace + (kWorkspaceAlignment - place % kWorkspaceAlignment) % kWorkspaceAlignment;
    const auto half = [&](size_t input, bool converts, int64_t at, int64_t elements) -> const std::byte* {
      const std::byte* const stored = args.in<std::byte>(input);
      if (!converts) return stored;
      round_to(p.type, stored, DType::float32, workspace + at, elements, args);
      return workspace + at;
    };
    const std::byte* const a = half(0, p.converts_a, p.a_at, p.a_elements) + p.window.a_from * size_of(p.type);
    const std::byte* const b = half(1, p.converts_b, p.b_at, p.b_elements);
    const std::byte* bias = p.product.has_bias ? args.in<std::byte>(2) : nullptr;
    if (p.converts_bias) {
      round_to(y_type, bias, p.bias_type, workspace + p.bias_at, p.columns, args);
      bias = workspace + p.bias_at;
    }
    if (bias != nullptr) bias += p.window.y_from * size_of(p.product.result);
    std::byte* const y = args.out<std::byte>(0) + p.window.y_from * size_of(y_type);
    std::byte* const d = p.base_is_wider ? workspace + p.sums_at : y;
    product->run(a, b, bias, p.adds ? args.in<std::byte>(3) : nullptr, d, workspace + p.library_at, args.queue);
    if (p.base_is_wider) round_to(y_type, d, DType::float32, y, p.y_elements, args);
  };
}

#endif

}  // namespace matmul
ORT_TRAIN_OPS_END
