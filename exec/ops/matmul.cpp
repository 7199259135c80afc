// MatMul{trans_a, trans_b, alpha, to, compute}(a, b, bias?): y = alpha * op(a) op(b) + bias over the last two axes, op transposing them
// where asked; batch axes broadcast (NumPy's matmul, ONNX MatMul, Gemm, com.microsoft FusedMatMul).
//
//   a (..., M, K), b (..., K, N), bias (N) -> y (..., M, N); their types, `to` and `compute`: exec/product_types.h
//
// MatMulPart{trans_a, trans_b, alpha, to, compute, a_from, a_width, a_columns, y_from, y_columns}(a, b, bias?, base?): one of the products
// that a product falls into where b or y is in parts; b is a matrix. Made behind the gradients, from MatMul (passes/split_weights.h).
//
//   a_width > 0    of a, as it is stored, columns [a_from, a_from + a_width) are read
//   a_columns > 0  a is some columns, which begin where a block of the depth does, of a matrix that has so many
//   y_columns > 0  y has so many columns, the product goes to those from y_from on; the others are the base's, in place, or are left to the
//                  nodes that fill them next; the bias is that of all columns
//   else           y = base + product; the base of a y of 16 bits is float32
//
// AccumulateMatMul, with the inputs and attributes of a MatMulPart whose base is a sum of gradients: adds the product to that.
//
// Saves a and b. Where b is a matrix, the batch axes of a count as rows, so y, da and db are each one product.
// The work is cut into tiles of y, each over the whole depth and made by one thread (exec/gemm.h): an element's bits depend on the depth
// and its blocks alone. Those are of the whole depth in a part, too: with parts that begin where blocks do, the chain has the bits of the
// product that it was.

#include "exec/ops/matmul.h"

#include <algorithm>
#include <array>
#include <bit>

#include "exec/gemm.h"
#include "exec/op_list.h"
#include "exec/ops/einsum.h"
#include "exec/ops/fourier.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace matmul;

void check_bias(const InferContext& context, const TensorType& wanted) {
  if (!context.has(2)) return;
  const TensorType& bias = context.input(2);
  if (!adds_to(bias.dtype, wanted.dtype) || bias.shape != wanted.shape)
    throw error(ErrorCode::unsupported, "the bias is {} instead of {}", to_string(bias), to_string(wanted));
}

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &a = context.input(0), &b = context.input(1);
  const DType type = result_type(context.attributes, {a.dtype, b.dtype});
  if (a.shape.size() < 2 || b.shape.size() < 2)
    throw error(ErrorCode::unsupported, "there is no product of {} and {}", to_string(a), to_string(b));
  const bool trans_a = flag(context.attributes, "trans_a"), trans_b = flag(context.attributes, "trans_b");
  if (from_end(a.shape, trans_a ? 2 : 1) != from_end(b.shape, trans_b ? 1 : 2)) {
    throw error(ErrorCode::unsupported, "the inner dimensions of {}{} and {}{} differ", to_string(a.shape), trans_a ? " transposed" : "",
                to_string(b.shape), trans_b ? " transposed" : "");
  }
  Shape shape = broadcast(batch_of(a.shape), batch_of(b.shape));
  shape.push_back(from_end(a.shape, trans_a ? 1 : 2));
  shape.push_back(from_end(b.shape, trans_b ? 2 : 1));
  check_bias(context, {type, {shape.back()}});
  return {{type, std::move(shape)}};
}

