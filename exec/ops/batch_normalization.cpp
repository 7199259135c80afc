// BatchNormalization (ONNX BatchNormalization-7..15; Ioffe & Szegedy, arXiv 1502.03167): y = (x - mean) / sqrt(variance + epsilon) * scale
// + bias, by channel: axis 1 of x. As PyTorch's layer there are two forms, between which the model's file or the user chooses
// (--batch-norm):
//
//   BatchNormalization{epsilon}(x, scale, bias, running_mean, running_var) -> y
//     frozen: ONNX's inference mode
//   LiveBatchNormalization{epsilon}(x, scale, bias) -> y, mean, variance
//     of this batch, the variance over all n elements
//   RunningStatistics{momentum}(running_mean, running_var, mean, variance, ...) -> both, changed
//     running * momentum + batch * (1 - momentum), once for each mean and variance: of a layer that the model applies several times
//   BatchNormalizationGrad{epsilon, live}(dy, x, scale, mean, variance) -> dx, dscale?, dbias?
//
// What a live layer computes is pure, and may be computed again; what it changes is changed by another node, once a batch. The running
// variance takes in the biased variance (a sum divided by n), as ONNX says; PyTorch's own layer takes in the unbiased one (n - 1) there.
// Outside training the live form becomes the frozen one (passes/leave_training.cpp). The gradient saves x, mean and variance.
//
// With h = (x - mean) / sqrt(variance + epsilon): dbias = sum(dy), dscale = sum(dy * h), and dx = scale / sqrt(variance + epsilon) * (dy -
// live * (dbias + h * dscale) / n). Sums go over fixed pieces of the batch, in a piece over samples upwards, in a sample over blocks of
// 1,024 elements in 32 lanes; blocks, samples and pieces are added in double.

#include "exec/ops/batch_normalization.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "exec/fused_elementwise.h"
#include "exec/gemm_micro.h"
#include "exec/lane_rows.h"
#include "exec/map_elements.h"
#include "exec/normalization.h"
#include "exec/op_list.h"
#include "graph/dependence.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace batch_normalization;

void require_channels(const InferContext& context, const TensorType& x, size_t first, size_t last) {
  if (x.shape.size() < 2) throw error(ErrorCode::unsupported, "{} has no axis of channels", to_string(x));
  for (size_t i = first; i < last; ++i) {
    const DType dtype = context.input(i).dtype;  // numbers of a channel may be float32 where x is of 16 bits
    if (context.input(i).shape != Shape{x.shape[1]} || (dtype != x.dtype && dtype != compute_type(x.dtype))) {
      throw error(ErrorCode::unsupported, "input {} is {}, but must be {}", i, to_string(context.input(i)),
                  to_string(TensorType{x.dtype, {x.shape[1]}}));
    }
  }
}

std::vector<TensorType> infer_frozen(const InferContext& context) {
  require_channels(context, context.input(0), 1, 5);
  return {context.input(0)};
}
std::vector<TensorType> infer_live(const InferContext& context) {
  require_channels(context, context.input(0), 1, 3);
  const TensorType& x = context.input(0);
  const TensorType statistics{compute_type(x.dtype), {x.shape[1]}};
  return {x, statistics, statistics};
}

// --- sums -----------------------------------------------------------------------------------------------------------------------------

// Of channels [begin, end), over a piece of the batch. of_run(channel, first element, elements) -> the K sums of a block.
template <int K, typename OfRun>
void sum_band(const Layout& l, int64_t piece, int64_t begin, int64_t end, double* sums, const OfRun& of_run) {
  double* const totals = sums + (piece * l.channels + begin) * K;
  std::fill(totals, totals + (end - begin) * K, 0.0);
  for (int64_t n = piece * l.piece_samples(); n < std::min(l.samples, (piece + 1) * l.piece_samples()); ++n) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = (n * l.channels + c) * l.size;
      for (int64_t first = 0; first < l.size; first += kSumBlock) {
        const std::array<double, K> block = of_run(c, at + first, std::min(kSumBlock, l.size - first));
        for (int k = 0; k < K; ++k) totals[(c - begin) * K + k] += block[static_cast<size_t>(k)];
      }
    }
  }
}
template <int K, typename OfRun> void sum_channels(const Layout& l, Workers& workers, double* sums, const OfRun& of_run) {
  workers.parallel_for(l.pieces() * l.bands(), [&](int64_t task, int) {
    const int64_t first = task % l.bands() * l.width();
    sum_band<K>(l, task / l.bands(), first, std::min(l.channels, first + l.width()), sums, of_run);
  });
}

