// BatchNormalization, LiveBatchNormalization, their gradient and RunningStatistics on CUDA. What they mean is told in
// exec/ops/batch_normalization.cpp.
//
// Sums have the processor's order (exec/cuda/channel_sums.h). Elements are a thread's each, with the processor's arithmetic; a block's
// threads first work out the numbers of the channels that it touches.

#include "exec/ops/batch_normalization.h"

#include "exec/block.h"
#include "exec/cuda/channel_sums.h"
#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace batch_normalization;

template <typename C> ChannelNumbers<C> numbers_in(const KernelArgs& args, const KernelSpec& spec, size_t input) {
  return {const_cast<void*>(args.inputs[input]), spec.inputs[input].dtype};
}

// --- elements -------------------------------------------------------------------------------------------------------------------------

// Elements of planes, each with the numbers of its channel.
template <class Of> struct MapPlanes {
  static constexpr int kThreads = 256, kEach = sizeof(typename Of::C) == 8 ? 4 : 8, kElements = kThreads * kEach;
  struct Shared {
    typename Of::Plane planes[kElements];
  };
  Of of;
  int64_t channels, size, count;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int64_t first = block.index * kElements, end = first + kElements < count ? first + kElements : count;
    const int64_t plane = first / size, planes = (end - 1) / size - plane + 1;
    block.each([&](int t) {
      for (int64_t p = t; p < planes; p += kThreads) {
        const bool writes = plane + p < channels && (plane + p) * size >= first;  // once for each channel
        block.shared.planes[p] = of.plane((plane + p) % channels, writes);
      }
    });
    block.each([&](int t) {
      typename Of::Values values[kEach];  // all are read first: the output may lie where they do
      for (int e = 0; e < kEach; ++e) {
        const int64_t i = first + e * kThreads + t;
        if (i < end) values[e] = of.read(i);
      }
      for (int e = 0; e < kEach; ++e) {
        const int64_t i = first + e * kThreads + t;
        if (i >= end) continue;
        const int64_t behind = i - (plane + 1) * size;  // the first plane
        const int64_t p = planes <= 2 ? behind >= 0 : static_cast<uint32_t>(behind + size) / static_cast<uint32_t>(size);
        of.write(i, values[e], block.shared.planes[p]);
      }
    });
  }
};
template <class Of> void map_planes(const Layout& l, const Of& of, const KernelArgs& args) {
  const int64_t count = l.samples * l.channels * l.size;
  constexpr int64_t kElements = MapPlanes<Of>::kElements;
  launch(MapPlanes<Of>{of, l.channels, l.size, count}, (count + kElements - 1) / kElements, args);
}

// y; of a live layer the variance is told too.
template <typename T> struct Normalized {
  using C = Compute<T>;
  struct Plane {
    C mean, factor, bias;
  };
  using Values = T;
  const T* x;
  T* y;
  ChannelNumbers<C> scale, bias, mean, variance;
  PieceSums<1> squares;  // null where the variance is given
  C epsilon;

  HOST_DEVICE Plane plane(int64_t c, bool writes) const {
    const C v = squares.data ? static_cast<C>(squares.total(c, 0) / squares.count) : variance.at(c);
    if (squares.data && writes) static_cast<C*>(variance.data)[c] = v;
    return {mean.at(c), inverse_deviation(v, epsilon) * scale.at(c), bias.at(c)};
  }
  HOST_DEVICE Values read(int64_t i) const { return x[i]; }
  HOST_DEVICE void write(int64_t i, Values value, const Plane& p) const {
    y[i] = store<T>(math::fma(load(value) - p.mean, p.factor, p.bias));
  }
};

// dx, and the gradients of scale and bias where they are wanted.
template <typename T, bool live> struct NormalizedGradient {
  using C = Compute<T>;
  struct Plane {
    C mean, factor, of_one, of_deviation;
  };
  struct Values {
    T dy, x;
  };
  const T *dy, *x;
  T* dx;
  ChannelNumbers<C> scale, mean, variance, dscale, dbias;
  PieceSums<2> sums;
  C epsilon;

  HOST_DEVICE Plane plane(int64_t c, bool writes) const {
    const C inverse = inverse_deviation(variance.at(c), epsilon);
    Plane p{C(0), inverse * scale.at(c), C(0), C(0)};
    if (!live && !writes) return p;
    const double of_dy = sums.data ? sums.total(c, 0) : 0, of_product = sums.data ? sums.total(c, 1) : 0;
    if (writes && dscale.data) dscale.put(c, of_product * static_cast<double>(inverse));
    if (writes && dbias.data) dbias.put(c, of_dy);
    if (live) {
      p.mean = mean.at(c);
      p.of_one = static_cast<C>(of_dy / sums.count);
      p.of_deviation = static_cast<C>(of_product / sums.count * static_cast<double>(inverse) * static_cast<double>(inverse));
    }
    return p;
  }
  HOST_DEVICE Values read(int64_t i) const { return {dy[i], live ? x[i] : T{}}; }
  HOST_DEVICE void write(int64_t i, Values v, const Plane& p) const {
    if constexpr (live)
      dx[i] = store<T>(p.factor * (load(v.dy) - math::fma(load(v.x) - p.mean, p.of_deviation, p.of_one)));
    else
      dx[i] = store<T>(p.factor * load(v.dy));
  }
};