std::vector<TensorType> infer_part(const InferContext& context) {
  const TensorType &a = context.input(0), &b = context.input(1);
  const Window window = window_of(context.attributes);
  const DType type = result_type(context.attributes, {a.dtype, b.dtype});
  if (a.shape.size() < 2 || b.shape.size() != 2 || (flag(context.attributes, "trans_a") && a.shape.size() > 2))
    throw error(ErrorCode::unsupported, "there is no part of a product of {} and {}", to_string(a), to_string(b));
  if (window.a_from < 0 || window.a_width < 0 || window.a_from + window.a_width > a.shape.back())
    throw error(ErrorCode::unsupported, "{} has no columns {} to {}", to_string(a), window.a_from, window.a_from + window.a_width);
  Shape shape = windowed(a.shape, window);
  if (flag(context.attributes, "trans_a")) std::swap(shape[0], shape[1]);
  const bool trans_b = flag(context.attributes, "trans_b");
  if (shape.back() != b.shape[trans_b ? 1 : 0])
    throw error(ErrorCode::unsupported, "the inner dimensions of the part and {} differ", to_string(b));
  shape.back() = b.shape[trans_b ? 0 : 1];
  if (window.y_columns > 0) {
    if (window.y_from < 0 || window.y_from + shape.back() > window.y_columns)
      throw error(ErrorCode::unsupported, "{} columns from {} on don't fit among {}", shape.back(), window.y_from, window.y_columns);
    shape.back() = window.y_columns;
  }
  const TensorType y{type, std::move(shape)};
  check_bias(context, {type, {y.shape.back()}});
  const TensorType base{window.y_columns > 0 ? type : compute_type(type), y.shape};
  if (context.has(3) && (context.input(3) != base || (context.has(2) && window.y_columns == 0)))
    throw error(ErrorCode::unsupported, "{} is no base for {}", to_string(context.input(3)), to_string(y));
  return {y};
}

std::vector<TensorType> infer_accumulated(const InferContext& context) {
  const std::vector<TensorType> sum = infer_part(context);
  if (window_of(context.attributes).y_columns > 0) throw error(ErrorCode::unsupported, "a sum has the columns of its product alone");
  if (!context.has(3) || context.input(3) != sum[0])
    throw error(ErrorCode::unsupported, "{} is added to no sum of its type", to_string(sum[0]));
  return sum;
}

// --- kernel ---------------------------------------------------------------------------------------------------------------------------

// The whole product; of its operands only where they lie and what their elements are.
template <typename T> Product<T> product_of(const KernelSpec& spec, const Layout& l) {
  const DType compute = type_from(spec.attributes, "compute", DType::float32);
  const Rows row = rows_of(spec, l);
  Product<T> product{.rows = l.rows, .columns = l.columns, .depth = l.depth};
  const auto stored = [&](size_t i, bool transposed, int64_t stride) {
    Operand<T> operand(nullptr, transposed ? 1 : stride, transposed ? stride : 1, element_of(spec.inputs[i].dtype, compute));
    if (is_weight_blocks(spec.inputs[i].dtype)) operand.blocks = spec.inputs[i].dtype;
    return operand;
  };
  product.a = stored(0, l.trans_a, row.a);
  product.b = stored(1, l.trans_b, row.b);
  product.c = {nullptr, row.y, 1, element_of(spec.outputs[0].dtype)};
  product.block = block_of(spec, l);
  product.alpha = static_cast<T>(spec.attributes.get("alpha", 1.0f));
  return product;
}

// Whether a's pairs are read where a lies. `p`: the product without addresses.
bool lies_in_pairs(const KernelSpec& spec, const Product<float>& p) {
  return window_of(spec.attributes).a_from % 2 == 0 && gemm::lies_in_pairs(p.a, p.depth);
}

// a's words, where they are made before the tiles are multiplied because each of them would have to make its own: not of small products,
// which have few tiles and no time for another loop.
gemm::SharedWords shared_words(const KernelSpec& spec, const Layout& l) {
  constexpr int64_t kMostBytes = int64_t{8} << 20, kLeastProducts = int64_t{1} << 24;
  const auto p = product_of<float>(spec, l);
  if (!is_bfloat16(p.a.element) || !is_bfloat16(p.b.element) || lies_in_pairs(spec, p)) return {};
  if (l.items > 1 || l.rows * l.columns * l.depth < kLeastProducts) return {};
  const gemm::SharedWords words(l.trans_a, gemm::way_of(p.a.element, p.b.element) == gemm::Way::tiles, l.rows, l.depth);
  return words.bytes <= kMostBytes ? words : gemm::SharedWords{};
}

struct Tiles {
  int64_t rows = 0, columns = 0;  // of one
  int64_t down = 0, across = 0;   // how many
};

// Overhead of a tile, as measured on AMD's Zen 4 and 5 (in tile registers: on an Intel Xeon): packing a panel of b costs as much as
// `copying` more rows, fetching its rows of a as much as `fetching` more columns. `rows`: heights of tiles are multiples of this.
struct Extra {
  double copying = 15, fetching = 3;
  int64_t rows = gemm::kRows;
};

