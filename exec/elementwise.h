// Elementwise kernels from functors: unary<F>, unary_slope<F>, binary<F> (NumPy broadcasting), for the element types that the kernel names.
//
// An element is read as Compute<T>, goes through the functor and is rounded once when it is written: float16 and bfloat16 are computed in
// float32.
// A functor has `value(x)` (or `value(a, b)`) and, where unary_slope uses it, `slope(x)` or `gradient(dy, x)`: templates over the element
// type, HOST_DEVICE, pure. It may be constructed from the node's Attributes. One functor serves both devices: with ORT_TRAIN_BLOCKS an op
// file gives CUDA's kernels (exec/block.h), from the same lines of arithmetic. Every element goes through the same operations whatever its
// position, so blocks and threads never show in a result. Outputs may alias inputs exactly (in place), never partly.

#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "exec/kernel.h"
#include "exec/math.h"
#include "exec/strided.h"
#include "graph/error.h"
#include "graph/op_def.h"
#ifdef ORT_TRAIN_BLOCKS
#include "exec/cuda/packs.h"
#else
#include "exec/map_elements.h"
#endif

ORT_TRAIN_OPS_BEGIN

inline constexpr int64_t kElementBlock = 8192;  // elements a task: a loop over 1.5 million keeps a hundred threads busy

// dy * F'(x). A functor that is constant somewhere has `gradient` instead, which selects zero there: infinity times zero would be NaN.
template <typename F, typename T> HOST_DEVICE inline T gradient_of(const F& f, T dy, T x) {
  if constexpr (requires { f.gradient(dy, x); })
    return f.gradient(dy, x);
  else
    return dy * f.slope(x);
}

template <typename F> F make_functor(const Attributes& attributes) {
  if constexpr (std::is_constructible_v<F, const Attributes&>)
    return F(attributes);
  else
    return F{};
}

// One of two kernels, by the attributes: pick<tanh_form, unary<GeluTanh>, unary<GeluErf>>.
template <bool (*choose)(const Attributes&), Prepare yes, Prepare no> KernelRun pick(const KernelSpec& spec) {
  return choose(spec.attributes) ? yes(spec) : no(spec);
}

template <int flops_per_element> Cost elementwise_cost(const KernelSpec& spec) {
  Cost cost;
  for (size_t i = 0; i < spec.inputs.size(); ++i) cost.bytes += spec.has(i) ? double(spec.inputs[i].bytes()) : 0;
  for (const TensorType& output : spec.outputs) cost.bytes += double(output.bytes());
  cost.flops = double(flops_per_element) * double(element_count(spec.outputs[0].shape));
  return cost;
}

#ifndef ORT_TRAIN_BLOCKS

// --- loops ---------------------------------------------------------------------------------------------------------------------------

template <typename F, typename T, typename R> void unary_loop(F f, const T* x, R* y, int64_t n) {
  map_elements(
      y, n, [f](auto of_x) { return f.value(of_x); }, x);
}
template <typename F, typename T> void slope_loop(F f, const T* dy, const T* x, T* dx, int64_t n) {
  map_elements(
      dx, n, [f](auto of_dy, auto of_x) { return gradient_of(f, of_dy, of_x); }, dy, x);
}
// A stride is 1 or 0 (one element for the whole row), known at compile time.
template <int stride_a, int stride_b, typename F, typename T, typename R> void binary_loop(F f, const T* a, const T* b, R* y, int64_t n) {
  if constexpr (!stride_a && !stride_b)
    std::fill_n(y, n, store<R>(f.value(load(*a), load(*b))));
  else if constexpr (stride_a && stride_b)
    map_elements(
        y, n, [f](auto of_a, auto of_b) { return f.value(of_a, of_b); }, a, b);
  else if constexpr (stride_a)
    map_elements(
        y, n, [f, of_b = load(*b)](auto of_a) { return f.value(of_a, of_b); }, a);
  else
    map_elements(
        y, n, [f, of_a = load(*a)](auto of_b) { return f.value(of_a, of_b); }, b);
}

#endif

// --- broadcasting ---------------------------------------------------------------------------------------------------------------------

