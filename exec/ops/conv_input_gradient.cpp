// The gradient of Conv's x (conv.cpp), dx, which spreads the products w' dy over the windows.
//
//   ConvInputGrad{…, shape}(dy, w) -> dx of that shape
//   ConvTranspose{…, shape}(x, w) -> y of that shape: as ConvInputGrad
//
// Tiles as there; where a plane has few windows, those of several samples make one. An element's bits depend on the shapes alone: each
// tap's product is added in the order of the taps.
//
// Where w is in parts:
//
//   ConvInputGrad{…, shape, first, total}(dy, w, before?)
//     the sums over channels of y go on from part to part, in blocks of a depth (exec/depth_block.h): all nodes but the last leave the
//     products (N, C * taps, OH * OW), in float32 where dx is of 16 bits; the last one adds up their taps

#include "exec/convolution_algorithms.h"
#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace convolution;

std::vector<TensorType> infer_input_gradient(const InferContext& context) {
  const DType type = result_type(context.attributes, {context.input(0).dtype, context.input(1).dtype});
  const Shape x = shape_of(context.attributes);
  const Layout l = layout_of(context.attributes, x, context.input(1).shape);
  const TensorType products{compute_type(type), {l.batch, l.groups * l.depth(), l.windows.out_size()}};
  if (context.has(2) && context.input(2) != products)
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(2)), to_string(products));
  return {l.is_last() ? TensorType{type, x} : products};
}

std::vector<TensorType> infer_transpose(const InferContext& context) {
  const Shape y = shape_of(context.attributes);
  const Layout l = layout_of(context.attributes, y, context.input(1).shape);
  if (windowed_shape(l.windows, y, l.total) != context.input(0).shape)
    throw error(ErrorCode::unsupported, "{} gives no result of {}", to_string(context.input(0)), to_string(y));
  return infer_input_gradient(context);
}

