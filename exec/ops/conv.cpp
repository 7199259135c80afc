// Conv{group, kernel_shape, strides, pads, dilations}(x, w, bias?) over one or two axes (ONNX Conv-1, 11, 22).
//
//   x (N, C, H, W), w (M, C / group, KH, KW), bias (M) -> y (N, M, OH, OW); with one axis (N, C, W) and so on
//
// Saves x and w. A window's elements become a column, and a group's output is a product (M / group, depth) x (depth, OH * OW), where depth
// counts a group's channels times the taps. dx spreads the products w' dy over the windows, dw sums the products dy columns'.
//
// The columns are made tile by tile, right before their product (exec/gemm.h), so that they take a workspace of some 400 KB a thread. An
// element's bits depend on the shapes alone: of y, on the depth; of dx, each tap's product is added in the order of the taps; of dw,
// samples are added upwards within pieces of the batch, the pieces upwards.

#include <algorithm>
#include <cstring>

#include "exec/gemm.h"
#include "exec/op_list.h"
#include "exec/strided.h"
#include "exec/window.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kColumnBytes = 384 << 10;  // of a tile of columns: beside the packed panel it fits in the second-level cache
constexpr int64_t kFewTasks = 32;            // with fewer, channels are divided too

struct Layout {
  Windows windows;
  int64_t batch = 0, groups = 1, in_channels = 0, out_channels = 0;  // channels of one group

  int64_t depth() const { return in_channels * windows.taps(); }
  int64_t weights() const { return groups * out_channels * depth(); }
  int64_t image() const { return groups * in_channels * windows.in_size(); }     // elements of a sample of x
  int64_t result() const { return groups * out_channels * windows.out_size(); }  // and of y
  int64_t x_at(int64_t n, int64_t g, int64_t channel) const { return n * image() + (g * in_channels + channel) * windows.in_size(); }
  int64_t y_at(int64_t n, int64_t g, int64_t channel) const { return n * result() + (g * out_channels + channel) * windows.out_size(); }
};

Layout layout_of(const Attributes& attributes, const Shape& x, const Shape& w) {
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
  return l;
}

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &x = context.input(0), &w = context.input(1);
  if (x.dtype != w.dtype) throw error(ErrorCode::unsupported, "there is no convolution of {} with {}", to_string(x), to_string(w));
  const Layout l = layout_of(context.attributes, x.shape, w.shape);
  if (context.has(2) && context.input(2) != TensorType{x.dtype, {w.shape[0]}})
    throw error(ErrorCode::unsupported, "the bias is {} instead of {} numbers", to_string(context.input(2)), w.shape[0]);
  return {{x.dtype, windowed_shape(l.windows, x.shape, w.shape[0])}};
}

// The type of the input that attribute `shape` describes.
std::vector<TensorType> infer_gradient(const InferContext& context) {
  return {{context.input(0).dtype, context.attributes.get("shape", std::vector<int64_t>{})}};
}

// --- columns --------------------------------------------------------------------------------------------------------------------------

// Rows: channel, tap; columns: the windows [first, first + count).
template <typename T> void gather_columns(const Windows& windows, const T* x, int64_t channels, int64_t first, int64_t count, T* to) {
  const auto& [h, w] = windows;
  for (int64_t channel = 0; channel < channels; ++channel, x += windows.in_size()) {
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t inside_from = w.first(kw), inside_to = w.last(kw);
        for (int64_t at = first, end = first + count; at < end;) {
          const int64_t oh = at / w.out, ow = at % w.out, run = std::min(w.out - ow, end - at), row = h.at(oh, kh);
          at += run;
          int64_t from = std::clamp(inside_from, ow, ow + run), until = std::clamp(inside_to, from, ow + run);
          if (row < 0 || row >= h.in) from = until = ow + run;
          std::fill(to, to + (from - ow), T(0));
          if (from < until) {
            const T* const source = x + row * w.in + w.at(from, kw);
            T* const target = to + (from - ow);
            if (w.stride == 1) {
              std::memcpy(target, source, static_cast<size_t>(until - from) * sizeof(T));
            } else {
              for (int64_t i = 0; i < until - from; ++i) target[i] = source[i * w.stride];
            }
          }
          std::fill(to + (until - ow), to + run, T(0));
          to += run;
        }
      }
    }
  }
}

