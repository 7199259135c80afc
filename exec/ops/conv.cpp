// Conv{group, kernel_shape, strides, pads, dilations}(x, w, bias?) over one or two axes (ONNX Conv-1, 11, 22).
//
//   x (N, C, H, W), w (M, C / group, KH, KW), bias (M) -> y (N, M, OH, OW); with one axis (N, C, W) and so on
//
// Saves x and w. A window's elements become a column, and a group's output is a product (M / group, depth) x (depth, OH * OW), where depth
// counts a group's channels times the taps. dx spreads the products w' dy over the windows, dw sums the products dy columns'.
//
// The columns are made tile by tile, right before their product (exec/gemm.h), so that they take some 400 KB of workspace a thread; where a
// plane has few windows, those of several samples make a tile. An element's bits depend on the shapes alone: of y, channels are added in
// chunks, upwards; of dx, each tap's product is added in the order of the taps; of dw, tiles of windows are added upwards within pieces of
// the batch, the pieces upwards.
//
// Where w is in parts, each a range of its rows and so of y's channels (passes/split_weights.h), a node is told which: `first` of `total`.
// What could change a bit is chosen by the whole weight. Grouped convolutions are not divided: their weights are small.
//
//   ConvPart{…, first, total}(x, w, bias?, before?)
//     the part's channels of y; the others are those of `before`, in place, or are left to the nodes that fill them next; the bias is that
//     of all channels
//   ConvInputGrad{…, shape, first, total}(dy, w, before?)
//     the sums over channels of y go on from part to part, in blocks of a depth (exec/depth_block.h): all nodes but the last leave the
//     products (N, C * taps, OH * OW), the last one adds up their taps
//   ConvWeightGrad{…, shape, first, rows}(dy, x)
//     those rows of dw

#include <algorithm>
#include <cstring>

#include "exec/columns.h"
#include "exec/gemm.h"
#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kColumnBytes = 384 << 10;  // of a tile of columns: beside the packed panel it fits in the second-level cache
constexpr int64_t kFewTasks = 16;            // with fewer, channels are divided too

struct Layout {
  Windows windows;
  int64_t batch = 0, groups = 1, in_channels = 0, out_channels = 0;  // channels of one group
  int64_t first = 0, total = 0;                                      // of y's channels: where a part begins; all of them

  int64_t depth() const { return in_channels * windows.taps(); }
  int64_t weights() const { return groups * out_channels * depth(); }
  int64_t image() const { return groups * in_channels * windows.in_size(); }  // elements of a sample of x
  int64_t result() const { return total * windows.out_size(); }               // and of y
  int64_t products() const { return groups * depth() * windows.out_size(); }  // and of what dx is made from
  int64_t x_at(int64_t n, int64_t g, int64_t channel) const { return n * image() + (g * in_channels + channel) * windows.in_size(); }
  int64_t y_at(int64_t n, int64_t g, int64_t channel) const {
    return n * result() + (first + g * out_channels + channel) * windows.out_size();
  }
  int64_t products_at(int64_t n, int64_t g, int64_t channel) const {
    return n * products() + (g * in_channels + channel) * windows.taps() * windows.out_size();
  }
  bool is_last() const { return first + groups * out_channels == total; }
};

Layout whole_layout(const Attributes& attributes, const Shape& x, const Shape& w) {
  Layout l{.windows = windows_of(attributes, x)};
  l.groups = attributes.get("group", int64_t{1});
  if (w.size() != x.size()) throw error(ErrorCode::unsupported, "a weight of {} does not fit {}", to_string(w), to_string(x));
  const bool divides = l.groups > 0 && w[0] > 0 && w[1] > 0 && w[0] % l.groups == 0 && x[1] == w[1] * l.groups;
  if (!divides) {
    throw error(ErrorCode::unsupported, "{} channels, a weight of {} and {} groups don't go together", x[1], to_string(w), l.groups);
  }
  if (attributes.get("kernel_shape", std::vector<int64_t>{}) != std::vector<int64_t>(w.begin() + 2, w.end()))
    throw error(ErrorCode::unsupported, "its kernel_shape is not that of its weight {}", to_string(w));
  l.batch = x[0];
  l.in_channels = w[1];
  l.out_channels = w[0] / l.groups;
  l.total = w[0];
  return l;
}

