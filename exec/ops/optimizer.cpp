// The update's ops. Each runs over fixed blocks of elements, so neither threads nor transfer chunks show in a result.
//
//   SumSquares(x) -> float64 [blocks]              each block in 16 lanes of double, lanes in ascending order; of a matrix, blocks are rows
//   GlobalNorm(s...) -> float32 []                 sqrt of the sum, in the order of the inputs, each in ascending order
//   ClipCoefficient{max_norm}(norm) -> float32 []  min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_
//   AdamW{weight_decay}(p, g, m, v, c, scalars)    torch.optim.AdamW (Loshchilov & Hutter, arXiv 1711.05101): p, m, v change in place
//   SGD{weight_decay}(p, g, buffer?, c, scalars)   torch.optim.SGD with dampening 0: p and the momentum buffer change in place
//   Accumulate(sum, x)                             sum += x in place
//   Clear(sum)                                     sum = 0 in place
//   Store(place, x)                                place = x, in its place: what a later run of an entry reads
//
// c is the clipping coefficient, which multiplies the gradient; scalars are those of exec/ops/optimizer_scalars.h.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exec/depth_block.h"
#include "exec/element_types.h"
#include "exec/op_list.h"
#include "exec/ops/optimizer_scalars.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kUpdateBlock = 32768;
constexpr const char* kNoSecondOrder = "updates are not differentiated";

void check_same(const InferContext& context, size_t a, size_t b) {
  if (context.input(a) != context.input(b)) {
    throw error(ErrorCode::unsupported, "input {} is {}, input {} is {}", a, to_string(context.input(a)), b, to_string(context.input(b)));
  }
}

template <template <typename> class Make> KernelRun for_floats(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return Make<T>{}(spec); });
}

// --- norms ----------------------------------------------------------------------------------------------------------------------------

// Elements of a block. Of a matrix, or a weight with more axes, whole rows, a power of two that divides kLeastDepthBlock: one that is
// divided between blocks of a depth (exec/depth_block.h) has the same ones.
int64_t norm_block(const Shape& shape) {
  constexpr int64_t kMost = 65536;
  if (shape.size() < 2) return kMost;
  const int64_t width = element_count(Shape(shape.begin() + 1, shape.end()));
  int64_t rows = kLeastDepthBlock;
  while (rows > 1 && rows * width > kMost) rows /= 2;
  return std::max<int64_t>(1, rows * width);
}
int64_t norm_blocks(const Shape& shape) {
  const int64_t block = norm_block(shape);
  return (element_count(shape) + block - 1) / block;
}

std::vector<TensorType> infer_sum_squares(const InferContext& context) { return {{DType::float64, {norm_blocks(context.input(0).shape)}}}; }

template <typename T> double block_sum_squares(const T* __restrict x, int64_t n) {
  double lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

template <typename T> struct MakeSumSquares {
  KernelRun operator()(const KernelSpec& spec) const {
    const Shape& shape = spec.inputs[0].shape;
    return [n = element_count(shape), block = norm_block(shape), blocks = norm_blocks(shape)](const KernelArgs& args) {
      args.workers().parallel_for(blocks, [&](int64_t i, int) {
        args.out<double>(0)[i] = block_sum_squares(args.in<T>(0) + i * block, std::min(block, n - i * block));
      });
    };
  }
};

std::vector<TensorType> infer_global_norm(const InferContext& context) {
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (context.input(i).dtype != DType::float64 || context.input(i).shape.size() != 1)
      throw error(ErrorCode::unsupported, "input {} is no float64 vector", i);
  }
  return {{DType::float32, {}}};
}

KernelRun make_global_norm(const KernelSpec& spec) {
  std::vector<int64_t> counts;
  for (const TensorType& input : spec.inputs) counts.push_back(element_count(input.shape));
  return [counts = std::move(counts)](const KernelArgs& args) {
    double sum = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double* const squares = args.in<double>(i);
      for (int64_t k = 0; k < counts[i]; ++k) sum += squares[k];
    }
    *args.out<float>(0) = static_cast<float>(std::sqrt(sum));
  };
}

KernelRun make_clip_coefficient(const KernelSpec& spec) {
  return [max_norm = spec.attributes.get("max_norm", 1.0f)](const KernelArgs& args) {
    *args.out<float>(0) = std::min(1.0f, max_norm / (*args.in<float>(0) + 1e-6f));
  };
}