// Same shapes, a scalar and the rest are one loop, a row vector and a column two. After merging, the innermost strides are 1 or 0.
inline StridedLoop<2> broadcast_loop(const Shape& a, const Shape& b, const Shape& to) {
  return StridedLoop<2>(to, {broadcast_strides(a, to), broadcast_strides(b, to)});
}

// --- on CUDA (and as CUDA on the host): a thread a pack of elements --------------------------------------------------------------------

#ifdef ORT_TRAIN_BLOCKS

template <typename F, typename T, typename R> struct UnaryElement {
  static constexpr int kPack = pack_of(std::max(sizeof(T), sizeof(R)));
  F f;
  const T* x;
  R* y;
  HOST_DEVICE void operator()(int64_t i) const { y[i] = store<R>(f.value(load(x[i]))); }
  HOST_DEVICE void pack(int64_t i) const {
    const auto of_x = load_pack<kPack>(x + i);
    Pack<R, kPack> of_y;
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kPack; ++k) of_y.of[k] = store<R>(f.value(load(of_x.of[k])));
    store_pack(y + i, of_y);
  }
};
template <typename F, typename T> struct SlopeElement {
  static constexpr int kPack = pack_of(sizeof(T));
  F f;
  const T *dy, *x;
  T* dx;
  HOST_DEVICE void operator()(int64_t i) const { dx[i] = store<T>(gradient_of(f, load(dy[i]), load(x[i]))); }
  HOST_DEVICE void pack(int64_t i) const {
    const auto of_dy = load_pack<kPack>(dy + i), of_x = load_pack<kPack>(x + i);
    Pack<T, kPack> of_dx;
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kPack; ++k) of_dx.of[k] = store<T>(gradient_of(f, load(of_dy.of[k]), load(of_x.of[k])));
    store_pack(dx + i, of_dx);
  }
};
template <typename F, typename T, typename R> struct BinaryElement {
  static constexpr int kPack = pack_of(std::max(sizeof(T), sizeof(R)));
  F f;
  StridedLoop<2> loop;
  const T *a, *b;
  R* y;
  HOST_DEVICE void operator()(int64_t i) const {
    const auto at = offsets_at(loop, i);
    y[i] = store<R>(f.value(load(a[at.of[0]]), load(b[at.of[1]])));
  }
  HOST_DEVICE void pack(int64_t i) const {
    const auto at = offsets_at(loop, i);
    const auto of_a = operand(a + at.of[0], 0), of_b = operand(b + at.of[1], 1);
    Pack<R, kPack> of_y;
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kPack; ++k) of_y.of[k] = store<R>(f.value(load(of_a.of[k]), load(of_b.of[k])));
    store_pack(y + i, of_y);
  }
  HOST_DEVICE Pack<T, kPack> operand(const T* x, int which) const {
    if (loop.strides[loop.rank - 1][which] != 0) return load_pack<kPack>(x);
    const T one = *x;  // for the whole row
    Pack<T, kPack> all;
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kPack; ++k) all.of[k] = one;
    return all;
  }
  bool is_packed() const {
    if (loop.rank > 1 && loop.inner() % kPack != 0) return false;
    const auto may_load = [&](const T* x, int which) {
      if (loop.inner_stride(which) == 0) return true;
      for (int axis = 0; axis + 1 < loop.rank; ++axis) {
        if (loop.strides[axis][which] % kPack != 0) return false;
      }
      return is_aligned<kPack>(x);
    };
    return may_load(a, 0) && may_load(b, 1) && is_aligned<kPack>(y);
  }
};

template <typename F, typename T, typename R> void run_unary(F f, const T* x, R* y, int64_t n, const KernelArgs& args) {
  using Element = UnaryElement<F, T, R>;
  launch_packs(Element{f, x, y}, n, is_aligned<Element::kPack>(x) && is_aligned<Element::kPack>(y), args);
}
template <typename F, typename T> void run_slope(F f, const T* dy, const T* x, T* dx, int64_t n, const KernelArgs& args) {
  constexpr int kPack = SlopeElement<F, T>::kPack;
  launch_packs(SlopeElement<F, T>{f, dy, x, dx}, n, is_aligned<kPack>(dy) && is_aligned<kPack>(x) && is_aligned<kPack>(dx), args);
}
template <typename F, typename T, typename R>
void run_binary(F f, const StridedLoop<2>& loop, const T* a, const T* b, R* y, const KernelArgs& args) {
  const BinaryElement<F, T, R> element{f, loop, a, b, y};
  launch_packs(element, loop.count, element.is_packed(), args);
}

