// ConvWeightGrad on CUDA. What it means is told in exec/ops/conv_weight_gradient.cpp, the order of its sums in exec/cuda/weight_chains.h.
//
// Products in tiles have a piece of the batch for each item, whose sums go through the workspace where there are several pieces. Where a
// group has few channels, and in double, a thread has an element of dw and a chain, if there is room for the chains, else a piece.
//
// On a device, those of 16 bits are made by cuDNN where it can (exec/cuda/half_convolution.h).

#include <cstring>

#include "exec/cuda/half_convolution.h"
#include "exec/cuda/weight_chains.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace convolution;

// --- a thread an element --------------------------------------------------------------------------------------------------------------

// Partial sums of dw: [piece][part][weights], where a part is a chain, or all of the piece.
struct Parts {
  int64_t pieces = 1, each = 1, weights = 0;
  bool are_chains = false;

  int64_t count() const { return pieces * each * weights; }
};

template <typename T> struct WeightPart {
  Layout l;
  WeightChains chains;
  Parts parts;
  OperandTensor<T> dy, x;
  ResultTensor<T> to;  // parts, or dw itself

  HOST_DEVICE void operator()(int64_t i) const {
    const int64_t weight = i % parts.weights, part = i / parts.weights, piece = part / parts.each, count = chains.count(piece);
    const int64_t first = parts.are_chains ? part % parts.each : 0, end = parts.are_chains ? lesser(first + 1, count) : count;
    ChainSum<T> sum;
    for (int64_t chain = first; chain < end; ++chain) sum.add(value_of(chains.at(piece, chain), weight));
    to.put(i, sum.value);
  }

 private:
  HOST_DEVICE T value_of(const WeightChain& chain, int64_t weight) const {
    const int64_t taps = l.windows.taps(), row = weight / l.depth(), column = weight % l.depth(), tap = column % taps;
    const int64_t g = row / l.out_channels, m = row % l.out_channels;
    const auto& [h, w] = l.windows;
    const int64_t down = tap / w.kernel * h.dilation - h.begin, across = tap % w.kernel * w.dilation - w.begin;
    int64_t n = chain.n + chain.begin / chain.windows, at = chain.begin % chain.windows;
    int64_t oh = (chain.column + at) / w.out, ow = (chain.column + at) % w.out;
    T sum = 0;
    for (int64_t i = 0; i < chain.length; ++i) {
      const int64_t y = oh * h.stride + down, z = ow * w.stride + across;
      const bool inside = y >= 0 && y < h.in && z >= 0 && z < w.in;
      const T value = inside ? x.at(l.x_at(n, g, column / taps) + y * w.in + z) : T(0);
      sum = add_product(dy.at(l.y_at(n, g, m) + oh * w.out + ow), value, sum);
      if (++ow == w.out) ow = 0, ++oh;
      if (++at < chain.windows) continue;
      at = 0, ++n;  // the next sample's
      oh = chain.column / w.out, ow = chain.column % w.out;
    }
    return sum;
  }
};

template <typename T> struct JoinParts {
  WeightChains chains;
  Parts parts;
  const T* sums;
  ResultTensor<T> dw;

  HOST_DEVICE void operator()(int64_t i) const {
    T total = 0;
    for (int64_t piece = 0; piece < parts.pieces; ++piece) {
      ChainSum<T> sum;
      const int64_t count = parts.are_chains ? chains.count(piece) : 1;
      for (int64_t part = 0; part < count; ++part) sum.add(sums[(piece * parts.each + part) * parts.weights + i]);
      total = piece == 0 ? sum.value : total + sum.value;
    }
    dw.put(i, total);
  }
};

// --- tiles ----------------------------------------------------------------------------------------------------------------------------

// An item for each group in each of some pieces.
struct WeightProducts {
  tiled::ProductShape shape;
  ChainRows rows;
  ChainColumns columns;
  tiled::Result sums;
  Divisor groups;
  int64_t first_piece, group_dy, group_x, weights;  // elements

  HOST_DEVICE ChainRows a(int64_t item) const {
    const Digit at = split(static_cast<uint32_t>(item), groups);
    auto one = rows;
    one.piece = first_piece + at.above;
    one.data += at.digit * group_dy * bytes_each<float>(one.element);
    return one;
  }
  HOST_DEVICE ChainColumns b(int64_t item) const {
    const Digit at = split(static_cast<uint32_t>(item), groups);
    auto one = columns;
    one.piece = first_piece + at.above;
    one.data += at.digit * group_x * bytes_each<float>(one.element);
    return one;
  }
  HOST_DEVICE tiled::Result c(int64_t item) const {
    const Digit at = split(static_cast<uint32_t>(item), groups);
    auto one = sums;
    one.data += ((first_piece + at.above) * weights + at.digit * shape.rows * shape.columns) * bytes_each<float>(one.element);
    return one;
  }
};

