// Matrix products whose operands are of 16 bits, or are rounded to these, on tensor cores (exec/cuda/tensor_product.h): MatMul and
// MatMulPart of devices. On the host (exec/block.h) they are those of exec/cuda/gemm.h.
//
// Operands of float32 are rounded (exec/cuda/half_tensors.h), and sums added to where the library can't, in the workspace. A bias is
// rounded to the result's type.

#pragma once

#include <memory>
#include <optional>

#include "exec/block.h"
#include "exec/cuda/half_tensors.h"
#include "exec/cuda/tensor_product.h"
#include "exec/ops/matmul.h"
#include "exec/program.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace matmul {

struct HalfProduct {
  cuda::TensorProduct product{};
  Window window{};
  halves::HalfTensor a, b, bias;                   // the bias: of the result's type, whichever that is
  bool adds = false, base_is_wider = false;        // wider: y is rounded from what was added up in float32
  int64_t y_elements = 0;                          // of all items
  int64_t sums_at = 0, library_at = 0, bytes = 0;  // of the workspace
};

// How a product is made on tensor cores; none: it isn't.
inline std::optional<HalfProduct> half_product(const KernelSpec& spec) {
  const DType type = halves::operand_type(spec, 0);
  const Layout l = part_layout(spec);
  if (!is_half(type) || type != halves::operand_type(spec, 1) || l.is_empty() || l.depth == 0) return std::nullopt;
  const StridedLoop<2> items(l.batch, {l.a_strides, l.b_strides});
  if (l.items > 1 && items.rank > 1) return std::nullopt;  // no even steps from one to the next
  const DType y = spec.outputs[0].dtype;
  if (y != DType::float32 && y != type) return std::nullopt;
  const Rows pitch = rows_of(spec, l);
  HalfProduct p{.window = window_of(spec.attributes)};
  p.adds = adds_to_base(spec);
  p.base_is_wider = p.adds && y != DType::float32;
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
               .a_alignment = alignment(p.window.a_from, type),
               .b_alignment = kPlaceAlignment,
               .d_alignment = alignment(p.window.y_from, made),
               .operands = type,
               .result = made,
               .alpha = spec.attributes.get("alpha", 1.0f),
               .has_bias = spec.has(2),
               .adds = p.adds};
  halves::HalfWorkspace workspace;
  p.a = workspace.tensor(spec.inputs[0], type);
  p.b = workspace.tensor(spec.inputs[1], type);
  if (spec.has(2)) p.bias = workspace.tensor(spec.inputs[2], y);
  if (p.base_is_wider) p.sums_at = workspace.take(bytes_of(DType::float32, p.y_elements));
  p.library_at = workspace.take(cuda::kTensorWorkspace);
  p.bytes = workspace.all();
  return p;
}

#ifdef __CUDACC__

inline KernelRun make_half_product(const HalfProduct& p, DType y_type) {
  return [p, y_type, product = std::shared_ptr<const cuda::PreparedProduct>(cuda::prepare_product(p.product))](const KernelArgs& args) {
    std::byte* const workspace = halves::workspace_of(args);
    const std::byte* const a = halves::rounded_input(p.a, 0, args) + p.window.a_from * size_of(p.a.type);
    const std::byte* const b = halves::rounded_input(p.b, 1, args);
    const std::byte* bias = nullptr;
    if (p.product.has_bias) bias = halves::rounded_input(p.bias, 2, args) + p.window.y_from * size_of(p.product.result);
    std::byte* const y = args.out<std::byte>(0) + p.window.y_from * size_of(y_type);
    std::byte* const d = p.base_is_wider ? workspace + p.sums_at : y;
    product->run(a, b, bias, p.adds ? args.in<std::byte>(3) : nullptr, d, workspace + p.library_at, args.queue);
    if (p.base_is_wider) halves::round_to(y_type, d, DType::float32, y, p.y_elements, args);
  };
}

#endif

}  // namespace matmul
ORT_TRAIN_OPS_END
