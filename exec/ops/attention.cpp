// Scaled dot-product attention without a T x S matrix in memory (FlashAttention: Dao et al., arXiv 2205.14135 and 2307.08691).
//
//   Attention{scale, causal, safe, replaces, to, compute}(q (B, H, T, D), k (B, K, S, D), v (B, K, S, E), bias?)
//       -> o (B, H, T, E), lse (B, H, T), with a bias rest (B, H, T)
//     s = scale * q k^T + bias, where causal only columns j <= row i count; p = softmax(s); o = p v; lse = log sum exp of each row of s
//     rest: what lse loses by rounding. Where -1e9 or the like hides a whole row, that is the logarithm of the number of columns
//     each head of keys and values serves H / K neighbouring heads of queries
//     bias broadcasts to (B, H, T, S); a row that hides everything gives NaN, or 0 where safe
//     replaces: a bias of -1e30 or below stands in place of the score, which gets no gradient
//   AttentionGrad(dy, q, k, v, o, lse, bias?, rest?) -> dq, dk, dv, with p = exp(s - lse - rest) computed again
//
// q, k, v and o: exec/product_types.h; lse is float32 where they are, or of 16 bits. The gradients have the types of q, k and v. Where all
// operands are bfloat16, or are rounded to it, and the processor multiplies these, p is rounded, too, before it is multiplied by v, and so
// are p and the gradients of s in the backward pass, as in FlashAttention.
//
// Saves q, k, v, o, lse and rest. A task is kQueries rows of one head (the backward pass: attention_gradient.cpp); keys go by in blocks of
// kKeys, in ascending order, rescaling what was summed as the row's maximum grows. Scores and weights of one block live in the workspace.
// ONNX Attention-23 and -24 in their plain forms: no cached keys, no soft cap, Y alone. Those of com.microsoft: contrib_attention.cpp.

#include "exec/attention.h"

#include <cmath>

#include "exec/math.h"
#include "exec/op_list.h"
#include "exec/ops/attention_nodes.h"
#include "exec/ops/contrib_attention.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace attention;

// --- kernel ---------------------------------------------------------------------------------------------------------------------------

// Scores become weights relative to the row's largest score so far; what was summed under a smaller one is rescaled. o: (rows, E)
template <typename T> void weigh_row(const Problem& p, T* scores, int64_t n, T& largest, T& sum, T* o, bool first) {
  const int64_t end = padded(p, n);
  std::fill(scores + n, scores + end, -std::numeric_limits<T>::infinity());
  const T block_largest = max_row(scores, end);
  const T now = first || block_largest > largest ? block_largest : largest;
  if (now == -std::numeric_limits<T>::infinity()) {  // everything is hidden up to here; there may be NaN, which has to stay
    T block_sum = 0;
    for (int64_t j = 0; j < end; ++j) block_sum += scores[j] = std::isnan(scores[j]) ? scores[j] : T(0);
    largest = now;
    sum = first ? block_sum : sum + block_sum;
    return;
  }
  const T block_sum = sum_row<T>(end, [&](T lane, int64_t j) { return lane + (scores[j] = math::exp_of_weight(scores[j] - now)); });
  const T keep = first ? T(0) : math::exp_of_weight(largest - now);
  sum = first ? block_sum : sum * keep + block_sum;
  largest = now;
  if (first || keep == T(1)) return;
  for (int64_t e = 0; e < p.width; ++e) o[e] *= keep;
}