// Where w is a part that begins at channel `first` of `total`.
Layout part_layout(Layout l, int64_t first, int64_t total) {
  const int64_t count = l.groups * l.out_channels;
  if (first < 0 || count > total || first > total - count || (l.groups > 1 && count < total))
    throw error(ErrorCode::unsupported, "{} channels from {} on are no part of {} in {} groups", count, first, total, l.groups);
  l.first = first;
  l.total = total;
  return l;
}

Layout layout_of(const Attributes& attributes, const Shape& x, const Shape& w) {
  const Layout l = whole_layout(attributes, x, w);  // checks w
  return part_layout(l, attributes.get("first", int64_t{0}), attributes.get("total", w[0]));
}

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &x = context.input(0), &w = context.input(1);
  if (x.dtype != w.dtype) throw error(ErrorCode::unsupported, "there is no convolution of {} with {}", to_string(x), to_string(w));
  const Layout l = layout_of(context.attributes, x.shape, w.shape);
  if (context.has(2) && context.input(2) != TensorType{x.dtype, {l.total}})
    throw error(ErrorCode::unsupported, "the bias is {} instead of {} numbers", to_string(context.input(2)), l.total);
  const TensorType y{x.dtype, windowed_shape(l.windows, x.shape, l.total)};
  if (context.has(3) && context.input(3) != y)
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(3)), to_string(y));
  return {y};
}

Shape shape_of(const Attributes& attributes) { return attributes.get("shape", Shape{}); }

std::vector<TensorType> infer_input_gradient(const InferContext& context) {
  const DType dtype = context.input(0).dtype;
  const Shape x = shape_of(context.attributes);
  const Layout l = layout_of(context.attributes, x, context.input(1).shape);
  const TensorType products{dtype, {l.batch, l.groups * l.depth(), l.windows.out_size()}};
  if (context.has(2) && context.input(2) != products)
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(2)), to_string(products));
  return {l.is_last() ? TensorType{dtype, x} : products};
}

std::vector<TensorType> infer_weight_gradient(const InferContext& context) {
  Shape w = shape_of(context.attributes);
  if (!w.empty()) w[0] = context.attributes.get("rows", w[0]);
  return {{context.input(0).dtype, w}};
}

// --- tiles ---------------------------------------------------------------------------------------------------------------------------

// So many samples share a tile of about `columns` windows.
int64_t samples_together(const Layout& l, int64_t columns) {
  return std::clamp<int64_t>(columns / l.windows.out_size(), 1, std::max<int64_t>(1, l.batch));
}

int64_t in_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- y --------------------------------------------------------------------------------------------------------------------------------

struct ForwardTiles {
  int64_t samples = 1, groups_of_samples = 0;
  int64_t columns = 0, across = 0;  // windows of a tile; tiles of a sample
  int64_t channels = 0;             // of x, in a chunk
  int64_t rows = 0, down = 0;       // channels of y

  bool gathers(const Layout& l) const { return samples > 1 || !l.windows.plain(); }
};

ForwardTiles forward_tiles(const Layout& l) {
  constexpr int64_t kColumns = 192, kPlainColumns = 480, kDepth = 384, kMostRows = 256, kLeastRows = 64;
  const int64_t all = l.windows.out_size();
  ForwardTiles tiles{.samples = samples_together(l, kColumns)};
  tiles.groups_of_samples = divided_up(l.batch, tiles.samples);
  tiles.columns = std::min(all, l.windows.plain() ? kPlainColumns : kColumns);
  tiles.across = divided_up(all, tiles.columns);
  tiles.channels = tiles.gathers(l) ? std::clamp<int64_t>(kDepth / l.windows.taps(), 1, l.in_channels) : l.in_channels;
  tiles.rows = tiles.samples > 1 ? std::min(kMostRows, l.out_channels) : l.out_channels;
  while (tiles.groups_of_samples * l.groups * tiles.across * divided_up(l.out_channels, tiles.rows) < kFewTasks &&
         tiles.rows >= 2 * kLeastRows)
    tiles.rows = divided_up(tiles.rows, 2);
  tiles.down = divided_up(l.out_channels, tiles.rows);
  return tiles;
}

