// Where(condition, x, y) (ONNX Where-9 and later) and Cast{to} (ONNX Cast-6, CastLike-15 and later; `to` is a DType).
//
// Where broadcasts; its gradient is a Where for each side, with zeros where the other side was chosen. Cast rounds to nearest even, to
// integers towards zero (numbers out of range: graph/types.h, to_integer); its gradient casts back.

#include <immintrin.h>

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// --- Where ----------------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_where(const InferContext& context) {
  const TensorType &condition = context.input(0), &x = context.input(1), &y = context.input(2);
  if (condition.dtype != DType::boolean) throw error(ErrorCode::unsupported, "the condition is {}, not bool", to_string(condition.dtype));
  if (x.dtype != y.dtype) throw error(ErrorCode::unsupported, "one side is {}, the other {}", to_string(x.dtype), to_string(y.dtype));
  return {{x.dtype, broadcast(condition.shape, broadcast(x.shape, y.shape))}};
}

void where_gradient(const Node& node, GradientBuilder& g) {
  const ValueId dy = g.output_gradient(0), condition = node.inputs[0], zero = g.scalar_like(dy, 0);
  if (g.wants(1)) g.input_gradient(1, g.reduce_to(g.emit("Where", {condition, dy, zero}), g.shape(node.inputs[1])));
  if (g.wants(2)) g.input_gradient(2, g.reduce_to(g.emit("Where", {condition, zero, dy}), g.shape(node.inputs[2])));
}

// A stride is 1 or 0, known at compile time.
template <int stride_c, int stride_x, int stride_y, typename T>
void where_loop(const uint8_t* condition, const T* x, const T* y, T* out, int64_t n) {
  const uint8_t c0 = *condition;
  const T x0 = *x, y0 = *y;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T a = stride_x ? x[i] : x0, b = stride_y ? y[i] : y0;
    out[i] = (stride_c ? condition[i] : c0) ? a : b;
  }
}

template <typename T> void run_where(const StridedLoop<3>& loop, const KernelArgs& args) {
  const auto run = [&](auto stride_c, auto stride_x, auto stride_y) {
    args.workers.parallel_blocks(loop.count, kElementBlock, [&](int64_t begin, int64_t end) {
      walk(loop, begin, end, [&](const std::array<int64_t, 3>& offsets, int64_t first, int64_t n) {
        where_loop<decltype(stride_c)::value, decltype(stride_x)::value, decltype(stride_y)::value>(
            args.in<uint8_t>(0) + offsets[0], args.in<T>(1) + offsets[1], args.in<T>(2) + offsets[2], args.out<T>(0) + first, n);
      });
    });
  };
  const std::integral_constant<int, 0> same{};
  const std::integral_constant<int, 1> each{};
  const auto with_y = [&](auto c, auto x) { loop.inner_stride(2) ? run(c, x, each) : run(c, x, same); };
  const auto with_x = [&](auto c) { loop.inner_stride(1) ? with_y(c, each) : with_y(c, same); };
  loop.inner_stride(0) ? with_x(each) : with_x(same);
}

KernelRun prepare_where(const KernelSpec& spec) {
  const Shape& to = spec.outputs[0].shape;
  const StridedLoop<3> loop(to, {broadcast_strides(spec.inputs[0].shape, to), broadcast_strides(spec.inputs[1].shape, to),
                                 broadcast_strides(spec.inputs[2].shape, to)});
  return [loop, bytes = size_of(spec.outputs[0].dtype)](const KernelArgs& args) {
    with_element_size(bytes, [&](auto* type) { run_where<std::remove_pointer_t<decltype(type)>>(loop, args); });
  };
}

// --- Cast -----------------------------------------------------------------------------------------------------------------------------

// float16 and bfloat16 in memory.
struct Half {
  uint16_t bits;
};
struct BrainFloat {
  uint16_t bits;
};

template <typename To, typename From> To converted(From value) {
  if constexpr (std::is_same_v<From, Half>) {
    return converted<To>(_cvtsh_ss(value.bits));
  } else if constexpr (std::is_same_v<From, BrainFloat>) {
    return converted<To>(std::bit_cast<float>(uint32_t{value.bits} << 16));
  } else if constexpr (std::is_same_v<To, Half>) {
    return {static_cast<uint16_t>(_cvtss_sh(static_cast<float>(value), _MM_FROUND_TO_NEAREST_INT))};
  } else if constexpr (std::is_same_v<To, BrainFloat>) {
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded)};  // NaN stays one
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <typename To, typename From> void cast_loop(const From* in, To* out, int64_t n) {
  int64_t i = 0;
  if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>) {
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>) {
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  }
#pragma GCC ivdep
  for (int64_t j = i; j < n; ++j) out[j] = converted<To>(in[j]);
}