// Prepared. Of a thread's workspace: what the product takes, at its beginning; dy of several samples; the products, where they aren't dx
// itself; a plane of dx, where that is of 16 bits.
template <typename T> struct InputGradient {
  Layout l;
  InputTiles tiles;
  Element dy, w, dx;
  int64_t block = 0;
  bool products_are_dx = false;
  int64_t dy_at = 0, products_at = 0, plane_at = 0, bytes = 0;

  explicit InputGradient(const KernelSpec& spec)
      : l(layout_of_dx(spec)),
        tiles(input_tiles(l, sizeof(T))),
        dy(operand_element(spec, 0)),
        w(operand_element(spec, 1)),
        dx(result_element(spec)),
        block(depth_block(l.total / l.groups)),
        products_are_dx(tiles.products_are_dx(l)) {
    const int64_t wide = tiles.samples * tiles.columns, rows = tiles.channels * l.windows.taps();
    WorkspaceLayout layout;
    Product<T> largest{.rows = rows, .columns = wide, .depth = l.out_channels, .block = block};
    largest.a = {nullptr, 1, l.depth(), w};
    largest.b.element = dy;
    largest.c.element = products_are_dx ? dx : Element::own;
    layout.take(product_workspace(largest));
    dy_at = layout.take(tiles.samples > 1 ? l.out_channels * wide * bytes_each<T>(dy) : 0);
    products_at = layout.take(products_are_dx ? 0 : rows * wide * int64_t{sizeof(T)});
    plane_at = layout.take(is_half(dx) && !products_are_dx ? l.windows.in_size() * int64_t{sizeof(T)} : 0);
    bytes = layout.all();
  }

  int64_t tasks() const { return tiles.groups_of_samples * l.groups * tiles.across * tiles.down; }
  void run(const KernelArgs& args, int64_t task, std::byte* workspace) const {
    const TileNumber tile = tile_of(l, tiles.down, tiles.across, task);
    run_tile(args, tile.samples * tiles.samples, tile.group, tile.down * tiles.channels, tile.across * tiles.columns, workspace);
  }

 private:
  // dx of some channels, of what some windows of one sample or all windows of several give it.
  void run_tile(const KernelArgs& args, int64_t n, int64_t g, int64_t channel, int64_t column, std::byte* workspace) const {
    const int64_t all = l.windows.out_size(), samples = std::min(tiles.samples, l.batch - n);
    const int64_t channels = std::min(tiles.channels, l.in_channels - channel), columns = std::min(tiles.columns, all - column),
                  wide = samples * columns;
    const Operand<T> from(args.in<std::byte>(0), all, 1, dy), weight(args.in<std::byte>(1), 1, l.depth(), w);
    const int64_t to = (l.is_last() ? l.x_at(n, g, channel) : l.products_at(n, g, channel)) + column;
    const Result<T> out(args.out<std::byte>(0) + to * bytes_each<T>(dx), all, 1, dx);
    T* const made = reinterpret_cast<T*>(workspace + products_at);
    Product<T> product{.rows = channels * l.windows.taps(), .columns = wide, .depth = l.out_channels, .block = block};
    product.a = weight.from(channel * l.windows.taps(), g * l.out_channels);
    product.b = from.from(0, l.y_at(n, g, 0) + column);
    if (samples > 1) {
      for (int64_t i = 0; i < samples; ++i)
        copy_elements<T>(dy, from.from(0, l.y_at(n + i, g, 0)).data, all, workspace + dy_at + i * all * from.size(), wide, l.out_channels,
                         all);
      product.b = {workspace + dy_at, wide, 1, dy};
    }
    product.c = products_are_dx ? out : Result<T>(made, wide);
    if (const T* const before = args.inputs.size() > 2 ? args.in<T>(2) : nullptr) {
      const T* const sums = before + l.products_at(n, g, channel) + column;
      product.start = {sums, all};
      if (!products_are_dx) {
        for (int64_t i = 0; i < samples; ++i) copy_planes(sums + i * l.products(), all, made + i * all, wide, product.rows, all);
        product.start = {made, wide};
      }
    }
    multiply(product, workspace);
    if (products_are_dx) return;
    for (int64_t i = 0; i < samples; ++i) {
      if (!l.is_last())
        store_rows(made + i * all, wide, out.from(0, i * l.products()), product.rows, all);
      else if (!is_half(dx))
        spread_columns(l.windows, made + i * all, wide, channels, out.own() + i * l.image());
      else
        spread_rounding(made + i * all, wide, channels, out.from(0, i * l.image()), reinterpret_cast<T*>(workspace + plane_at));
    }
  }

  // Plane by plane: a sum is rounded once.
  void spread_rounding(const T* products, int64_t wide, int64_t channels, const Result<T>& to, T* plane) const {
    const int64_t size = l.windows.in_size();
    for (int64_t channel = 0; channel < channels; ++channel) {
      spread_columns(l.windows, products + channel * l.windows.taps() * wide, wide, 1, plane);
      store_rows(plane, size, to.from(0, channel * size), 1, size);
    }
  }
};

template <typename T> std::optional<InputAlgorithm> algorithm_of(const InputGradient<T>& g) {
  return std::is_same_v<T, float> ? input_algorithm(g.l, g.block, g.dy, g.w, g.dx) : std::nullopt;
}

template <typename T> KernelRun input_gradient(const KernelSpec& spec) {
  const InputGradient<T> gradient(spec);
  if (gradient.l.batch == 0) return [](const KernelArgs&) {};
  if (auto algorithm = algorithm_of(gradient)) {
    return [algorithm = std::move(*algorithm)](const KernelArgs& args) {
      const Operands operands{.from = args.in<std::byte>(0),
                              .w = args.in<std::byte>(1),
                              .to = args.out<std::byte>(0),
                              .shared = reinterpret_cast<float*>(args.workspace),
                              .before = args.inputs.size() > 2 ? args.in<float>(2) : nullptr};
      make_sums(algorithm, operands, args.workers(), args.workspace + workspace_of(algorithm).shared);
    };
  }
  return [gradient](const KernelArgs& args) {
    args.workers().parallel_for(gradient.tasks(),
                                [&](int64_t task, int worker) { gradient.run(args, task, args.workspace + worker * gradient.bytes); });
  };
}

