// Conv{group, kernel_shape, strides, pads, dilations, to, compute}(x, w, bias?) over one or two axes (ONNX Conv-1, 11, 22).
//
//   x (N, C, H, W), w (M, C / group, KH, KW), bias (M) -> y (N, M, OH, OW); with one axis (N, C, W) and so on;
//   their types, `to` and `compute`: exec/product_types.h
//
// Saves x and w. A window's elements become a column, and a group's output is a product (M / group, depth) x (depth, OH * OW), where depth
// counts a group's channels times the taps. The gradients: conv_input_gradient.cpp, conv_weight_gradient.cpp.
//
// The columns are made tile by tile, right before their product (exec/gemm.h), so that they take some 400 KB of workspace a thread; where a
// plane has few windows, those of several samples make a tile. An element's bits depend on the shapes alone: channels are added in chunks,
// upwards. Most shapes are made without columns: exec/convolution_algorithms.h.
//
// Where w is in parts, each a range of its rows and so of y's channels (passes/split_weights.h), a node is told which: `first` of `total`.
// What could change a bit is chosen by the whole weight. Grouped convolutions are not divided: their weights are small.
//
//   ConvPart{…, first, total}(x, w, bias?, before?)
//     the part's channels of y; the others are those of `before`, in place, or are left to the nodes that fill them next; the bias is that
//     of all channels

#include "exec/convolution_algorithms.h"
#include "exec/op_list.h"
#include "exec/ops/sampling.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace convolution;

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &x = context.input(0), &w = context.input(1);
  const DType type = result_type(context.attributes, {x.dtype, w.dtype});
  const Layout l = layout_of(context.attributes, x.shape, w.shape);
  if (context.has(2) && (!adds_to(context.input(2).dtype, type) || context.input(2).shape != Shape{l.total}))
    throw error(ErrorCode::unsupported, "the bias is {} instead of {} numbers", to_string(context.input(2)), l.total);
  const TensorType y{type, windowed_shape(l.windows, x.shape, l.total)};
  if (context.has(3) && context.input(3) != y)
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(3)), to_string(y));
  return {y};
}

// --- kernel ---------------------------------------------------------------------------------------------------------------------------

