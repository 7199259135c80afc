// Scaled dot-product attention without a T x S matrix in memory (FlashAttention: Dao et al., arXiv 2205.14135 and 2307.08691).
//
//   Attention{scale, causal, safe}(q (B, H, T, D), k (B, H, S, D), v (B, H, S, E), bias?) -> o (B, H, T, E), lse (B, H, T)
//     s = scale * q k^T + bias, where causal only columns j <= row i count; p = softmax(s); o = p v; lse = log sum exp of each row of s
//     bias broadcasts to (B, H, T, S); a row that hides everything gives NaN, or 0 where safe
//   AttentionGrad(dy, q, k, v, o, lse, bias?) -> dq, dk, dv, with p = exp(s - lse) computed again
//
// Saves q, k, v, o and lse. A task of the forward pass is kQueries rows of one head, of the backward pass one head; keys go by in blocks of
// kKeys, in ascending order, rescaling what was summed as the row's maximum grows. Scores and weights of one block live in the workspace.
// ONNX Attention-23 and -24 in their plain forms: no cached keys, no soft cap, Y alone.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "exec/element_types.h"
#include "exec/gemm.h"
#include "exec/lanes.h"
#include "exec/math.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kQueries = 128, kKeys = 256;

struct Problem {
  int64_t batch = 0, heads = 0, rows = 0, columns = 0, depth = 0, width = 0;  // B, H, T, S, D, E
  bool causal = false, safe = false;
  float scale = 1;
  std::array<int64_t, 4> bias{};  // strides, 0 where broadcast
  int64_t stride = 0;             // of a row of scores, a multiple of kLanes

  int64_t items() const { return batch * heads; }
  int64_t query_blocks() const { return (rows + kQueries - 1) / kQueries; }
  // Columns that some of the rows before `row` see, of those in the block that begins at `column`.
  int64_t block_columns(int64_t column, int64_t row) const { return std::min({kKeys, columns - column, causal ? row - column : columns}); }
};

// `first` is the position of q among the inputs, `bias` that of the bias.
Problem problem_of(const KernelSpec& spec, size_t first, size_t bias) {
  const Shape &q = spec.inputs[first].shape, &k = spec.inputs[first + 1].shape, &v = spec.inputs[first + 2].shape;
  Problem p{.batch = q[0], .heads = q[1], .rows = q[2], .columns = k[2], .depth = q[3], .width = v[3]};
  p.causal = spec.attributes.get("causal", 0) != 0;
  p.safe = spec.attributes.get("safe", 0) != 0;
  p.scale = spec.attributes.get("scale", 1.0f);
  p.stride = (std::min(p.columns, kKeys) + kLanes - 1) / kLanes * kLanes;
  if (spec.has(bias)) {
    const Shape& shape = spec.inputs[bias].shape;
    const std::vector<int64_t> strides = strides_of(shape);
    for (size_t i = 0; i < shape.size(); ++i) p.bias[4 - shape.size() + i] = shape[i] == 1 ? 0 : strides[i];
  }
  return p;
}

// One thread's share of the workspace.
template <typename T> struct Scratch {
  std::byte* panel;
  T *scores, *gradients;  // kQueries x stride each
  T *largest, *sum;       // a number a row

  static int64_t panel_bytes(const Problem& p) { return product_workspace<T>(std::max({p.depth, p.width, kKeys, kQueries})); }
  static int64_t block_elements(const Problem& p) { return std::min(p.rows, kQueries) * p.stride; }
  static int64_t bytes(const Problem& p, int64_t blocks) {
    return (panel_bytes(p) + (blocks * block_elements(p) + 2 * kQueries) * int64_t{sizeof(T)} + 63) / 64 * 64;
  }
  Scratch(const Problem& p, int64_t blocks, std::byte* workspace, int worker) {
    panel = workspace + worker * bytes(p, blocks);
    largest = reinterpret_cast<T*>(panel + panel_bytes(p));
    sum = largest + kQueries;
    scores = sum + kQueries;
    gradients = scores + (blocks - 1) * block_elements(p);
  }
};