// Prepared. Where o is of 16 bits, what a block of rows sums up lies in the workspace.
template <typename T> struct Forward {
  Problem p;
  Element q, k, v, bias = Element::own, o, weights;
  WorkspaceLayout each;
  Scratch<T> scratch;
  int64_t sums_at = 0;

  explicit Forward(const KernelSpec& spec)
      : p(problem_of(spec, 0, 3)),
        q(operand_element(spec, 0)),
        k(operand_element(spec, 1)),
        v(operand_element(spec, 2)),
        o(stored_element(spec.outputs[0])),
        weights(rounded_weights({q, k, v})),
        scratch(p, q, q, weights, each) {
    if (spec.has(3)) bias = stored_element(spec.inputs[3]);
    if (is_half(o)) sums_at = each.take<T>(std::min(p.rows, kQueries) * p.width);
  }

  void run(const KernelArgs& args, int64_t item, int64_t row, std::byte* workspace) const {
    const Operand<T> keys(args.in<std::byte>(1), 1, p.depth, k), values(args.in<std::byte>(2), p.width, 1, v);
    const Operand<T> queries(args.in<std::byte>(0), p.depth, 1, q);
    const Scores<T> head{
        .q = queries.from(item * p.rows, 0),
        .k = keys.from(0, p.key_item(item) * p.columns),
        .bias = args.inputs.size() > 3 && args.inputs[3] ? args.in<std::byte>(3) + bias_offset(p, item) * bytes_each<T>(bias) : nullptr,
        .bias_element = bias};
    const Result<T> to = Result<T>(args.out<std::byte>(0), p.width, 1, o).from(item * p.rows + row, 0);
    T* const rest = args.outputs.size() > 2 ? args.out<T>(2) + item * p.rows : nullptr;
    attend(head, values.from(p.key_item(item) * p.columns, 0), to, args.out<T>(1) + item * p.rows, rest, row, workspace);
  }

 private:
  void attend(const Scores<T>& head, const Operand<T>& values, const Result<T>& to, T* lse, T* rest, int64_t row,
              std::byte* workspace) const {
    const int64_t rows = std::min(kQueries, p.rows - row), columns = p.columns_before(row + rows);
    T *const largest = at<T>(workspace, scratch.largest_at), *const sum = at<T>(workspace, scratch.sum_at);
    T *const scores = at<T>(workspace, scratch.scores_at), *const sums = is_half(o) ? at<T>(workspace, sums_at) : to.own();
    for (int64_t column = 0; column < columns; column += kKeys) {
      const int64_t n = p.block_columns(column, row + rows);
      block_scores(p, head, row, rows, column, n, scratch, workspace);
      for (int64_t i = 0; i < rows; ++i)
        weigh_row(p, scores + i * p.stride, seen(p, row + i, column, n), largest[i], sum[i], sums + i * p.width, column == 0);
      multiply<T>({.rows = rows,
                   .columns = p.width,
                   .depth = n,
                   .a = {reinterpret_cast<const std::byte*>(scores), p.stride, 1, weights},
                   .b = values.from(column, 0),
                   .c = {sums, p.width},
                   .start = {column > 0 ? sums : nullptr, p.width},
                   .triangle = p.causal ? Triangle::a_lower : Triangle::none,
                   .diagonal = row - column},
                  workspace);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const bool hidden = p.safe && sum[i] == T(0);
      lse[row + i] = hidden ? std::numeric_limits<T>::infinity() : log_of_sum(largest[i], sum[i]);
      if (rest) rest[row + i] = hidden ? T(0) : rest_of_sum(largest[i], sum[i]);
      const T inverse = hidden ? T(0) : T(1) / sum[i];
      T* const of_row = sums + i * p.width;
      for (int64_t e = 0; e < p.width; ++e) of_row[e] *= inverse;
      if (is_half(o)) store_elements(of_row, p.width, to.from(i, 0));
    }
  }
};

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Wide{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() -> KernelRun {
    return [forward = Forward<T>(spec)](const KernelArgs& args) {
      const Problem& p = forward.p;
      const int64_t blocks = p.query_blocks(), tasks = p.items() * blocks;
      args.workers().parallel_in_order(tasks, [&](int64_t task, int worker) {
        const int64_t block = blocks - 1 - task / p.items(),
                      item = task % p.items();  // where causal, the last rows have most to do: they begin
        forward.run(args, item, block * kQueries, args.workspace + worker * forward.each.all());
      });
    };
  });
}