template <int K> double total(const Layout& l, const double* sums, int64_t channel, int k) {
  double sum = 0;
  for (int64_t piece = 0; piece < l.pieces(); ++piece) sum += sums[(piece * l.channels + channel) * K + k];
  return sum;
}

// Where there are channels enough for all threads, and none is large, some neighbours are one task's from their sums to their results, and
// in the cache meanwhile.
bool takes_whole_channels(const Layout& l) {
  constexpr int64_t kLeast = 16, kLargest = int64_t{1} << 19;
  return l.width() == 1 && l.channels >= kLeast && l.count() <= kLargest;
}
int64_t channels_per_task(const Layout& l) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, l.count())); }

// --- y --------------------------------------------------------------------------------------------------------------------------------

template <typename T, typename C = Compute<T>> void normalize_plane(const T* x, T* y, int64_t n, C mean, C factor, C bias) {
  map_elements(
      y, n, [=](C value) { return math::fma(value - mean, factor, bias); }, x);
}

// Brings n elements into the cache meanwhile: the same channel's of the next sample. Planes of 16 bits are short for the processor to
// notice by itself (measured).
template <typename T> void fetch_next(const Layout& l, const T* x, int64_t n) {
  if (sizeof(T) > 2) return;
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(x + l.channels * l.size + i, 0, 2);
}
// Those that will be written.
template <typename T> void fetch_to_write(const T* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) gemm::fetch_to_write(reinterpret_cast<const std::byte*>(y + i));
}

// What becomes of y, and where each thread has room for that.
struct Behind {
  const FusedTail& tail;
  const KernelArgs& args;
  std::byte* workspaces;

  // Of elements [begin, end) of y.
  template <typename T> void run(T* y, int64_t begin, int64_t end, int worker) const {
    if (tail) tail.run(begin, end, y, args, y, workspaces + worker * tail.bytes());
  }
};

// Channels [begin, end) of all samples.
template <typename T, typename C = Compute<T>>
void normalize(const Layout& l, const T* x, const C* scale, const C* bias, const C* mean, const C* variance, C epsilon, T* y, int64_t begin,
               int64_t end, const Behind& behind, int worker) {
  for (int64_t n = 0; n < l.samples; ++n) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = (n * l.channels + c) * l.size;
      normalize_plane(x + at, y + at, l.size, mean[c], inverse_deviation(variance[c], epsilon) * scale[c], bias[c]);
    }
    behind.run(y, (n * l.channels + begin) * l.size, (n * l.channels + end) * l.size, worker);
  }
}
// Of all channels.
template <typename T, typename C = Compute<T>>
void normalize(const Layout& l, const T* x, const C* scale, const C* bias, const C* mean, const C* variance, C epsilon, T* y,
               const Behind& behind) {
  behind.args.workers().parallel_blocks(l.samples * l.channels, l.planes_per_task(), [&](int64_t begin, int64_t end, int worker) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t c = plane % l.channels, at = plane * l.size;
      normalize_plane(x + at, y + at, l.size, mean[c], inverse_deviation(variance[c], epsilon) * scale[c], bias[c]);
    }
    behind.run(y, begin * l.size, end * l.size, worker);
  });
}