Extra extra_of(const KernelSpec& spec, const Layout& l) {
  Extra extra;
  const auto p = product_of<float>(spec, l);
  const gemm::Way way = gemm::way_of(p.a.element, p.b.element);
  const bool rounds = p.b.element == Element::to_bfloat16 && way != gemm::Way::floats;
  if (p.b.is_in_blocks() || rounds) extra.copying = 45;  // before any is multiplied
  if (way == gemm::Way::tiles) {
    extra.copying = 100;
    extra.rows = 2 * gemm::kTileSide;  // also those of a's shared words, so that no tile reads beyond these
  }
  if (l.rows * l.depth > (int64_t{2} << 20)) extra.fetching = 8;  // from memory
  const bool are_pairs = way != gemm::Way::floats && (lies_in_pairs(spec, p) || shared_words(spec, l).bytes > 0);
  if (p.a.element != Element::own && !are_pairs) extra.fetching += 25;  // becomes floats or pairs in each
  if (p.a.element == Element::own && gemm::lines_meet(p.a)) extra.fetching += 25;
  return extra;
}

// In multiply-adds. A task: 65,536 of them.
double tile_cost(const Layout& l, const Extra& extra, int64_t rows, int64_t columns) {
  return (static_cast<double>(rows) + extra.copying) * (static_cast<double>(columns) + extra.fetching) * static_cast<double>(l.depth) +
         65536;
}

// Of all tiles, in multiply-adds of one thread. Threads are never quite in step.
double cost_of(const Layout& l, const Extra& extra, const Tiles& tiles, int64_t threads) {
  const int64_t rounds = (l.items * tiles.down * tiles.across + threads - 1) / threads;
  return tile_cost(l, extra, tiles.rows, tiles.columns) * (static_cast<double>(rounds) + (threads > 1 ? 0.25 : 0));
}

// Equal tiles along one axis, multiples of `each` and no longer than `most`: their length, and how many.
std::pair<int64_t, int64_t> divide(int64_t length, int64_t most, int64_t each) {
  const auto divided = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  const int64_t tile = std::min(length, divided(divided(length, divided(length, most)), each) * each);
  return {tile, divided(length, tile)};
}

// The best ones with so many threads. They differ in time alone.
Tiles choose_tiles(const Layout& l, const Extra& extra, int64_t threads) {
  Tiles best;
  double best_cost = 0;
  for (const int64_t most_rows : {512, 256, 128, 64, 32}) {
    for (const int64_t most_columns : {768, 384, 192, 96, 48}) {
      const auto [rows, down] = divide(l.rows, most_rows, extra.rows);
      const auto [columns, across] = divide(l.columns, most_columns, gemm::kPanel);
      const Tiles tiles{rows, columns, down, across};
      const double cost = cost_of(l, extra, tiles, threads);
      if (best_cost == 0 || cost < best_cost) {
        best = tiles;
        best_cost = cost;
      }
    }
  }
  return best;
}

// The tiles for some numbers of threads.
class TileChoice {
 public:
  TileChoice(const KernelSpec& spec, const Layout& l) {
    const Extra extra = extra_of(spec, l);
    for (size_t i = 0; i < tiles_.size(); ++i) tiles_[i] = choose_tiles(l, extra, int64_t{1} << i);
  }
  const Tiles& of(int64_t threads) const { return tiles_[std::min(tiles_.size(), std::bit_width(static_cast<size_t>(threads))) - 1]; }
  const auto& all() const { return tiles_; }

 private:
  std::array<Tiles, 6> tiles_;  // 1, 2, 4, ... threads
};

int64_t batch_offset(int64_t item, const Shape& batch, const std::vector<int64_t>& strides) {
  int64_t offset = 0;
  for (size_t axis = batch.size(); axis-- > 0; item /= batch[axis]) offset += item % batch[axis] * strides[axis];
  return offset;
}

