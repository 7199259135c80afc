// AdamW{weight_decay}(p, g, m, v, clip, scalars) -> p, m, v, changed in place: torch.optim.AdamW (Loshchilov & Hutter, arXiv 1711.05101).
//
// It runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result. `clip` multiplies the gradient; `scalars`
// are those of exec/ops/adamw.h.

#include "exec/ops/adamw.h"

#include <cmath>

#include "exec/op_list.h"
#include "exec/ops/update.h"

ORT_TRAIN_OPS_BEGIN
namespace {

std::vector<TensorType> infer_adamw(const InferContext& context) {
  for (size_t i : {1, 2, 3}) check_same(context, 0, i);
  check_input(context, 5, {DType::float32, {kAdamWScalars}});
  return {context.input(0), context.input(2), context.input(3)};
}

// Loops stand in functions of their own: the compiler believes __restrict of parameters, and then needs no checks to vectorise.
template <typename T> struct AdamWNumbers { T clip, keep, step, inverse_root, gain1, beta2, gain2, epsilon; };
template <typename T>
void adamw_loop(const AdamWNumbers<T> c, const T* __restrict gradient, T* __restrict p, T* __restrict m, T* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] * c.clip;
    m[i] = m[i] + c.gain1 * (g - m[i]);
    v[i] = c.beta2 * v[i] + c.gain2 * g * g;
    p[i] = p[i] * c.keep - c.step * (m[i] / (std::sqrt(v[i]) * c.inverse_root + c.epsilon));
  }
}

template <typename T> struct MakeAdamW {
  KernelRun operator()(const KernelSpec& spec) const {
    return [n = element_count(spec.inputs[0].shape),
            weight_decay = double{spec.attributes.get("weight_decay", 0.0f)}](const KernelArgs& args) {
      const float* scalars = args.in<float>(5);
      const AdamWNumbers<T> numbers{.clip = *args.in<float>(4),
                                    .keep = static_cast<T>(1 - double{scalars[kAdamWRate]} * weight_decay),
                                    .step = scalars[kAdamWStep],
                                    .inverse_root = scalars[kAdamWInverseRootBias],
                                    .gain1 = scalars[kAdamWOneMinusBeta1],
                                    .beta2 = scalars[kAdamWBeta2],
                                    .gain2 = scalars[kAdamWOneMinusBeta2],
                                    .epsilon = scalars[kAdamWEpsilon]};
      args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
        adamw_loop(numbers, args.in<T>(1) + begin, args.out<T>(0) + begin, args.out<T>(1) + begin, args.out<T>(2) + begin, end - begin);
      });
    };
  }
};

}  // namespace

constexpr OpDef kAdamW{
    .name = "AdamW",
    .infer = infer_adamw,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}, {.output = 1, .input = 2}, {.output = 2, .input = 3}},
};
constexpr Kernel kAdamWKernel{
    .types = kWide,
    .cost = per_element<28, 15>,
    .prepare = for_floats<MakeAdamW>,
};

ORT_TRAIN_OPS_END