// A number for each channel (scales, statistics), which is float32 or as x is: in the type that all is computed in, copied to the
// workspace where it isn't stored so.
template <typename C> class ChannelNumbers {
 public:
  static int64_t bytes(const KernelSpec& spec, int64_t channels) {
    int64_t halves = 0;
    for (const TensorType& input : spec.inputs) halves += is_half(input.dtype) && input.shape.size() == 1;
    return halves * line(channels);
  }
  ChannelNumbers(const KernelSpec& spec, int64_t channels) : channels_(channels) {
    for (const TensorType& input : spec.inputs) types_.push_back(input.dtype);
  }
  // The next one goes to `at`, which moves on.
  const C* get(const KernelArgs& args, size_t input, std::byte*& at) const {
    if (!is_half(types_[input])) return args.in<C>(input);
    C* const copy = reinterpret_cast<C*>(std::exchange(at, at + line(channels_)));
    const auto widen = [&](const auto* from) {
      for (int64_t c = 0; c < channels_; ++c) copy[c] = static_cast<C>(load(from[c]));
    };
    types_[input] == DType::float16 ? widen(args.in<float16>(input)) : widen(args.in<bfloat16>(input));
    return copy;
  }

 private:
  static int64_t line(int64_t channels) { return whole_lines(channels * int64_t{sizeof(C)}); }
  int64_t channels_;
  std::vector<DType> types_;
};

// of(c), the number of channel c, to an output of that type.
template <typename Of> void put_channels(const KernelArgs& args, size_t output, DType dtype, int64_t channels, const Of& of) {
  for_type(Floats{}, dtype, [&]<typename S>() {
    for (int64_t c = 0; c < channels; ++c) args.out<S>(output)[c] = store<S>(static_cast<Compute<S>>(of(c)));
  });
}

// Shared by the threads: K sums a channel and piece, numbers of channels.
template <int K> int64_t workspace_of(const KernelSpec& spec, bool summed) {
  const Layout l = layout_of(spec.outputs[0].shape);
  return (summed ? sums_bytes<K>(l) : 0) + ChannelNumbers<float>::bytes(spec, l.channels);
}

template <int K, bool summed> Workspace workspace(const KernelSpec& spec) {
  return {.shared = workspace_of<K>(spec, summed), .each = FusedTail(spec, spec.outputs[0]).bytes()};
}

KernelRun frozen(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    using C = Compute<T>;
    const Layout l = layout_of(spec.inputs[0].shape);
    return [l, numbers = ChannelNumbers<C>(spec, l.channels), tail = FusedTail(spec, spec.inputs[0]),
            epsilon = C(spec.attributes.get("epsilon", kUsualEpsilon)), own = workspace_of<1>(spec, false)](const KernelArgs& args) {
      std::byte* at = args.workspace;
      const C *const scale = numbers.get(args, 1, at), *const bias = numbers.get(args, 2, at), *const mean = numbers.get(args, 3, at),
                     *const variance = numbers.get(args, 4, at);
      normalize(l, args.in<T>(0), scale, bias, mean, variance, epsilon, args.out<T>(0), Behind{tail, args, args.workspace + own});
    };
  });
}

