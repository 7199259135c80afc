// Dequantize{axis, block_size, bits, zero}(codes, scales, zeros?) -> y = (code - zero) * scale, of the scales' type
//
// ONNX DequantizeLinear-10 to -25 of integers of 8, 16 and 32 bits, and the weights of com.microsoft's MatMulNBits. By the shape of the
// scales there is one for the whole tensor, one for each index of `axis`, or one for every `block_size` elements along it (then scales have
// the rank of y). With `bits` of 2 or 4, codes are unsigned, packed along the last axis into bytes, the lowest bits first, and y's last
// axis is longer by that. `zeros` are codes or numbers of the scales' type, in the scales' shape; where they are absent, the attribute
// `zero` is for all.
//
// The weights of a quantized model are frozen: they stay as they are in the file, and are dequantized where they are used.

#include "exec/ops/quantization.h"

#include <algorithm>

#include "exec/element_types.h"
#include "exec/op_list.h"
#include "exec/ops/onnx_type.h"

ORT_TRAIN_OPS_BEGIN
namespace {

Shape unpacked(Shape shape, int64_t bits) {
  if (bits != 8) shape.back() *= 8 / bits;
  return shape;
}

std::vector<TensorType> infer_dequantize(const InferContext& context) {
  const TensorType &codes = context.input(0), &scales = context.input(1);
  const int64_t bits = bits_of(context.attributes);
  if (bits != 8 && (codes.dtype != DType::uint8 || codes.shape.empty() || (bits != 4 && bits != 2)))
    throw error(ErrorCode::unsupported, "codes of {} bits are {}", bits, to_string(codes));
  if (!is_floating(scales.dtype)) throw error(ErrorCode::unsupported, "scales are {}", to_string(scales));
  const Shape y = unpacked(codes.shape, bits);
  if (element_count(scales.shape) != 1) {
    const int64_t block = context.attributes.get("block_size", int64_t{0}),
                  axis = normalize_axis(context.attributes.get("axis", int64_t{1}), static_cast<int64_t>(y.size()), "axis");
    Shape expected = y;
    int64_t& size = expected[static_cast<size_t>(axis)];
    if (block <= 0)
      expected = {size};
    else
      size = (size + block - 1) / block;
    if (scales.shape != expected || (bits != 8 && axis + 1 != static_cast<int64_t>(y.size())))
      throw error(ErrorCode::unsupported, "scales are {}, which fit no {} in blocks of {} along axis {}", to_string(scales.shape),
                  to_string(y), block, axis);
  }
  if (context.has(2)) {
    const TensorType& zeros = context.input(2);
    if (zeros.shape != scales.shape || (zeros.dtype != codes.dtype && zeros.dtype != scales.dtype))
      throw error(ErrorCode::unsupported, "zero points are {}, scales {}, codes {}", to_string(zeros), to_string(scales), to_string(codes));
  }
  return {{scales.dtype, y}};
}

template <typename Code, typename T> KernelRun dequantize_of(const KernelSpec& spec) {
  const int64_t bits = bits_of(spec.attributes);
  const bool has_zeros = spec.has(2), are_codes = has_zeros && spec.inputs[2].dtype == spec.inputs[0].dtype;
  return [s = Scaling(spec.outputs[0].shape, spec.inputs[1].shape, spec.attributes), bits, has_zeros, are_codes,
          all = static_cast<T>(spec.attributes.get("zero", int64_t{0}))](const KernelArgs& args) {
    const Code* const codes = args.in<Code>(0);
    const T* const scales = args.in<T>(1);
    T* const y = args.out<T>(0);
    const auto zero = [&](int64_t at) { return !has_zeros ? all : are_codes ? static_cast<T>(args.in<Code>(2)[at]) : args.in<T>(2)[at]; };
    const int64_t run = s.block * s.inner, per_task = std::max<int64_t>(1, kScaledBlock / std::max<int64_t>(run, 1));
    args.workers().parallel_blocks(s.outer * s.blocks, per_task, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t outer = task / s.blocks, block = task % s.blocks;
        const int64_t first = block * s.block, last = std::min(first + s.block, s.size);
        const int64_t at = outer * s.per_outer + block * s.per_block;
        for (int64_t a = first; a < last; ++a) {
          if (s.inner == 1 || s.per_inner == 0) {  // one scale
            const int64_t from = (outer * s.size + a) * s.inner, to = s.inner == 1 ? (outer * s.size + last) * s.inner : from + s.inner;
            const T scale = scales[at], shift = zero(at);
            if (bits == 8) {
#pragma GCC ivdep
              for (int64_t i = from; i < to; ++i) y[i] = dequantized(codes[i], shift, scale);
            } else {
              for (int64_t i = from; i < to; ++i) {
                const auto code = packed_code(codes, i, bits);
                y[i] = dequantized(code, shift, scale);
              }
            }
            if (s.inner == 1) break;  // the whole block
          } else {
            const int64_t from = (outer * s.size + a) * s.inner;
            for (int64_t i = 0; i < s.inner; ++i) y[from + i] = dequantized(codes[from + i], zero(at + i), scales[at + i]);
          }
        }
      }
    });
  };
}