Workspace workspace(const KernelSpec& spec) {
  return for_type(Wide{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() { return Workspace{.each = Forward<T>(spec).each.all()}; });
}

// --- shapes, gradient -----------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_attention(const InferContext& context) {
  const TensorType &q = context.input(0), &k = context.input(1), &v = context.input(2);
  const DType type = result_type(context.attributes, {q.dtype, k.dtype, v.dtype});
  const bool fit = q.shape.size() == 4 && k.shape.size() == 4 && v.shape.size() == 4 && q.shape[0] == k.shape[0] &&
                   (q.shape[1] == k.shape[1] || (k.shape[1] > 0 && q.shape[1] % k.shape[1] == 0)) &&
                   std::equal(k.shape.begin(), k.shape.begin() + 3, v.shape.begin()) && q.shape[3] == k.shape[3];
  if (!fit) throw error(ErrorCode::unsupported, "q {}, k {} and v {} don't fit each other", to_string(q), to_string(k), to_string(v));
  if (k.shape[2] == 0) throw error(ErrorCode::unsupported, "there are no keys to attend to: k is {}", to_string(k));
  if (context.has(3)) {
    const Shape scores{q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
    if (!adds_to(context.input(3).dtype, type) || context.input(3).shape.size() > 4 ||
        broadcast(scores, context.input(3).shape) != scores) {
      throw error(ErrorCode::unsupported, "the mask is {}, which can't be added to scores {}", to_string(context.input(3)),
                  to_string(scores));
    }
  }
  Shape o = q.shape;
  o[3] = v.shape[3];
  const TensorType of_rows{compute_type(type), Shape(q.shape.begin(), q.shape.begin() + 3)};
  if (context.has(3)) return {{type, o}, of_rows, of_rows};
  return {{type, o}, of_rows};
}

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId q = node.inputs[0], k = node.inputs[1], v = node.inputs[2], dy = g.output_gradient(0);
  const ValueId bias = node.inputs.size() > 3 ? node.inputs[3] : kNone;
  std::vector<ValueId> inputs{dy, q, k, v, node.outputs[0], node.outputs[1]};
  if (bias != kNone) inputs.insert(inputs.end(), {bias, node.outputs[2]});
  if (g.wants(0) || g.wants(1) || g.wants(2)) {
    Attributes attributes = node.attributes;
    attributes.erase("to");  // the gradients' types are those of q, k and v
    const std::vector<ValueId> gradients = g.emit_many("AttentionGrad", inputs, attributes, 3);
    for (size_t i = 0; i < 3; ++i) g.input_gradient(i, gradients[i]);
  }
  if (!g.wants(3)) return;
  // A trained bias needs the T x S matrices: p * (dp - delta), in float32 or wider.
  const ValueId lse = node.outputs[1];
  const DType wide = g.dtype(lse);
  const auto product = [&](ValueId a, ValueId b, float alpha) {
    Attributes attributes = with_result({{"trans_b", int64_t{1}}, {"alpha", alpha}}, {g.dtype(a), g.dtype(b)}, wide);
    if (const Attribute* compute = node.attributes.find("compute")) attributes.set("compute", *compute);
    return grouped_product(g, a, b, std::move(attributes));
  };
  Shape column = g.shape(q);
  column[3] = 1;
  const ValueId scores = g.emit("Add", {product(q, k, node.attributes.get("scale", 1.0f)), g.cast(bias, wide)});
  const ValueId above = g.emit("Sub", {g.emit("Sub", {scores, g.reshape(lse, column)}), g.reshape(node.outputs[2], column)});
  ValueId weights = g.emit("Exp", {above});
  if (node.attributes.get("causal", 0)) weights = g.emit("Trilu", {weights}, {{"upper", int64_t{0}}, {"k", int64_t{0}}});
  const ValueId delta = g.reduce_to(g.emit("Mul", {g.cast(dy, wide), g.cast(node.outputs[0], wide)}), column);
  const ValueId slope = g.emit("Mul", {weights, g.emit("Sub", {product(dy, v, 1), delta})});
  g.input_gradient(3, g.reduce_like(slope, bias));
}

