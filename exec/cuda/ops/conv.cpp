// Conv and ConvPart on CUDA. What they mean is told in exec/ops/conv.cpp.
//
// An element of y is its bias, or nothing, then chunks of channels upwards, each in blocks of a depth: the chains of the processor's
// products.
//
// On a device, convolutions of 16 bits are made by cuDNN where it can (exec/cuda/half_convolution.h).

#include "exec/cuda/convolution.h"
#include "exec/cuda/half_convolution.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace convolution;

// Chains of the depth (channel, tap): chunks, each in blocks.
struct DepthChains {
  int64_t depth = 0, block = 0, last_block = 0;  // last_block: of the last chunk
  Size chunk;

  explicit DepthChains(const Layout& l) : depth(l.depth()), chunk(tiles_of(l).channels * l.windows.taps()) {
    block = depth_block(chunk.size);
    last_block = depth_block(depth - (depth - 1) / chunk.size * chunk.size);
  }

  // Whether all have the same length, but the last.
  bool are_equal() const { return chunk.size == depth || chunk.size <= block; }
  int64_t length() const { return lesser(chunk.size, block); }
  // Where the chain ends that begins at k.
  HOST_DEVICE int64_t end(int64_t k) const {
    const int64_t begin = chunk.split(k, depth <= INT32_MAX).above * chunk.size, end = lesser(begin + chunk.size, depth);
    return lesser(end, k + (end == depth ? last_block : block));
  }
};

// --- a thread an element --------------------------------------------------------------------------------------------------------------

template <typename T> struct ConvElement {
  Layout l;
  DepthChains chains;
  Planes places;         // of y's channels that the node has
  Size channels, group;  // in all; of y in a group
  OperandTensor<T> x, w, bias;
  ResultTensor<T> y;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const Size::Place plane = channels.split(at.plane, places.small);
    const int64_t n = plane.above, channel = plane.place, g = group.split(channel, true).above;
    const auto& [h, v] = l.windows;
    ChainSum<T> sum;
    if (bias.data) sum.add(bias.at(l.first + channel));
    T chain = 0;
    int64_t k = 0, end = chains.end(0);
    for (int64_t c = 0; c < l.in_channels; ++c) {
      const int64_t from = l.x_at(n, g, c);
      for (int64_t kh = 0; kh < h.kernel; ++kh) {
        const int64_t row = h.at(at.row, kh);
        for (int64_t kw = 0; kw < v.kernel; ++kw) {
          const int64_t column = v.at(at.column, kw);
          const bool inside = row >= 0 && row < h.in && column >= 0 && column < v.in;
          chain = add_product(w.at(channel * chains.depth + k), inside ? x.at(from + row * v.in + column) : T(0), chain);
          if (++k < end) continue;
          sum.add(chain);
          chain = 0;
          end = chains.end(k);
        }
      }
    }
    y.put(l.y_at(n, 0, channel) + at.row * v.out + at.column, sum.value);
  }
};

// --- tiles ----------------------------------------------------------------------------------------------------------------------------

// x as the columns of products: n counts the windows of all samples, k channels and taps.
struct GatheredColumns {
  const std::byte* data;  // the group's first channel in the first sample
  Element element;
  WindowAxis h, w;
  Divisor windows, across, taps, taps_across;
  int64_t image, plane, count;  // elements of a sample and of a channel; windows of all samples

  struct Place {
    const std::byte* at;  // the sample
    int row, column;      // where its first tap reads
    int k;                // of the thread's first element
    bool inside;
  };
  template <class Slice> HOST_DEVICE Place place(int64_t n, int64_t k, unsigned thread) const {
    using Parts = SliceParts<Slice, false>;
    const int64_t i = n + Parts::n(thread, 0);
    const Digit window = split(static_cast<uint32_t>(i < count ? i : 0), windows), row = split(window.digit, across);
    return {data + window.above * image * bytes_each<float>(element), static_cast<int>(h.at(row.above, 0)),
            static_cast<int>(w.at(row.digit, 0)), static_cast<int>(k) + Parts::k(thread, 0), i < count};
  }
  HOST_DEVICE void advance(Place& place, int64_t depth) const { place.k += static_cast<int>(depth); }

  // Padding is zero; so is what stands beyond the end of the depth or of the windows, beside which A has -0 or what isn't kept.
  template <class Slice> HOST_DEVICE void load(const Place& place, int depth, unsigned thread, typename Slice::Words& words) const {
    using Parts = SliceParts<Slice, false>;
    ORT_TRAIN_UNROLL
    for (int i = 0; i < Slice::each; ++i)
      words.of[i] = place.inside && Parts::k(thread, i) < depth ? bits(place, place.k + Parts::k(0, i)) : 0;
  }
  template <class Slice> HOST_DEVICE void store(const typename Slice::Words& words, unsigned thread, typename Slice::Row* to) const {
    SliceParts<Slice, false>::store(element, words, thread, to);
  }

 private:
  HOST_DEVICE uint32_t bits(const Place& place, int k) const {
    const Digit channel = split(static_cast<uint32_t>(k), taps), tap = split(channel.digit, taps_across);
    return tap_bits(place.at, element, channel.above * plane, h, w, place.row, place.column, tap);
  }
};