#else

// --- on the processor: in blocks --------------------------------------------------------------------------------------------------------

template <typename F, typename T, typename R> void run_unary(F f, const T* x, R* y, int64_t n, const KernelArgs& args) {
  args.workers().parallel_blocks(n, kElementBlock, [&](int64_t begin, int64_t end) { unary_loop(f, x + begin, y + begin, end - begin); });
}
template <typename F, typename T> void run_slope(F f, const T* dy, const T* x, T* dx, int64_t n, const KernelArgs& args) {
  args.workers().parallel_blocks(n, kElementBlock,
                                 [&](int64_t begin, int64_t end) { slope_loop(f, dy + begin, x + begin, dx + begin, end - begin); });
}
template <typename F, typename T, typename R>
void run_binary(const F& f, const StridedLoop<2>& loop, const T* a, const T* b, R* y, const KernelArgs& args) {
  const auto run = [&](auto stride_a, auto stride_b) {
    args.workers().parallel_blocks(loop.count, kElementBlock, [&](int64_t begin, int64_t end) {
      walk(loop, begin, end, [&](const std::array<int64_t, 2>& offsets, int64_t first, int64_t n) {
        binary_loop<decltype(stride_a)::value, decltype(stride_b)::value>(f, a + offsets[0], b + offsets[1], y + first, n);
      });
    });
  };
  const std::integral_constant<int, 0> same{};
  const std::integral_constant<int, 1> each{};
  if (loop.inner_stride(0) && loop.inner_stride(1))
    run(each, each);
  else if (loop.inner_stride(0))
    run(each, same);
  else
    run(same, each);  // never both 0: an axis along which neither side moves has one element
}
#endif

// --- kernels ------------------------------------------------------------------------------------------------------------------------

// What a functor makes of elements of T: bool for predicates, else T.
template <typename T, typename Value> using ResultOf = std::conditional_t<std::is_same_v<Value, Compute<T>>, T, Value>;

// y = F(x).
template <typename F, typename Supported = Floats> KernelRun unary(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const F f = make_functor<F>(spec.attributes);
    using R = ResultOf<T, decltype(f.value(Compute<T>{}))>;
    return [f, n = element_count(spec.outputs[0].shape)](const KernelArgs& args) { run_unary(f, args.in<T>(0), args.out<R>(0), n, args); };
  });
}

// dx = dy * F'(x), inputs (dy, x); where a functor's slope is a function of y instead, the second input is y.
template <typename F, typename Supported = Floats> KernelRun unary_slope(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const F f = make_functor<F>(spec.attributes);
    return [f, n = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      run_slope(f, args.in<T>(0), args.in<T>(1), args.out<T>(0), n, args);
    };
  });
}

// y = F(a, b), broadcast.
template <typename F, typename Supported = Floats> KernelRun binary(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const F f = make_functor<F>(spec.attributes);
    using R = ResultOf<T, decltype(f.value(Compute<T>{}, Compute<T>{}))>;
    return [f, loop = broadcast_loop(spec.inputs[0].shape, spec.inputs[1].shape, spec.outputs[0].shape)](const KernelArgs& args) {
      run_binary(f, loop, args.in<T>(0), args.in<T>(1), args.out<R>(0), args);
    };
  });
}

// --- fused with others ------------------------------------------------------------------------------------------------------------------

using PrepareElements = Elements (*)(const KernelSpec&);

#ifdef ORT_TRAIN_BLOCKS

template <typename F, typename Supported = Floats> inline constexpr PrepareElements unary_elements = nullptr;
template <typename F, typename Supported = Floats> inline constexpr PrepareElements slope_elements = nullptr;
template <typename F, typename Supported = Floats> inline constexpr PrepareElements binary_elements = nullptr;
template <bool (*choose)(const Attributes&), PrepareElements yes, PrepareElements no>
inline constexpr PrepareElements pick_elements = nullptr;

#else