// Of a thread: the packed panel, columns, and y of several samples.
template <typename T> struct ForwardRoom {
  int64_t panel = 0, columns = 0, result = 0;
  explicit ForwardRoom(const Layout& l) {
    const ForwardTiles tiles = forward_tiles(l);
    const int64_t wide = tiles.samples * tiles.columns * int64_t{sizeof(T)};
    panel = product_workspace<T>(tiles.channels * l.windows.taps());
    columns = tiles.gathers(l) ? in_lines(tiles.channels * l.windows.taps() * wide) : 0;
    result = tiles.samples > 1 ? in_lines(tiles.rows * wide) : 0;
  }
  int64_t all() const { return panel + columns + result; }
};

// y of some channels and some windows, of one sample or of several.
template <typename T>
void forward_tile(const Layout& l, const ForwardTiles& tiles, const KernelArgs& args, int64_t n, int64_t g, int64_t row, int64_t column,
                  std::byte* place, const ForwardRoom<T>& room) {
  const T *x = args.in<T>(0), *w = args.in<T>(1), *bias = args.inputs.size() > 2 ? args.in<T>(2) : nullptr;
  const int64_t all = l.windows.out_size(), taps = l.windows.taps(), samples = std::min(tiles.samples, l.batch - n);
  const int64_t rows = std::min(tiles.rows, l.out_channels - row), columns = std::min(tiles.columns, all - column),
                wide = samples * columns;
  T* const made = reinterpret_cast<T*>(place + room.panel);
  T* const y = args.out<T>(0) + l.y_at(n, g, row) + column;
  const Matrix<T> c = samples > 1 ? Matrix<T>{reinterpret_cast<T*>(place + room.panel + room.columns), wide} : Matrix<T>{y, all};
  for (int64_t r = 0; bias && r < rows; ++r) std::fill_n(c.data + r * c.row, wide, bias[l.first + g * l.out_channels + row + r]);
  for (int64_t channel = 0; channel < l.in_channels; channel += tiles.channels) {
    const int64_t channels = std::min(tiles.channels, l.in_channels - channel);
    Product<T> product{.rows = rows, .columns = wide, .depth = channels * taps};
    product.a = {w + (g * l.out_channels + row) * l.depth() + channel * taps, l.depth()};
    product.b = {made, wide};
    if (!tiles.gathers(l)) product.b = {x + l.x_at(n, g, 0) + column, all};
    for (int64_t i = 0; tiles.gathers(l) && i < samples; ++i)
      gather_columns(l.windows, x + l.x_at(n + i, g, channel), channels, column, columns, made + i * columns, wide);
    product.c = c;
    if (bias || channel > 0) product.start = {c.data, c.row};
    multiply<T>(product, place);
  }
  for (int64_t i = 0; samples > 1 && i < samples; ++i) copy_planes<T>(c.data + i * columns, wide, y + i * l.result(), all, rows, columns);
}

Layout layout_of_y(const KernelSpec& spec) { return layout_of(spec.attributes, spec.inputs[0].shape, spec.inputs[1].shape); }

template <typename T> KernelRun forward(const KernelSpec& spec) {
  const Layout l = layout_of_y(spec);
  if (l.batch == 0) return [](const KernelArgs&) {};
  return [l, tiles = forward_tiles(l), room = ForwardRoom<T>(l), bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    if (args.inputs.size() > 3 && args.inputs[3] && args.inputs[3] != args.outputs[0])
      copy_parallel(args.workers(), args.outputs[0], args.inputs[3], bytes);
    args.workers().parallel_for(tiles.groups_of_samples * l.groups * tiles.across * tiles.down, [&](int64_t task, int worker) {
      const int64_t down = task % tiles.down, across = task / tiles.down % tiles.across, item = task / tiles.down / tiles.across;
      forward_tile<T>(l, tiles, args, item / l.groups * tiles.samples, item % l.groups, down * tiles.rows, across * tiles.columns,
                      args.workspace + worker * room.all(), room);
    });
  };
}

// --- dx -------------------------------------------------------------------------------------------------------------------------------