// An item for each group.
template <class Columns> struct ConvProducts {
  tiled::ProductShape shape;
  tiled::StoredA<true> weights;
  Columns columns;
  PlaneResult y;
  int64_t group_weights, group_x, group_y;  // elements

  HOST_DEVICE tiled::StoredA<true> a(int64_t g) const {
    auto one = weights;
    one.data += g * group_weights * bytes_each<float>(one.element);
    return one;
  }
  HOST_DEVICE Columns b(int64_t g) const {
    auto one = columns;
    one.data += g * group_x * bytes_each<float>(one.element);
    return one;
  }
  HOST_DEVICE PlaneResult c(int64_t g) const { return y.from(g * group_y, g * shape.rows); }
};

// --- kernels --------------------------------------------------------------------------------------------------------------------------

// What is known before the addresses are.
template <typename T> struct Forward {
  Layout l;
  DepthChains chains;
  Element x, w, y, bias = Element::own;

  explicit Forward(const KernelSpec& spec)
      : l(layout_of_y(spec)), chains(l), x(operand_element(spec, 0)), w(operand_element(spec, 1)), y(result_element(spec)) {
    if (spec.has(2)) bias = element_of(spec.inputs[2].dtype);
  }

  void run(const KernelArgs& args) const {
    if constexpr (std::is_same_v<T, float>) {
      if (fills_tiles(l, l.out_channels, l.batch * l.windows.out_size()) && chains.are_equal())
        return l.windows.plain() ? run_tiles(args, planes(args)) : run_tiles(args, columns(args));
    }
    run_elements(args);
  }

 private:
  OperandTensor<T> bias_of(const KernelArgs& args) const { return {optional_input(args, 2), bias}; }

  void run_elements(const KernelArgs& args) const {
    const int64_t channels = l.groups * l.out_channels;
    const ConvElement<T> element{.l = l,
                                 .chains = chains,
                                 .places = planes_of_y(l.windows, l.batch * channels),
                                 .channels = Size(channels),
                                 .group = Size(l.out_channels),
                                 .x = {args.in<std::byte>(0), x},
                                 .w = {args.in<std::byte>(1), w},
                                 .bias = bias_of(args),
                                 .y = {args.out<std::byte>(0), y}};
    launch_elements(element, l.batch * channels * l.windows.out_size(), args);
  }

  StoredPlanes planes(const KernelArgs& args) const {
    const int64_t all = l.windows.out_size();
    return {args.in<std::byte>(0), x, {Size(all), l.image(), all}, l.batch * all};
  }
  GatheredColumns columns(const KernelArgs& args) const {
    const Windows& windows = l.windows;
    return {.data = args.in<std::byte>(0),
            .element = x,
            .h = windows.h,
            .w = windows.w,
            .windows = Divisor(windows.out_size()),
            .across = Divisor(windows.w.out),
            .taps = Divisor(windows.taps()),
            .taps_across = Divisor(windows.w.kernel),
            .image = l.image(),
            .plane = windows.in_size(),
            .count = l.batch * windows.out_size()};
  }
  template <class Columns> void run_tiles(const KernelArgs& args, const Columns& columns) const {
    const int64_t length = chains.length(), all = l.windows.out_size(), depth = l.depth();
    const bool fours = length % 4 == 0 && tiled::are_fours(args.inputs[1], depth, w);
    PlaneResult to{.data = args.out<std::byte>(0) + l.y_at(0, 0, 0) * bytes_each<float>(y),
                   .element = y,
                   .columns = {Size(all), l.result(), all},
                   .bias = bias_of(args),
                   .first_bias = l.first};
    to.by_fours = are_fours(to.data, to.columns, y);
    const ConvProducts<Columns> products{
        .shape = {.items = l.groups, .rows = l.out_channels, .columns = l.batch * all, .depth = depth, .block = length},
        .weights = {.data = args.in<std::byte>(1), .count = l.out_channels, .pitch = depth, .element = w, .by_fours = fours},
        .columns = columns,
        .y = to,
        .group_weights = l.out_channels * depth,
        .group_x = l.in_channels * l.windows.in_size(),
        .group_y = l.out_channels * all};
    tiled::launch_products(products, args);
  }
};

KernelRun make(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() -> KernelRun {
    const Forward<T> forward(spec);
    if (forward.l.batch == 0) return [](const KernelArgs&) {};
    return [forward, bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
      const std::byte* const before = optional_input(args, 3);
      if (before && before != args.outputs[0]) copy_bytes(args.outputs[0], before, bytes, args);
      forward.run(args);
    };
  });
}

}  // namespace

constexpr Kernel kConvKernel{
    .types = kTypes,
    .cost = cost<layout_of_y>,
    .workspace = halves::workspace_of_either<half_y, halves::no_workspace>,
    .prepare = halves::prepare_either<half_y, make>,
};
constexpr Kernel kConvPartKernel{
    .types = kTypes,
    .in_place = {{.output = 0, .input = 3}},
    .cost = cost<layout_of_y>,
    .workspace = halves::workspace_of_either<half_y, halves::no_workspace>,
    .prepare = halves::prepare_either<half_y, make>,
};

ORT_TRAIN_OPS_END