// The reverse for all windows: adds to x what the columns hold.
template <typename T> void spread_columns(const Windows& windows, const T* from, int64_t channels, T* x) {
  const auto& [h, w] = windows;
  for (int64_t channel = 0; channel < channels; ++channel, x += windows.in_size()) {
    std::fill(x, x + windows.in_size(), T(0));
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      for (int64_t kw = 0; kw < w.kernel; ++kw, from += windows.out_size()) {
        const int64_t begin = w.first(kw), end = w.last(kw), shift = kw * w.dilation - w.begin;
        for (int64_t oh = h.first(kh); oh < h.last(kh); ++oh) {
          const T* source = from + oh * w.out;
          T* target = x + h.at(oh, kh) * w.in;
          if (w.stride == 1) {
            for (int64_t ow = begin; ow < end; ++ow) target[ow + shift] += source[ow];
          } else {
            for (int64_t ow = begin; ow < end; ++ow) target[ow * w.stride + shift] += source[ow];
          }
        }
      }
    }
  }
}

int64_t in_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- y --------------------------------------------------------------------------------------------------------------------------------

struct ForwardTiles {
  int64_t columns = 0, rows = 0;  // of one
  int64_t across = 0, down = 0;   // how many, of a sample's group
};

ForwardTiles forward_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kLeast = 48, kMost = 480, kLeastRows = 32;
  const int64_t all = l.windows.out_size();
  ForwardTiles tiles;
  tiles.columns = l.windows.plain() ? kMost : std::clamp(kColumnBytes / size / l.depth() / kLeast * kLeast, kLeast, kMost);
  tiles.columns = std::min(tiles.columns, all);
  tiles.across = divided_up(all, tiles.columns);
  tiles.rows = l.out_channels;
  while (l.batch * l.groups * tiles.across * divided_up(l.out_channels, tiles.rows) < kFewTasks && tiles.rows >= 2 * kLeastRows)
    tiles.rows = divided_up(tiles.rows, 2);
  tiles.down = divided_up(l.out_channels, tiles.rows);
  return tiles;
}

template <typename T> int64_t forward_room(const Layout& l) {  // of a thread
  const int64_t columns = l.windows.plain() ? 0 : in_lines(forward_tiles(l, sizeof(T)).columns * l.depth() * int64_t{sizeof(T)});
  return columns + product_workspace<T>(l.depth());
}

template <typename T> KernelRun forward(const KernelSpec& spec) {
  const Layout l = layout_of(spec.attributes, spec.inputs[0].shape, spec.inputs[1].shape);
  if (l.batch == 0) return [](const KernelArgs&) {};
  return [l, tiles = forward_tiles(l, sizeof(T)), room = forward_room<T>(l)](const KernelArgs& args) {
    const T *x = args.in<T>(0), *w = args.in<T>(1), *bias = args.inputs.size() > 2 ? args.in<T>(2) : nullptr;
    const int64_t all = l.windows.out_size();
    args.workers.parallel_for(l.batch * l.groups * tiles.across * tiles.down, [&](int64_t task, int worker) {
      const int64_t down = task % tiles.down, across = task / tiles.down % tiles.across, item = task / tiles.down / tiles.across;
      const int64_t g = item % l.groups, n = item / l.groups, row = down * tiles.rows, column = across * tiles.columns;
      const int64_t rows = std::min(tiles.rows, l.out_channels - row), columns = std::min(tiles.columns, all - column);
      std::byte* const place = args.workspace + worker * room;
      Product<T> product{.rows = rows, .columns = columns, .depth = l.depth()};
      product.a = {w + (g * l.out_channels + row) * l.depth(), l.depth()};
      if (l.windows.plain()) {
        product.b = {x + l.x_at(n, g, 0) + column, all};
      } else {
        T* const made = reinterpret_cast<T*>(place + product_workspace<T>(l.depth()));
        gather_columns(l.windows, x + l.x_at(n, g, 0), l.in_channels, column, columns, made);
        product.b = {made, columns};
      }
      product.c = {args.out<T>(0) + l.y_at(n, g, row) + column, all};
      if (bias) {
        for (int64_t r = 0; r < rows; ++r) std::fill_n(product.c.data + r * all, columns, bias[g * l.out_channels + row + r]);
        product.start = {product.c.data, all};
      }
      multiply<T>(product, place);
    });
  };
}