// --- kernels --------------------------------------------------------------------------------------------------------------------------

// What is known before the addresses are.
template <typename T> struct WeightGradient {
  Layout l;
  WeightTiles tiles;
  WeightChains chains;
  Element dy, x, dw;
  bool in_tiles = false;
  Parts parts;

  explicit WeightGradient(const KernelSpec& spec)
      : l(layout_of_dw(spec)),
        tiles(weight_tiles(l, sizeof(T))),
        chains(l, tiles),
        dy(operand_element(spec, 0)),
        x(operand_element(spec, 1)),
        dw(result_element(spec)),
        parts{.pieces = tiles.pieces, .weights = l.weights()} {
    if (l.batch == 0) return;
    constexpr int64_t kBytes = int64_t{16} << 20, kMost = int64_t{1} << 30;
    const int64_t most = chains.count(0);
    in_tiles = std::is_same_v<T, float> && fills_tiles(l, l.out_channels, l.depth()) && most * kDepthBlock < kMost;
    parts.are_chains = !in_tiles && tiles.pieces * most * parts.weights * int64_t{sizeof(T)} <= kBytes;
    if (parts.are_chains) parts.each = most;
  }

  bool is_direct() const { return parts.pieces * parts.each == 1; }
  int64_t workspace() const { return l.batch == 0 || is_direct() ? 0 : parts.count() * int64_t{sizeof(T)}; }

  void run(const KernelArgs& args) const {
    auto* const sums = reinterpret_cast<T*>(args.workspace);
    const ResultTensor<T> result{args.out<std::byte>(0), dw}, to = is_direct() ? result : ResultTensor<T>{args.workspace};
    if constexpr (std::is_same_v<T, float>) {
      if (in_tiles) run_tiles(args, to);
    }
    if (!in_tiles) {
      const WeightPart<T> part{l, chains, parts, {args.in<std::byte>(0), dy}, {args.in<std::byte>(1), x}, to};
      launch_elements(part, parts.count(), args);
    }
    if (!is_direct()) launch_elements(JoinParts<T>{chains, parts, sums, result}, parts.weights, args);
  }

 private:
  // The last piece may have fewer chains.
  void run_tiles(const KernelArgs& args, const ResultTensor<T>& to) const {
    const int64_t last = parts.pieces - 1;
    const bool are_same = chains.samples_of(0) == chains.samples_of(last);
    launch_pieces(args, to, 0, are_same ? parts.pieces : last);
    if (!are_same) launch_pieces(args, to, last, 1);
  }

  void launch_pieces(const KernelArgs& args, const ResultTensor<T>& to, int64_t first, int64_t pieces) const {
    const Windows& windows = l.windows;
    const ChainDepth along(chains, first);
    const int64_t all = windows.out_size(), depth = l.depth();
    const WeightProducts products{
        .shape = {.items = pieces * l.groups, .rows = l.out_channels, .columns = depth, .depth = along.depth(), .block = along.longest()},
        .rows = {.depth = along,
                 .data = args.in<std::byte>(0) + l.y_at(0, 0, 0) * bytes_each<float>(dy),
                 .element = dy,
                 .sample = l.result(),
                 .channel = all,
                 .count = l.out_channels},
        .columns = {.depth = along,
                    .data = args.in<std::byte>(1),
                    .element = x,
                    .h = windows.h,
                    .w = windows.w,
                    .across = Divisor(windows.w.out),
                    .taps = Divisor(windows.taps()),
                    .taps_across = Divisor(windows.w.kernel),
                    .image = l.image(),
                    .plane = windows.in_size(),
                    .count = depth},
        .sums = {.data = to.data, .row = depth, .element = to.element, .by_fours = tiled::are_fours(to.data, depth, to.element)},
        .groups = Divisor(l.groups),
        .first_piece = first,
        .group_dy = l.out_channels * all,
        .group_x = l.in_channels * windows.in_size(),
        .weights = parts.weights};
    tiled::launch_products(products, args);
  }
};

KernelRun make(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() -> KernelRun {
    const WeightGradient<T> gradient(spec);
    if (gradient.l.batch == 0)
      return [bytes = spec.outputs[0].bytes()](const KernelArgs& args) { fill_zeros(args.outputs[0], bytes, args); };
    return [gradient](const KernelArgs& args) { gradient.run(args); };
  });
}
Workspace own_workspace(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() { return Workspace{.shared = WeightGradient<T>(spec).workspace()}; });
}

}  // namespace

constexpr Kernel kConvWeightGradKernel{
    .types = kTypes,
    .cost = cost<layout_of_dw>,
    .workspace = halves::workspace_of_either<half_dw, own_workspace>,
    .prepare = halves::prepare_either<half_dw, make>,
};

ORT_TRAIN_OPS_END
