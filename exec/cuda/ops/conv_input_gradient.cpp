// ConvInputGrad and ConvTranspose on CUDA. What they mean is told in exec/ops/conv_input_gradient.cpp.
//
// As on the processor, the products of w' and dy are made first, (channel, tap) by windows, summed over channels of y in blocks of a depth;
// then each element of dx adds its taps' products, rows of taps upwards. Products of some samples or channels at a time go through the
// workspace. Where a group has few channels, and in double, a thread has an element of dx and makes its products on the way.
//
// On a device, those of 16 bits are made by cuDNN where it can (exec/cuda/half_convolution.h).

#include "exec/cuda/convolution.h"
#include "exec/cuda/half_convolution.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace convolution;

// --- a thread an element --------------------------------------------------------------------------------------------------------------

template <typename T> struct TapProduct {
  Layout l;
  int64_t block;
  OperandTensor<T> dy, w;
  const T* before;  // what the sums go on from; or null

  // Of a tap of a channel of x, and a window.
  HOST_DEVICE T at(int64_t n, int64_t g, int64_t channel, int64_t tap, int64_t window) const {
    const int64_t depth = l.depth(), row = channel * l.windows.taps() + tap, size = l.windows.out_size();
    ChainSum<T> sum;
    if (before) sum.add(before[l.products_at(n, g, channel) + tap * size + window]);
    for (int64_t begin = 0; begin < l.out_channels; begin += block) {
      T chain = 0;
      for (int64_t m = begin; m < lesser(begin + block, l.out_channels); ++m)
        chain = add_product(w.at((g * l.out_channels + m) * depth + row), dy.at(l.y_at(n, g, m) + window), chain);
      sum.add(chain);
    }
    return sum.value;
  }
};

// dx, or the products themselves where the sums go on in another node.
template <typename T> struct InputGradientElement {
  TapProduct<T> product;
  Planes places;  // of x; or of windows
  Size channels;  // of x, of all groups; or their taps
  Size group, taps;
  bool is_product, is_direct;
  ResultTensor<T> to;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const Size::Place plane = channels.split(at.plane, places.small);
    const Layout& l = product.l;
    const auto& [h, w] = l.windows;
    if (is_product || is_direct) {  // of one tap, if direct
      const Size::Place tap = taps.split(plane.place, places.small), channel = group.split(tap.above, places.small);
      return to.put(i, product.at(plane.above, channel.above, channel.place, tap.place, at.row * w.out + at.column));
    }
    const Size::Place channel = group.split(plane.place, places.small);
    T sum = 0;
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      const int64_t oh = window_at(h, at.row, kh);
      if (oh < 0) continue;
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t ow = window_at(w, at.column, kw);
        if (ow < 0) continue;
        sum += product.at(plane.above, channel.above, channel.place, kh * w.kernel + kw, oh * w.out + ow);
      }
    }
    to.put(i, sum);
  }
};

// --- tiles ----------------------------------------------------------------------------------------------------------------------------

// An item for each group.
struct TapProducts {
  tiled::ProductShape shape;
  tiled::StoredA<false> weights;
  StoredPlanes dy;
  PlaneResult products;
  int64_t group_weights, group_dy, group_products;  // elements

  HOST_DEVICE tiled::StoredA<false> a(int64_t g) const {
    auto one = weights;
    one.data += g * group_weights * bytes_each<float>(one.element);
    return one;
  }
  HOST_DEVICE StoredPlanes b(int64_t g) const {
    auto one = dy;
    one.data += g * group_dy * bytes_each<float>(one.element);
    return one;
  }
  HOST_DEVICE PlaneResult c(int64_t g) const { return products.from(g * group_products, 0, g * group_products); }
};