KernelRun prepare_input_gradient(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() { return input_gradient<T>(spec); });
}
Workspace input_workspace(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() {
    const InputGradient<T> gradient(spec);
    const auto algorithm = algorithm_of(gradient);
    return algorithm ? workspace_of(*algorithm) : Workspace{.each = gradient.bytes};
  });
}
double input_efficiency(const KernelSpec& spec, int) {
  const Layout l = layout_of_dx(spec);
  const auto algorithm = for_sums(spec, [&]<typename T>() { return algorithm_of(InputGradient<T>(spec)); });
  if (algorithm) return efficiency_of(*algorithm, gemm::rate_of(operand_element(spec, 0), operand_element(spec, 1)));
  return share_of(spec, l.out_channels, 24);
}

// Between parts the products are kept. Where they take more memory than the weight, or there are none (Winograd's filtering), the weight is
// put together instead.
int64_t rows_of_input_parts(const Graph& graph, const Node& node, size_t input) {
  const int64_t rows = rows_of_parts(graph, node, input);
  if (rows == 0) return 0;
  const Value& w = graph.value(node.inputs[1]);
  const Layout l = whole_layout(node.attributes, shape_of(node.attributes), w.shape);
  const int64_t bytes = l.batch * l.products() * size_of(compute_type(graph.value(node.outputs[0]).dtype));
  return bytes <= w.type().bytes() && !takes_winograd(l) ? rows : 0;
}
PartNode input_share(const Graph&, const Node& node, size_t, ValueId part, const RowRange& rows, ValueId before) {
  return {"ConvInputGrad", {node.inputs[0], part, before}, attributes_of_part(node, rows, "total", rows.total)};
}

// --- ConvTranspose --------------------------------------------------------------------------------------------------------------------

// Is dx of a convolution, with x in the place of dy. Its own gradients are that convolution and its dw.
void transpose_gradient(const Node& node, GradientBuilder& g) {
  const ValueId x = node.inputs[0], w = node.inputs[1], dy = g.output_gradient(0);
  Attributes plain = node.attributes;
  plain.erase("shape");
  if (g.wants(0)) g.input_gradient(0, g.emit("Conv", {dy, w}, with_result(plain, {g.dtype(dy), g.dtype(w)}, g.dtype(x))));
  if (!g.wants(1)) return;
  Attributes of_w = with_result(plain, {g.dtype(x), g.dtype(dy)}, g.dtype(w));
  of_w.set("shape", g.shape(w));
  g.input_gradient(1, g.emit("ConvWeightGrad", {x, dy}, of_w));
}

// x (N, channels * taps, windows...) as y (N, channels, axes...): each element is added where its tap of its window is. A ConvTranspose
// whose weights choose one tap for each channel of x. Over one or two axes.
ValueId fold(Lowering& l, ValueId x, Attributes attributes, const Shape& y) {
  const auto kernel = attributes.get("kernel_shape", std::vector<int64_t>{});
  const int64_t taps = element_count(Shape(kernel.begin(), kernel.end()));
  Shape weight{checked_product({y[1], taps}), 1};
  weight.insert(weight.end(), kernel.begin(), kernel.end());
  Tensor chosen(l.dtype(x) == DType::float64 ? DType::float64 : DType::float32, weight);
  for (int64_t i = 0; i < weight[0]; ++i) {
    const auto at = static_cast<size_t>(i * taps + i % taps);
    if (chosen.dtype == DType::float64)
      chosen.data<double>()[at] = 1;
    else
      chosen.data<float>()[at] = 1;
  }
  attributes.set("group", y[1]);
  attributes.set("shape", y);
  set_runs_in(attributes, Precision::follow);
  return l.emit("ConvTranspose", {x, l.cast(l.constant(std::move(chosen)), l.dtype(x))}, attributes);
}