KernelRun live(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    using C = Compute<T>;
    const Layout l = layout_of(spec.inputs[0].shape);
    return [l, numbers = ChannelNumbers<C>(spec, l.channels), tail = FusedTail(spec, spec.inputs[0]),
            epsilon = C(spec.attributes.get("epsilon", kUsualEpsilon)), own = workspace_of<1>(spec, true)](const KernelArgs& args) {
      const Behind behind{tail, args, args.workspace + own};
      const T* const x = args.in<T>(0);
      C *const mean = args.out<C>(1), *const variance = args.out<C>(2);
      auto* const sums = reinterpret_cast<double*>(args.workspace);
      std::byte* at = args.workspace + sums_bytes<1>(l);
      const C *const scale = numbers.get(args, 1, at), *const bias = numbers.get(args, 2, at);
      const double count = static_cast<double>(std::max<int64_t>(1, l.count()));
      const auto of_x = [&](int64_t, int64_t begin, int64_t n) {
        fetch_next(l, x + begin, n);
        return std::array<double, 1>{static_cast<double>(sum_rows<T>(
            n, [](C lane, C value) { return lane + value; }, x + begin))};
      };
      const auto of_squares = [&](int64_t c, int64_t begin, int64_t n) {
        const auto add = [middle = mean[c]](C lane, C value) {
          const C d = value - middle;
          return math::fma(d, d, lane);
        };
        return std::array<double, 1>{static_cast<double>(sum_rows<T>(n, add, x + begin))};
      };
      if (takes_whole_channels(l)) {
        args.workers().parallel_blocks(l.channels, channels_per_task(l), [&](int64_t first, int64_t last, int worker) {
          const auto sum = [&](const auto& of_run) {
            for (int64_t piece = 0; piece < l.pieces(); ++piece) sum_band<1>(l, piece, first, last, sums, of_run);
          };
          sum(of_x);
          for (int64_t c = first; c < last; ++c) mean[c] = static_cast<C>(total<1>(l, sums, c, 0) / count);
          sum([&](int64_t c, int64_t begin, int64_t n) {
            fetch_to_write(args.out<T>(0) + begin, n);
            return of_squares(c, begin, n);
          });
          for (int64_t c = first; c < last; ++c) variance[c] = static_cast<C>(total<1>(l, sums, c, 0) / count);
          normalize(l, x, scale, bias, mean, variance, epsilon, args.out<T>(0), first, last, behind, worker);
        });
        return;
      }
      sum_channels<1>(l, args.workers(), sums, of_x);
      for (int64_t c = 0; c < l.channels; ++c) mean[c] = static_cast<C>(total<1>(l, sums, c, 0) / count);
      sum_channels<1>(l, args.workers(), sums, of_squares);
      for (int64_t c = 0; c < l.channels; ++c) variance[c] = static_cast<C>(total<1>(l, sums, c, 0) / count);
      normalize(l, x, scale, bias, mean, variance, epsilon, args.out<T>(0), behind);
    };
  });
}

// --- gradient -------------------------------------------------------------------------------------------------------------------------

template <typename T, typename C = Compute<T>>
void gradient_plane(const T* dy, const T* x, T* dx, int64_t n, C mean, C factor, C of_one, C of_deviation) {
  map_elements(
      dx, n, [=](C d, C value) { return factor * (d - math::fma(value - mean, of_deviation, of_one)); }, dy, x);
}
template <typename T, typename C = Compute<T>> void scaled_plane(const T* dy, T* dx, int64_t n, C factor) {
  map_elements(
      dx, n, [=](C d) { return factor * d; }, dy);
}