// dx of some channels of each group and some samples, from their products: (group, channel, tap), then sample, then window.
struct SpreadElement {
  Windows windows;
  Planes places;          // of these channels of x
  Size channels, groups;  // of a group here; in a sample
  const float* products;
  int64_t samples, all_channels;  // here; of a group
  ResultTensor<float> dx;         // of the first sample's first channel

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const Size::Place channel = channels.split(at.plane, places.small), group = groups.split(channel.above, places.small);
    const auto& [h, w] = windows;
    const int64_t row = (group.place * channels.size + channel.place) * windows.taps(), size = windows.out_size();
    const float* const from = products + (row * samples + group.above) * size;
    float sum = 0;
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      const int64_t oh = window_at(h, at.row, kh);
      if (oh < 0) continue;
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t ow = window_at(w, at.column, kw);
        if (ow >= 0) sum += from[(kh * w.kernel + kw) * samples * size + oh * w.out + ow];
      }
    }
    const int64_t plane = (group.above * groups.size + group.place) * all_channels + channel.place;
    dx.put(plane * windows.in_size() + at.row * w.in + at.column, sum);
  }
};

// --- kernels --------------------------------------------------------------------------------------------------------------------------

// What goes through the workspace at once.
struct Portion {
  int64_t samples = 0, channels = 0;  // of a group
};