// Whether a convolution over three axes of y has the windows that x has elements.
bool fits_volume(const Attributes& attributes, const Shape& x, const Shape& y) {
  const Windows depth = windows_of(of_axes(attributes, {0, kNoAxis}), {1, 1, y[2], 1}),
                planes = windows_of(of_axes(attributes, {1, 2}), {1, 1, y[3], y[4]});
  return depth.h.out == x[2] && planes.h.out == x[3] && planes.w.out == x[4];
}

// z (N * depth, channels * taps, H, W), where taps are those of the first of three axes, as y.
ValueId fold_depth(Lowering& l, ValueId z, const Attributes& attributes, const Shape& y, int64_t depth) {
  const Shape planes = l.shape(z);
  const ValueId rows = l.transpose(l.reshape(z, {y[0], depth, planes[1], planes[2] * planes[3]}), {0, 2, 1, 3});
  return l.reshape(fold(l, rows, of_axes(attributes, {0, kNoAxis}), {y[0], y[1], y[2], planes[2] * planes[3]}), y);
}

// Over three axes: the second and third by a ConvTranspose of slices that gives all taps of the first.
ValueId transposed_volume(Lowering& l, const Attributes& attributes, const Shape& y) {
  const Shape x = l.shape(l.input(0)), w = l.shape(l.input(1));
  Attributes planes = of_axes(attributes, {1, 2});
  planes.set("group", attributes.get("group", int64_t{1}));
  planes.set("shape", Shape{x[0] * x[2], checked_product({y[1], w[2]}), y[3], y[4]});
  const ValueId slices = l.reshape(l.transpose(l.input(0), {0, 2, 1, 3, 4}), {x[0] * x[2], x[1], x[3], x[4]});
  const ValueId z = l.emit("ConvTranspose", {slices, l.reshape(l.input(1), {w[0], w[1] * w[2], w[3], w[4]})}, planes);
  return fold_depth(l, z, attributes, y, x[2]);
}

// Col2Im(x (N, channels * taps, windows), image, block): what im2col would have made x of, with what overlaps added up.
void lower_col2im(Lowering& l) {
  const std::vector<int64_t> image = l.ints(1, "the image's shape"), block = l.ints(2, "the block's shape");
  const Shape x = l.shape(l.input(0));
  const size_t axes = block.size();
  if (axes < 1 || axes > 3 || image.size() != axes || x.size() != 3)
    l.fail(fmt::format("blocks of {} in an image of {} do not fit {}", to_string(block), to_string(image), to_string(x)));
  const Attributes& given = l.node.attributes;
  const Attributes attributes{{"kernel_shape", block},
                              {"strides", window_list(given, "strides", 1, axes)},
                              {"dilations", window_list(given, "dilations", 1, axes)},
                              {"pads", window_list(given, "pads", 0, 2 * axes)}};
  const auto windows = [&](const Attributes& some, std::vector<int64_t> sizes) {
    sizes.insert(sizes.begin(), {1, 1});
    return windows_of(some, Shape(sizes.begin(), sizes.end()));
  };
  const int64_t taps = element_count(Shape(block.begin(), block.end()));
  if (taps < 1 || x[1] % taps != 0) l.fail(fmt::format("{} channels are no blocks of {}", x[1], to_string(block)));
  Shape y{x[0], x[1] / taps};
  y.insert(y.end(), image.begin(), image.end());
  Shape of_windows;
  if (axes < 3) {
    const Windows all = windows(attributes, image);
    of_windows = axes == 1 ? Shape{all.w.out} : Shape{all.h.out, all.w.out};
  } else {
    const Windows depth = windows(of_axes(attributes, {0, kNoAxis}), {image[0], 1}),
                  planes = windows(of_axes(attributes, {1, 2}), {image[1], image[2]});
    of_windows = {depth.h.out, planes.h.out, planes.w.out};
  }
  if (element_count(of_windows) != x[2]) l.fail(fmt::format("{} windows are not the {} of the image", x[2], element_count(of_windows)));
  if (axes < 3) {
    Shape columns{x[0], x[1]};
    columns.insert(columns.end(), of_windows.begin(), of_windows.end());
    return l.output(0, fold(l, l.reshape(l.input(0), columns), attributes, y));
  }
  const int64_t channels = y[1] * block[0];
  const ValueId columns = l.reshape(l.input(0), {x[0], x[1], of_windows[0], of_windows[1] * of_windows[2]});
  const ValueId slices = l.reshape(l.transpose(columns, {0, 2, 1, 3}), {x[0] * of_windows[0], x[1], of_windows[1], of_windows[2]});
  const ValueId z = fold(l, slices, of_axes(attributes, {1, 2}), {x[0] * of_windows[0], channels, image[1], image[2]});
  l.output(0, fold_depth(l, z, attributes, y, of_windows[0]));
}