// --- ONNX Attention-23, -24 -----------------------------------------------------------------------------------------------------------

// (B, T, H * D) -> (B, H, T, D)
ValueId split_heads(Lowering& l, ValueId x, int64_t heads) {
  const Shape shape = l.shape(x);
  if (heads <= 0 || shape[2] % heads != 0) l.fail("q_num_heads and kv_num_heads must divide the last axis of 3-D inputs");
  return swap_heads(l, l.reshape(x, {shape[0], shape[1], heads, shape[2] / heads}));
}

void lower_attention(Lowering& l) {
  const Attributes& attributes = l.node.attributes;
  for (size_t i = 4; i < l.node.inputs.size(); ++i) {
    if (l.has(i)) l.fail("past keys and values and nonpad_kv_seqlen are not supported: export without a cache");
  }
  if (l.node.outputs > 1) l.fail("outputs other than Y are not supported: export without a cache");
  if (attributes.get("left_window_size", -1) != -1 || attributes.get("right_window_size", -1) != -1)
    l.fail("windows of positions are not supported: export them as a mask");
  if (attributes.get("softcap", 0.0f) != 0) l.fail("softcap is not supported");
  if (attributes.has("softmax_precision") && attributes.get("softmax_precision", 1) != 1) l.fail("softmax_precision must be float32");
  ValueId q = l.input(0), k = l.input(1), v = l.input(2);
  const bool flat = l.shape(q).size() == 3;
  if (flat) {
    const int64_t kv_heads = attributes.get("kv_num_heads", 0);
    q = split_heads(l, q, attributes.get("q_num_heads", 0));
    k = split_heads(l, k, kv_heads);
    v = split_heads(l, v, kv_heads);
  }
  if (l.shape(q).size() != 4 || l.shape(k).size() != 4 || l.shape(v).size() != 4) l.fail("q, k and v must have three or four axes");
  const int64_t heads = l.shape(q)[1], key_heads = l.shape(k)[1], depth = l.shape(q)[3];
  if (heads != key_heads && (key_heads == 0 || heads % key_heads != 0))
    l.fail("the number of query heads must be a multiple of that of key and value heads");
  ValueId mask = l.has(3) ? l.input(3) : kNone;
  if (mask != kNone && l.dtype(mask) == DType::boolean)
    mask = l.emit("Where", {mask, l.scalar_like(q, 0), l.scalar_like(q, -std::numeric_limits<double>::infinity())});
  const float scale = attributes.get("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(depth))));
  const ValueId y = emit_attention(l, q, k, v, mask, scale, attributes.get("is_causal", 0) != 0);
  l.output(0, flat ? joined(l, y) : y);
}

// Each sample by itself.
AxisPath along_samples(const Graph&, const Node&, size_t input, size_t axis) {
  if (input > 2 || axis != 0) return {};
  return {.use = AxisPath::kept, .axis = 0};
}

}  // namespace

constexpr OpDef kAttention{
    .name = "Attention",
    .onnx = {{.domain = "", .name = "Attention", .since = 23, .lower = lower_attention},
             {.domain = "com.microsoft", .name = "Attention", .lower = lower_contrib_attention, .inputs = 7, .outputs = 2},
             {.domain = "com.microsoft", .name = "MultiHeadAttention", .lower = lower_multi_head_attention, .inputs = 10, .outputs = 4},
             {.domain = "com.microsoft", .name = "GroupQueryAttention", .lower = lower_group_query_attention, .inputs = 16, .outputs = 4},
             {.domain = "com.microsoft", .name = "RotaryEmbedding", .lower = lower_contrib_rotary_embedding, .inputs = 4, .outputs = 1}},
    .infer = infer_attention,
    .gradient = gradient,
    .traits = {.precision = {.runs = Precision::low, .keeps_float32 = 0b1000}, .along = along_samples},
};
constexpr Kernel kAttentionKernel{
    .types = kWide | kMixed,
    .cost = cost<0, 3, 2>,
    .efficiency = efficiency<0, 3, 2>,
    .workspace = workspace,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