struct InputTiles {
  int64_t samples = 1, groups_of_samples = 0;
  int64_t channels = 0, count = 0;  // of x
};

InputTiles input_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kColumns = 192, kPlainChannels = 96;
  InputTiles tiles{.samples = samples_together(l, kColumns)};
  tiles.groups_of_samples = divided_up(l.batch, tiles.samples);
  const int64_t bytes = l.windows.taps() * tiles.samples * l.windows.out_size() * size;
  tiles.channels = l.windows.plain() ? kPlainChannels : std::max<int64_t>(1, kColumnBytes / bytes);
  tiles.channels = std::min(tiles.channels, l.in_channels);
  while (tiles.groups_of_samples * l.groups * divided_up(l.in_channels, tiles.channels) < kFewTasks && tiles.channels > 1)
    tiles.channels = divided_up(tiles.channels, 2);
  tiles.count = divided_up(l.in_channels, tiles.channels);
  return tiles;
}

// Of a thread: the packed panel, dy of several samples, the products.
template <typename T> struct InputRoom {
  int64_t panel = 0, dy = 0, products = 0;
  explicit InputRoom(const Layout& l) {
    const InputTiles tiles = input_tiles(l, sizeof(T));
    const int64_t wide = tiles.samples * l.windows.out_size() * int64_t{sizeof(T)};
    panel = product_workspace<T>(l.out_channels);
    dy = tiles.samples > 1 ? in_lines(l.out_channels * wide) : 0;
    products = tiles.samples > 1 || !l.windows.plain() ? in_lines(tiles.channels * l.windows.taps() * wide) : 0;
  }
  int64_t all() const { return panel + dy + products; }
};

Layout layout_of_dx(const KernelSpec& spec) { return layout_of(spec.attributes, shape_of(spec.attributes), spec.inputs[1].shape); }

template <typename T> KernelRun input_gradient(const KernelSpec& spec) {
  const Layout l = layout_of_dx(spec);
  if (l.batch == 0) return [](const KernelArgs&) {};
  return [l, tiles = input_tiles(l, sizeof(T)), room = InputRoom<T>(l), block = depth_block(l.total / l.groups)](const KernelArgs& args) {
    const T *dy = args.in<T>(0), *w = args.in<T>(1), *before = args.inputs.size() > 2 ? args.in<T>(2) : nullptr;
    const int64_t all = l.windows.out_size(), taps = l.windows.taps();
    args.workers().parallel_for(tiles.groups_of_samples * l.groups * tiles.count, [&](int64_t task, int worker) {
      const int64_t channel = task % tiles.count * tiles.channels, item = task / tiles.count, g = item % l.groups;
      const int64_t n = item / l.groups * tiles.samples, samples = std::min(tiles.samples, l.batch - n), wide = samples * all;
      const int64_t channels = std::min(tiles.channels, l.in_channels - channel);
      std::byte* const place = args.workspace + worker * room.all();
      T* const gathered = reinterpret_cast<T*>(place + room.panel);
      for (int64_t i = 0; samples > 1 && i < samples; ++i)
        copy_planes<T>(dy + l.y_at(n + i, g, 0), all, gathered + i * all, wide, l.out_channels, all);
      const bool direct = samples == 1 && l.windows.plain();  // then the products are dx
      const int64_t to = l.is_last() ? l.x_at(n, g, channel) : l.products_at(n, g, channel);
      T* const out = args.out<T>(0) + to;
      T* const made = direct ? out : reinterpret_cast<T*>(place + room.panel + room.dy);
      Product<T> product{.rows = channels * taps, .columns = wide, .depth = l.out_channels};
      product.a = {w + g * l.out_channels * l.depth() + channel * taps, 1, l.depth()};
      product.b = {samples > 1 ? gathered : dy + l.y_at(n, g, 0), wide};
      product.c = {made, wide};
      product.block = block;
      if (before) {
        const T* const from = before + l.products_at(n, g, channel);
        for (int64_t i = 0; !direct && i < samples; ++i)
          copy_planes<T>(from + i * l.products(), all, made + i * all, wide, channels * taps, all);
        product.start = {direct ? from : made, wide};
      }
      multiply<T>(product, place);
      for (int64_t i = 0; !direct && i < samples; ++i) {
        if (l.is_last())
          spread_columns(l.windows, made + i * all, wide, channels, out + i * l.image());
        else
          copy_planes<T>(made + i * all, wide, out + i * l.products(), all, channels * taps, all);
      }
    });
  };
}

