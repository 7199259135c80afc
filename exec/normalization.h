// What LayerNormalization and RMSNormalization share: x seen as rows of n elements (the axes from `axis` on), scales of n elements, and
// gradients of scales, which are sums over rows.
//
// Such a sum is made in blocks of rows, a fixed function of n: each task adds its block's rows in ascending order in a partial sum of its
// own, then the blocks are added in ascending order in double. So neither threads nor schedule show in the result.

#pragma once

#include <algorithm>

#include "exec/elementwise.h"

ORT_TRAIN_OPS_BEGIN

struct RowLayout {
  int64_t rows = 1, n = 1;

  int64_t rows_per_task() const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)); }       // where tasks share nothing
  int64_t block_rows() const { return std::clamp<int64_t>(16384 / std::max<int64_t>(1, n), 64, 256); }  // of a partial sum
  int64_t blocks() const { return (rows + block_rows() - 1) / block_rows(); }
};

inline int64_t normalized_axis(const Attributes& attributes, const Shape& shape) {
  return normalize_axis(attributes.get("axis", -1), static_cast<int64_t>(shape.size()), "axis");
}
inline RowLayout row_layout(const Attributes& attributes, const Shape& shape) {
  const int64_t axis = normalized_axis(attributes, shape);
  RowLayout layout;
  for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i) (i < axis ? layout.rows : layout.n) *= shape[i];
  return layout;
}

// (x, scale, bias?) -> y like x, then `statistics` outputs of one number a row, float32 or wider. Where x is of 16 bits, scale and bias may
// be float32. One of x and y may be of 16 bits and the other float32 (attribute `to`).
inline std::vector<TensorType> infer_normalization(const InferContext& context, size_t statistics) {
  const TensorType& x = context.input(0);
  const int64_t axis = normalized_axis(context.attributes, x.shape);
  const Shape normalized(x.shape.begin() + axis, x.shape.end());
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    const bool is_right = !context.has(i) || (context.input(i).shape == normalized && context.input(i).dtype == context.input(1).dtype);
    if (!is_right || (context.input(1).dtype != x.dtype && context.input(1).dtype != compute_type(x.dtype))) {
      throw error(ErrorCode::unsupported, "input {} is {}, but must be {}", i, to_string(context.input(i)),
                  to_string(TensorType{x.dtype, normalized}));
    }
  }
  std::vector<TensorType> types(1 + statistics, x);
  const DType y = get_type(context.attributes, kResultType, x.dtype);
  if (y != x.dtype && (compute_type(x.dtype) != compute_type(y) || (is_half(x.dtype) && is_half(y))))
    throw error(ErrorCode::unsupported, "{} isn't normalised to {}", to_string(x), to_string(y));
  types[0].dtype = y;
  for (size_t i = 1; i < types.size(); ++i) {
    types[i].dtype = compute_type(x.dtype);
    std::fill(types[i].shape.begin() + axis, types[i].shape.end(), 1);
  }
  return types;
}

// Of the node's gradient, whose types follow from its inputs.
inline Attributes gradient_attributes(const Node& node) {
  Attributes attributes = node.attributes;
  attributes.erase(kResultType);
  return attributes;
}

// (dy, x, scale, ...) -> dx, and the gradients of scale and bias where wanted.
inline std::vector<TensorType> infer_normalization_gradient(const InferContext& context) {
  std::vector<TensorType> types(context.outputs, context.input(2));
  types[0] = context.input(1);
  return types;
}

// A scale or bias as the op wants it, in the shape of the normalised axes; kNone where it varies over other axes too.
inline ValueId to_normalized_shape(Lowering& l, ValueId value, const Shape& normalized) {
  Shape shape = l.shape(value);
  while (shape.size() > normalized.size() && shape[0] == 1) shape.erase(shape.begin());
  if (shape.size() > normalized.size()) return kNone;
  if (broadcast(shape, normalized) != normalized) return kNone;
  shape.insert(shape.begin(), normalized.size() - shape.size(), 1);
  const ValueId aligned = l.reshape(value, shape);
  return shape == normalized ? aligned : l.emit("Expand", {aligned}, {{"shape", normalized}});
}