// Of all threads together a's words; of each what its products take, a bias of 16 bits in float32.
template <typename T> struct Rooms {
  gemm::SharedWords words;
  int64_t product = 0, bias = 0;
  Rooms(const KernelSpec& spec, const Layout& l, Product<T> of, const TileChoice& choice) : words(shared_words(spec, l)) {
    for (const Tiles& tiles : choice.all()) {
      of.rows = tiles.rows;
      of.columns = tiles.columns;
      product = std::max(product, product_workspace(of));
      if (spec.has(2) && is_half(spec.inputs[2].dtype)) bias = std::max(bias, whole_lines(of.columns * int64_t{sizeof(T)}));
    }
  }
  Workspace all() const { return {.shared = whole_lines(words.bytes), .each = product + bias}; }
};

// Makes a's words, in the workspace, if products of pairs read them.
template <typename T> void make_words(const KernelArgs& args, const gemm::SharedWords& words, Product<T>& whole) {
  if constexpr (std::is_same_v<T, float>) {
    if (words.bytes == 0 || gemm::way_of(whole.a.element, whole.b.element) == gemm::Way::floats) return;
    constexpr int64_t kLines = 16;
    auto* const to = reinterpret_cast<float*>(args.workspace);
    args.workers().parallel_blocks(words.transposed ? whole.depth : whole.rows, kLines,
                                   [&](int64_t begin, int64_t end) { words.make(whole, begin, end, to); });
    whole.words = words.matrix(to);
  }
}

template <typename T> KernelRun make_for(const KernelSpec& spec) {
  const Window window = window_of(spec.attributes);
  const Layout l = part_layout(spec);
  if (l.is_empty()) return [](const KernelArgs&) {};
  const TileChoice choice(spec, l);
  const Product<T> prepared = product_of<T>(spec, l);
  const Element bias_element = spec.has(2) ? element_of(spec.inputs[2].dtype) : Element::own;
  return [prepared, l, window, choice, bias_element, y_bytes = spec.outputs[0].bytes(),
          rooms = Rooms<T>(spec, l, prepared, choice)](const KernelArgs& args) {
    const Tiles& tiles = choice.of(args.workers().threads());
    const std::byte* const bias = args.inputs.size() > 2 ? args.in<std::byte>(2) : nullptr;
    const T* const base = args.inputs.size() > 3 ? args.in<T>(3) : nullptr;
    const bool placed = window.y_columns > 0;
    if (placed && base && args.inputs[3] != args.outputs[0]) copy_parallel(args.workers(), args.outputs[0], args.inputs[3], y_bytes);
    Product<T> whole = prepared;
    whole.a.data = args.in<std::byte>(0) + window.a_from * whole.a.size();
    whole.b.data = args.in<std::byte>(1);
    whole.c.data = args.out<std::byte>(0) + window.y_from * whole.c.size();
    make_words(args, rooms.words, whole);
    args.workers().parallel_for(l.items * tiles.down * tiles.across, [&, room = rooms.all()](int64_t task, int worker) {
      const int64_t down = task % tiles.down, across = task / tiles.down % tiles.across, item = task / tiles.down / tiles.across;
      const int64_t row = down * tiles.rows, column = across * tiles.columns;  // neighbours in time share b
      std::byte* const workspace = args.workspace + room.shared + worker * room.each;
      Product<T> product = whole;
      product.rows = std::min(tiles.rows, l.rows - row);
      product.columns = std::min(tiles.columns, l.columns - column);
      product.a.data += batch_offset(item, l.batch, l.a_strides) * whole.a.size();
      product.b.data += batch_offset(item, l.batch, l.b_strides) * whole.b.size();
      product.c.data += item * l.rows * l.columns * whole.c.size();
      product.a = product.a.from(row, 0);
      product.b = product.b.from(0, column);
      product.c = product.c.from(row, column);
      if (whole.words.data) product.words = whole.words.from(row, 0);
      if (bias) product.start = {vector_of<T>(bias, bias_element, window.y_from + column, product.columns, workspace + rooms.product)};
      if (base && !placed) product.start = Matrix<const T>{base, whole.c.row}.from(row, column);
      multiply(product, workspace);
    });
  };
}

