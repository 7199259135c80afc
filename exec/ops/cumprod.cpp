// CumProd{axis, exclusive, reverse} (ONNX CumProd-26): products along an axis.
//
//   y_k = prod of x_i, i <= k (exclusive: i < k; reverse: from the other end)
//
// CumProdGrad{...}(dy, x): dx_i is the sum over k of dy_k times the product of all x_j in y_k but x_i. With before_i the product of what
// stands before x_i,
//
//   dx_i = before_i * S_i,   S_i = dy_i + x_(i + 1) * S_(i + 1)        exclusive: dy_(i + 1) instead of dy_i
//
// which divides by nothing, so zeros are no exception. Products of floats run in double.

#include "exec/op_list.h"
#include "exec/ops/cumulative.h"
#include "exec/scatter.h"
#include "exec/workspace.h"

ORT_TRAIN_OPS_BEGIN
namespace {

int64_t axis_of(const Attributes& attributes, const Shape& shape) {
  return normalize_axis(attributes.get("axis", 0), static_cast<int64_t>(shape.size()), "axis");
}

void lower_cumprod(Lowering& l) {
  const Attributes& given = l.node.attributes;
  l.pass_on("CumProd", {l.input(0)},
            {{"axis", normalize_axis(l.integer(1, "the axis"), static_cast<int64_t>(l.shape(l.input(0)).size()), "axis")},
             {"exclusive", given.get("exclusive", 0)},
             {"reverse", given.get("reverse", 0)}});
}

std::vector<TensorType> infer_cumprod(const InferContext& context) {
  axis_of(context.attributes, context.input(0).shape);
  return {context.input(0)};
}

std::vector<TensorType> infer_cumprod_grad(const InferContext& context) {
  if (context.input(0) != context.input(1))
    throw error(ErrorCode::unsupported, "the gradient is {}, the input {}", to_string(context.input(0)), to_string(context.input(1)));
  return infer_cumprod(context);
}

void cumprod_gradient(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit("CumProdGrad", {g.output_gradient(0), node.inputs[0]}, node.attributes));
}

template <typename T> KernelRun cumprod_of(const KernelSpec& spec) {
  return [lines = AxisLines(spec)](const KernelArgs& args) {
    args.workers().parallel_blocks(lines.count(), per_task(kTaskElements, lines.length), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* x = args.in<T>(0) + lines.base(line);
        T* y = args.out<T>(0) + lines.base(line);
        CumulatedIn<T> product = 1;
        for (int64_t k = 0; k < lines.length; ++k) {
          const CumulatedIn<T> before = product;
          product = MultiplyBy::combine(before, static_cast<CumulatedIn<T>>(x[k * lines.step()]));
          y[k * lines.step()] = static_cast<T>(lines.exclusive ? before : product);
        }
      }
    });
  };
}

int64_t sums_of_line(const AxisLines& lines) { return whole_lines(lines.length * int64_t{sizeof(double)}); }
Workspace cumprod_grad_workspace(const KernelSpec& spec) { return {.each = sums_of_line(AxisLines(spec))}; }

template <typename T> KernelRun cumprod_grad_of(const KernelSpec& spec) {
  return [lines = AxisLines(spec)](const KernelArgs& args) {
    args.workers().parallel_blocks(lines.count(), per_task(kTaskElements, lines.length), [&](int64_t begin, int64_t end, int worker) {
      auto* const sums = reinterpret_cast<double*>(args.workspace + worker * sums_of_line(lines));  // S_i
      for (int64_t line = begin; line < end; ++line) {
        const int64_t base = lines.base(line), step = lines.step(), n = lines.length;
        const T* const dy = args.in<T>(0) + base;
        const T* const x = args.in<T>(1) + base;
        T* const dx = args.out<T>(0) + base;
        double sum = 0;
        for (int64_t i = n - 1; i >= 0; --i) {
          const int64_t from = lines.exclusive ? i + 1 : i;
          const double next = i + 1 < n ? static_cast<double>(x[(i + 1) * step]) : 0;
          // Exclusive, S_i begins with dy_(i + 1), whose product ends before x_(i + 1).
          sum = (from < n ? static_cast<double>(dy[from * step]) : 0) + next * sum;
          sums[i] = sum;
        }
        double before = 1;
        for (int64_t i = 0; i < n; ++i) {
          dx[i * step] = static_cast<T>(sums[i] * before);
          before *= static_cast<double>(x[i * step]);
        }
      }
    });
  };
}

KernelRun prepare_cumprod(const KernelSpec& spec) {
  return for_type(Cumulated{}, spec.inputs[0].dtype, [&]<typename T>() { return cumprod_of<T>(spec); });
}
KernelRun prepare_cumprod_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return cumprod_grad_of<T>(spec); });
}

}  // namespace

constexpr OpDef kCumProd{
    .name = "CumProd",
    .onnx = {{.domain = "", .name = "CumProd", .since = 26, .lower = lower_cumprod}},
    .infer = infer_cumprod,
    .gradient = cumprod_gradient,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kCumProdKernel{
    .types = dtypes_of(Cumulated{}),
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 0}},
    .cost = comparison_cost,
    .prepare = prepare_cumprod,
};
constexpr OpDef kCumProdGrad{
    .name = "CumProdGrad",
    .infer = infer_cumprod_grad,
    .no_gradient = kNoSecondDerivative,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kCumProdGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = comparison_cost,
    .workspace = cumprod_grad_workspace,
    .prepare = prepare_cumprod_grad,
};

ORT_TRAIN_OPS_END