// A convolution, prepared. Of a thread's workspace: what the product takes, at its beginning; columns; y where that can't hold sums, being
// of several samples, or of 16 bits.
template <typename T> struct Forward {
  Layout l;
  Tiles tiles;
  Element x, w, y, bias = Element::own;
  bool keeps_sums = false;
  int64_t columns_at = 0, sums_at = 0, bytes = 0;

  explicit Forward(const KernelSpec& spec)
      : l(layout_of_y(spec)), tiles(tiles_of(l)), x(operand_element(spec, 0)), w(operand_element(spec, 1)), y(result_element(spec)) {
    if (spec.has(2)) bias = element_of(spec.inputs[2].dtype);
    keeps_sums = tiles.samples > 1 || (is_half(y) && (spec.has(2) || tiles.channels < l.in_channels));
    const int64_t wide = tiles.samples * tiles.columns, depth = tiles.channels * l.windows.taps();
    WorkspaceLayout layout;
    Product<T> largest{.rows = tiles.rows, .columns = wide, .depth = depth};
    largest.a.element = w;
    largest.b.element = x;
    largest.c.element = tiles.samples > 1 ? Element::own : y;
    layout.take(product_workspace(largest));
    columns_at = layout.take(tiles.gathers(l) ? depth * wide * bytes_each<T>(x) : 0);
    sums_at = layout.take(keeps_sums ? tiles.rows * wide * int64_t{sizeof(T)} : 0);
    bytes = layout.all();
  }

  int64_t tasks() const { return tiles.groups_of_samples * l.groups * tiles.across * tiles.down; }
  void run(const KernelArgs& args, int64_t task, std::byte* workspace) const {
    const TileNumber tile = tile_of(l, tiles.down, tiles.across, task);
    run_tile(args, tile.samples * tiles.samples, tile.group, tile.down * tiles.rows, tile.across * tiles.columns, workspace);
  }

 private:
  // y of some channels and some windows, of one sample or of several.
  void run_tile(const KernelArgs& args, int64_t n, int64_t g, int64_t row, int64_t column, std::byte* workspace) const {
    const int64_t all = l.windows.out_size(), taps = l.windows.taps(), samples = std::min(tiles.samples, l.batch - n);
    const int64_t rows = std::min(tiles.rows, l.out_channels - row), columns = std::min(tiles.columns, all - column),
                  wide = samples * columns;
    const Result<T> to(args.out<std::byte>(0) + (l.y_at(n, g, row) + column) * bytes_each<T>(y), all, 1, y);
    const Operand<T> from(args.in<std::byte>(0), all, 1, x), weight(args.in<std::byte>(1), l.depth(), 1, w);
    const Matrix<T> sums = keeps_sums ? Matrix<T>{reinterpret_cast<T*>(workspace + sums_at), wide} : Matrix<T>{to.own(), all};
    const bool has_bias = args.inputs.size() > 2 && args.inputs[2];
    for (int64_t r = 0; has_bias && r < rows; ++r)
      std::fill_n(sums.data + r * sums.row, wide, number_of<T>(args.in<std::byte>(2), bias, l.first + g * l.out_channels + row + r));
    for (int64_t channel = 0; channel < l.in_channels; channel += tiles.channels) {
      const int64_t channels = std::min(tiles.channels, l.in_channels - channel);
      const bool is_last = channel + channels == l.in_channels;
      Product<T> product{.rows = rows, .columns = wide, .depth = channels * taps};
      product.a = weight.from(g * l.out_channels + row, channel * taps);
      product.b = {workspace + columns_at, wide, 1, x};
      if (!tiles.gathers(l)) product.b = from.from(0, l.x_at(n, g, 0) + column);
      for (int64_t i = 0; tiles.gathers(l) && i < samples; ++i)
        gather_elements<T>(l.windows, x, from.from(0, l.x_at(n + i, g, channel)).data, channels, column, columns,
                           workspace + columns_at + i * columns * from.size(), wide);
      product.c = is_last && samples == 1 ? to : Result<T>(sums);
      if (has_bias || channel > 0) product.start = {sums.data, sums.row};
      multiply(product, workspace);
    }
    for (int64_t i = 0; samples > 1 && i < samples; ++i)
      store_rows(sums.data + i * columns, wide, to.from(0, i * l.result()), rows, columns);
  }
};

void copy_before(const KernelArgs& args, int64_t bytes) {
  if (args.inputs.size() > 3 && args.inputs[3] && args.inputs[3] != args.outputs[0])
    copy_parallel(args.workers(), args.outputs[0], args.inputs[3], bytes);
}

template <typename T> std::optional<OutputAlgorithm> algorithm_of(const Forward<T>& f) {
  return std::is_same_v<T, float> ? output_algorithm(f.l, f.x, f.w, f.y) : std::nullopt;
}
// Of a bias that isn't of floats, which it becomes behind what the algorithm's tasks share.
int64_t bias_bytes(Element bias, int64_t channels) { return bias == Element::own ? 0 : whole_lines(channels * int64_t{sizeof(float)}); }

