// Where(condition, x, y) (ONNX Where-9 and later) and Cast{to} (ONNX Cast-6, CastLike-15 and later; `to` is a DType).
//
// Where broadcasts; its gradient is a Where for each side, with zeros where the other side was chosen. Cast rounds to nearest even, to
// integers towards zero (numbers out of range: graph/types.h, to_integer); its gradient casts back.

#include "exec/ops/where_cast.h"

#include "exec/elementwise.h"
#include "exec/op_list.h"
#include "exec/ops/onnx_type.h"

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
    args.workers().parallel_blocks(loop.count, kElementBlock, [&](int64_t begin, int64_t end) {
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
  return for_word(size_of(spec.outputs[0].dtype), [&]<typename T>() -> KernelRun {
    return [loop = where_loops(spec)](const KernelArgs& args) { run_where<T>(loop, args); };
  });
}

// --- Cast -----------------------------------------------------------------------------------------------------------------------------

template <typename To, typename From> void cast_loop(const From* in, To* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = converted<To>(in[i]);
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
void lower_cast(Lowering& l) { lower_to(l, onnx_type(l, l.node.attributes.get("to", 0), "it casts to")); }

void lower_cast_like(Lowering& l) { lower_to(l, l.dtype(l.input(1))); }

std::vector<TensorType> infer_cast(const InferContext& context) { return {{target_of(context.attributes), context.input(0).shape}}; }

void cast_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("Cast", {g.output_gradient(0)}, {{"to", static_cast<int64_t>(g.dtype(node.inputs[0]))}}));
}

Elements cast_elements(const KernelSpec& spec) {
  return for_type(Castable{}, spec.inputs[0].dtype, [&]<typename From>() {
    return for_type(Castable{}, spec.outputs[0].dtype, [&]<typename To>() -> Elements {
      return [](const void* const* in, void* out, int64_t n) {
        if constexpr (std::is_same_v<From, To>) {
          if (in[0] != out) std::copy_n(static_cast<const From*>(in[0]), n, static_cast<To*>(out));
        } else {
          cast_loop(static_cast<const From*>(in[0]), static_cast<To*>(out), n);
        }
      };
    });
  });
}

KernelRun prepare_cast(const KernelSpec& spec) {
  return [cast = cast_elements(spec), count = element_count(spec.outputs[0].shape), from = size_of(spec.inputs[0].dtype),
          to = size_of(spec.outputs[0].dtype)](const KernelArgs& args) {
    args.workers().parallel_blocks(count, kElementBlock, [&](int64_t begin, int64_t end) {
      const void* const in = args.in<std::byte>(0) + begin * from;
      cast(&in, args.out<std::byte>(0) + begin * to, end - begin);
    });
  };
}

}  // namespace

constexpr OpDef kWhere{
    .name = "Where",
    .onnx = {{.domain = "", .name = "Where", .since = 9}},
    .infer = infer_where,
    .gradient = where_gradient,
    .traits = {.along = along_elements},
    .standard = 9,
};
constexpr Kernel kWhereKernel{
    .types = kAnyType,
    .typed = 1,
    .in_place = {{.output = 0, .input = 1}, {.output = 0, .input = 2}},
    .cost = elementwise_cost<1>,
    .prepare = prepare_where,
};

// BitCast{to}: the same bits as elements of another type of that size.
void lower_bitcast(Lowering& l) {
  const DType to = onnx_type(l, l.node.attributes.get("to", 0), "it makes its bits");
  l.pass_on("BitCast", {l.input(0)}, {{"to", static_cast<int64_t>(to)}});
}

std::vector<TensorType> infer_bitcast(const InferContext& context) {
  const DType to = target_of(context.attributes);
  if (size_of(to) != size_of(context.input(0).dtype))
    throw error(ErrorCode::unsupported, "the elements of {} aren't as large as those of {}", to_string(context.input(0)), to_string(to));
  return {{to, context.input(0).shape}};
}

KernelRun prepare_bitcast(const KernelSpec& spec) {
  return [bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    if (args.outputs[0] != args.inputs[0]) copy_parallel(args.workers(), args.outputs[0], args.inputs[0], bytes);
  };
}

constexpr OpDef kBitCast{
    .name = "BitCast",
    .onnx = {{.domain = "", .name = "BitCast", .since = 26, .lower = lower_bitcast}},
    .infer = infer_bitcast,
    .no_gradient = "bits have no gradient",
    .traits = {.precision = kInFloat32},  // as many bits as in the file
};
constexpr Kernel kBitCastKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_bitcast,
};

constexpr OpDef kCast{
    .name = "Cast",
    .onnx = {{.domain = "", .name = "Cast", .since = 6, .lower = lower_cast},
             {.domain = "", .name = "CastLike", .since = 15, .lower = lower_cast_like}},
    .infer = infer_cast,
    .gradient = cast_gradient,
    .traits = {.same_numbers = true, .along = along_elements},
};
constexpr Kernel kCastKernel{
    .types = kAnyType,
    .cost = elementwise_cost<1>,
    .prepare = prepare_cast,
    .elements = cast_elements,
};

ORT_TRAIN_OPS_END