// scores = scale * q k^T + bias for `rows` x `n` of them from (row, column) of one head on.
template <typename T>
void block_scores(const Problem& p, const T* q, const T* k, const T* bias, int64_t row, int64_t rows, int64_t column, int64_t n,
                  const Scratch<T>& scratch) {
  multiply<T>({.rows = rows,
               .columns = n,
               .depth = p.depth,
               .a = {q + row * p.depth, p.depth},
               .b = {k + column * p.depth, 1, p.depth},
               .c = {scratch.scores, p.stride},
               .alpha = static_cast<T>(p.scale),
               .triangle = p.causal ? Triangle::result : Triangle::none,
               .diagonal = row - column},
              scratch.panel);
  if (!bias) return;
  for (int64_t i = 0; i < rows; ++i) {
    T* scores = scratch.scores + i * p.stride;
    const T* add = bias + (row + i) * p.bias[2] + column * p.bias[3];
    if (p.bias[3] == 0) {
      for (int64_t j = 0; j < n; ++j) scores[j] += add[0];
    } else {
      for (int64_t j = 0; j < n; ++j) scores[j] += add[j];
    }
  }
}

// How many of a block's n columns row `row` sees; the rest of its scores are hidden up to where products and lanes read.
int64_t seen(const Problem& p, int64_t row, int64_t column, int64_t n) {
  return p.causal ? std::clamp<int64_t>(row - column + 1, 0, n) : n;
}
int64_t padded(const Problem& p, int64_t seen) { return std::min(p.stride, (seen + gemm::kRows + kLanes - 1) / kLanes * kLanes); }

// --- forward --------------------------------------------------------------------------------------------------------------------------

// Scores become weights relative to the row's largest score so far; what was summed under a smaller one is rescaled. o: (rows, E)
template <typename T> void weigh_row(const Problem& p, T* scores, int64_t n, T& largest, T& sum, T* o, bool first) {
  const int64_t end = padded(p, n);
  std::fill(scores + n, scores + end, -std::numeric_limits<T>::infinity());
  const T block_largest = max_row(scores, end);
  const T now = first || block_largest > largest ? block_largest : largest;
  if (now == -std::numeric_limits<T>::infinity()) {  // everything is hidden up to here
    std::fill(scores, scores + end, T(0));
    largest = now;
    if (first) sum = 0;
    return;
  }
#pragma GCC ivdep
  for (int64_t j = 0; j < end; ++j) scores[j] = math::exp(scores[j] - now);
  const T block_sum = sum_row<T>(end, [&](T lane, int64_t j) { return lane + scores[j]; });
  const T keep = first ? T(0) : math::exp(largest - now);
  sum = first ? block_sum : sum * keep + block_sum;
  largest = now;
  if (first || keep == T(1)) return;
  for (int64_t e = 0; e < p.width; ++e) o[e] *= keep;
}

template <typename T>
void attend(const Problem& p, const T* q, const T* k, const T* v, const T* bias, T* o, T* lse, int64_t row, const Scratch<T>& scratch) {
  const int64_t rows = std::min(kQueries, p.rows - row), columns = p.causal ? std::min(p.columns, row + rows) : p.columns;
  for (int64_t column = 0; column < columns; column += kKeys) {
    const int64_t n = p.block_columns(column, row + rows);
    block_scores(p, q, k, bias, row, rows, column, n, scratch);
    for (int64_t i = 0; i < rows; ++i) {
      weigh_row(p, scratch.scores + i * p.stride, seen(p, row + i, column, n), scratch.largest[i], scratch.sum[i], o + (row + i) * p.width,
                column == 0);
    }
    T* sum = o + row * p.width;
    multiply<T>({.rows = rows,
                 .columns = p.width,
                 .depth = n,
                 .a = {scratch.scores, p.stride},
                 .b = {v + column * p.width, p.width},
                 .c = {sum, p.width},
                 .start = {column > 0 ? sum : nullptr, p.width},
                 .triangle = p.causal ? Triangle::a_lower : Triangle::none,
                 .diagonal = row - column},
                scratch.panel);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const T sum = scratch.sum[i];
    const bool hidden = p.safe && sum == T(0);
    lse[row + i] = hidden ? std::numeric_limits<T>::infinity() : scratch.largest[i] + std::log(sum);
    const T inverse = hidden ? T(0) : T(1) / sum;
    T* to = o + (row + i) * p.width;
    for (int64_t e = 0; e < p.width; ++e) to[e] *= inverse;
  }
}