KernelRun backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() -> KernelRun {
    using C = Compute<T>;
    const Layout l = layout_of(spec.inputs[1].shape);
    return [l, numbers = ChannelNumbers<C>(spec, l.channels), epsilon = C(spec.attributes.get("epsilon", kUsualEpsilon)),
            live = is_live(spec.attributes), summed = needs_sums(spec), outputs = spec.outputs.size(),
            of_scale = spec.inputs[2].dtype](const KernelArgs& args) {
      const T *const dy = args.in<T>(0), *const x = args.in<T>(1);
      auto* const sums = reinterpret_cast<double*>(args.workspace);  // of dy and dy * (x - mean)
      std::byte* at = args.workspace + (summed ? sums_bytes<2>(l) : 0);
      const C *const scale = numbers.get(args, 2, at), *const mean = numbers.get(args, 3, at), *const variance = numbers.get(args, 4, at);
      T* const dx = args.out<T>(0);
      const double count = static_cast<double>(std::max<int64_t>(1, l.count()));
      const auto of_products = [&](int64_t c, int64_t begin, int64_t n) {
        const auto add = [middle = mean[c]](C& of_dy, C& of_product, C d, C value) {
          of_dy += d;
          of_product = math::fma(d, value - middle, of_product);
        };
        fetch_next(l, dy + begin, n);
        fetch_next(l, x + begin, n);
        const TwoSums<C> two = sum_rows_twice<T>(n, add, dy + begin, x + begin);
        return std::array<double, 2>{static_cast<double>(two.first), static_cast<double>(two.second)};
      };
      const auto make_plane = [&](int64_t c, int64_t first) {
        const C inverse = inverse_deviation(variance[c], epsilon), factor = inverse * scale[c];
        if (!live) return scaled_plane(dy + first, dx + first, l.size, factor);
        const double of_deviation = sums[2 * c + 1] / count * static_cast<double>(inverse) * static_cast<double>(inverse);
        gradient_plane(dy + first, x + first, dx + first, l.size, mean[c], factor, static_cast<C>(sums[2 * c] / count),
                       static_cast<C>(of_deviation));
      };
      const auto add_pieces = [&](int64_t begin, int64_t end) {  // in the first one's place
        for (int64_t c = begin; c < end; ++c) {
          sums[2 * c] = total<2>(l, sums, c, 0);
          sums[2 * c + 1] = total<2>(l, sums, c, 1);
        }
      };
      const bool by_channels = summed && takes_whole_channels(l);
      if (by_channels) {
        args.workers().parallel_blocks(l.channels, channels_per_task(l), [&](int64_t first, int64_t last) {
          for (int64_t piece = 0; piece < l.pieces(); ++piece) sum_band<2>(l, piece, first, last, sums, of_products);
          add_pieces(first, last);
          for (int64_t n = 0; n < l.samples; ++n) {
            for (int64_t c = first; c < last; ++c) make_plane(c, (n * l.channels + c) * l.size);
          }
        });
      } else if (summed) {
        sum_channels<2>(l, args.workers(), sums, of_products);
        add_pieces(0, l.channels);
      }
      if (outputs > 1) {
        put_channels(args, 1, of_scale, l.channels,
                     [&](int64_t c) { return sums[2 * c + 1] * static_cast<double>(inverse_deviation(variance[c], epsilon)); });
      }
      if (outputs > 2) put_channels(args, 2, of_scale, l.channels, [&](int64_t c) { return sums[2 * c]; });
      if (by_channels) return;
      args.workers().parallel_blocks(l.samples * l.channels, l.planes_per_task(), [&](int64_t begin, int64_t end) {
        for (int64_t plane = begin; plane < end; ++plane) make_plane(plane % l.channels, plane * l.size);
      });
    };
  });
}

ValueId by_channel(Builder& builder, ValueId value, const Shape& x) {  // (C) -> (C, 1, 1)
  Shape shape(x.size() - 1, 1);
  shape[0] = x[1];
  return builder.reshape(value, shape);
}

void emit_gradient(GradientBuilder& g, const Node& node, ValueId mean, ValueId variance, bool live) {
  const ValueId x = node.inputs[0];
  Attributes attributes = node.attributes;
  attributes.set("live", int64_t{live});
  const size_t outputs = g.wants(2) ? 3 : g.wants(1) ? 2 : 1;
  const std::vector<ValueId> gradients =
      g.emit_many("BatchNormalizationGrad", {g.output_gradient(0), x, node.inputs[1], mean, variance}, attributes, outputs);
  if (g.wants(1)) g.input_gradient(1, gradients[1]);
  if (g.wants(2)) g.input_gradient(2, gradients[2]);
  if (!g.wants(0)) return;
  // Rare: the model reads the batch's statistics too. dmean/dx = 1/n, dvariance/dx = 2 (x - mean) / n.
  ValueId dx = gradients[0];
  const Shape shape = g.shape(x);
  const double share = 1 / static_cast<double>(std::max<int64_t>(1, layout_of(shape).count()));
  if (live && g.has_output_gradient(1))
    dx = g.emit("Add", {dx, by_channel(g, g.cast(g.emit("Mul", {g.output_gradient(1), g.scalar_like(mean, share)}), g.dtype(x)), shape)});
  if (live && g.has_output_gradient(2)) {
    const ValueId slope =
        by_channel(g, g.cast(g.emit("Mul", {g.output_gradient(2), g.scalar_like(variance, 2 * share)}), g.dtype(x)), shape);
    dx = g.emit("Add", {dx, g.emit("Mul", {g.emit("Sub", {x, by_channel(g, g.cast(mean, g.dtype(x)), shape)}), slope})});
  }
  g.input_gradient(0, dx);
}