// --- dw -------------------------------------------------------------------------------------------------------------------------------

struct WeightTiles {
  int64_t pieces = 1, piece_samples = 0;  // of the batch
  int64_t samples = 1;                    // in a tile
  int64_t columns = 0;                    // windows of a tile, in each of its samples
  int64_t channels = 0, across = 0;       // of x
  int64_t rows = 0, down = 0;             // channels of y

  bool gathers(const Layout& l) const { return samples > 1 || !l.windows.plain(); }
};

WeightTiles weight_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kPieces = 8, kPartials = int64_t{1} << 19, kColumns = 768, kMostRows = 128, kLeastRows = 32, kPlainChannels = 192;
  WeightTiles tiles;
  const int64_t weights = l.total * l.depth();  // of the whole
  tiles.piece_samples = std::max<int64_t>(1, divided_up(l.batch, std::clamp<int64_t>(kPartials / weights, 1, kPieces)));
  tiles.pieces = std::max<int64_t>(1, divided_up(l.batch, tiles.piece_samples));
  tiles.samples = std::min(samples_together(l, kColumns), tiles.piece_samples);
  tiles.columns = std::min(kColumns, l.windows.out_size());
  const int64_t bytes = l.windows.taps() * tiles.samples * tiles.columns * size;
  tiles.channels = tiles.gathers(l) ? std::max<int64_t>(1, kColumnBytes / bytes) : kPlainChannels;
  tiles.channels = std::min(tiles.channels, l.in_channels);
  tiles.across = divided_up(l.in_channels, tiles.channels);
  tiles.rows = tiles.samples > 1 ? std::min(kMostRows, l.out_channels) : l.out_channels;
  while (tiles.pieces * l.groups * tiles.across * divided_up(l.out_channels, tiles.rows) < kFewTasks && tiles.rows >= 2 * kLeastRows)
    tiles.rows = divided_up(tiles.rows, 2);
  tiles.down = divided_up(l.out_channels, tiles.rows);
  return tiles;
}

// Partial sums of all pieces; then of a thread: the packed panel, columns, dy of several samples.
template <typename T> struct WeightRoom {
  int64_t partials = 0, panel = 0, columns = 0, dy = 0;
  explicit WeightRoom(const Layout& l) {
    const WeightTiles tiles = weight_tiles(l, sizeof(T));
    const int64_t wide = tiles.samples * tiles.columns * int64_t{sizeof(T)};
    partials = tiles.pieces > 1 ? in_lines(tiles.pieces * l.weights() * int64_t{sizeof(T)}) : 0;
    panel = product_workspace<T>(tiles.samples * tiles.columns);
    columns = tiles.gathers(l) ? in_lines(tiles.channels * l.windows.taps() * wide) : 0;
    dy = tiles.samples > 1 ? in_lines(tiles.rows * wide) : 0;
  }
  int64_t each() const { return panel + columns + dy; }
};

Layout layout_of_dw(const KernelSpec& spec) {
  const Shape whole = shape_of(spec.attributes);
  Layout l = whole_layout(spec.attributes, spec.inputs[1].shape, whole);
  l.out_channels = spec.outputs[0].shape[0] / l.groups;
  return part_layout(l, spec.attributes.get("first", int64_t{0}), whole[0]);
}