int64_t bias_offset(const Problem& p, int64_t item) { return item / p.heads * p.bias[0] + item % p.heads * p.bias[1]; }

template <typename T> KernelRun make_attention(const KernelSpec& spec) {
  return [p = problem_of(spec, 0, 3)](const KernelArgs& args) {
    const T* bias = args.inputs.size() > 3 ? args.in<T>(3) : nullptr;
    const int64_t blocks = p.query_blocks(), tasks = p.items() * blocks;
    args.workers().parallel_for(tasks, [&](int64_t task, int worker) {
      const int64_t block = blocks - 1 - task / p.items(),
                    item = task % p.items();  // where causal, the last rows have most to do: they begin
      attend(p, args.in<T>(0) + item * p.rows * p.depth, args.in<T>(1) + item * p.columns * p.depth,
             args.in<T>(2) + item * p.columns * p.width, bias ? bias + bias_offset(p, item) : nullptr,
             args.out<T>(0) + item * p.rows * p.width, args.out<T>(1) + item * p.rows, block * kQueries,
             Scratch<T>(p, 1, args.workspace, worker));
    });
  };
}

// --- backward -------------------------------------------------------------------------------------------------------------------------

// Pointers to one head.
template <typename T> struct Head {
  const T *dy, *q, *k, *v, *o, *lse, *bias;
  T *dq, *dk, *dv;
};

// Scores become weights p, their gradients dp become ds = scale * p * (dp - delta), delta = dy . o of the row.
template <typename T> void differentiate_row(const Problem& p, T* scores, T* gradients, int64_t n, T lse, T delta) {
  const int64_t end = padded(p, n);
  std::fill(scores + n, scores + end, -std::numeric_limits<T>::infinity());
  std::fill(gradients + n, gradients + end, T(0));
  const T scale = static_cast<T>(p.scale);
#pragma GCC ivdep
  for (int64_t j = 0; j < end; ++j) {
    scores[j] = math::exp(scores[j] - lse);
    gradients[j] = scale * scores[j] * (gradients[j] - delta);
  }
}

template <typename T> void attend_backward(const Problem& p, const Head<T>& h, int64_t row, const Scratch<T>& scratch) {
  const int64_t rows = std::min(kQueries, p.rows - row), columns = p.causal ? std::min(p.columns, row + rows) : p.columns;
  T* delta = scratch.sum;
  for (int64_t i = 0; i < rows; ++i) {
    const T *dy = h.dy + (row + i) * p.width, *o = h.o + (row + i) * p.width;
    delta[i] = sum_row<T>(p.width, [&](T lane, int64_t e) { return math::fma(dy[e], o[e], lane); });
  }
  for (int64_t column = 0; column < columns; column += kKeys) {
    const int64_t n = p.block_columns(column, row + rows), diagonal = row - column;
    block_scores(p, h.q, h.k, h.bias, row, rows, column, n, scratch);
    multiply<T>({.rows = rows,  // dp = dy v^T
                 .columns = n,
                 .depth = p.width,
                 .a = {h.dy + row * p.width, p.width},
                 .b = {h.v + column * p.width, 1, p.width},
                 .c = {scratch.gradients, p.stride},
                 .triangle = p.causal ? Triangle::result : Triangle::none,
                 .diagonal = diagonal},
                scratch.panel);
    for (int64_t i = 0; i < rows; ++i) {
      differentiate_row(p, scratch.scores + i * p.stride, scratch.gradients + i * p.stride, seen(p, row + i, column, n), h.lse[row + i],
                        delta[i]);
    }
    T *dq = h.dq + row * p.depth, *dk = h.dk + column * p.depth, *dv = h.dv + column * p.width;
    multiply<T>({.rows = rows,  // dq += ds k
                 .columns = p.depth,
                 .depth = n,
                 .a = {scratch.gradients, p.stride},
                 .b = {h.k + column * p.depth, p.depth},
                 .c = {dq, p.depth},
                 .start = {column > 0 ? dq : nullptr, p.depth},
                 .triangle = p.causal ? Triangle::a_lower : Triangle::none,
                 .diagonal = diagonal},
                scratch.panel);
    const auto down = [&](const T* weights, const T* b, T* c, int64_t width) {  // c += weights^T b
      multiply<T>({.rows = n,
                   .columns = width,
                   .depth = rows,
                   .a = {weights, 1, p.stride},
                   .b = {b, width},
                   .c = {c, width},
                   .start = {c, width},
                   .triangle = p.causal ? Triangle::a_upper : Triangle::none,
                   .diagonal = -diagonal},
                  scratch.panel);
    };
    down(scratch.scores, h.dy + row * p.width, dv, p.width);
    down(scratch.gradients, h.q + row * p.depth, dk, p.depth);
  }
}