template <typename T> KernelRun forward(const KernelSpec& spec) {
  const Forward<T> convolution(spec);
  if (convolution.l.batch == 0) return [](const KernelArgs&) {};
  if (auto algorithm = algorithm_of(convolution)) {
    return [algorithm = std::move(*algorithm), channels = convolution.l.total, bias = convolution.bias,
            bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
      copy_before(args, bytes);
      std::byte* const behind = args.workspace + workspace_of(algorithm).shared;
      const auto* const added = args.inputs.size() > 2 ? args.in<std::byte>(2) : nullptr;
      const Operands operands{.from = args.in<std::byte>(0),
                              .w = args.in<std::byte>(1),
                              .to = args.out<std::byte>(0),
                              .shared = reinterpret_cast<float*>(args.workspace),
                              .bias = added ? vector_of<float>(added, bias, 0, channels, behind) : nullptr};
      make_sums(algorithm, operands, args.workers(), behind + bias_bytes(bias, channels));
    };
  }
  return [convolution, bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    copy_before(args, bytes);
    args.workers().parallel_for(
        convolution.tasks(), [&](int64_t task, int worker) { convolution.run(args, task, args.workspace + worker * convolution.bytes); });
  };
}

KernelRun prepare(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() { return forward<T>(spec); });
}
Workspace workspace(const KernelSpec& spec) {
  return for_sums(spec, [&]<typename T>() {
    const Forward<T> convolution(spec);
    const auto algorithm = algorithm_of(convolution);
    if (!algorithm) return Workspace{.each = convolution.bytes};
    Workspace workspace = workspace_of(*algorithm);
    workspace.shared += bias_bytes(convolution.bias, convolution.l.total);
    return workspace;
  });
}

double efficiency(const KernelSpec& spec, int) {
  const Layout l = layout_of_y(spec);
  const auto algorithm = for_sums(spec, [&]<typename T>() { return algorithm_of(Forward<T>(spec)); });
  if (algorithm) return efficiency_of(*algorithm, gemm::rate_of(operand_element(spec, 0), operand_element(spec, 1)));
  const Tiles tiles = tiles_of(l);
  constexpr double kStoring = 18;  // an element of y
  const double share = share_of(spec, tiles.rows, tiles.samples > 1 ? 50 : tiles.gathers(l) ? 16 : 8);
  return 1 / (1 / share + kStoring / static_cast<double>(l.depth()));
}

// --- parts, gradient, import ----------------------------------------------------------------------------------------------------------

PartNode share(const Graph&, const Node& node, size_t, ValueId part, const RowRange& rows, ValueId before) {
  const ValueId bias = node.inputs.size() > 2 ? node.inputs[2] : kNone;
  return {"ConvPart", {node.inputs[0], part, bias, before}, attributes_of_part(node, rows, "total", rows.total)};
}

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId x = node.inputs[0], w = node.inputs[1], dy = g.output_gradient(0);
  const auto like = [&](ValueId value, ValueId other) {  // made of dy and the other one
    Attributes attributes = with_result(node.attributes, {g.dtype(dy), g.dtype(other)}, g.dtype(value));
    attributes.set("shape", g.shape(value));
    return attributes;
  };
  if (g.wants(0)) g.input_gradient(0, g.emit("ConvInputGrad", {dy, w}, like(x, w)));
  if (g.wants(1)) g.input_gradient(1, g.emit("ConvWeightGrad", {dy, x}, like(w, x)));
  if (!g.wants(2)) return;
  std::vector<int64_t> axes{0};
  for (size_t axis = 2; axis < g.shape(dy).size(); ++axis) axes.push_back(static_cast<int64_t>(axis));
  g.input_gradient(2, g.sum(dy, axes, g.dtype(node.inputs[2])));
}