// One axis of a ConvTranspose's result: its elements, the pads at its ends, and the zeros behind it, which no window reaches.
struct TransposedAxis {
  int64_t size = 0, begin = 0, end = 0, behind = 0;
};

// `given`: what the file says, pads, or a size from which the pads follow (`is_sized`), with the odd one at the beginning or the end.
// `whole`: the elements that there are without pads, `more` of them output padding.
TransposedAxis transposed_axis(TransposedAxis given, bool is_sized, bool odd_at_begin, int64_t whole, int64_t more, int64_t stride) {
  TransposedAxis axis = given;
  if (is_sized) {
    const int64_t all = std::max<int64_t>(0, whole - axis.size), half = all / 2;
    axis.begin = odd_at_begin ? all - half : half;
    axis.end = all - axis.begin;
  } else {
    axis.size = whole - axis.begin - axis.end;
  }
  // Output padding as long as a stride is less padding at the end, then zeros behind it.
  const int64_t beyond = std::max<int64_t>(0, more - (stride - 1)), padding = std::min(axis.end, beyond);
  axis.end -= padding;
  axis.behind = beyond - padding;
  axis.size -= axis.behind;
  return axis;
}

void lower_transpose(Lowering& l) {
  const Attributes& given = l.node.attributes;
  const Shape x = l.shape(l.input(0)), w = l.shape(l.input(1));
  if (w.size() != x.size() || w.size() < 3) l.fail(fmt::format("a weight of {} does not fit {}", to_string(w), to_string(x)));
  const size_t axes = w.size() - 2;
  const auto list = [&](const char* name, int64_t otherwise, size_t size) {
    std::vector<int64_t> values = given.get(name, std::vector<int64_t>(size, otherwise));
    constexpr int64_t kMost = int64_t{1} << 20;
    if (values.size() != size || std::any_of(values.begin(), values.end(), [](int64_t v) { return v < 0 || v > kMost; }))
      l.fail(fmt::format("its {} are {}, but must be {} numbers from 0 to {}", name, to_string(values), size, kMost));
    return values;
  };
  const std::vector<int64_t> kernel(w.begin() + 2, w.end()), strides = list("strides", 1, axes), dilations = list("dilations", 1, axes),
                                                             more = list("output_padding", 0, axes), wanted = list("output_shape", 0, axes);
  if (given.get("kernel_shape", kernel) != kernel) l.fail("its kernel_shape is not that of its weight");
  std::vector<int64_t> pads = list("pads", 0, 2 * axes);
  const int64_t group = given.get("group", int64_t{1});
  if (group < 1 || x[1] != w[0] || w[0] % group != 0)
    l.fail(fmt::format("{} channels, a weight of {} and {} groups don't go together", x[1], to_string(w), group));
  const std::string automatic = given.get("auto_pad", "NOTSET");
  const bool is_same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER", has_shape = given.has("output_shape");
  if (!is_same && automatic != "NOTSET" && automatic != "VALID" && !automatic.empty())
    l.fail(fmt::format("its auto_pad is '{}', which the standard does not know", automatic));
  if (automatic == "VALID") pads.assign(2 * axes, 0);
  const bool odd_at_begin = has_shape ? automatic != "SAME_UPPER" : automatic == "SAME_LOWER";
  Shape y{x[0], checked_product({w[1], group})};
  std::vector<int64_t> behind(2 * x.size());  // of y, elements at its ends that no window reaches
  for (size_t i = 0; i < axes; ++i) {
    const int64_t whole = checked_product({strides[i], x[2 + i] - 1}) + more[i] + checked_product({kernel[i] - 1, dilations[i]}) + 1;
    const int64_t size = has_shape ? wanted[i] : is_same ? checked_product({x[2 + i], strides[i]}) : 0;
    const TransposedAxis axis = transposed_axis({.size = size, .begin = pads[i], .end = pads[axes + i]}, is_same || has_shape, odd_at_begin,
                                                whole, more[i], strides[i]);
    if (axis.size < 1) l.fail(fmt::format("its result would have {} elements along axis {}", axis.size, 2 + i));
    y.push_back(axis.size);
    pads[i] = axis.begin;
    pads[axes + i] = axis.end;
    behind[x.size() + 2 + i] = axis.behind;
  }
  const Attributes attributes{{"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations},
                              {"pads", pads},           {"group", group},     {"shape", y}};
  if (axes > 3) l.fail(fmt::format("it slides over {} axes of {}; over one to three it is supported", axes, to_string(x)));
  const bool fits = axes < 3 ? windowed_shape(windows_of(attributes, y), y, x[1]) == x : fits_volume(attributes, x, y);
  if (!fits) l.fail(fmt::format("a result of {} does not belong to {}: its output_shape is too large", to_string(y), to_string(x)));
  ValueId result = axes == 3 ? transposed_volume(l, attributes, y) : l.emit("ConvTranspose", {l.input(0), l.input(1)}, attributes);
  if (std::any_of(behind.begin(), behind.end(), [](int64_t n) { return n > 0; })) result = l.emit("Pad", {result}, {{"pads", behind}});
  if (l.has(2)) {
    Shape of_channels(y.size() - 1, 1);
    of_channels[0] = y[1];
    result = l.emit("Add", {result, l.reshape(l.input(2), of_channels)});
  }
  l.output(0, result);
}

}  // namespace