template <typename T> KernelRun make_attention_grad(const KernelSpec& spec) {
  return [p = problem_of(spec, 1, 6)](const KernelArgs& args) {
    const T* bias = args.inputs.size() > 6 ? args.in<T>(6) : nullptr;
    args.workers().parallel_for(p.items(), [&](int64_t item, int worker) {
      const int64_t of_q = item * p.rows * p.depth, of_o = item * p.rows * p.width, of_k = item * p.columns * p.depth,
                    of_v = item * p.columns * p.width;
      const Head<T> head{.dy = args.in<T>(0) + of_o,
                         .q = args.in<T>(1) + of_q,
                         .k = args.in<T>(2) + of_k,
                         .v = args.in<T>(3) + of_v,
                         .o = args.in<T>(4) + of_o,
                         .lse = args.in<T>(5) + item * p.rows,
                         .bias = bias ? bias + bias_offset(p, item) : nullptr,
                         .dq = args.out<T>(0) + of_q,
                         .dk = args.out<T>(1) + of_k,
                         .dv = args.out<T>(2) + of_v};
      std::fill_n(head.dk, p.columns * p.depth, T(0));
      std::fill_n(head.dv, p.columns * p.width, T(0));
      for (int64_t row = 0; row < p.rows; row += kQueries) attend_backward(p, head, row, Scratch<T>(p, 2, args.workspace, worker));
    });
  };
}

KernelRun prepare_attention(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return make_attention<T>(spec); });
}
KernelRun prepare_attention_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return make_attention_grad<T>(spec); });
}

template <size_t first, size_t bias, int64_t blocks> Workspace workspace(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype,
                  [&]<typename T>() { return Workspace{.each = Scratch<T>::bytes(problem_of(spec, first, bias), blocks)}; });
}

// --- shapes, gradient, cost -----------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_attention(const InferContext& context) {
  const TensorType &q = context.input(0), &k = context.input(1), &v = context.input(2);
  const bool fit = q.shape.size() == 4 && k.shape.size() == 4 && v.shape.size() == 4 && q.dtype == k.dtype && q.dtype == v.dtype &&
                   std::equal(q.shape.begin(), q.shape.begin() + 2, k.shape.begin()) &&
                   std::equal(k.shape.begin(), k.shape.begin() + 3, v.shape.begin()) && q.shape[3] == k.shape[3];
  if (!fit) throw error(ErrorCode::unsupported, "q {}, k {} and v {} don't fit each other", to_string(q), to_string(k), to_string(v));
  if (k.shape[2] == 0) throw error(ErrorCode::unsupported, "there are no keys to attend to: k is {}", to_string(k));
  if (context.has(3)) {
    const Shape scores{q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
    if (context.input(3).dtype != q.dtype || context.input(3).shape.size() > 4 || broadcast(scores, context.input(3).shape) != scores) {
      throw error(ErrorCode::unsupported, "the mask is {}, which can't be added to scores {}", to_string(context.input(3)),
                  to_string(scores));
    }
  }
  Shape o = q.shape;
  o[3] = v.shape[3];
  return {{q.dtype, o}, {compute_type(q.dtype), Shape(q.shape.begin(), q.shape.begin() + 3)}};
}