// Of a batch without elements.
template <typename C> struct ZeroChannels {
  ChannelNumbers<C> first, second;
  HOST_DEVICE void operator()(int64_t c) const {
    if (first.data) first.put(c, 0);
    if (second.data) second.put(c, 0);
  }
};

// --- kernels --------------------------------------------------------------------------------------------------------------------------

KernelRun frozen(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    using C = Compute<T>;
    return [spec, l = layout_of(spec.inputs[0].shape), epsilon = C(spec.attributes.get("epsilon", kUsualEpsilon))](const KernelArgs& args) {
      const auto in = [&](size_t input) { return numbers_in<C>(args, spec, input); };
      map_planes(l, Normalized<T>{args.in<T>(0), args.out<T>(0), in(1), in(2), in(3), in(4), {}, epsilon}, args);
    };
  });
}

KernelRun live(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    using C = Compute<T>;
    return [spec, l = layout_of(spec.inputs[0].shape), epsilon = C(spec.attributes.get("epsilon", kUsualEpsilon))](const KernelArgs& args) {
      const T* const x = args.in<T>(0);
      const ChannelNumbers<C> mean{args.outputs[1], dtype_of<C>()}, variance{args.outputs[2], dtype_of<C>()};
      if (l.count() == 0) return launch_elements(ZeroChannels<C>{mean, variance}, l.channels, args);
      const PieceSums<1> sums = piece_sums<1>(l, args.workspace), squares = piece_sums<1>(l, args.workspace + sums_bytes<1>(l));
      sum_channels(l, SumOf<T>{x}, sums.data, args);
      sum_channels(l, SquaresOf<T>{x, nullptr, sums, args.out<C>(1)}, squares.data, args);
      const auto in = [&](size_t input) { return numbers_in<C>(args, spec, input); };
      map_planes(l, Normalized<T>{x, args.out<T>(0), in(1), in(2), mean, variance, squares, epsilon}, args);
    };
  });
}

KernelRun backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() -> KernelRun {
    using C = Compute<T>;
    return [spec, l = layout_of(spec.inputs[1].shape), epsilon = C(spec.attributes.get("epsilon", kUsualEpsilon)),
            is_live = is_live(spec.attributes), summed = needs_sums(spec)](const KernelArgs& args) {
      const T *const dy = args.in<T>(0), *const x = args.in<T>(1);
      const auto in = [&](size_t input) { return numbers_in<C>(args, spec, input); };
      const auto out = [&](size_t i) {
        return ChannelNumbers<C>{i < args.outputs.size() ? args.outputs[i] : nullptr, spec.inputs[2].dtype};
      };
      if (l.count() == 0) return launch_elements(ZeroChannels<C>{out(1), out(2)}, l.channels, args);
      const PieceSums<2> sums = summed ? piece_sums<2>(l, args.workspace) : PieceSums<2>{};
      if (summed) sum_channels(l, ProductsOf<T>{x, dy, in(3)}, sums.data, args);
      const auto run = [&]<bool live>() {
        map_planes(l, NormalizedGradient<T, live>{dy, x, args.out<T>(0), in(2), in(3), in(4), out(1), out(2), sums, epsilon}, args);
      };
      is_live ? run.template operator()<true>() : run.template operator()<false>();
    };
  });
}

// Takes in some batches, one after another.
template <typename T> struct RunningStatistic {
  using C = Compute<T>;
  static constexpr int kMost = 8;
  const T* running;
  T* changed;
  C momentum;
  int count = 0;
  ChannelNumbers<C> batches[kMost] = {};

  HOST_DEVICE void operator()(int64_t i) const {
    C value = load(running[i]);
    for (int k = 0; k < count; ++k) value = value * momentum + batches[k].at(i) * (C(1) - momentum);
    changed[i] = store<T>(value);
  }
};

KernelRun update(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    using Statistic = RunningStatistic<T>;
    using C = Compute<T>;
    return [spec, n = element_count(spec.inputs[0].shape),
            momentum = C(spec.attributes.get("momentum", kUsualMomentum))](const KernelArgs& args) {
      for (const size_t which : {0, 1}) {
        Statistic statistic{args.in<T>(which), args.out<T>(which), momentum};
        for (size_t input = 2 + which; input < args.inputs.size(); input += 2) {
          statistic.batches[statistic.count++] = numbers_in<C>(args, spec, input);
          if (statistic.count < Statistic::kMost && input + 2 < args.inputs.size()) continue;
          launch_elements(statistic, n, args);
          statistic.running = statistic.changed;
          statistic.count = 0;
        }
      }
    };
  });
}

}  // namespace

constexpr Kernel kBatchNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<3>,
    .prepare = frozen,
};
constexpr Kernel kLiveBatchNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<8>,
    .workspace = [](const KernelSpec& spec) { return Workspace{.shared = 2 * sums_bytes<1>(layout_of(spec.outputs[0].shape))}; },
    .prepare = live,
};
constexpr Kernel kBatchNormalizationGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<12>,
    .workspace =
        [](const KernelSpec& spec) { return Workspace{.shared = needs_sums(spec) ? sums_bytes<2>(layout_of(spec.outputs[0].shape)) : 0}; },
    .prepare = backward,
};
constexpr Kernel kRunningStatisticsKernel{
    .types = kFloating,
    .cost = elementwise_cost<6>,
    .prepare = update,
};

ORT_TRAIN_OPS_END
