// SGD{weight_decay}(p, g, buffer?, clip, scalars) -> p, buffer, changed in place: torch.optim.SGD with dampening 0.
//
// It runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result. `clip` multiplies the gradient; `scalars`
// are those of exec/ops/sgd.h.

#include "exec/ops/sgd.h"

#include "exec/op_list.h"
#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

std::vector<TensorType> infer_sgd(const InferContext& context) {
  check_same(context, 0, 1);
  if (context.has(2)) check_same(context, 0, 2);
  check_input(context, 4, {DType::float32, {kSgdScalars}});
  if (context.outputs != (context.has(2) ? 2u : 1u))
    throw error(ErrorCode::unsupported, "there is one output for the parameter and one for its momentum buffer");
  return std::vector<TensorType>(context.outputs, context.input(0));
}

template <typename T> void sgd_loop(T clip, T rate, T weight_decay, const T* __restrict gradient, T* __restrict p, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = p[i] - rate * (gradient[i] * clip + weight_decay * p[i]);
}
// The buffer is zero at first, so that the first step's is the gradient.
template <typename T>
void momentum_loop(T clip, T rate, T weight_decay, T momentum, const T* __restrict gradient, T* __restrict p, T* __restrict buffer,
                   int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    buffer[i] = momentum * buffer[i] + (gradient[i] * clip + weight_decay * p[i]);
    p[i] = p[i] - rate * buffer[i];
  }
}

template <typename T> struct MakeSgd {
  KernelRun operator()(const KernelSpec& spec) const {
    return [n = element_count(spec.inputs[0].shape), weight_decay = static_cast<T>(spec.attributes.get("weight_decay", 0.0f)),
            buffered = spec.has(2)](const KernelArgs& args) {
      const float* scalars = args.in<float>(4);
      const T clip = *args.in<float>(3), rate = scalars[kSgdRate], momentum = scalars[kSgdMomentum];
      args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
        const T* gradient = args.in<T>(1) + begin;
        T* p = args.out<T>(0) + begin;
        if (buffered)
          momentum_loop(clip, rate, weight_decay, momentum, gradient, p, args.out<T>(1) + begin, end - begin);
        else
          sgd_loop(clip, rate, weight_decay, gradient, p, end - begin);
      });
    };
  }
};

}  // namespace

constexpr OpDef kSGD{
    .name = "SGD",
    .infer = infer_sgd,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}, {.output = 1, .input = 2}},
};
constexpr Kernel kSGDKernel{
    .types = kWide,
    .cost = per_element<20, 6>,
    .prepare = for_floats<MakeSgd>,
};

ORT_TRAIN_OPS_END