KernelRun make(const KernelSpec& spec) {
  return for_type(Numeric{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() { return make_for<T>(spec); });
}

Workspace workspace(const KernelSpec& spec) {
  const Layout l = part_layout(spec);
  if (l.is_empty()) return {};
  return for_type(Numeric{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() {
    return Rooms<T>(spec, l, product_of<T>(spec, l), {spec, l}).all();
  });
}

// How well the tiles keep so many workers busy, beside a large product.
double efficiency(const KernelSpec& spec, int workers) {
  const auto share = [&](const Layout& of, const Extra& extra) {  // of the multiply-adds that the threads have time for
    const double useful = static_cast<double>(of.items * of.rows) * static_cast<double>(of.columns) * static_cast<double>(of.depth);
    return useful / (cost_of(of, extra, choose_tiles(of, extra, workers), workers) * static_cast<double>(workers));
  };
  static const Layout large = layout_of({1024, 1024}, {1024, 1024}, {});
  const Layout l = part_layout(spec);
  const DType compute = type_from(spec.attributes, "compute", DType::float32);
  const double rate = gemm::rate_of(element_of(spec.inputs[0].dtype, compute), element_of(spec.inputs[1].dtype, compute));
  return l.items * l.rows * l.columns * l.depth == 0 ? 0 : rate * std::min(1.0, share(l, extra_of(spec, l)) / share(large, {}));
}

// --- gradient -------------------------------------------------------------------------------------------------------------------------

void gradient(const Node& node, GradientBuilder& g) {
  const bool trans_a = flag(node.attributes, "trans_a"), trans_b = flag(node.attributes, "trans_b");
  const ValueId a = node.inputs[0], b = node.inputs[1], dy = g.output_gradient(0);
  const auto product = [&](ValueId x, bool trans_x, ValueId y, bool trans_y, ValueId like) {
    Attributes attributes = with_result(node.attributes, {g.dtype(x), g.dtype(y)}, g.dtype(like));
    attributes.set("trans_a", int64_t{trans_x});
    attributes.set("trans_b", int64_t{trans_y});
    return g.emit("MatMul", {x, y}, std::move(attributes));
  };
  if (g.wants(0))
    g.input_gradient(0, g.reduce_to(trans_a ? product(b, trans_b, dy, true, a) : product(dy, false, b, !trans_b, a), g.shape(a)));
  if (g.wants(1)) {
    ValueId rows = a, dy_rows = dy;
    if (!trans_a && g.shape(b).size() == 2) {  // batches are rows: their sum is part of the product
      const auto flat = [&](ValueId x) {
        return g.reshape(x, {element_count(batch_of(g.shape(x))) * from_end(g.shape(x), 2), g.shape(x).back()});
      };
      rows = flat(a);
      dy_rows = flat(dy);
    }
    g.input_gradient(
        1, g.reduce_to(trans_b ? product(dy_rows, true, rows, trans_a, b) : product(rows, !trans_a, dy_rows, false, b), g.shape(b)));
  }
  if (g.wants(2)) g.input_gradient(2, g.reduce_like(dy, node.inputs[2]));
}

// a1' b1 + a2' b2 + … of matrices is one product of the rows of all a and all b. Where products are so shallow that writing and adding up
// their results takes longer than copying their operands, as the steps of a recurrent network are.
ValueId sum(Builder& builder, const std::vector<NodeId>& nodes) {
  constexpr int64_t kMostDepth = 128;
  const Graph& graph = builder.graph();
  const Node first = graph.node(nodes[0]);
  const Shape a = graph.value(first.inputs[0]).shape, b = graph.value(first.inputs[1]).shape;
  if (first.inputs.size() != 2 || a.size() != 2 || b.size() != 2 || !flag(first.attributes, "trans_a") || flag(first.attributes, "trans_b"))
    return kNone;
  if (a[0] > kMostDepth || a[0] * (a[1] + b[1]) > a[1] * b[1]) return kNone;
  const auto all = [&](size_t input) {
    std::vector<ValueId> parts;
    for (const NodeId node : nodes) parts.push_back(graph.node(node).inputs[input]);
    return builder.emit("Concat", parts, {{"axis", int64_t{0}}});
  };
  const ValueId rows = all(0), others = all(1);
  return builder.emit("MatMul", {rows, others}, first.attributes);
}

// --- parts of a weight ----------------------------------------------------------------------------------------------------------------

// A matrix on the right, whose rows are columns of the first factor or, transposed, of y. Then products with it that make da sum over its
// rows: parts begin where the blocks of such a sum do.
int64_t rows_of_parts(const Graph& graph, const Node& node, size_t input) {
  const Shape& shape = graph.value(node.inputs[input]).shape;
  if (input != 1 || shape.size() != 2 || flag(node.attributes, "trans_a")) return 0;
  return depth_block(shape[0], shape[1]);
}

PartNode share(const Graph& graph, const Node& node, size_t, ValueId part, const RowRange& rows, ValueId before) {
  const ValueId bias = node.inputs.size() > 2 ? node.inputs[2] : kNone;
  const bool across = flag(node.attributes, "trans_b");  // the rows are columns of y
  Attributes attributes = node.attributes;
  if (!across && rows.first + rows.count < rows.total) {  // the last part rounds
    const DType a = graph.value(node.inputs[0]).dtype, b = graph.value(node.inputs[1]).dtype;
    attributes = with_result(std::move(attributes), {a, b}, compute_type(graph.value(node.outputs[0]).dtype));
  }
  attributes.set(across ? "y_from" : "a_from", rows.first);
  attributes.set(across ? "y_columns" : "a_width", across ? rows.total : rows.count);
  return {"MatMulPart", {node.inputs[0], part, across || before == kNone ? bias : kNone, before}, attributes};
}

// Whether db or its transpose is a' b of matrices.
bool is_of_matrices(const Graph& graph, const Node& node) {
  const auto is_matrix = [&](size_t input) { return graph.value(node.inputs[input]).shape.size() == 2; };
  return flag(node.attributes, "trans_a") && node.inputs.size() == 2 && is_matrix(0) && is_matrix(1);
}

// Of a some columns.
std::optional<PartNode> gradient_rows(const Graph& graph, const Node& node, const RowRange& rows) {
  if (!is_of_matrices(graph, node)) return std::nullopt;
  Attributes attributes = node.attributes;
  attributes.set("a_from", rows.first);
  attributes.set("a_width", rows.count);
  return PartNode{"MatMulPart", node.inputs, attributes};
}

// What can be made in parts, and parts of it: these have the bits of the whole.
std::optional<PartNode> accumulated(const Graph& graph, const Node& node, ValueId sum) {
  if (!is_of_matrices(graph, node)) return std::nullopt;
  const DType a = graph.value(node.inputs[0]).dtype, b = graph.value(node.inputs[1]).dtype;
  return PartNode{
      "AccumulateMatMul", {node.inputs[0], node.inputs[1], kNone, sum}, with_result(node.attributes, {a, b}, graph.value(sum).dtype)};
}

// --- ONNX forms -----------------------------------------------------------------------------------------------------------------------

// A vector on the left is a row, on the right a column; the axis goes again from the result.
void lower_matmul(Lowering& l) {
  ValueId a = l.input(0), b = l.input(1);
  const Shape a_shape = l.shape(a), b_shape = l.shape(b);
  if (a_shape.empty() || b_shape.empty()) l.fail("a scalar has no matrix product");
  if (a_shape.size() == 1) a = l.reshape(a, {1, a_shape[0]});
  if (b_shape.size() == 1) b = l.reshape(b, {b_shape[0], 1});
  const ValueId y = l.emit("MatMul", {a, b});
  Shape shape = l.shape(y);
  if (b_shape.size() == 1) shape.pop_back();
  if (a_shape.size() == 1) shape.erase(shape.end() - (b_shape.size() == 1 ? 1 : 2));
  l.output(0, l.reshape(y, shape));
}

// y = alpha * A' B' + beta * C, C broadcast to (M, N).
void lower_gemm(Lowering& l) {
  const Attributes attributes{{"trans_a", l.node.attributes.get("transA", int64_t{0})},
                              {"trans_b", l.node.attributes.get("transB", int64_t{0})},
                              {"alpha", l.node.attributes.get("alpha", 1.0f)}};
  if (l.shape(l.input(0)).size() != 2 || l.shape(l.input(1)).size() != 2) l.fail("A and B must be matrices");
  const float beta = l.node.attributes.get("beta", 1.0f);
  if (!l.has(2) || beta == 0) return l.output(0, l.emit("MatMul", {l.input(0), l.input(1)}, attributes));
  const int64_t columns = l.shape(l.input(1))[l.node.attributes.get("transB", 0) ? 0 : 1];
  ValueId c = l.input(2);
  if (beta != 1) c = l.emit("Mul", {c, l.scalar_like(c, beta)});
  if (element_count(l.shape(c)) == columns && (l.shape(c).size() == 1 || l.shape(c) == Shape{1, columns})) {
    return l.output(0, l.emit("MatMul", {l.input(0), l.input(1), l.reshape(c, {columns})}, attributes));
  }
  l.output(0, l.emit("Add", {l.emit("MatMul", {l.input(0), l.input(1)}, attributes), c}));
}

void lower_fused(Lowering& l) {
  if (l.node.attributes.get("transBatchA", 0) || l.node.attributes.get("transBatchB", 0))
    l.fail("transBatchA and transBatchB are not supported");
  l.pass_on("MatMul", {l.input(0), l.input(1)},
            {{"trans_a", l.node.attributes.get("transA", int64_t{0})},
             {"trans_b", l.node.attributes.get("transB", int64_t{0})},
             {"alpha", l.node.attributes.get("alpha", 1.0f)}});
}

// Rows of a and columns of b go on; over what both share, zeros add nothing.
AxisPath along(const Graph& graph, const Node& node, size_t input, size_t axis) {
  const size_t rank = graph.value(node.inputs[input]).shape.size(), result = graph.value(node.outputs[0]).shape.size();
  const size_t behind = rank - axis;  // 1: the last axis
  if (input < 2 && behind <= 2) {
    const bool transposed = node.attributes.get(input == 0 ? "trans_a" : "trans_b", 0) != 0;
    const bool is_shared = (behind == 1) == ((input == 0) != transposed);
    if (is_shared) return {.use = AxisPath::filled};
    return {.use = AxisPath::kept, .axis = result - (input == 0 ? 2 : 1)};
  }
  return {.use = AxisPath::kept, .axis = result - behind};
}

}  // namespace

constexpr OpDef kMatMul{
    .name = "MatMul",
    .onnx = {{.domain = "", .name = "MatMul", .lower = lower_matmul},
             {.domain = "", .name = "Gemm", .lower = lower_gemm},
             {.domain = "", .name = "Einsum", .since = 12, .lower = lower_einsum},
             {.domain = "", .name = "DFT", .since = 17, .lower = lower_dft},
             {.domain = "", .name = "STFT", .since = 17, .lower = lower_stft},
             {.domain = "com.microsoft", .name = "FusedMatMul", .lower = lower_fused, .inputs = 2, .outputs = 1}},
    .infer = infer,
    .gradient = gradient,
    .traits = {.division = {.rows = rows_of_parts, .share = share, .gradient = gradient_rows},
               .sum = sum,
               .accumulated = accumulated,
               .precision = {.runs = Precision::low, .keeps_float32 = 0b100, .rounds = true, .chooses_result = true},
               .along = along},
};
constexpr Kernel kMatMulKernel{
    .types = dtypes_of(Numeric{}) | kMixed,
    .reads_blocks = true,
    .cost = cost,
    .efficiency = efficiency,
    .workspace = workspace,
    .prepare = make,
};

constexpr OpDef kMatMulPart{
    .name = "MatMulPart",
    .infer = infer_part,
    .no_gradient = "products are divided behind the gradients",
    .traits = {.accumulated = accumulated},
};
constexpr Kernel kMatMulPartKernel{
    .types = dtypes_of(Numeric{}) | kMixed,
    .reads_blocks = true,
    .in_place = {{.output = 0, .input = 3}},
    .cost = cost,
    .efficiency = efficiency,
    .workspace = workspace,
    .prepare = make,
};

constexpr OpDef kAccumulateMatMul{
    .name = "AccumulateMatMul",
    .infer = infer_accumulated,
    .no_gradient = "products are divided behind the gradients",
    .writes = {{.output = 0, .input = 3}},
};
constexpr Kernel kAccumulateMatMulKernel{
    .types = dtypes_of(Numeric{}) | kMixed,
    .cost = cost,
    .efficiency = efficiency,
    .workspace = workspace,
    .prepare = make,
};

ORT_TRAIN_OPS_END