void frozen_gradient(const Node& node, GradientBuilder& g) {
  if (g.wants(3) || g.wants(4)) throw error(ErrorCode::unsupported, "[{}] its running statistics depend on trained weights", node.name);
  emit_gradient(g, node, node.inputs[3], node.inputs[4], false);
}
void live_gradient(const Node& node, GradientBuilder& g) { emit_gradient(g, node, node.outputs[1], node.outputs[2], true); }

// --- running statistics ---------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_running(const InferContext& context) {
  const size_t inputs = context.inputs.size();
  if (inputs < 4 || inputs % 2 != 0) throw error(ErrorCode::unsupported, "{} inputs aren't pairs of a mean and a variance", inputs);
  for (size_t i = 1; i < inputs; ++i) {
    const TensorType &running = context.input(0),
                     &other = context.input(i);  // statistics of a batch may be float32 where these are of 16 bits
    if (other != running && (i < 2 || other != TensorType{compute_type(running.dtype), running.shape}))
      throw error(ErrorCode::unsupported, "input {} is {}, input 0 is {}", i, to_string(other), to_string(running));
  }
  return {context.input(0), context.input(1)};
}

KernelRun update(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return
        [n = element_count(spec.inputs[0].shape), momentum = T(spec.attributes.get("momentum", kUsualMomentum))](const KernelArgs& args) {
          for (size_t input = 2; input < args.inputs.size(); ++input) {
            const T* const batch = args.in<T>(input);
            T* const running = args.out<T>(input % 2);
            for (int64_t i = 0; i < n; ++i) running[i] = running[i] * momentum + batch[i] * (T(1) - momentum);
          }
        };
  });
}

// The layer, wherever it is applied, normalises by the running statistics, which nothing changes any more.
void outside_training(Graph& graph, NodeId id) {
  const Node update = graph.node(id);
  graph.remove_node(id);
  for (size_t i = 2; i < update.inputs.size(); i += 2) {
    const ValueId mean = update.inputs[i], variance = update.inputs[i + 1];
    Node& layer = graph.node(graph.value(mean).producer);
    require(layer.op->traits.statistics == Statistics::batch, "running statistics of no layer");
    layer.op = &op_named("BatchNormalization");
    layer.inputs.insert(layer.inputs.end(), {update.inputs[0], update.inputs[1]});
    layer.outputs.resize(1);
    graph.value(mean).producer = graph.value(variance).producer = kNone;
    graph.replace_uses(mean, update.inputs[0]);
    graph.replace_uses(variance, update.inputs[1]);
  }
}

// --- import ---------------------------------------------------------------------------------------------------------------------------

bool reads(const Node& node, ValueId value) { return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end(); }

// By a mean and a variance of which the model computes one at least: they have gradients, too.
ValueId normalize_by_computed(Lowering& l, ValueId x, const ValueId (&statistics)[2], float epsilon) {
  const Shape shape = l.shape(x);
  if (shape.size() < 2) l.fail(fmt::format("{} has no axis of channels", to_string(shape)));
  for (const ValueId of : {l.input(1), l.input(2), statistics[0], statistics[1]}) {
    if (l.shape(of) != Shape{shape[1]})
      l.fail(fmt::format("'{}' is {} for {} channels", l.value(of).name, to_string(l.shape(of)), shape[1]));
  }
  const ValueId deviation = l.emit("Sqrt", {l.emit("Add", {statistics[1], l.scalar_like(statistics[1], epsilon)})});
  const ValueId factor = l.emit("Div", {l.input(1), deviation});
  const ValueId centered = l.emit("Sub", {x, by_channel(l, statistics[0], shape)});
  return l.emit("Add", {l.emit("Mul", {centered, by_channel(l, factor, shape)}), by_channel(l, l.input(2), shape)});
}