// The products of one piece's samples, for some channels of y and some of x.
template <typename T>
void add_weight_tile(const Layout& l, const WeightTiles& tiles, const T* dy, const T* x, int64_t piece, int64_t g, int64_t row,
                     int64_t channel, T* dw, std::byte* place, const WeightRoom<T>& room) {
  const int64_t rows = std::min(tiles.rows, l.out_channels - row), channels = std::min(tiles.channels, l.in_channels - channel);
  const int64_t all = l.windows.out_size(), taps = l.windows.taps();
  const Matrix<T> c{dw + (g * l.out_channels + row) * l.depth() + channel * taps, l.depth()};
  T* const made = reinterpret_cast<T*>(place + room.panel);
  T* const gathered = reinterpret_cast<T*>(place + room.panel + room.columns);
  const int64_t end = std::min(l.batch, (piece + 1) * tiles.piece_samples);
  bool first = true;
  for (int64_t n = piece * tiles.piece_samples; n < end; n += tiles.samples) {
    const int64_t samples = std::min(tiles.samples, end - n);
    for (int64_t column = 0; column < all; column += tiles.columns) {
      const int64_t columns = std::min(tiles.columns, all - column), wide = samples * columns;
      Product<T> product{.rows = rows, .columns = channels * taps, .depth = wide};
      product.a = {dy + l.y_at(n, g, row) + column, all};
      product.b = {x + l.x_at(n, g, channel) + column, 1, all};
      for (int64_t i = 0; samples > 1 && i < samples; ++i)
        copy_planes<T>(dy + l.y_at(n + i, g, row) + column, all, gathered + i * columns, wide, rows, columns);
      if (samples > 1) product.a = {gathered, wide};
      if (tiles.gathers(l)) {
        for (int64_t i = 0; i < samples; ++i)
          gather_columns(l.windows, x + l.x_at(n + i, g, channel), channels, column, columns, made + i * columns, wide);
        product.b = {made, 1, wide};
      }
      product.c = c;
      if (!first) product.start = {c.data, c.row};
      first = false;
      multiply<T>(product, place);
    }
  }
}

template <typename T> KernelRun weight_gradient(const KernelSpec& spec) {
  const Layout l = layout_of_dw(spec);
  if (l.batch == 0)
    return [bytes = spec.outputs[0].bytes()](const KernelArgs& args) { std::memset(args.outputs[0], 0, static_cast<size_t>(bytes)); };
  return [l, tiles = weight_tiles(l, sizeof(T)), room = WeightRoom<T>(l)](const KernelArgs& args) {
    T* const dw = args.out<T>(0);
    T* const partial = tiles.pieces > 1 ? reinterpret_cast<T*>(args.workspace) : dw;
    args.workers().parallel_for(tiles.pieces * l.groups * tiles.across * tiles.down, [&](int64_t task, int worker) {
      const int64_t down = task % tiles.down, across = task / tiles.down % tiles.across, item = task / tiles.down / tiles.across;
      const int64_t g = item % l.groups, piece = item / l.groups;
      add_weight_tile(l, tiles, args.in<T>(0), args.in<T>(1), piece, g, down * tiles.rows, across * tiles.channels,
                      partial + piece * l.weights(), args.workspace + room.partials + worker * room.each(), room);
    });
    if (tiles.pieces == 1) return;
    args.workers().parallel_blocks(l.weights(), kTaskElements, [&](int64_t begin, int64_t end) {
      std::copy(partial + begin, partial + end, dw + begin);
      for (int64_t piece = 1; piece < tiles.pieces; ++piece) {
        const T* const more = partial + piece * l.weights();
        for (int64_t i = begin; i < end; ++i) dw[i] += more[i];
      }
    });
  };
}

// --- the ops --------------------------------------------------------------------------------------------------------------------------

// Prepares for the T of the tensors: kernel.operator()<T>().
template <typename Kernel> auto for_floats(const KernelSpec& spec, Kernel&& kernel) {
  return for_type(Wide{}, spec.outputs[0].dtype, kernel);
}
KernelRun prepare_forward(const KernelSpec& spec) {
  return for_floats(spec, [&]<typename T>() { return forward<T>(spec); });
}
KernelRun prepare_input_gradient(const KernelSpec& spec) {
  return for_floats(spec, [&]<typename T>() { return input_gradient<T>(spec); });
}
KernelRun prepare_weight_gradient(const KernelSpec& spec) {
  return for_floats(spec, [&]<typename T>() { return weight_gradient<T>(spec); });
}