KernelRun prepare_dequantize(const KernelSpec& spec) {
  return for_type(Codes{}, spec.inputs[0].dtype, [&]<typename Code>() {
    return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename T>() { return dequantize_of<Code, T>(spec); });
  });
}

void lower_dequantize_linear(Lowering& l) {
  Attributes attributes{{"axis", l.node.attributes.get("axis", int64_t{1})},
                        {"block_size", l.node.attributes.get("block_size", int64_t{0})}};
  std::vector<ValueId> inputs{l.input(0), l.input(1)};
  if (l.has(2)) inputs.push_back(l.input(2));
  ValueId y = l.emit("Dequantize", inputs, attributes);
  const int64_t named = l.node.attributes.get("output_dtype", int64_t{0});
  l.output(0, named == 0 ? y : l.cast(y, onnx_type(l, named, "its result is of")));
}

// Y = A W^T + bias, W (N, K) in blocks of `block_size` along K, each with a scale and a zero point: B (N, blocks, bytes of a block).
void lower_matmul_nbits(Lowering& l) {
  const Attributes& given = l.node.attributes;
  const int64_t k = given.get("K", int64_t{0}), n = given.get("N", int64_t{0}), bits = given.get("bits", int64_t{4}),
                block = given.get("block_size", int64_t{0});
  if (bits != 2 && bits != 4 && bits != 8) l.fail(fmt::format("weights of {} bits", bits));
  if (l.has(4)) l.fail("weights whose columns are reordered (g_idx)");
  if (k <= 0 || n <= 0 || block <= 0 || block * bits % 8 != 0) l.fail(fmt::format("K = {}, N = {}, block_size = {}", k, n, block));
  const int64_t blocks = (k + block - 1) / block;
  if (element_count(l.shape(l.input(1))) != n * blocks * (block * bits / 8) || element_count(l.shape(l.input(2))) != n * blocks)
    l.fail(fmt::format("its weight is {}, its scales are {}; wanted are {} blocks of {} for each of {} outputs",
                       to_string(l.shape(l.input(1))), to_string(l.shape(l.input(2))), blocks, block, n));
  const ValueId codes = l.reshape(l.input(1), {n, blocks * (block * bits / 8)}), scales = l.reshape(l.input(2), {n, blocks});
  ValueId zeros = kNone;
  Attributes attributes{{"axis", int64_t{1}}, {"block_size", block}, {"bits", bits}};
  if (!l.has(3)) {
    attributes.set("zero", int64_t{1} << (bits - 1));
  } else if (is_floating(l.dtype(l.input(3)))) {
    zeros = l.reshape(l.input(3), {n, blocks});
  } else {  // packed as the codes are
    const int64_t bytes = element_count(l.shape(l.input(3))) / n, all = bytes * 8 / bits;
    zeros = l.emit("Dequantize", {l.reshape(l.input(3), {n, bytes}), l.scalar_like(scales, 1)}, {{"bits", bits}});
    if (all < blocks) l.fail(fmt::format("its zero points are {}", to_string(l.shape(l.input(3)))));
    if (all > blocks)
      zeros = l.emit("Slice", {zeros}, {{"starts", Shape{0}}, {"ends", Shape{blocks}}, {"axes", Shape{1}}, {"steps", Shape{1}}});
  }
  std::vector<ValueId> weight{codes, scales};
  if (zeros != kNone) weight.push_back(zeros);
  ValueId w = l.emit("Dequantize", weight, attributes);
  if (blocks * block > k) w = l.emit("Slice", {w}, {{"starts", Shape{0}}, {"ends", Shape{k}}, {"axes", Shape{1}}, {"steps", Shape{1}}});
  std::vector<ValueId> inputs{l.input(0), l.cast(w, l.dtype(l.input(0)))};
  if (l.has(5)) inputs.push_back(l.input(5));
  l.output(0, l.emit("MatMul", inputs, {{"trans_b", int64_t{1}}}));
}

}  // namespace

constexpr OpDef kDequantize{
    .name = "Dequantize",
    .onnx = {{.domain = "", .name = "DequantizeLinear", .since = 10, .lower = lower_dequantize_linear},
             {.domain = "com.microsoft", .name = "DequantizeLinear", .lower = lower_dequantize_linear},
             {.domain = "com.microsoft", .name = "MatMulNBits", .lower = lower_matmul_nbits, .inputs = 6}},
    .infer = infer_dequantize,
    .no_gradient = "what is quantized is not trained: its codes and scales stay as they are",
    .hint = "freeze its scales, or export the model before it is quantized",
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kDequantizeKernel{
    .types = {DType::int8, DType::uint8, DType::int16, DType::int32},
    .cost = dequantize_cost,
    .prepare = prepare_dequantize,
};

ORT_TRAIN_OPS_END