// The gradient of a convolution as an op of its own (ONNX ConvTranspose-1, 11, 22), which adds its bias by an Add.
constexpr OpDef kConvTranspose{
    .name = "ConvTranspose",
    .onnx = {{.domain = "", .name = "ConvTranspose", .since = 1, .lower = lower_transpose},
             {.domain = "", .name = "Col2Im", .since = 18, .lower = lower_col2im}},
    .infer = infer_transpose,
    .gradient = transpose_gradient,
    .traits = {.precision = {.runs = Precision::low, .rounds = true, .chooses_result = true}},
};
constexpr Kernel kConvTransposeKernel{
    .types = kTypes,
    .cost = cost<layout_of_dx>,
    .efficiency = input_efficiency,
    .workspace = input_workspace,
    .prepare = prepare_input_gradient,
};

constexpr OpDef kConvInputGrad{
    .name = "ConvInputGrad",
    .infer = infer_input_gradient,
    .no_gradient = kNoSecondDerivative,
    .traits = {.division = {.rows = rows_of_input_parts, .share = input_share}},
};
constexpr Kernel kConvInputGradKernel{
    .types = kTypes,
    .in_place = {{.output = 0, .input = 2}},
    .cost = cost<layout_of_dx>,
    .efficiency = input_efficiency,
    .workspace = input_workspace,
    .prepare = prepare_input_gradient,
};

ORT_TRAIN_OPS_END