// Over three axes: what the taps of the first of them read stands beside each other as channels, and slices of the second and third are
// samples.
void lower_volume(Lowering& l, const Attributes& attributes) {
  const ValueId x = l.input(0), w = l.input(1);
  const Shape shape = l.shape(x), weight = l.shape(w);
  const int64_t groups = attributes.get("group", int64_t{1});
  if (groups < 1 || weight[1] * groups != shape[1] || weight[0] % groups != 0)
    l.fail(fmt::format("{} channels, a weight of {} and {} groups don't go together", shape[1], to_string(weight), groups));
  const WindowAxis depth = windows_of(of_axes(attributes, {0, kNoAxis}), {shape[0], shape[1], shape[2], 1}).h;
  const ValueId slices = l.transpose(x, {0, 2, 1, 3, 4});  // (N, D, C, H, W)
  ValueId padded = slices;
  if (depth.begin > 0 || depth.end > 0)
    padded = l.emit("Pad", {slices}, {{"pads", std::vector<int64_t>{0, depth.begin, 0, 0, 0, 0, depth.end, 0, 0, 0}}});
  std::vector<ValueId> taps;
  for (int64_t k = 0; k < depth.kernel; ++k) {
    const int64_t first = k * depth.dilation, end = first + (depth.out - 1) * depth.stride + 1;
    const ValueId tap = l.emit("Slice", {padded},
                               {{"axes", std::vector<int64_t>{1}},
                                {"starts", std::vector<int64_t>{first}},
                                {"ends", std::vector<int64_t>{end}},
                                {"steps", std::vector<int64_t>{depth.stride}}});
    taps.push_back(l.reshape(tap, {shape[0] * depth.out, groups, 1, weight[1], shape[3], shape[4]}));
  }
  const ValueId beside = taps.size() == 1 ? taps[0] : l.emit("Concat", taps, {{"axis", int64_t{2}}});
  const int64_t channels = checked_product({weight[1], depth.kernel});
  std::vector<ValueId> inputs{l.reshape(beside, {shape[0] * depth.out, groups * channels, shape[3], shape[4]}),
                              l.reshape(l.transpose(w, {0, 2, 1, 3, 4}), {weight[0], channels, weight[3], weight[4]})};
  if (l.has(2)) inputs.push_back(l.input(2));
  const ValueId y = l.emit("Conv", inputs, of_axes(attributes, {1, 2}));
  const Shape plane = l.shape(y);
  l.output(0, l.transpose(l.reshape(y, {shape[0], depth.out, plane[1], plane[2], plane[3]}), {0, 2, 1, 3, 4}));
}

void lower(Lowering& l) {
  const Shape x = l.shape(l.input(0)), w = l.shape(l.input(1));
  if (w.size() < 3) l.fail(fmt::format("its weight is {}, but has at least three axes", to_string(w)));
  const std::vector<int64_t> kernel(w.begin() + 2, w.end());
  if (l.node.attributes.get("kernel_shape", kernel) != kernel) l.fail("its kernel_shape is not that of its weight");
  Attributes attributes = window_attributes(l, x, kernel);
  attributes.set("group", l.node.attributes.get("group", int64_t{1}));
  if (x.size() == 5) return lower_volume(l, attributes);
  std::vector<ValueId> inputs{l.input(0), l.input(1)};
  if (l.has(2)) inputs.push_back(l.input(2));
  l.pass_on("Conv", std::move(inputs), std::move(attributes));
}

}  // namespace

constexpr OpDef kConv{
    .name = "Conv",
    .onnx = {{.domain = "", .name = "Conv", .since = 1, .lower = lower},
             {.domain = "", .name = "DeformConv", .since = 19, .lower = lower_deform_conv}},
    .infer = infer,
    .gradient = gradient,
    .traits = {.division = {.rows = rows_of_parts, .share = share},
               .precision = {.runs = Precision::low, .keeps_float32 = 0b100, .rounds = true, .chooses_result = true},
               .along = along_batch},
    .standard = 22,
};
constexpr Kernel kConvKernel{
    .types = kTypes,
    .cost = cost<layout_of_y>,
    .efficiency = efficiency,
    .workspace = workspace,
    .prepare = prepare,
};

constexpr OpDef kConvPart{
    .name = "ConvPart",
    .infer = infer,
    .no_gradient = "convolutions are divided behind the gradients",
};
constexpr Kernel kConvPartKernel{
    .types = kTypes,
    .in_place = {{.output = 0, .input = 3}},
    .cost = cost<layout_of_y>,
    .efficiency = efficiency,
    .workspace = workspace,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