// --- dx -------------------------------------------------------------------------------------------------------------------------------

struct InputTiles {
  int64_t channels = 0, count = 0;
};

InputTiles input_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kPlainChannels = 96;
  const int64_t bytes = l.windows.taps() * l.windows.out_size() * size;
  int64_t channels = l.windows.plain() ? kPlainChannels : std::max<int64_t>(1, 2 * kColumnBytes / bytes);
  channels = std::min(channels, l.in_channels);
  while (l.batch * l.groups * divided_up(l.in_channels, channels) < kFewTasks && channels > 1) channels = divided_up(channels, 2);
  return {channels, divided_up(l.in_channels, channels)};
}

template <typename T> int64_t input_room(const Layout& l) {
  const int64_t products = input_tiles(l, sizeof(T)).channels * l.windows.taps() * l.windows.out_size() * int64_t{sizeof(T)};
  return (l.windows.plain() ? 0 : in_lines(products)) + product_workspace<T>(l.out_channels);
}

Layout layout_of_dx(const KernelSpec& spec) { return layout_of(spec.attributes, spec.outputs[0].shape, spec.inputs[1].shape); }

template <typename T> KernelRun input_gradient(const KernelSpec& spec) {
  const Layout l = layout_of_dx(spec);
  if (l.batch == 0) return [](const KernelArgs&) {};
  return [l, tiles = input_tiles(l, sizeof(T)), room = input_room<T>(l)](const KernelArgs& args) {
    const T *dy = args.in<T>(0), *w = args.in<T>(1);
    const int64_t all = l.windows.out_size(), taps = l.windows.taps();
    args.workers.parallel_for(l.batch * l.groups * tiles.count, [&](int64_t task, int worker) {
      const int64_t channel = task % tiles.count * tiles.channels, item = task / tiles.count, g = item % l.groups, n = item / l.groups;
      const int64_t channels = std::min(tiles.channels, l.in_channels - channel);
      std::byte* const place = args.workspace + worker * room;
      T* const dx = args.out<T>(0) + l.x_at(n, g, channel);
      T* const made = l.windows.plain() ? dx : reinterpret_cast<T*>(place + product_workspace<T>(l.out_channels));
      multiply<T>({.rows = channels * taps,
                   .columns = all,
                   .depth = l.out_channels,
                   .a = {w + g * l.out_channels * l.depth() + channel * taps, 1, l.depth()},
                   .b = {dy + l.y_at(n, g, 0), all},
                   .c = {made, all}},
                  place);
      if (!l.windows.plain()) spread_columns(l.windows, made, channels, dx);
    });
  };
}

// --- dw -------------------------------------------------------------------------------------------------------------------------------

struct WeightTiles {
  int64_t pieces = 1, samples = 0;   // of the batch
  int64_t columns = 0;               // windows of a product
  int64_t channels = 0, across = 0;  // of x
  int64_t rows = 0, down = 0;        // channels of y
};

WeightTiles weight_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kPieces = 8, kPartials = int64_t{1} << 19, kColumns = 768, kLeastRows = 16, kPlainChannels = 192;
  WeightTiles tiles;
  tiles.samples = std::max<int64_t>(1, divided_up(l.batch, std::clamp<int64_t>(kPartials / l.weights(), 1, kPieces)));
  tiles.pieces = std::max<int64_t>(1, divided_up(l.batch, tiles.samples));
  tiles.columns = std::min(kColumns, l.windows.out_size());
  tiles.channels = l.windows.plain() ? kPlainChannels : std::max<int64_t>(1, kColumnBytes / (l.windows.taps() * tiles.columns * size));
  tiles.channels = std::min(tiles.channels, l.in_channels);
  tiles.across = divided_up(l.in_channels, tiles.channels);
  tiles.rows = l.out_channels;
  while (tiles.pieces * l.groups * tiles.across * divided_up(l.out_channels, tiles.rows) < kFewTasks && tiles.rows >= 2 * kLeastRows)
    tiles.rows = divided_up(tiles.rows, 2);
  tiles.down = divided_up(l.out_channels, tiles.rows);
  return tiles;
}