template <typename Body> void with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float32:
      return body(static_cast<float*>(nullptr));
    case DType::float64:
      return body(static_cast<double*>(nullptr));
    case DType::float16:
      return body(static_cast<Half*>(nullptr));
    case DType::bfloat16:
      return body(static_cast<BrainFloat*>(nullptr));
    case DType::int64:
      return body(static_cast<int64_t*>(nullptr));
    case DType::int32:
      return body(static_cast<int32_t*>(nullptr));
    case DType::int16:
      return body(static_cast<int16_t*>(nullptr));
    case DType::int8:
      return body(static_cast<int8_t*>(nullptr));
    case DType::uint8:
      return body(static_cast<uint8_t*>(nullptr));
    case DType::boolean:
      return body(static_cast<bool*>(nullptr));
  }
}

DType target_of(const Attributes& attributes) {
  const int64_t to = attributes.get("to", int64_t{-1});
  if (to < 0 || to > static_cast<int64_t>(DType::boolean)) throw error(ErrorCode::unsupported, "the element type {} is unknown", to);
  return static_cast<DType>(to);
}

void lower_to(Lowering& l, DType to) {
  if (l.dtype(l.input(0)) == to) return l.output(0, l.input(0));
  l.pass_on("Cast", {l.input(0)}, {{"to", static_cast<int64_t>(to)}});
}

// ONNX numbers element types as TensorProto.DataType does.
void lower_cast(Lowering& l) {
  switch (const int64_t to = l.node.attributes.get("to", 0)) {
    case 1:
      return lower_to(l, DType::float32);
    case 2:
      return lower_to(l, DType::uint8);
    case 3:
      return lower_to(l, DType::int8);
    case 5:
      return lower_to(l, DType::int16);
    case 6:
      return lower_to(l, DType::int32);
    case 7:
      return lower_to(l, DType::int64);
    case 9:
      return lower_to(l, DType::boolean);
    case 10:
      return lower_to(l, DType::float16);
    case 11:
      return lower_to(l, DType::float64);
    case 16:
      return lower_to(l, DType::bfloat16);
    default:
      l.fail(fmt::format("it casts to ONNX's element type {}, which is not supported", to));
  }
}

void lower_cast_like(Lowering& l) { lower_to(l, l.dtype(l.input(1))); }

std::vector<TensorType> infer_cast(const InferContext& context) { return {{target_of(context.attributes), context.input(0).shape}}; }

void cast_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("Cast", {g.output_gradient(0)}, {{"to", static_cast<int64_t>(g.dtype(node.inputs[0]))}}));
}

KernelRun prepare_cast(const KernelSpec& spec) {
  const int64_t count = element_count(spec.outputs[0].shape);
  KernelRun run;
  with_type(spec.inputs[0].dtype, [&](auto* from) {
    with_type(spec.outputs[0].dtype, [&](auto* to) {
      using From = std::remove_pointer_t<decltype(from)>;
      using To = std::remove_pointer_t<decltype(to)>;
      run = [count](const KernelArgs& args) {
        args.workers.parallel_blocks(count, kElementBlock, [&](int64_t begin, int64_t end) {
          if constexpr (std::is_same_v<From, To>) {
            if (args.inputs[0] != args.outputs[0]) std::copy_n(args.in<From>(0) + begin, end - begin, args.out<To>(0) + begin);
          } else {
            cast_loop(args.in<From>(0) + begin, args.out<To>(0) + begin, end - begin);
          }
        });
      };
    });
  });
  return run;
}

}  // namespace

const OpDef kWhere{
    .name = "Where",
    .onnx = {{.domain = "", .name = "Where", .since = 9}},
    .infer = infer_where,
    .gradient = where_gradient,
    .in_place = {{.output = 0, .input = 1}, {.output = 0, .input = 2}},
    .cost = elementwise_cost<1>,
    .kernel = {.cpu = prepare_where},
    .standard = 9,
};

const OpDef kCast{
    .name = "Cast",
    .onnx = {{.domain = "", .name = "Cast", .since = 6, .lower = lower_cast},
             {.domain = "", .name = "CastLike", .since = 15, .lower = lower_cast_like}},
    .infer = infer_cast,
    .gradient = cast_gradient,
    .cost = elementwise_cost<1>,
    .kernel = {.cpu = prepare_cast},
};

ORT_TRAIN_OPS_END
