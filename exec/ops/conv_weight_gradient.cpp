// The gradient of Conv's w (conv.cpp), dw, which sums the products dy columns'.
//
//   ConvWeightGrad{…, shape}(dy, x) -> dw of that shape
//
// Tiles as there; where a plane has few windows, those of several samples make one. An element's bits depend on the shapes alone: tiles of
// windows are added upwards within pieces of the batch, the pieces upwards.
//
// Where w is in parts:
//
//   ConvWeightGrad{…, shape, first, rows}(dy, x)
//     those rows of dw

#include <cstring>

#include "exec/convolution_algorithms.h"
#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace convolution;

std::vector<TensorType> infer_weight_gradient(const InferContext& context) {
  Shape w = shape_of(context.attributes);
  if (!w.empty()) w[0] = context.attributes.get("rows", w[0]);
  return {{result_type(context.attributes, {context.input(0).dtype, context.input(1).dtype}), w}};
}

// Prepared. At the beginning of the workspace are the sums of all pieces, where there are several; then comes that of the threads, each:
// what the product takes; columns; dy of several samples; sums of a tile, where dw is of 16 bits and itself can't hold them.
template <typename T> struct WeightGradient {
  Layout l;
  Element dy, x, dw;
  std::optional<WeightAlgorithm> algorithm;  // none: columns
  WeightTiles tiles;
  int64_t pieces_bytes = 0;
  int64_t columns_at = 0, dy_at = 0, sums_at = 0, each = 0;

  explicit WeightGradient(const KernelSpec& spec)
      : l(layout_of_dw(spec)), dy(operand_element(spec, 0)), x(operand_element(spec, 1)), dw(result_element(spec)) {
    if (std::is_same_v<T, float>) algorithm = weight_algorithm(l, dy, x, dw);
    tiles = algorithm ? std::visit([](const auto& a) { return a.tiles(); }, *algorithm) : weight_tiles(l, sizeof(T));
    if (tiles.pieces > 1) pieces_bytes = whole_lines(tiles.pieces * l.weights() * int64_t{sizeof(T)});
    if (algorithm) {
      each = std::visit([](const auto& a) { return a.bytes(); }, *algorithm);
      return;
    }
    const int64_t wide = tiles.samples * tiles.columns, columns = tiles.channels * l.windows.taps();
    WorkspaceLayout layout;
    Product<T> largest{.rows = tiles.rows, .columns = columns, .depth = wide};
    largest.a.element = dy;
    largest.b.element = x;
    largest.c.element = tiles.pieces > 1 ? Element::own : dw;
    layout.take(product_workspace(largest));
    columns_at = layout.take(tiles.gathers(l) ? columns * wide * bytes_each<T>(x) : 0);
    dy_at = layout.take(tiles.samples > 1 ? tiles.rows * wide * bytes_each<T>(dy) : 0);
    sums_at = layout.take(tiles.pieces == 1 && is_half(dw) ? tiles.rows * columns * int64_t{sizeof(T)} : 0);
    each = layout.all();
  }

  int64_t tasks() const { return tiles.pieces * l.groups * tiles.across * tiles.down; }
  void run(const KernelArgs& args, int64_t task, std::byte* workspace) const {
    const TileNumber tile = tile_of(l, tiles.down, tiles.across, task);
    run_tile(args, tile.samples, tile.group, tile.down * tiles.rows, tile.across * tiles.channels, workspace);
  }
  // Elements [begin, end) of dw from those of the pieces.
  void join(const KernelArgs& args, int64_t begin, int64_t end) const {
    constexpr int64_t kSome = 1024;
    const T* const sums = reinterpret_cast<const T*>(args.workspace);
    for (T some[kSome]; begin < end; begin += kSome) {
      const int64_t n = std::min(kSome, end - begin);
      std::copy_n(sums + begin, n, some);
      for (int64_t piece = 1; piece < tiles.pieces; ++piece) {
        const T* const more = sums + piece * l.weights() + begin;
        for (int64_t i = 0; i < n; ++i) some[i] += more[i];
      }
      store_rows(some, n, Result<T>(args.out<std::byte>(0), 0, 1, dw).from(0, begin), 1, n);
    }
  }

 private:
  // The products of one piece's samples, for some channels of y and some of x.
  void run_tile(const KernelArgs& args, int64_t piece, int64_t g, int64_t row, int64_t channel, std::byte* workspace) const {
    const int64_t rows = std::min(tiles.rows, l.out_channels - row), channels = std::min(tiles.channels, l.in_channels - channel);
    const int64_t all = l.windows.out_size(), columns = channels * l.windows.taps();
    const int64_t at = (g * l.out_channels + row) * l.depth() + channel * l.windows.taps();
    const Operand<T> from_dy(args.in<std::byte>(0), all, 1, dy), from_x(args.in<std::byte>(1), 1, all, x);
    Result<T> to(args.out<std::byte>(0) + at * bytes_each<T>(dw), l.depth(), 1, dw);
    if (tiles.pieces > 1) to = {reinterpret_cast<T*>(args.workspace) + piece * l.weights() + at, l.depth()};
    Matrix<T> sums{to.own(), to.row};
    if (is_half(to.element)) sums = {reinterpret_cast<T*>(workspace + sums_at), columns};
    const int64_t begin = piece * tiles.piece_samples, end = std::min(l.batch, begin + tiles.piece_samples);
    for (int64_t n = begin; n < end; n += tiles.samples) {
      const int64_t samples = std::min(tiles.samples, end - n);
      for (int64_t column = 0; column < all; column += tiles.columns) {
        const int64_t count = std::min(tiles.columns, all - column), wide = samples * count;
        Product<T> product{.rows = rows, .columns = columns, .depth = wide};
        product.a = from_dy.from(0, l.y_at(n, g, row) + column);
        product.b = from_x.from(l.x_at(n, g, channel) + column, 0);
        if (samples > 1) {
          for (int64_t i = 0; i < samples; ++i)
            copy_elements<T>(dy, from_dy.from(0, l.y_at(n + i, g, row) + column).data, all, workspace + dy_at + i * count * from_dy.size(),
                             wide, rows, count);
          product.a = {workspace + dy_at, wide, 1, dy};
        }
        if (tiles.gathers(l)) {
          for (int64_t i = 0; i < samples; ++i)
            gather_elements<T>(l.windows, x, from_x.from(l.x_at(n + i, g, channel), 0).data, channels, column, count,
                               workspace + columns_at + i * count * from_x.size(), wide);
          product.b = {workspace + columns_at, 1, wide, x};
        }
        const bool is_first = n == begin && column == 0, is_last = n + samples == end && column + count == all;
        product.c = is_last ? to : Result<T>(sums);
        if (!is_first) product.start = {sums.data, sums.row};
        multiply(product, workspace);
      }
    }
  }
};