// What is known before the addresses are.
template <typename T> struct InputGradient {
  Layout l;
  Element dy, w, dx;
  int64_t block = 0;
  bool is_direct = false;  // the products are dx
  bool has_base = false;
  bool in_tiles = false;
  Portion portion;

  explicit InputGradient(const KernelSpec& spec)
      : l(layout_of_dx(spec)),
        dy(operand_element(spec, 0)),
        w(operand_element(spec, 1)),
        dx(result_element(spec)),
        block(depth_block(l.total / l.groups)),
        is_direct(input_tiles(l, sizeof(T)).products_are_dx(l)),
        has_base(spec.has(2)) {
    constexpr int64_t kBytes = int64_t{16} << 20;
    in_tiles = std::is_same_v<T, float> && fills_tiles(l, l.depth(), l.batch * l.windows.out_size()) && l.out_channels > 1;
    const int64_t channel = l.groups * l.windows.taps() * l.windows.out_size() * int64_t{sizeof(T)};
    portion.samples = std::clamp<int64_t>(kBytes / (channel * l.in_channels), 1, std::max<int64_t>(1, l.batch));
    portion.channels = portion.samples > 1 ? l.in_channels : std::clamp<int64_t>(kBytes / channel, 1, l.in_channels);
  }

  // Of products; or of those that a thread still reads when another has written dx where they are.
  int64_t workspace() const {
    if (in_tiles)
      return l.is_last() && !is_direct
                 ? l.groups * portion.channels * l.windows.taps() * portion.samples * l.windows.out_size() * int64_t{sizeof(T)}
                 : 0;
    const bool perhaps_one_place = has_base && l.is_last() && !is_direct && l.products() == l.image();
    return perhaps_one_place ? l.batch * l.products() * int64_t{sizeof(T)} : 0;
  }

  void run(const KernelArgs& args) const {
    if constexpr (std::is_same_v<T, float>) {
      if (in_tiles) return run_tiles(args);
    }
    run_elements(args);
  }

 private:
  void run_elements(const KernelArgs& args) const {
    const T* before = reinterpret_cast<const T*>(optional_input(args, 2));
    if (before && static_cast<const void*>(before) == args.outputs[0] && workspace() > 0) {
      copy_bytes(args.workspace, before, workspace(), args);
      before = reinterpret_cast<const T*>(args.workspace);
    }
    const bool is_product = !l.is_last();
    const int64_t rows = l.groups * (is_product ? l.depth() : l.in_channels),
                  size = is_product ? l.windows.out_size() : l.windows.in_size();
    const InputGradientElement<T> element{
        .product = {l, block, {args.in<std::byte>(0), dy}, {args.in<std::byte>(1), w}, before},
        .places = is_product ? planes_of_y(l.windows, l.batch * rows) : planes_of_x(l.windows, l.batch * rows),
        .channels = Size(rows),
        .group = Size(l.in_channels),
        .taps = Size(l.windows.taps()),
        .is_product = is_product,
        .is_direct = is_direct,
        .to = {args.out<std::byte>(0), dx}};
    launch_elements(element, l.batch * rows * size, args);
  }

  void run_tiles(const KernelArgs& args) const {
    if (!l.is_last() || is_direct) return run_products(args, 0, l.batch, 0, l.in_channels, result(args));
    auto* const products = reinterpret_cast<float*>(args.workspace);
    const int64_t size = l.windows.out_size();
    for (int64_t n = 0; n < l.batch; n += portion.samples) {
      const int64_t samples = std::min(portion.samples, l.batch - n);
      for (int64_t c = 0; c < l.in_channels; c += portion.channels) {
        const int64_t channels = std::min(portion.channels, l.in_channels - c), row = samples * size;
        PlaneResult to{.data = args.workspace, .columns = {Size(size), size, row}};
        to.by_fours = are_fours(to.data, to.columns, to.element);
        run_products(args, n, samples, c, channels, to);
        spread(args, products, n, samples, c, channels);
      }
    }
  }

  // Of all samples, where the products are the result.
  PlaneResult result(const KernelArgs& args) const {
    const int64_t size = l.windows.out_size();
    PlaneResult to{.data = args.out<std::byte>(0), .element = dx, .columns = {Size(size), l.products(), size}};
    to.by_fours = are_fours(to.data, to.columns, to.element);
    return to;
  }

  void run_products(const KernelArgs& args, int64_t n, int64_t samples, int64_t c, int64_t channels, PlaneResult to) const {
    const int64_t size = l.windows.out_size(), taps = l.windows.taps(), depth = l.depth();
    if (const auto* const before = reinterpret_cast<const float*>(optional_input(args, 2))) {
      to.base = before + l.products_at(n, 0, c);
      to.base_columns = {Size(size), l.products(), size};
    }
    const std::byte* const weights = args.in<std::byte>(1) + c * taps * bytes_each<float>(w);
    const bool fours = channels * taps % 4 == 0 && tiled::are_fours(weights, depth, w);
    const TapProducts products{
        .shape = {.items = l.groups, .rows = channels * taps, .columns = samples * size, .depth = l.out_channels, .block = block},
        .weights = {.data = weights, .count = channels * taps, .pitch = depth, .element = w, .by_fours = fours},
        .dy = {args.in<std::byte>(0) + l.y_at(n, 0, 0) * bytes_each<float>(dy), dy, {Size(size), l.result(), size}, samples * size},
        .products = to,
        .group_weights = l.out_channels * depth,
        .group_dy = l.out_channels * size,
        .group_products = channels * taps * to.columns.channel};
    tiled::launch_products(products, args);
  }

  void spread(const KernelArgs& args, const float* products, int64_t n, int64_t samples, int64_t c, int64_t channels) const {
    const int64_t planes = samples * l.groups * channels;
    const SpreadElement element{.windows = l.windows,
                                .places = planes_of_x(l.windows, planes),
                                .channels = Size(channels),
                                .groups = Size(l.groups),
                                .products = products,
                                .samples = samples,
                                .all_channels = l.in_channels,
                                .dx = {args.out<std::byte>(0) + l.x_at(n, 0, c) * bytes_each<float>(dx), dx}};
    launch_elements(element, planes * l.windows.in_size(), args);
  }
};

KernelRun make(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() -> KernelRun {
    const InputGradient<T> gradient(spec);
    if (gradient.l.batch == 0) return [](const KernelArgs&) {};
    return [gradient](const KernelArgs& args) { gradient.run(args); };
  });
}
Workspace own_workspace(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() { return Workspace{.shared = InputGradient<T>(spec).workspace()}; });
}

}  // namespace

constexpr Kernel kConvTransposeKernel{
    .types = kTypes,
    .cost = cost<layout_of_dx>,
    .workspace = halves::workspace_of_either<half_dx, own_workspace>,
    .prepare = halves::prepare_either<half_dx, make>,
};
constexpr Kernel kConvInputGradKernel{
    .types = kTypes,
    .in_place = {{.output = 0, .input = 2}},
    .cost = cost<layout_of_dx>,
    .workspace = halves::workspace_of_either<half_dx, own_workspace>,
    .prepare = halves::prepare_either<half_dx, make>,
};

ORT_TRAIN_OPS_END
