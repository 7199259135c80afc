// Matrix products whose operands are of 16 bits, or are rounded to these, on tensor cores (exec/cuda/tensor_product.h): MatMul,
// MatMulPart and AccumulateMatMul of devices.
//
// Operands of float32 are rounded (exec/cuda/half_tensors.h), and sums added to where the library can't, in the workspace. A bias is
// rounded to the result's type. Tensor cores want rows that begin at multiples of 16 bytes, which those of 50,257 columns don't: large
// products have aligned copies of such matrices there, too, and of their results.

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

// Of a tensor's element, in bytes.
inline int64_t alignment_at(int64_t element, DType type) {
  int64_t bytes = kPlaceAlignment;
  while (element * size_of(type) % bytes != 0) bytes /= 2;
  return bytes;
}

// A matrix as it is stored, and as it is multiplied or made: a copy, or that itself.
struct HalfMatrix {
  DType stored = DType::float32, type = DType::bfloat16;
  int64_t rows = 0, columns = 0, first = 0, pitch = 0;  // first: the element where it begins
  bool is_copied = false;
  int64_t copy_pitch = 0, at = 0;  // at: of the copy, in bytes from the workspace's beginning

  int64_t used_pitch() const { return is_copied ? copy_pitch : pitch; }
  int64_t alignment() const { return is_copied ? kPlaceAlignment : alignment_at(first, stored); }  // of its address
};

struct HalfProduct {
  cuda::TensorProduct product{};
  HalfMatrix a, b, d;
  halves::HalfTensor bias;  // of the result's type, whichever that is
  int64_t bias_first = 0;
  bool adds = false;
  int64_t library_at = 0, bytes = 0;  // of the workspace
};

// How a product is made by the library; none: it isn't.
inline std::optional<HalfProduct> half_product(const KernelSpec& spec) {
  constexpr int64_t kRow = 8;  // elements of 16 bytes
  if (!cuda::has_libraries()) return std::nullopt;
  const DType type = halves::operand_type(spec, 0);
  const Layout l = part_layout(spec);
  if (!is_half(type) || type != halves::operand_type(spec, 1) || l.is_empty() || l.depth == 0) return std::nullopt;
  const StridedLoop<2> items(l.batch, {l.a_strides, l.b_strides});
  if (l.items > 1 && items.rank > 1) return std::nullopt;  // no even steps from one to the next
  const DType y = spec.outputs[0].dtype;
  if (y != DType::float32 && y != type) return std::nullopt;
  const Rows pitch = rows_of(spec, l);
  const Window window = window_of(spec.attributes);
  HalfProduct p{.bias_first = window.y_from, .adds = adds_to_base(spec)};
  halves::HalfWorkspace workspace;
  const bool may_align = l.items == 1 && l.rows * l.columns * l.depth >= cuda::library_limits().aligned_products;
  const auto take = [&](HalfMatrix matrix, bool aligns) {
    const bool is_aligned = matrix.pitch % kRow == 0 && matrix.first % kRow == 0;
    matrix.is_copied = matrix.stored != matrix.type || (aligns && !is_aligned);
    if (!matrix.is_copied) return matrix;
    matrix.copy_pitch = aligns ? (matrix.columns + kRow - 1) / kRow * kRow : matrix.columns;
    matrix.at = workspace.take(bytes_of(matrix.type, matrix.rows * matrix.copy_pitch));
    return matrix;
  };
  const auto operand = [&](size_t i, bool is_transposed, int64_t rows, int64_t columns, int64_t first, int64_t row) {
    HalfMatrix matrix{.stored = spec.inputs[i].dtype, .type = type};
    if (l.items > 1) {  // all of them, in one piece
      matrix.rows = 1;
      matrix.columns = matrix.pitch = element_count(spec.inputs[i].shape);
    } else {
      matrix.rows = is_transposed ? columns : rows;
      matrix.columns = is_transposed ? rows : columns;
      matrix.first = first;
      matrix.pitch = row;
    }
    return take(matrix, may_align);
  };
  p.a = operand(0, l.trans_a, l.rows, l.depth, window.a_from, pitch.a);
  p.b = operand(1, l.trans_b, l.depth, l.columns, 0, pitch.b);
  HalfMatrix d{.stored = y, .type = p.adds ? DType::float32 : y, .rows = l.items * l.rows, .columns = l.columns};
  d.first = window.y_from;
  d.pitch = pitch.y;
  p.d = take(d, may_align && !p.adds);  // what is added to is like d
  p.product = {.rows = l.rows,
               .columns = l.columns,
               .depth = l.depth,
               .trans_a = l.trans_a,
               .trans_b = l.trans_b,
               .a_pitch = l.items > 1 ? pitch.a : p.a.used_pitch(),
               .b_pitch = l.items > 1 ? pitch.b : p.b.used_pitch(),
               .d_pitch = p.d.used_pitch(),
               .items = l.items,
               .a_stride = l.items > 1 ? items.strides[0][0] : 0,
               .b_stride = l.items > 1 ? items.strides[0][1] : 0,
               .d_stride = l.rows * l.columns,
               .a_alignment = p.a.alignment(),
               .b_alignment = p.b.alignment(),
               .d_alignment = p.d.alignment(),
               .operands = type,
               .result = p.d.type,
               .alpha = spec.attributes.get("alpha", 1.0f),
               .has_bias = spec.has(2),
               .bias_alignment = alignment_at(window.y_from, p.d.type),
               .adds = p.adds};
  if (spec.has(2)) p.bias = workspace.tensor(spec.inputs[2], p.d.type);
  p.library_at = workspace.take(cuda::library_limits().product_workspace);
  p.bytes = workspace.all();
  return p;
}

// Where the matrix of a tensor is used: there, or in the workspace.
inline std::byte* used_place(const HalfMatrix& m, const void* tensor, const KernelArgs& args) {
  if (m.is_copied) return halves::workspace_of(args) + m.at;
  return const_cast<std::byte*>(static_cast<const std::byte*>(tensor)) + m.first * size_of(m.stored);
}
inline halves::Place stored_place(const HalfMatrix& m, const void* tensor) {
  return {m.stored, const_cast<std::byte*>(static_cast<const std::byte*>(tensor)) + m.first * size_of(m.stored), m.pitch};
}

inline KernelRun make_half_product(const HalfProduct& p) {
  return [p, product = std::shared_ptr<const cuda::PreparedProduct>(cuda::prepare_product(p.product))](const KernelArgs& args) {
    const auto operand = [&](const HalfMatrix& m, size_t input) {
      std::byte* const place = used_place(m, args.inputs[input], args);
      if (m.is_copied) halves::round_rows(stored_place(m, args.inputs[input]), {m.type, place, m.copy_pitch}, m.rows, m.columns, args);
      return place;
    };
    const std::byte *const a = operand(p.a, 0), *const b = operand(p.b, 1);
    const std::byte* bias = nullptr;
    if (p.product.has_bias) bias = halves::rounded_input(p.bias, 2, args) + p.bias_first * size_of(p.product.result);
    std::byte* const d = used_place(p.d, args.outputs[0], args);
    product->run(a, b, bias, p.adds ? args.in<std::byte>(3) : nullptr, d, halves::workspace_of(args) + p.library_at, args.queue);
    if (p.d.is_copied) halves::round_rows({p.d.type, d, p.d.copy_pitch}, stored_place(p.d, args.outputs[0]), p.d.rows, p.d.columns, args);
  };
}

}  // namespace matmul
ORT_TRAIN_OPS_END