void gradient(const Node& node, GradientBuilder& g) {
  const ValueId q = node.inputs[0], k = node.inputs[1], v = node.inputs[2], dy = g.output_gradient(0);
  const ValueId bias = node.inputs.size() > 3 ? node.inputs[3] : kNone;
  std::vector<ValueId> inputs{dy, q, k, v, node.outputs[0], node.outputs[1]};
  if (bias != kNone) inputs.push_back(bias);
  if (g.wants(0) || g.wants(1) || g.wants(2)) {
    const std::vector<ValueId> gradients = g.emit_many("AttentionGrad", inputs, node.attributes, 3);
    for (size_t i = 0; i < 3; ++i) g.input_gradient(i, gradients[i]);
  }
  if (!g.wants(3)) return;
  // A trained bias needs the T x S matrices: p * (dp - delta).
  const auto product = [&](ValueId a, ValueId b, float alpha) {
    return g.emit("MatMul", {a, b}, {{"trans_b", int64_t{1}}, {"alpha", alpha}});
  };
  Shape column = g.shape(q);
  column[3] = 1;
  const ValueId scores = g.emit("Add", {product(q, k, node.attributes.get("scale", 1.0f)), bias});
  const auto as = [&](ValueId value, DType to) {
    return g.dtype(value) == to ? value : g.emit("Cast", {value}, {{"to", static_cast<int64_t>(to)}});
  };
  const ValueId lse = g.reshape(node.outputs[1], column);  // float32 or wider
  ValueId weights = as(g.emit("Exp", {g.emit("Sub", {as(scores, g.dtype(lse)), lse})}), g.dtype(q));
  if (node.attributes.get("causal", 0)) weights = g.emit("Trilu", {weights}, {{"upper", int64_t{0}}, {"k", int64_t{0}}});
  const ValueId delta = g.reduce_to(g.emit("Mul", {dy, node.outputs[0]}), column);
  g.input_gradient(3, g.reduce_to(g.emit("Mul", {weights, g.emit("Sub", {product(dy, v, 1), delta})}), g.shape(bias)));
}

// What a score takes besides the products: flops, each of which takes as long as three of a product.
constexpr double kExponential = 25, kSlower = 3;

double scores_of(const Problem& p) { return static_cast<double>(p.rows * p.columns) * (p.causal ? 0.5 : 1); }  // of an item
template <int products> double product_of(const Problem& p) { return static_cast<double>(products * (p.depth + p.width)); }

template <size_t first, size_t bias, int products> Cost cost(const KernelSpec& spec) {
  const Problem p = problem_of(spec, first, bias);
  Cost cost{.flops = static_cast<double>(p.items()) * scores_of(p) * (product_of<products>(p) + kExponential)};
  for (const TensorType& input : spec.inputs) cost.bytes += static_cast<double>(input.bytes());
  for (const TensorType& output : spec.outputs) cost.bytes += static_cast<double>(output.bytes());
  return cost;
}

template <size_t first, size_t bias, int products> double efficiency(const KernelSpec& spec, int) {
  const Problem p = problem_of(spec, first, bias);
  int64_t computed = 0;  // a block of rows has the scores of its last row
  for (int64_t begin = 0; begin < p.rows; begin += kQueries) {
    const int64_t end = std::min(begin + kQueries, p.rows);
    computed += (end - begin) * (p.causal ? std::min(end, p.columns) : p.columns);
  }
  if (computed == 0) return 0;
  const double product = product_of<products>(p);
  return scores_of(p) * (product + kExponential) / (static_cast<double>(computed) * (product + kSlower * kExponential));
}

// --- ONNX Attention-23, -24 -----------------------------------------------------------------------------------------------------------

// (B, T, H * D) -> (B, H, T, D)
ValueId split_heads(Lowering& l, ValueId x, int64_t heads) {
  const Shape shape = l.shape(x);
  if (heads <= 0 || shape[2] % heads != 0) l.fail("q_num_heads and kv_num_heads must divide the last axis of 3-D inputs");
  return l.transpose(l.reshape(x, {shape[0], shape[1], heads, shape[2] / heads}), {0, 2, 1, 3});
}