// The node that changes these running statistics for the same layer, which the model applies again: with the same scale and bias. kNone:
// there is none.
NodeId update_of_layer(Lowering& l, const ValueId (&running)[2]) {
  const Graph& graph = l.graph();
  for (const NodeId id : graph.order()) {
    const Node& update = graph.node(id);
    if (update.op->name != "RunningStatistics" || update.inputs[0] != running[0] || update.inputs[1] != running[1]) continue;
    const Node& layer = graph.node(graph.value(update.inputs[2]).producer);
    if (layer.inputs[1] == l.input(1) && layer.inputs[2] == l.input(2)) return id;
  }
  return kNone;
}

// Running statistics are no trained weights, and those that change are one layer's and kept. `own`: the node that changes them for this
// layer already. (That nothing else reads them is for the importer to see.)
void check_kept(Lowering& l, const ValueId (&running)[2], bool live, NodeId own) {
  for (const ValueId value : running) {
    const Value& statistic = l.value(value);
    if (statistic.kind == ValueKind::parameter && statistic.trainable)
      l.fail(fmt::format("its running statistic '{}' is a trained weight as well: the exporter has merged equal tensors", statistic.name));
    if (live && statistic.kind != ValueKind::parameter)
      l.fail("its running statistics are no initializers, so live ones have no place to be kept");
    for (NodeId id : l.graph().order()) {
      const Node& other = l.graph().node(id);
      const bool changes = other.op->name == "RunningStatistics" && id != own;
      if (reads(other, value) && (changes || (live && other.op->name == "BatchNormalization")))
        l.fail(fmt::format("shares the running statistic '{}' with '{}', and one of the two is live", statistic.name, other.name));
    }
  }
}

// The importer has settled attribute training_mode: what the file says, or the user.
void lower(Lowering& l) {
  const ValueId x = l.input(0), running[2] = {l.input(3), l.input(4)};
  const bool live = l.node.attributes.get("training_mode", 0) != 0;
  const float epsilon = l.node.attributes.get("epsilon", kUsualEpsilon);
  if (l.node.attributes.get("spatial", 1) == 0) l.fail("spatial=0, statistics of each element, is not supported");
  const Attributes attributes{{"epsilon", epsilon}};
  if (live && running[0] == running[1])
    l.fail(
        fmt::format("'{}' is its running mean and its running variance: the exporter has merged equal tensors", l.value(running[0]).name));
  const ValueKind kinds[2] = {l.value(running[0]).kind, l.value(running[1]).kind};
  // A weight that is normalised in every step: nobody keeps its statistics.
  const bool is_weight = kinds[0] != ValueKind::parameter && kinds[1] != ValueKind::parameter && inputs_behind(l.graph(), x).empty();
  const NodeId earlier = live && !is_weight ? update_of_layer(l, running) : kNone;
  if (!is_weight) check_kept(l, running, live, earlier);
  if (!live && (kinds[0] == ValueKind::activation || kinds[1] == ValueKind::activation))
    return l.output(0, normalize_by_computed(l, x, running, epsilon));
  if (!live) return l.output(0, l.emit("BatchNormalization", {x, l.input(1), l.input(2), running[0], running[1]}, attributes));
  const float momentum = l.node.attributes.get("momentum", kUsualMomentum);
  const std::vector<ValueId> results = l.emit_many("LiveBatchNormalization", {x, l.input(1), l.input(2)}, attributes, 3);
  for (size_t i = 1; i < std::min<size_t>(3, l.node.outputs); ++i) {  // rare: something reads what they become, before they do
    const ValueId kept = l.emit("Mul", {running[i - 1], l.scalar_like(running[i - 1], momentum)});
    const ValueId taken = l.emit("Mul", {results[i], l.scalar_like(results[i], 1 - double{momentum})});
    l.output(i, l.emit("Add", {kept, l.cast(taken, l.dtype(kept))}));
  }
  l.output(0, results[0]);
  if (is_weight) return;
  if (earlier != kNone) {  // it takes in this batch, too: after the one before
    Graph& graph = l.graph();
    Node& update = graph.node(earlier);
    if (update.attributes.get("momentum", kUsualMomentum) != momentum)
      l.fail(fmt::format("applies the layer of '{}' with another momentum, {}", update.name, momentum));
    update.inputs.insert(update.inputs.end(), {results[1], results[2]});
    std::vector<NodeId> order = graph.order();
    const auto place = std::find(order.begin(), order.end(), earlier);
    std::rotate(place, place + 1, order.end());
    return graph.set_order(std::move(order));
  }
  const std::vector<ValueId> changed =
      l.emit_many("RunningStatistics", {running[0], running[1], results[1], results[2]}, {{"momentum", momentum}}, 2);
  for (const ValueId value : changed) l.graph().value(value).kind = ValueKind::parameter;
}

}  // namespace