// Emits op(x, 1) with `outputs` outputs: scale and bias are for the caller to apply.
inline std::vector<ValueId> emit_unscaled_normalization(Lowering& l, std::string_view op, ValueId x, int64_t axis, float epsilon,
                                                        size_t outputs) {
  const Shape normalized = l.shape(x).from(static_cast<size_t>(axis));
  const ValueId ones = l.emit("Expand", {l.scalar_like(x, 1)}, {{"shape", normalized}});
  return l.emit_many(op, {x, ones}, {{"axis", axis}, {"epsilon", epsilon}}, outputs);
}

// Emits op(x, scale, bias?) with `outputs` outputs for an ONNX node whose scale and bias broadcast to x in whatever way.
inline std::vector<ValueId> emit_normalization(Lowering& l, std::string_view op, ValueId x, ValueId scale, ValueId bias, int64_t axis,
                                               float epsilon, size_t outputs) {
  const Shape shape = l.shape(x);
  axis = normalize_axis(axis, static_cast<int64_t>(shape.size()), "axis");
  const Shape normalized(shape.begin() + axis, shape.end());
  const ValueId plain_scale = to_normalized_shape(l, scale, normalized);
  const ValueId plain_bias = bias == kNone ? kNone : to_normalized_shape(l, bias, normalized);
  if (plain_scale != kNone && (bias == kNone || plain_bias != kNone)) {
    std::vector<ValueId> inputs{x, plain_scale};
    if (bias != kNone) inputs.push_back(plain_bias);
    return l.emit_many(op, inputs, {{"axis", axis}, {"epsilon", epsilon}}, outputs);
  }
  std::vector<ValueId> results = emit_unscaled_normalization(l, op, x, axis, epsilon, outputs);
  results[0] = l.emit("Mul", {results[0], scale});
  if (bias != kNone) results[0] = l.emit("Add", {results[0], bias});
  return results;
}

// Calls body.operator()<X, S, Y>() for the types of a node's x, of its scale, and of y or dy, and returns what it does.
template <typename Body> KernelRun for_normalization(const TensorType& x, const TensorType& scale, const TensorType& y, Body&& body) {
  return for_type(Floats{}, x.dtype, [&]<typename X>() -> KernelRun {
    if constexpr (std::is_same_v<X, float>) {
      return for_type(Types<float, float16, bfloat16>{}, y.dtype, [&]<typename Y>() { return body.template operator()<X, float, Y>(); });
    } else if constexpr (std::is_same_v<X, double>) {
      return body.template operator()<X, X, X>();
    } else {
      return for_type(Types<X, float>{}, scale.dtype, [&]<typename S>() {
        return for_type(Types<X, float>{}, y.dtype, [&]<typename Y>() { return body.template operator()<X, S, Y>(); });
      });
    }
  });
}

inline constexpr PrecisionTraits kNormalizationPrecision{.keeps_float32 = 0b110, .chooses_result = true};  // scale and bias

// --- gradients of scales --------------------------------------------------------------------------------------------------------------

// Bytes for `sums` partial sums of n elements a block.
inline int64_t partial_bytes(const RowLayout& layout, DType dtype, int64_t sums) {
  return layout.blocks() * sums * bytes_of(compute_type(dtype), layout.n);
}
// Of (dy, x, scale, ...) -> dx and maybe more: those of `sums` gradients of scales.
template <int sums> Workspace scale_gradient_workspace(const KernelSpec& spec) {
  const TensorType& x = spec.inputs[1];
  return {.shared = spec.outputs.size() > 1 ? partial_bytes(row_layout(spec.attributes, x.shape), x.dtype, sums) : 0};
}

// outputs[s][j] = the sum over blocks of partial[block][s][j]; an output that is null is left out.
template <typename T> void add_partials(const RowLayout& layout, const Compute<T>* partial, int sums, T* const* outputs, Workers& workers) {
  constexpr int64_t kColumns = 64;
  workers.parallel_blocks(layout.n, kColumns, [&](int64_t begin, int64_t end) {
    for (int s = 0; s < sums; ++s) {
      if (outputs[s] == nullptr) continue;
      for (int64_t first = begin; first < end; first += kColumns) {
        const int64_t width = std::min(kColumns, end - first);
        double total[kColumns] = {};
        for (int64_t block = 0; block < layout.blocks(); ++block) {
          const Compute<T>* from = partial + (block * sums + s) * layout.n + first;
          for (int64_t j = 0; j < width; ++j) total[j] += from[j];
        }
        for (int64_t j = 0; j < width; ++j) outputs[s][first + j] = store<T>(static_cast<Compute<T>>(total[j]));
      }
    }
  });
}

ORT_TRAIN_OPS_END