// Each head of keys and values serves a group of neighbouring query heads.
ValueId repeat_heads(Lowering& l, ValueId x, int64_t heads) {
  const Shape s = l.shape(x);
  if (s[1] == heads) return x;
  if (s[1] == 0 || heads % s[1] != 0) l.fail("the number of query heads must be a multiple of that of key and value heads");
  const Shape grouped{s[0], s[1], heads / s[1], s[2], s[3]};
  return l.reshape(l.emit("Expand", {l.reshape(x, {s[0], s[1], 1, s[2], s[3]})}, {{"shape", grouped}}), {s[0], heads, s[2], s[3]});
}

void lower_attention(Lowering& l) {
  const Attributes& attributes = l.node.attributes;
  for (size_t i = 4; i < l.node.inputs.size(); ++i) {
    if (l.has(i)) l.fail("past keys and values and nonpad_kv_seqlen are not supported: export without a cache");
  }
  if (l.node.outputs > 1) l.fail("outputs other than Y are not supported: export without a cache");
  if (attributes.get("softcap", 0.0f) != 0) l.fail("softcap is not supported");
  if (attributes.has("softmax_precision") && attributes.get("softmax_precision", 1) != 1) l.fail("softmax_precision must be float32");
  ValueId q = l.input(0), k = l.input(1), v = l.input(2);
  const Shape q_shape = l.shape(q);
  const bool flat = q_shape.size() == 3;
  if (flat) {
    const int64_t kv_heads = attributes.get("kv_num_heads", 0);
    q = split_heads(l, q, attributes.get("q_num_heads", 0));
    k = split_heads(l, k, kv_heads);
    v = split_heads(l, v, kv_heads);
  }
  if (l.shape(q).size() != 4 || l.shape(k).size() != 4 || l.shape(v).size() != 4) l.fail("q, k and v must have three or four axes");
  const int64_t heads = l.shape(q)[1], depth = l.shape(q)[3];
  k = repeat_heads(l, k, heads);
  v = repeat_heads(l, v, heads);
  std::vector<ValueId> inputs{q, k, v};
  if (l.has(3)) {
    ValueId mask = l.input(3);
    if (l.dtype(mask) == DType::boolean) {
      mask = l.emit("Where", {mask, l.scalar_like(q, 0), l.scalar_like(q, -std::numeric_limits<double>::infinity())});
    }
    inputs.push_back(mask);
  }
  const float scale = attributes.get("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(depth))));
  ValueId y = l.emit_many("Attention", inputs, {{"scale", scale}, {"causal", attributes.get("is_causal", 0)}, {"safe", int64_t{1}}}, 2)[0];
  if (flat) {
    const int64_t width = l.shape(y)[3];
    y = l.reshape(l.transpose(y, {0, 2, 1, 3}), {q_shape[0], q_shape[1], heads * width});
  }
  l.output(0, y);
}

}  // namespace

constexpr OpDef kAttention{
    .name = "Attention",
    .onnx = {{.domain = "", .name = "Attention", .since = 23, .lower = lower_attention}},
    .infer = infer_attention,
    .gradient = gradient,
    .traits = {.precision = {.runs = Precision::low}},
};
constexpr Kernel kAttentionKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = cost<0, 3, 2>,
    .efficiency = efficiency<0, 3, 2>,
    .workspace = workspace<0, 3, 1>,
    .prepare = prepare_attention,
};

constexpr OpDef kAttentionGrad{
    .name = "AttentionGrad",
    .infer =
        [](const InferContext& context) {
          return std::vector<TensorType>{context.input(1), context.input(2), context.input(3)};
        },
    .no_gradient = "second derivatives are not trained",
};
constexpr Kernel kAttentionGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = cost<1, 6, 5>,
    .efficiency = efficiency<1, 6, 5>,
    .workspace = workspace<1, 6, 2>,
    .prepare = prepare_attention_grad,
};

ORT_TRAIN_OPS_END