Workspace forward_workspace(const KernelSpec& spec) {
  const Layout l = layout_of_y(spec);
  return for_floats(spec, [&]<typename T>() { return Workspace{.each = ForwardRoom<T>(l).all()}; });
}
Workspace input_workspace(const KernelSpec& spec) {
  const Layout l = layout_of_dx(spec);
  return for_floats(spec, [&]<typename T>() { return Workspace{.each = InputRoom<T>(l).all()}; });
}
Workspace weight_workspace(const KernelSpec& spec) {
  const Layout l = layout_of_dw(spec);
  return for_floats(spec, [&]<typename T>() {
    const WeightRoom<T> room(l);
    return Workspace{.shared = room.partials, .each = room.each()};
  });
}

// All three are the same multiply-adds.
template <Layout (*layout)(const KernelSpec&)> Cost cost(const KernelSpec& spec) {
  const Layout l = layout(spec);
  Cost cost{.flops = 2.0 * static_cast<double>(l.batch * l.groups * l.out_channels) * static_cast<double>(l.depth()) *
                     static_cast<double>(l.windows.out_size())};
  for (size_t i = 0; i < spec.inputs.size(); ++i) cost.bytes += spec.has(i) ? static_cast<double>(spec.inputs[i].bytes()) : 0;
  cost.bytes += static_cast<double>(spec.outputs[0].bytes());
  const int64_t others = l.total - l.groups * l.out_channels;  // channels of y, or dy, that a part leaves alone
  cost.bytes -= static_cast<double>(l.batch * others * l.windows.out_size() * size_of(spec.outputs[0].dtype));
  if (spec.has(3)) cost.bytes -= static_cast<double>(spec.inputs[3].bytes());  // y as it was
  return cost;
}

// Gathering and spreading columns takes as long as `more` multiply-adds with each element of them, of which the product itself makes
// `useful` (measured).
double share_of(int64_t useful, double more) { return static_cast<double>(useful) / (static_cast<double>(useful) + more); }
double forward_efficiency(const KernelSpec& spec, int) {
  const Layout l = layout_of_y(spec);
  const ForwardTiles tiles = forward_tiles(l);
  return share_of(tiles.rows, tiles.samples > 1 ? 50 : tiles.gathers(l) ? 16 : 8);
}
double input_efficiency(const KernelSpec& spec, int) {
  const Layout l = layout_of_dx(spec);
  return share_of(l.out_channels, l.windows.plain() ? 8 : 12);
}
double weight_efficiency(const KernelSpec& spec, int) {
  const Layout l = layout_of_dw(spec);
  const WeightTiles tiles = weight_tiles(l, sizeof(float));
  return share_of(tiles.rows, tiles.gathers(l) ? 32 : 16);
}

// --- parts of a weight ----------------------------------------------------------------------------------------------------------------

Attributes attributes_of_part(const Node& node, const RowRange& rows, const char* size, int64_t value) {
  Attributes attributes = node.attributes;
  attributes.set("first", rows.first);
  attributes.set(size, value);
  return attributes;
}

// dx sums over the rows: parts begin where the blocks of that sum do.
int64_t rows_of_parts(const Graph& graph, const Node& node, size_t input) {
  const bool can = input == 1 && node.attributes.get("group", int64_t{1}) == 1;
  return can ? depth_block(graph.value(node.inputs[1]).shape[0]) : 0;
}
PartNode share(const Graph&, const Node& node, size_t, ValueId part, const RowRange& rows, ValueId before) {
  const ValueId bias = node.inputs.size() > 2 ? node.inputs[2] : kNone;
  return {"ConvPart", {node.inputs[0], part, bias, before}, attributes_of_part(node, rows, "total", rows.total)};
}

// Between parts the products are kept. Where they take more memory than the weight, the weight is put together instead.
int64_t rows_of_input_parts(const Graph& graph, const Node& node, size_t input) {
  const int64_t rows = rows_of_parts(graph, node, input);
  const Value& w = graph.value(node.inputs[1]);
  if (rows == 0 || is_half(w.dtype)) return 0;  // half a float's bits: sums would be rounded from part to part
  const Layout l = whole_layout(node.attributes, shape_of(node.attributes), w.shape);
  return l.batch * l.products() <= element_count(w.shape) ? rows : 0;
}
PartNode input_share(const Graph&, const Node& node, size_t, ValueId part, const RowRange& rows, ValueId before) {
  return {"ConvInputGrad", {node.inputs[0], part, before}, attributes_of_part(node, rows, "total", rows.total)};
}