constexpr OpDef kBatchNormalization{
    .name = "BatchNormalization",
    .onnx = {{.domain = "", .name = "BatchNormalization", .since = 7, .lower = lower}},
    .infer = infer_frozen,
    .gradient = frozen_gradient,
    .hint = "`untie` gives each use of a merged tensor one of its own; `batch_norm` chooses what is live",
    .traits = {.statistics = Statistics::running,
               .precision = {.keeps_float32 = 0b11110},
               .along = along_batch,
               .fused = "FusedBatchNormalization"},
    .standard = 15,
};
constexpr Kernel kBatchNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<3>,
    .workspace = workspace<1, false>,
    .prepare = frozen,
};

constexpr OpDef kLiveBatchNormalization{
    .name = "LiveBatchNormalization",
    .infer = infer_live,
    .gradient = live_gradient,
    .traits = {.statistics = Statistics::batch, .precision = {.keeps_float32 = 0b110}, .fused = "FusedLiveBatchNormalization"},
};
constexpr Kernel kLiveBatchNormalizationKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<8>,
    .workspace = workspace<1, true>,
    .prepare = live,
};

// (dy, x, scale, mean, variance) -> dx, dscale?, dbias?
constexpr OpDef kBatchNormalizationGrad{
    .name = "BatchNormalizationGrad",
    .infer = infer_normalization_gradient,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kBatchNormalizationGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 1}},
    .cost = elementwise_cost<12>,
    .workspace = [](const KernelSpec& spec) { return Workspace{.shared = workspace_of<2>(spec, needs_sums(spec))}; },
    .prepare = backward,
};

// With elementwise ops behind y (OpTraits::fused), made where y lies.

constexpr OpDef kFusedBatchNormalization{.name = "FusedBatchNormalization", .infer = infer_frozen, .no_gradient = kNoGradientOfFused};
constexpr Kernel kFusedBatchNormalizationKernel = kBatchNormalizationKernel;

constexpr OpDef kFusedLiveBatchNormalization{.name = "FusedLiveBatchNormalization", .infer = infer_live, .no_gradient = kNoGradientOfFused};
constexpr Kernel kFusedLiveBatchNormalizationKernel = kLiveBatchNormalizationKernel;

constexpr OpDef kRunningStatistics{
    .name = "RunningStatistics",
    .infer = infer_running,
    .no_gradient = "running statistics are not differentiated",
    .writes = {{.output = 0, .input = 0}, {.output = 1, .input = 1}},
    .traits = {.outside_training = outside_training},
};
constexpr Kernel kRunningStatisticsKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = elementwise_cost<6>,
    .prepare = update,
};

ORT_TRAIN_OPS_END
