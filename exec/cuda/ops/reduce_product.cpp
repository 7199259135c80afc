// Products on CUDA, and their gradient: exec/ops/reduce.cpp has the meaning, exec/cuda/reduce.h the kernels of the product and their
// order, the processor's. Of the gradient a thread takes one product, forwards and backwards, as the processor does: the product of what
// came before an element is kept in double, in the workspace or, for float64, in dx.

#include <type_traits>

#include "exec/cuda/reduce.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct GradientOfProduct {
  StridedLoop<1> kept, reduced;
  const T *dy, *x;
  T* dx;
  double* before;  // by element
  HOST_DEVICE void operator()(int64_t output) const {
    const int64_t at = offsets_at(kept, output).of[0];
    double product = 1, after = static_cast<double>(load(dy[output]));
    for (int64_t i = 0; i < reduced.count; ++i) {
      const int64_t here = at + offsets_at(reduced, i).of[0];
      before[here] = product;
      product *= static_cast<double>(load(x[here]));
    }
    for (int64_t i = reduced.count; i-- > 0;) {
      const int64_t here = at + offsets_at(reduced, i).of[0];
      dx[here] = store<T>(static_cast<Compute<T>>(before[here] * after));
      after *= static_cast<double>(load(x[here]));
    }
  }
};

Workspace gradient_workspace(const KernelSpec& spec) {
  return {.shared = spec.inputs[1].dtype == DType::float64 ? 0 : element_count(spec.inputs[1].shape) * int64_t{sizeof(double)}};
}

KernelRun prepare_prod_grad(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() -> KernelRun {
    return [loops = reduced_loops(spec.inputs[1].shape, reduced_axes(spec.attributes, spec.inputs[1].shape))](const KernelArgs& args) {
      void* const before = std::is_same_v<T, double> ? args.out<void>(0) : args.workspace;
      launch_elements(GradientOfProduct<T>{.kept = loops.kept,
                                           .reduced = loops.reduced,
                                           .dy = args.in<T>(0),
                                           .x = args.in<T>(1),
                                           .dx = args.out<T>(0),
                                           .before = static_cast<double*>(before)},
                      loops.kept.count, args);
    };
  });
}

}  // namespace

constexpr Kernel kReduceProdKernel = reduction_kernel<ProdKind, ProdKind, false, ReducedNumbers>;
constexpr Kernel kReduceProdGradKernel{
    .types = kFloating,
    .cost = reduction_cost,
    .workspace = gradient_workspace,
    .prepare = prepare_prod_grad,
};

ORT_TRAIN_OPS_END