template <typename F, typename Supported = Floats> Elements unary_elements(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> Elements {
    const F f = make_functor<F>(spec.attributes);
    using R = ResultOf<T, decltype(f.value(Compute<T>{}))>;
    return [f](const void* const* in, void* out, int64_t n) { unary_loop(f, static_cast<const T*>(in[0]), static_cast<R*>(out), n); };
  });
}
template <typename F, typename Supported = Floats> Elements slope_elements(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> Elements {
    const F f = make_functor<F>(spec.attributes);
    return [f](const void* const* in, void* out, int64_t n) {
      slope_loop(f, static_cast<const T*>(in[0]), static_cast<const T*>(in[1]), static_cast<T*>(out), n);
    };
  });
}
template <typename F, typename Supported = Floats> Elements binary_elements(const KernelSpec& spec) {
  return for_type(Supported{}, spec.inputs[0].dtype, [&]<typename T>() -> Elements {
    const F f = make_functor<F>(spec.attributes);
    using R = ResultOf<T, decltype(f.value(Compute<T>{}, Compute<T>{}))>;
    const auto make = [&](auto stride_a, auto stride_b) -> Elements {
      return [f](const void* const* in, void* out, int64_t n) {
        binary_loop<decltype(stride_a)::value, decltype(stride_b)::value>(f, static_cast<const T*>(in[0]), static_cast<const T*>(in[1]),
                                                                          static_cast<R*>(out), n);
      };
    };
    const std::integral_constant<int, 0> same{};
    const std::integral_constant<int, 1> each{};
    const int64_t all = element_count(spec.outputs[0].shape);
    const bool a = element_count(spec.inputs[0].shape) == all, b = element_count(spec.inputs[1].shape) == all;
    return a && b ? make(each, each) : a ? make(each, same) : b ? make(same, each) : make(same, same);
  });
}
template <bool (*choose)(const Attributes&), PrepareElements yes, PrepareElements no> Elements pick_elements(const KernelSpec& spec) {
  return choose(spec.attributes) ? yes(spec) : no(spec);
}

#endif

// --- definitions -----------------------------------------------------------------------------------------------------------------------

// The helper "NAMEGrad"(dy, x) -> dx of a unary op, and its kernel.
constexpr OpDef slope_op(std::string_view name) { return {.name = name, .infer = infer_same_as_input, .no_gradient = kNoSecondDerivative}; }
constexpr Kernel slope_kernel(Prepare prepare, Cost (*cost)(const KernelSpec&), DTypes types = kFloating) {
  return {.types = types, .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}}, .cost = cost, .prepare = prepare};
}
// Of functors.
template <typename F> constexpr Kernel slope_kernel_of(Cost (*cost)(const KernelSpec&)) {
  Kernel kernel = slope_kernel(unary_slope<F>, cost);
  kernel.elements = slope_elements<F>;
  return kernel;
}
// Where the output may overwrite either of two inputs.
inline constexpr List<Alias, 4> kOverEither{{.output = 0, .input = 0}, {.output = 0, .input = 1}};

// The kernel of an op whose only output may overwrite its only input.
constexpr Kernel unary_kernel_of(Prepare prepare, Cost (*cost)(const KernelSpec&), DTypes types = kFloating) {
  return {.types = types, .in_place = {{.output = 0, .input = 0}}, .cost = cost, .prepare = prepare};
}

template <typename F, typename Supported = Floats>
constexpr Kernel unary_functor_kernel(Cost (*cost)(const KernelSpec&), DTypes types = kFloating) {
  Kernel kernel = unary_kernel_of(unary<F, Supported>, cost, types);
  kernel.elements = unary_elements<F, Supported>;
  return kernel;
}

// dx = NAMEGrad(dy, x), with the node's attributes.
inline void gradient_from_input(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit(std::string(node.op->name) + "Grad", {g.output_gradient(0), node.inputs[0]}, node.attributes));
}
// dx = NAMEGrad(dy, y): x need not be kept.
inline void gradient_from_output(const Node& node, GradientBuilder& g) {
  g.input_gradient(0, g.emit(std::string(node.op->name) + "Grad", {g.output_gradient(0), node.outputs[0]}, node.attributes));
}

ORT_TRAIN_OPS_END