std::optional<PartNode> gradient_rows(const Graph&, const Node& node, const RowRange& rows) {
  if (node.attributes.get("group", int64_t{1}) != 1) return std::nullopt;
  return PartNode{"ConvWeightGrad", node.inputs, attributes_of_part(node, rows, "rows", rows.count)};
}

// --- gradient and import --------------------------------------------------------------------------------------------------------------

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId x = node.inputs[0], w = node.inputs[1], dy = g.output_gradient(0);
  const auto like = [&](ValueId value) {
    Attributes attributes = node.attributes;
    attributes.set("shape", g.shape(value));
    return attributes;
  };
  if (g.wants(0)) g.input_gradient(0, g.emit("ConvInputGrad", {dy, w}, like(x)));
  if (g.wants(1)) g.input_gradient(1, g.emit("ConvWeightGrad", {dy, x}, like(w)));
  if (!g.wants(2)) return;
  std::vector<int64_t> axes{0};
  for (size_t axis = 2; axis < g.shape(dy).size(); ++axis) axes.push_back(static_cast<int64_t>(axis));
  g.input_gradient(2, g.emit("ReduceSum", {dy}, {{"axes", axes}, {"keepdims", int64_t{0}}}));
}

void lower(Lowering& l) {
  const Shape x = l.shape(l.input(0)), w = l.shape(l.input(1));
  if (w.size() < 3) l.fail(fmt::format("its weight is {}, but has at least three axes", to_string(w)));
  const std::vector<int64_t> kernel(w.begin() + 2, w.end());
  if (l.node.attributes.get("kernel_shape", kernel) != kernel) l.fail("its kernel_shape is not that of its weight");
  Attributes attributes = window_attributes(l, x, kernel);
  attributes.set("group", l.node.attributes.get("group", int64_t{1}));
  std::vector<ValueId> inputs{l.input(0), l.input(1)};
  if (l.has(2)) inputs.push_back(l.input(2));
  l.pass_on("Conv", std::move(inputs), std::move(attributes));
}

}  // namespace

constexpr OpDef kConv{
    .name = "Conv",
    .onnx = {{.domain = "", .name = "Conv", .since = 1, .lower = lower}},
    .infer = infer,
    .gradient = gradient,
    .traits = {.division = {.rows = rows_of_parts, .share = share}, .precision = {.runs = Precision::low}},
    .standard = 22,
};
constexpr Kernel kConvKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = cost<layout_of_y>,
    .efficiency = forward_efficiency,
    .workspace = forward_workspace,
    .prepare = prepare_forward,
};

constexpr OpDef kConvPart{
    .name = "ConvPart",
    .infer = infer,
    .no_gradient = "convolutions are divided behind the gradients",
};
constexpr Kernel kConvPartKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 3}},
    .cost = cost<layout_of_y>,
    .efficiency = forward_efficiency,
    .workspace = forward_workspace,
    .prepare = prepare_forward,
};

// (dy, w, before?) -> dx of attribute `shape`
constexpr OpDef kConvInputGrad{
    .name = "ConvInputGrad",
    .infer = infer_input_gradient,
    .no_gradient = kNoSecondDerivative,
    .traits = {.division = {.rows = rows_of_input_parts, .share = input_share}},
};
constexpr Kernel kConvInputGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .in_place = {{.output = 0, .input = 2}},
    .cost = cost<layout_of_dx>,
    .efficiency = input_efficiency,
    .workspace = input_workspace,
    .prepare = prepare_input_gradient,
};

// (dy, x) -> dw of attribute `shape`
constexpr OpDef kConvWeightGrad{
    .name = "ConvWeightGrad",
    .infer = infer_weight_gradient,
    .no_gradient = kNoSecondDerivative,
    .traits = {.division = {.gradient = gradient_rows}},
};
constexpr Kernel kConvWeightGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = cost<layout_of_dw>,
    .efficiency = weight_efficiency,
    .workspace = weight_workspace,
    .prepare = prepare_weight_gradient,
};

ORT_TRAIN_OPS_END