// --- updates --------------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_adamw(const InferContext& context) {
  for (size_t i : {1, 2, 3}) check_same(context, 0, i);
  if (context.input(5) != TensorType{DType::float32, {kOptimizerScalars}})
    throw error(ErrorCode::unsupported, "the scalars have the wrong type");
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
                                    .keep = static_cast<T>(1 - double{scalars[kLearningRate]} * weight_decay),
                                    .step = scalars[kStepSize],
                                    .inverse_root = scalars[kInverseRootBias],
                                    .gain1 = scalars[kOneMinusBeta1],
                                    .beta2 = scalars[kBeta2],
                                    .gain2 = scalars[kOneMinusBeta2],
                                    .epsilon = scalars[kEpsilon]};
      args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
        adamw_loop(numbers, args.in<T>(1) + begin, args.out<T>(0) + begin, args.out<T>(1) + begin, args.out<T>(2) + begin, end - begin);
      });
    };
  }
};

std::vector<TensorType> infer_sgd(const InferContext& context) {
  check_same(context, 0, 1);
  if (context.has(2)) check_same(context, 0, 2);
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
      const T clip = *args.in<float>(3), rate = scalars[kLearningRate], momentum = scalars[kMomentum];
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

std::vector<TensorType> infer_accumulate(const InferContext& context) {
  check_same(context, 0, 1);
  return {context.input(0)};
}

template <typename T> void accumulate_loop(const T* __restrict x, T* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] + x[i];
}

template <typename T> struct MakeAccumulate {
  KernelRun operator()(const KernelSpec& spec) const {
    return [n = element_count(spec.inputs[0].shape)](const KernelArgs& args) {
      args.workers().parallel_blocks(n, kUpdateBlock, [&](int64_t begin, int64_t end) {
        accumulate_loop(args.in<T>(1) + begin, args.out<T>(0) + begin, end - begin);
      });
    };
  }
};

KernelRun make_store(const KernelSpec& spec) {
  return [n = spec.inputs[0].bytes()](const KernelArgs& args) {
    args.workers().parallel_blocks(n, 4 * kUpdateBlock, [&](int64_t begin, int64_t end) {
      std::memcpy(args.out<std::byte>(0) + begin, args.in<std::byte>(1) + begin, static_cast<size_t>(end - begin));
    });
  };
}

KernelRun make_clear(const KernelSpec& spec) {
  return [n = spec.inputs[0].bytes()](const KernelArgs& args) {
    args.workers().parallel_blocks(n, 4 * kUpdateBlock, [&](int64_t begin, int64_t end) {
      std::memset(args.out<std::byte>(0) + begin, 0, static_cast<size_t>(end - begin));
    });
  };
}

template <int bytes_per_element, int flops_per_element> Cost per_element(const KernelSpec& spec) {
  const auto n = static_cast<double>(element_count(spec.inputs[0].shape));
  return {.flops = flops_per_element * n, .bytes = bytes_per_element * n};
}

}  // namespace

constexpr OpDef kSumSquares{
    .name = "SumSquares",
    .infer = infer_sum_squares,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kSumSquaresKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = per_element<4, 2>,
    .prepare = for_floats<MakeSumSquares>,
};
constexpr OpDef kGlobalNorm{
    .name = "GlobalNorm",
    .infer = infer_global_norm,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kGlobalNormKernel{
    .types = {DType::float64},
    .cost = per_element<8, 1>,
    .prepare = make_global_norm,
};
constexpr OpDef kClipCoefficient{
    .name = "ClipCoefficient",
    .infer = infer_same_as_input,
    .no_gradient = kNoSecondOrder,
};
constexpr Kernel kClipCoefficientKernel{
    .types = {DType::float32},
    .cost = per_element<8, 3>,
    .prepare = make_clip_coefficient,
};
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
constexpr OpDef kAccumulate{
    .name = "Accumulate",
    .infer = infer_accumulate,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
};
constexpr Kernel kAccumulateKernel{
    .types = kWide,
    .cost = per_element<12, 1>,
    .prepare = for_floats<MakeAccumulate>,
};
constexpr OpDef kClear{
    .name = "Clear",
    .infer = infer_same_as_input,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
    .overwrites = true,
};
constexpr Kernel kClearKernel{
    .types = kAnyType,
    .cost = per_element<4, 0>,
    .prepare = make_clear,
};
constexpr OpDef kStore{
    .name = "Store",
    .infer = infer_accumulate,
    .no_gradient = kNoSecondOrder,
    .writes = {{.output = 0, .input = 0}},
    .overwrites = true,
};
constexpr Kernel kStoreKernel{
    .types = kAnyType,
    .cost = per_element<8, 0>,
    .prepare = make_store,
};

ORT_TRAIN_OPS_END
