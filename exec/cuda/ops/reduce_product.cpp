// Products on CUDA, and their gradient: exec/ops/reduce.cpp has the meaning, exec/cuda/reduce.h the kernels of the product and their
// order, the processor's. Of the gradient a thread takes one product, forwards and backwards, as the processor does: what came before an
// element is rounded where it is kept, in dx or, for 16-bit elements, as float32 in the workspace.

#include <type_traits>

#include "exec/cuda/reduce.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct GradientOfProduct {
  StridedLoop<1> kept, reduced;
  const T *dy, *x;
  T* dx;
  Compute<T>* before;  // by element
  HOST_DEVICE void operator()(int64_t output) const {
    const int64_t at = offsets_at(kept, output).of[0];
    double product = 1, after = static_cast<double>(load(dy[output]));
    for (int64_t i = 0; i < reduced.count; ++i) {
      const int64_t here = at + offsets_at(reduced, i).of[0];
      before[here] = static_cast<Compute<T>>(product);
      product *= static_cast<double>(load(x[here]));
    }
    for (int64_t i = reduced.count; i-- > 0;) {
      const int64_t here = at + offsets_at(reduced, i).of[0];
      dx[here] = store<T>(static_cast<Compute<T>>(static_cast<double>(before[here]) * after));
      after *= static_cast<double>(load(x[here]));
    }
  }
};

Workspace gradient_workspace(const KernelSpec& spec) {
  return {.shared = is_half(spec.inputs[1].dtype) ? element_count(spec.inputs[1].shape) * static_cast<int64_t>(sizeof(float)) : 0};
}

KernelRun prepare_prod_grad(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() -> KernelRun {
    return [loops = reduced_loops(spec.inputs[1].shape, reduced_axes(spec.attributes, spec.inputs[1].shape))](const KernelArgs& args) {
      void* const before = std::is_same_v<T, Compute<T>> ? args.out<void>(0) : args.workspace;
      launch_elements(GradientOfProduct<T>{.kept = loops.kept,
                                           .reduced = loops.reduced,
                                           .dy = args.in<T>(0),
                                           .x = args.in<T>(1),
                                           .dx = args.out<T>(0),
                                           .before = static_cast<Compute<T>*>(before)},
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