template <typename T> int64_t weight_room(const Layout& l) {
  const WeightTiles tiles = weight_tiles(l, sizeof(T));
  const int64_t columns = tiles.channels * l.windows.taps() * tiles.columns * int64_t{sizeof(T)};
  return (l.windows.plain() ? 0 : in_lines(columns)) + product_workspace<T>(tiles.columns);
}

template <typename T> int64_t partial_bytes(const Layout& l) {
  const int64_t pieces = weight_tiles(l, sizeof(T)).pieces;
  return pieces > 1 ? in_lines(pieces * l.weights() * int64_t{sizeof(T)}) : 0;
}

Layout layout_of_dw(const KernelSpec& spec) { return layout_of(spec.attributes, spec.inputs[1].shape, spec.outputs[0].shape); }

// The products of one piece's samples, for some channels of y and some of x.
template <typename T>
void add_weight_tile(const Layout& l, const WeightTiles& tiles, const T* dy, const T* x, int64_t piece, int64_t g, int64_t row,
                     int64_t channel, T* dw, std::byte* place) {
  const int64_t rows = std::min(tiles.rows, l.out_channels - row), channels = std::min(tiles.channels, l.in_channels - channel);
  const int64_t all = l.windows.out_size(), taps = l.windows.taps();
  const Matrix<T> c{dw + (g * l.out_channels + row) * l.depth() + channel * taps, l.depth()};
  T* const made = reinterpret_cast<T*>(place + product_workspace<T>(tiles.columns));
  bool first = true;
  for (int64_t n = piece * tiles.samples; n < std::min(l.batch, (piece + 1) * tiles.samples); ++n) {
    for (int64_t column = 0; column < all; column += tiles.columns) {
      const int64_t columns = std::min(tiles.columns, all - column);
      Product<T> product{.rows = rows, .columns = channels * taps, .depth = columns};
      product.a = {dy + l.y_at(n, g, row) + column, all};
      if (l.windows.plain()) {
        product.b = {x + l.x_at(n, g, channel) + column, 1, all};
      } else {
        gather_columns(l.windows, x + l.x_at(n, g, channel), channels, column, columns, made);
        product.b = {made, 1, columns};
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
  return [l, tiles = weight_tiles(l, sizeof(T)), room = weight_room<T>(l), partials = partial_bytes<T>(l)](const KernelArgs& args) {
    T* const dw = args.out<T>(0);
    T* const partial = tiles.pieces > 1 ? reinterpret_cast<T*>(args.workspace) : dw;
    args.workers.parallel_for(tiles.pieces * l.groups * tiles.across * tiles.down, [&](int64_t task, int worker) {
      const int64_t down = task % tiles.down, across = task / tiles.down % tiles.across, item = task / tiles.down / tiles.across;
      const int64_t g = item % l.groups, piece = item / l.groups;
      add_weight_tile(l, tiles, args.in<T>(0), args.in<T>(1), piece, g, down * tiles.rows, across * tiles.channels,
                      partial + piece * l.weights(), args.workspace + partials + worker * room);
    });
    if (tiles.pieces == 1) return;
    args.workers.parallel_blocks(l.weights(), kTaskElements, [&](int64_t begin, int64_t end) {
      std::copy(partial + begin, partial + end, dw + begin);
      for (int64_t piece = 1; piece < tiles.pieces; ++piece) {
        const T* const more = partial + piece * l.weights();
        for (int64_t i = begin; i < end; ++i) dw[i] += more[i];
      }
    });
  };
}

// --- the ops --------------------------------------------------------------------------------------------------------------------------

template <template <typename> class Make> KernelRun for_floats(const KernelSpec& spec) {
  if (spec.outputs[0].dtype == DType::float32) return Make<float>{}(spec);
  if (spec.outputs[0].dtype == DType::float64) return Make<double>{}(spec);
  throw error(ErrorCode::unsupported, "there is no convolution of {}; cast it to float32", to_string(spec.outputs[0].dtype));
}
template <typename T> struct Forward {
  KernelRun operator()(const KernelSpec& spec) const { return forward<T>(spec); }
};
template <typename T> struct InputGradient {
  KernelRun operator()(const KernelSpec& spec) const { return input_gradient<T>(spec); }
};
template <typename T> struct WeightGradient {
  KernelRun operator()(const KernelSpec& spec) const { return weight_gradient<T>(spec); }
};

bool is_float(const KernelSpec& spec) { return spec.outputs[0].dtype == DType::float32; }

int64_t forward_workspace(const KernelSpec& spec) {
  const Layout l = layout_of(spec.attributes, spec.inputs[0].shape, spec.inputs[1].shape);
  return spec.threads * (is_float(spec) ? forward_room<float>(l) : forward_room<double>(l));
}
int64_t input_workspace(const KernelSpec& spec) {
  const Layout l = layout_of_dx(spec);
  return spec.threads * (is_float(spec) ? input_room<float>(l) : input_room<double>(l));
}
int64_t weight_workspace(const KernelSpec& spec) {
  const Layout l = layout_of_dw(spec);
  return is_float(spec) ? partial_bytes<float>(l) + spec.threads * weight_room<float>(l)
                        : partial_bytes<double>(l) + spec.threads * weight_room<double>(l);
}

// All three are the same multiply-adds. `rows` and `columns` of a product, of which small ones are slow.
Cost cost_of(const KernelSpec& spec, const Layout& l, int64_t rows, int64_t columns) {
  Cost cost{.flops = 2.0 * static_cast<double>(l.batch * l.groups * l.out_channels) * static_cast<double>(l.depth()) *
                     static_cast<double>(l.windows.out_size())};
  for (size_t i = 0; i < spec.inputs.size(); ++i) cost.bytes += spec.has(i) ? static_cast<double>(spec.inputs[i].bytes()) : 0;
  cost.bytes += static_cast<double>(spec.outputs[0].bytes());
  // Making a column takes as long as some eight more rows of multiply-adds; panels are 48 columns wide.
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  const double copying = l.windows.plain() ? 5 : 13;
  cost.efficiency = r / (r + copying) * c / (48.0 * static_cast<double>(divided_up(columns, 48)));
  return cost;
}
Cost forward_cost(const KernelSpec& spec) {
  const Layout l = layout_of(spec.attributes, spec.inputs[0].shape, spec.inputs[1].shape);
  return cost_of(spec, l, l.out_channels, l.windows.out_size());
}
Cost input_cost(const KernelSpec& spec) {
  const Layout l = layout_of_dx(spec);
  return cost_of(spec, l, l.depth(), l.windows.out_size());
}
Cost weight_cost(const KernelSpec& spec) {
  const Layout l = layout_of_dw(spec);
  return cost_of(spec, l, weight_tiles(l, size_of(DType::float32)).rows, l.depth());
}

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

const OpDef kConv{
    .name = "Conv",
    .onnx = {{.domain = "", .name = "Conv", .since = 1, .lower = lower}},
    .infer = infer,
    .gradient = gradient,
    .cost = forward_cost,
    .kernel = {.cpu = for_floats<Forward>, .workspace = forward_workspace},
    .standard = 22,
};

// (dy, w) -> dx of attribute `shape`
const OpDef kConvInputGrad{
    .name = "ConvInputGrad",
    .infer = infer_gradient,
    .no_gradient = kNoSecondDerivative,
    .cost = input_cost,
    .kernel = {.cpu = for_floats<InputGradient>, .workspace = input_workspace},
};

// (dy, x) -> dw of attribute `shape`
const OpDef kConvWeightGrad{
    .name = "ConvWeightGrad",
    .infer = infer_gradient,
    .no_gradient = kNoSecondDerivative,
    .cost = weight_cost,
    .kernel = {.cpu = for_floats<WeightGradient>, .workspace = weight_workspace},
};

ORT_TRAIN_OPS_END