template <typename T> KernelRun weight_gradient(const KernelSpec& spec) {
  const WeightGradient<T> gradient(spec);
  if (gradient.l.batch == 0)
    return [bytes = spec.outputs[0].bytes()](const KernelArgs& args) { std::memset(args.outputs[0], 0, static_cast<size_t>(bytes)); };
  return [gradient](const KernelArgs& args) {
    std::byte* const workspace = args.workspace + gradient.pieces_bytes;
    if (gradient.algorithm) {
      std::byte* const to = gradient.tiles.pieces > 1 ? args.workspace : args.out<std::byte>(0);
      std::visit(
          [&](const auto& a) {
            args.workers().parallel_for(a.tasks(), [&](int64_t task, int worker) {
              a.run(args.in<std::byte>(0), args.in<std::byte>(1), to, task, workspace + worker * gradient.each);
            });
          },
          *gradient.algorithm);
    } else {
      args.workers().parallel_for(gradient.tasks(),
                                  [&](int64_t task, int worker) { gradient.run(args, task, workspace + worker * gradient.each); });
    }
    if (gradient.tiles.pieces == 1) return;
    args.workers().parallel_blocks(gradient.l.weights(), kTaskElements,
                                   [&](int64_t begin, int64_t end) { gradient.join(args, begin, end); });
  };
}

KernelRun prepare_weight_gradient(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() { return weight_gradient<T>(spec); });
}
Workspace weight_workspace(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() {
    const WeightGradient<T> gradient(spec);
    return Workspace{.shared = gradient.pieces_bytes, .each = gradient.each};
  });
}
double weight_efficiency(const KernelSpec& spec, int) {
  const Layout l = layout_of_dw(spec);
  const WeightTiles tiles = weight_tiles(l, sizeof(float));
  const auto algorithm = for_sums(spec, [&]<typename T>() { return WeightGradient<T>(spec).algorithm; });
  if (algorithm) return efficiency_of(*algorithm, gemm::rate_of(operand_element(spec, 0), operand_element(spec, 1)));
  return share_of(spec, tiles.rows, tiles.gathers(l) ? 32 : 16);
}

std::optional<PartNode> gradient_rows(const Graph&, const Node& node, const RowRange& rows) {
  if (node.attributes.get("group", int64_t{1}) != 1) return std::nullopt;
  return PartNode{"ConvWeightGrad", node.inputs, attributes_of_part(node, rows, "rows", rows.count)};
}

}  // namespace

constexpr OpDef kConvWeightGrad{
    .name = "ConvWeightGrad",
    .infer = infer_weight_gradient,
    .no_gradient = kNoSecondDerivative,
    .traits = {.division = {.gradient = gradient_rows}},
};
constexpr Kernel kConvWeightGradKernel{
    .types = kTypes,
    .cost = cost<layout_of_dw>,
    .efficiency = weight_efficiency,
    .workspace = weight_workspace,
    .prepare = prepare_weight_gradient,
};

ORT_TRAIN_OPS_END
