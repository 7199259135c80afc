// Attention, MultiHeadAttention, GroupQueryAttention, RotaryEmbedding and EmbedLayerNormalization of com.microsoft, which ONNX Runtime's
// optimizer and its model builder write, as chains of ops that compute what its kernels for processors do:
//
//   Attention(x (B, S, W), weights (W, 2 D + E), bias?, mask?, past?, attention_bias?) -> y (B, S, E), present?
//   MultiHeadAttention(query, key, value, bias?, mask?, attention_bias?, past?, past?) -> y, present key?, present value?
//   GroupQueryAttention(query, key, value, past?, past?, seqlens_k, total_sequence_length, cosines?, sines?, position_ids?,
//                       attention_bias?, head_sink?, …, norm of queries?, of keys?) -> y, present key?, present value?
//   RotaryEmbedding(x (B, S, W) or (B, H, S, D), position_ids (1) or (B, S), cosines (rows, R), sines) -> y like x
//   EmbedLayerNormalization(ids, segment ids?, words, positions, segments?, scale, bias, mask?, position ids?) -> y, lengths?, sum?
//
// Training has no cache: a past must have no rows. A present, the keys (rotated where queries are) and values, is an output all the same.
//
// Masks of the first two are added as numbers, mask_filter_value each: a row that they hide throughout attends to all keys as if they hid
// nothing, but for what rounding takes. `unidirectional` puts the lowest number in the place of the mask's. Where that is the lowest
// number, too, all columns of such a row count the same, those after it included; only then a mask takes as many numbers as there are
// scores. With an attention_bias ONNX Runtime adds it before the mask, here the mask is added to it: rows that the mask hides throughout
// are rounded in another way. GroupQueryAttention's seqlens_k, causality and window hide for good.
//
// Scores are made by the op Attention, which never has them all in memory, but where softcap bounds them or the softmax has one more
// column (smooth_softmax, head_sink).

#include "exec/ops/contrib_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "exec/normalization.h"
#include "exec/ops/attention_nodes.h"
#include "graph/builder.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kMostHeads = int64_t{1} << 20, kMostPositions = int64_t{1} << 24;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- what layers share ----------------------------------------------------------------------------------------------------------------

// Each layer of a model has the same masks and rows of tables. They are made once: what is wanted is looked for among the newest values.
constexpr uint32_t kLookedBack = 4096;

ValueId one_of_equal(Lowering& l, ValueId constant) {
  const Graph& graph = l.graph();
  const Tensor* const tensor = graph.constant(constant);
  if (tensor == nullptr) return constant;
  for (ValueId id = constant > kLookedBack ? constant - kLookedBack : 0; id < constant; ++id) {  // the oldest: it is the one that is read
    const Tensor* const other = graph.constant(id);
    if (other != nullptr && *other == *tensor) return id;
  }
  return constant;
}

ValueId once(Lowering& l, std::string_view op, const std::vector<ValueId>& inputs, const Attributes& attributes = {}) {
  const Graph& graph = l.graph();
  const std::vector<NodeId>& order = graph.order();
  for (size_t i = order.size(), end = i > kLookedBack ? i - kLookedBack : 0; i-- > end;) {
    const Node& node = graph.node(order[i]);
    if (node.op->name == op && node.inputs == inputs && node.attributes == attributes) return node.outputs[0];
  }
  return one_of_equal(l, l.emit(op, inputs, attributes));
}

ValueId once_reshaped(Lowering& l, ValueId value, Shape shape) {
  return l.shape(value) == shape ? value : once(l, "Reshape", {value}, {{"shape", std::move(shape)}});
}

ValueId number_like(Lowering& l, ValueId value, double number) { return one_of_equal(l, l.scalar_like(value, number)); }

// first, first + 1, …
ValueId counted(Lowering& l, const Shape& shape, DType type, int64_t first = 0) {
  const int64_t count = element_count(shape);
  if (count > kMostPositions) l.fail(fmt::format("{} positions are more than are supported", count));
  Tensor tensor(type, shape);
  const auto fill = [&]<typename T>(std::span<T> numbers) { std::iota(numbers.begin(), numbers.end(), static_cast<T>(first)); };
  type == DType::int32 ? fill(tensor.data<int32_t>()) : fill(tensor.data<int64_t>());
  return one_of_equal(l, l.constant(std::move(tensor)));
}

ValueId both(Lowering& l, ValueId a, ValueId b) { return a == kNone ? b : b == kNone ? a : once(l, "And", {a, b}); }
ValueId sum_of_present(Lowering& l, ValueId a, ValueId b) { return a == kNone ? b : b == kNone ? a : once(l, "Add", {a, b}); }

// 0 where a condition holds, `number` elsewhere, to be added to scores of the type of `like`; kNone where it is known to hold everywhere.
ValueId unless(Lowering& l, ValueId holds, ValueId like, double number) {
  if (holds == kNone) return kNone;
  if (const Tensor* const known = l.graph().constant(holds)) {
    const std::span<const bool> values = known->data<bool>();
    if (std::all_of(values.begin(), values.end(), [](bool value) { return value; })) return kNone;
  }
  return once(l, "Where", {holds, number_like(l, like, 0), number_like(l, like, number)});
}

// Which of so many columns each row sees: its own and those before it.
ValueId seen(Lowering& l, int64_t rows, int64_t columns) {
  return once(l, "GreaterOrEqual", {counted(l, {rows, 1}, DType::int64), counted(l, {1, columns}, DType::int64)});
}

// --- heads ----------------------------------------------------------------------------------------------------------------------------

int64_t heads_of(const Lowering& l, std::string_view attribute) {
  if (!l.node.attributes.has(attribute)) l.fail(fmt::format("it has no attribute '{}'", attribute));
  return l.node.attributes.between(attribute, 1, kMostHeads, 0);
}

// (B, S, H * D) -> (B, S, H, D)
ValueId divided(Lowering& l, ValueId x, int64_t heads, std::string_view what) {
  const Shape shape = l.shape(x);
  if (shape.size() != 3 || shape[2] == 0 || shape[2] % heads != 0)
    l.fail(fmt::format("{} {} can't be divided into {} heads", what, to_string(shape), heads));
  return l.reshape(x, {shape[0], shape[1], heads, shape[2] / heads});
}

ValueId slice(Lowering& l, ValueId x, int64_t axis, int64_t start, int64_t end) {
  if (start == 0 && end == l.shape(x)[static_cast<size_t>(axis)]) return x;
  return once(
      l, "Slice", {x},
      {{"starts", std::vector{start}}, {"ends", std::vector{end}}, {"axes", std::vector{axis}}, {"steps", std::vector{int64_t{1}}}});
}

std::vector<ValueId> split(Lowering& l, ValueId x, int64_t axis, const std::vector<int64_t>& sizes) {
  return l.emit_many("Split", {x}, {{"axis", axis}, {"split", sizes}}, sizes.size());
}

// Of (B, S, H, parts, D): (B, S, H * D) each.
std::vector<ValueId> unpacked(Lowering& l, ValueId x, int64_t heads, int64_t parts, std::string_view what) {
  const Shape shape = l.shape(x);
  if (shape.size() != 5 || shape[2] != heads || shape[3] != parts)
    l.fail(fmt::format("{} {} does not have the shape [batch, length, {}, {}, size]", what, to_string(shape), heads, parts));
  std::vector<ValueId> unpacked = split(l, x, 3, std::vector<int64_t>(static_cast<size_t>(parts), 1));
  for (ValueId& part : unpacked) part = l.reshape(part, {shape[0], shape[1], checked_product({shape[2], shape[4]})});
  return unpacked;
}

void refuse_past(const Lowering& l, size_t i, size_t axis) {
  if (!l.has(i)) return;
  const Value& past = l.value(l.input(i));
  if (past.shape.size() > axis && past.shape[axis] == 0) return;
  const std::string or_else =
      past.kind == ValueKind::input ? fmt::format(", or fix it to an array without rows (`bind` {}=@FILE.npy)", past.name) : "";
  l.fail(fmt::format("it reads cached keys or values ('{}' {}), of which training has none: export without a cache{}", past.name,
                     to_string(past.shape), or_else));
}

float scale_of(const Lowering& l, int64_t depth) {
  const float scale = l.node.attributes.get("scale", 0.0f);
  return scale != 0 ? scale : static_cast<float>(1 / std::sqrt(static_cast<double>(depth)));
}

// What is added to scores before masks are: kNone where the node has nothing there.
ValueId attention_bias(const Lowering& l, size_t i, const Shape& scores) {
  if (!l.has(i)) return kNone;
  const Shape shape = l.shape(l.input(i));
  bool fits = shape.size() == scores.size();
  for (size_t axis = 0; fits && axis < shape.size(); ++axis) fits = shape[axis] == scores[axis] || (axis < 2 && shape[axis] == 1);
  if (!fits) l.fail(fmt::format("its attention bias {} can't be added to scores {}", to_string(shape), to_string(scores)));
  return l.input(i);
}

// --- Attention and MultiHeadAttention -------------------------------------------------------------------------------------------------

// Which keys a mask shows: (B, 1, 1 or S, T), kNone where it hides nothing.
ValueId shown(Lowering& l, ValueId mask, int64_t batch, int64_t rows, int64_t columns) {
  const Shape shape = l.shape(mask);
  const auto is_positive = [&](Shape to) { return once_reshaped(l, once(l, "Greater", {mask, number_like(l, mask, 0)}), std::move(to)); };
  if (shape == Shape{batch, columns}) return is_positive({batch, 1, 1, columns});
  if (shape == Shape{batch, rows, columns}) return is_positive({batch, 1, rows, columns});
  if (shape.size() == 2 && (shape[0] == batch || shape[0] == 1) && shape[1] == 1) return kNone;  // the same for all keys
  if (shape.size() == 4)
    l.fail(fmt::format("its mask {} has four axes, which is not supported: give it as an attention bias", to_string(shape)));
  // The ends of rows, then perhaps where they start, or the places of rows among those of all samples.
  const bool has_starts = shape == Shape{checked_product({2, batch})}, is_packed = shape == Shape{checked_product({3, batch}) + 2};
  if (shape != Shape{batch} && !has_starts && !is_packed)
    l.fail(fmt::format("its mask {} fits no {} samples of {} x {} scores", to_string(shape), batch, rows, columns));
  const DType type = l.dtype(mask);
  if (type != DType::int32 && type != DType::int64) l.fail(fmt::format("the lengths in its mask are {}, not integers", to_string(type)));
  const ValueId column = counted(l, {1, columns}, type);
  const auto number = [&](int64_t first) { return once_reshaped(l, slice(l, mask, 0, first, first + batch), {batch, 1}); };
  ValueId shows = once(l, "Less", {column, number(0)});
  if (has_starts) shows = once(l, "And", {shows, once(l, "GreaterOrEqual", {column, number(batch)})});
  return once_reshaped(l, shows, {batch, 1, 1, columns});
}

// q (B, H, S, D), k (B, H, T, D), v (B, H, T, E); `mask` and `bias` are places of inputs.
ValueId attend(Lowering& l, ValueId q, ValueId k, ValueId v, size_t mask, size_t bias) {
  const Shape shape = l.shape(q);
  const int64_t batch = shape[0], rows = shape[2], columns = l.shape(k)[2];
  constexpr double kLowest = std::numeric_limits<float>::lowest();
  const double hidden = l.node.attributes.get("mask_filter_value", -10000.0f);
  bool causal = l.node.attributes.get("unidirectional", 0) != 0 && rows > 1;
  if (causal && rows != columns)
    l.fail(fmt::format("it is unidirectional from {} queries to {} keys, which is not supported", rows, columns));
  ValueId hides = l.has(mask) ? unless(l, shown(l, l.input(mask), batch, rows, columns), q, hidden) : kNone;
  if (causal && hides != kNone && !(hidden > kLowest)) {
    hides = once(l, "Where", {seen(l, rows, columns), hides, number_like(l, q, kLowest)});
    causal = false;
  }
  const ValueId added = sum_of_present(l, attention_bias(l, bias, {batch, shape[1], rows, columns}), hides);
  return joined(l, emit_attention(l, q, k, v, added, scale_of(l, shape[3]), causal));
}

// --- rotation -------------------------------------------------------------------------------------------------------------------------

// Cosines and sines, (1 or B, S, R) each.
struct Angles {
  ValueId cosines = kNone, sines = kNone;
};

// `ids`: (B, S), (S) or kNone, where rows from `first` on are taken.
Angles angles_of(Lowering& l, size_t tables, ValueId ids, int64_t first, int64_t length) {
  const Shape shape = l.shape(l.input(tables));
  if (shape.size() != 2 || l.shape(l.input(tables + 1)) != shape)
    l.fail(fmt::format("its tables of cosines {} and sines {} are not of one shape [positions, angles]", to_string(shape),
                       to_string(l.shape(l.input(tables + 1)))));
  if (ids == kNone && (first < 0 || length > shape[0] || first > shape[0] - length))
    l.fail(fmt::format("its tables have {} positions; there are none for {} from {} on", shape[0], length, first));
  const auto rows = [&](ValueId table) {
    const ValueId taken =
        ids == kNone ? slice(l, table, 0, first, first + length) : once(l, "Gather", {table, ids}, {{"axis", int64_t{0}}});
    const Shape of_taken = l.shape(taken);
    return of_taken.size() == 3 ? taken : once_reshaped(l, taken, {1, length, shape[1]});
  };
  return {rows(l.input(tables)), rows(l.input(tables + 1))};
}

// x: rank 4, its positions along `axis`, 1 or 2. The first 2 R elements of a head are turned, pairs of neighbours or of halves.
ValueId rotated(Lowering& l, ValueId x, const Angles& angles, size_t axis, bool interleaved) {
  const Shape shape = l.shape(x);
  Shape pair = l.shape(angles.cosines);
  const int64_t half = pair[2];
  if (half < 1 || half > shape[3] / 2) l.fail(fmt::format("heads of {} elements have no {} pairs to turn", shape[3], half));
  pair.insert(pair.begin() + (axis == 1 ? 2 : 1), 1);
  if (interleaved) pair.push_back(1);
  const ValueId cosines = once_reshaped(l, angles.cosines, pair), sines = once_reshaped(l, angles.sines, pair);
  ValueId front = x, rest = kNone;
  if (2 * half < shape[3]) {
    const std::vector<ValueId> parts = split(l, x, 3, {2 * half, shape[3] - 2 * half});
    front = parts[0], rest = parts[1];
  }
  if (interleaved) front = l.reshape(front, {shape[0], shape[1], shape[2], half, 2});
  const int64_t side = interleaved ? 4 : 3, size = interleaved ? 1 : half;
  const std::vector<ValueId> parts = split(l, front, side, {size, size});
  const auto times = [&](ValueId a, ValueId b) { return l.emit("Mul", {a, b}); };
  const ValueId first = l.emit("Sub", {times(parts[0], cosines), times(parts[1], sines)});
  const ValueId second = l.emit("Add", {times(parts[1], cosines), times(parts[0], sines)});
  ValueId y = l.emit("Concat", {first, second}, {{"axis", side}});
  if (interleaved) y = l.reshape(y, {shape[0], shape[1], shape[2], 2 * half});
  return rest == kNone ? y : l.emit("Concat", {y, rest}, {{"axis", int64_t{3}}});
}

// --- GroupQueryAttention --------------------------------------------------------------------------------------------------------------

// Queries, keys and values, (B, S, heads, size) each.
struct Heads {
  ValueId q = kNone, k = kNone, v = kNone;
};

Heads group_query_heads(Lowering& l) {
  const int64_t heads = heads_of(l, "num_heads"), key_heads = heads_of(l, "kv_num_heads");
  if (heads % key_heads != 0) l.fail(fmt::format("{} heads of queries can't share {} of keys and values", heads, key_heads));
  if (l.has(1))
    return {divided(l, l.input(0), heads, "query"), divided(l, l.input(1), key_heads, "key"), divided(l, l.input(2), key_heads, "value")};
  if (l.has(2)) l.fail("it has values, but no keys");
  const ValueId packed = divided(l, l.input(0), heads + 2 * key_heads, "packed query");
  const std::vector<ValueId> parts = split(l, packed, 2, {heads, key_heads, key_heads});
  return {parts[0], parts[1], parts[2]};
}

// Positions start at the first of a sample's position_ids, and at 0 without these. (ONNX Runtime has all samples start at that of the
// first; only present keys tell the difference, as scores depend on distances alone.)
Angles group_query_angles(Lowering& l, int64_t batch, int64_t length) {
  ValueId ids = kNone;
  if (l.has(9)) {
    if (l.shape(l.input(9)) != Shape{batch, length})
      l.fail(fmt::format("its position_ids are {}, not [{}, {}]", to_string(l.shape(l.input(9))), batch, length));
    const ValueId first = slice(l, l.input(9), 1, 0, 1);
    if (l.dtype(first) != DType::int64) l.fail(fmt::format("its position_ids are {}, not int64", to_string(l.dtype(first))));
    ids = once(l, "Add", {first, counted(l, {1, length}, DType::int64)});
  }
  return angles_of(l, 7, ids, 0, length);
}

// Each sample's last position that is no padding, (B, 1, 1, 1); kNone where it is known that there is none.
ValueId last_positions(Lowering& l, int64_t batch, int64_t length) {
  const ValueId last = l.input(5);
  const DType type = l.dtype(last);
  if (element_count(l.shape(last)) != batch || (type != DType::int32 && type != DType::int64))
    l.fail(fmt::format("its seqlens_k is {}, not the numbers of {} samples", to_string(l.value(last).type()), batch));
  if (l.has(6)) {
    const Tensor* const total = l.graph().constant(l.input(6));
    if (total != nullptr && (total->size() != 1 || total->to_int64()[0] != length))
      l.fail(fmt::format("its total_sequence_length is not the {} positions that there are", length));
  }
  if (const Tensor* const known = l.graph().constant(last)) {
    const std::vector<int64_t> values = known->to_int64();
    if (std::all_of(values.begin(), values.end(), [&](int64_t value) { return value >= length - 1; })) return kNone;
  }
  // -1 is a sample of padding alone, which ONNX Runtime refuses. That it sees one key keeps NaN away from the others.
  return once_reshaped(l, once(l, "Max", {last, number_like(l, last, 0)}), {batch, 1, 1, 1});
}

// Which keys a row sees of those up to its own: the newest `window` (0: all) of what is no padding. Rows of padding see what the last row
// before them sees. kNone: all.
ValueId seen_by_lengths(Lowering& l, ValueId last, int64_t length, int64_t window) {
  const DType type = last == kNone ? DType::int64 : l.dtype(last);
  const ValueId within = last == kNone ? kNone : once(l, "LessOrEqual", {counted(l, {1, length}, type), last});
  if (window == 0) return within;
  ValueId row = counted(l, {length, 1}, type);
  if (last != kNone) row = once(l, "Min", {row, last});
  return both(l, within, once(l, "Less", {row, counted(l, {1, length}, type, window)}));
}

// With all scores in memory. `shows`: what of (B, H, S, T) counts; `sink`: what the softmax has as one more column, (1, 1 or H, 1, 1).
ValueId attend_in_steps(Lowering& l, const Heads& heads, float scale, float softcap, ValueId bias, ValueId shows, ValueId sink) {
  ValueId scores = grouped_product(l, heads.q, heads.k, {{"trans_b", int64_t{1}}, {"alpha", softcap > 0 ? scale / softcap : scale}});
  if (softcap > 0) scores = l.emit("Mul", {l.emit("Tanh", {scores}), l.scalar_like(scores, softcap)});
  if (bias != kNone) scores = l.emit("Add", {scores, bias});
  if (const ValueId hides = unless(l, shows, scores, -kInfinity); hides != kNone) scores = l.emit("Add", {scores, hides});
  Shape column = l.shape(scores);
  const int64_t columns = column[3];
  column[3] = 1;
  if (sink != kNone) scores = l.emit("Concat", {scores, l.emit("Expand", {sink}, {{"shape", column}})}, {{"axis", int64_t{3}}});
  const ValueId weights = l.emit("Softmax", {scores}, {{"axis", int64_t{3}}});
  return grouped_product(l, slice(l, weights, 3, 0, columns), heads.v, {});
}

// y (B, H, S, E) of heads (B, heads, S, size).
ValueId attend_in_groups(Lowering& l, const Heads& heads, bool causal, ValueId bias, ValueId shows) {
  const Attributes& attributes = l.node.attributes;
  const Shape shape = l.shape(heads.q);
  const float scale = scale_of(l, shape[3]), softcap = attributes.get("softcap", 0.0f);
  ValueId sink = kNone;
  if (l.has(11))
    sink = l.reshape(l.input(11), {1, shape[1], 1, 1});
  else if (attributes.get("smooth_softmax", 0) != 0)
    sink = l.scalar_like(heads.q, 0);
  if (softcap > 0 || sink != kNone) {
    if (causal) shows = both(l, shows, seen(l, shape[2], shape[2]));
    return attend_in_steps(l, heads, scale, softcap, bias, shows, sink);
  }
  const ValueId added = sum_of_present(l, bias, unless(l, shows, heads.q, -kInfinity));
  return emit_attention(l, heads.q, heads.k, heads.v, added, scale, causal);
}

}  // namespace

void lower_contrib_attention(Lowering& l) {
  const ValueId x = l.input(0), weights = l.input(1);
  const Shape shape = l.shape(x), of_weights = l.shape(weights);
  refuse_past(l, 4, 3);
  if (l.node.attributes.get("do_rotary", 0) != 0) l.fail("do_rotary is not supported");
  const int64_t heads = heads_of(l, "num_heads");
  if (shape.size() != 3 || of_weights.size() != 2)
    l.fail(fmt::format("there is no projection of {} by {}", to_string(shape), to_string(of_weights)));
  std::vector<int64_t> sizes = l.node.attributes.get("qkv_hidden_sizes", std::vector<int64_t>(3, of_weights[1] / 3));
  const bool fit = sizes.size() == 3 &&
                   std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0 && size <= kMaxElements; }) &&
                   sizes[0] == sizes[1] && sizes[0] + sizes[1] + sizes[2] == of_weights[1];
  if (!fit)
    l.fail(fmt::format("queries, keys and values of sizes {} don't come of weights {}", to_string(Shape(sizes)), to_string(of_weights)));
  std::vector<ValueId> product{x, weights};
  if (l.has(2)) product.push_back(l.input(2));
  const std::vector<ValueId> parts = split(l, l.emit("MatMul", product), 2, sizes);
  const auto part = [&](size_t i) { return swap_heads(l, divided(l, parts[i], heads, "a projection")); };
  const ValueId q = part(0), k = part(1), v = part(2);
  l.output(0, attend(l, q, k, v, 3, 5));
  if (l.node.outputs < 2 || l.shape(k) != l.shape(v)) return;
  Shape one = l.shape(k);
  one.insert(one.begin(), 1);
  l.output(1, l.emit("Concat", {l.reshape(k, one), l.reshape(v, one)}, {{"axis", int64_t{0}}}));
}

void lower_multi_head_attention(Lowering& l) {
  const int64_t heads = heads_of(l, "num_heads");
  refuse_past(l, 6, 2);
  refuse_past(l, 7, 2);
  for (const size_t i : {8, 9}) {
    if (l.has(i)) l.fail("past_sequence_length and cache_indirection are not supported: export without a cache");
  }
  ValueId q = l.input(0), k = l.has(1) ? l.input(1) : kNone, v = l.has(2) ? l.input(2) : kNone;
  if (k == kNone) {
    if (v != kNone) l.fail("it has values, but no keys");
    const std::vector<ValueId> parts = unpacked(l, q, heads, 3, "its packed query");
    q = parts[0], k = parts[1], v = parts[2];
  } else if (v == kNone) {
    const std::vector<ValueId> parts = unpacked(l, k, heads, 2, "its packed key");
    k = parts[0], v = parts[1];
  }
  const bool in_heads = l.shape(k).size() == 4 && l.shape(v).size() == 4;  // already: (B, H, T, size)
  if (l.has(3)) {
    const ValueId bias = l.input(3);
    const int64_t of_q = l.shape(q).back(), of_v = l.shape(v).back(), length = element_count(l.shape(bias));
    if (l.shape(bias).size() != 1 || length < of_q || (!in_heads && length != checked_product({2, of_q}) + of_v))
      l.fail(fmt::format("its bias {} is not that of queries, keys and values", to_string(l.shape(bias))));
    q = l.emit("Add", {q, slice(l, bias, 0, 0, of_q)});
    if (!in_heads) {
      k = l.emit("Add", {k, slice(l, bias, 0, of_q, 2 * of_q)});
      v = l.emit("Add", {v, slice(l, bias, 0, 2 * of_q, length)});
    }
  }
  q = swap_heads(l, divided(l, q, heads, "query"));
  if (in_heads && (l.shape(k)[1] != heads || l.shape(v)[1] != heads))
    l.fail(fmt::format("keys {} and values {} have not {} heads", to_string(l.shape(k)), to_string(l.shape(v)), heads));
  if (!in_heads) {
    k = swap_heads(l, divided(l, k, heads, "key"));
    v = swap_heads(l, divided(l, v, heads, "value"));
  }
  l.output(0, attend(l, q, k, v, 4, 5));
  if (l.node.outputs > 1) l.output(1, k);
  if (l.node.outputs > 2) l.output(2, v);
}

void lower_group_query_attention(Lowering& l) {
  const Attributes& attributes = l.node.attributes;
  refuse_past(l, 3, 2);
  refuse_past(l, 4, 2);
  if (l.has(12) || l.has(13) || attributes.get("sliding_window_cache", 0) != 0)
    l.fail("a cache that is quantized or a window is not supported: export without a cache");
  Heads heads = group_query_heads(l);
  const Shape shape = l.shape(heads.q);
  const int64_t batch = shape[0], length = shape[1];
  if (l.shape(heads.k)[1] != length) l.fail(fmt::format("it has {} keys for {} queries", l.shape(heads.k)[1], length));
  if (l.has(14) || l.has(15)) {
    const float epsilon = attributes.get("qk_norm_epsilon", 1e-6f);
    const auto normalized = [&](ValueId x, size_t i) {
      return emit_normalization(l, "RMSNormalization", x, l.input(i), kNone, -1, epsilon, 2)[0];
    };
    heads.q = normalized(heads.q, 14);
    heads.k = normalized(heads.k, 15);
  }
  if (attributes.get("do_rotary", 0) != 0) {
    const Angles angles = group_query_angles(l, batch, length);
    const bool interleaved = attributes.get("rotary_interleaved", 0) != 0;
    heads.q = rotated(l, heads.q, angles, 1, interleaved);
    heads.k = rotated(l, heads.k, angles, 1, interleaved);
  }
  heads = {swap_heads(l, heads.q), swap_heads(l, heads.k), swap_heads(l, heads.v)};
  const bool causal = attributes.get("causal", 1) != 0;
  const int64_t window = attributes.get("local_window_size", -1);
  if (!causal && window != -1) l.fail("a window goes with causal attention");
  const ValueId shows = seen_by_lengths(l, last_positions(l, batch, length), length, window > 0 && window < length ? window : 0);
  const ValueId bias = attention_bias(l, 10, {batch, shape[2], length, length});
  l.output(0, joined(l, attend_in_groups(l, heads, causal, bias, shows)));
  if (l.node.outputs > 1) l.output(1, heads.k);
  if (l.node.outputs > 2) l.output(2, heads.v);
}

// ONNX Runtime reads `scale`, but multiplies by nothing.
void lower_contrib_rotary_embedding(Lowering& l) {
  const Attributes& attributes = l.node.attributes;
  const ValueId x = l.input(0), ids = l.input(1);
  const Shape shape = l.shape(x), of_ids = l.shape(ids), table = l.shape(l.input(2));
  if (attributes.get("is_packed_batching", 0) != 0) l.fail("packed batches are not supported");
  if ((shape.size() != 3 && shape.size() != 4) || table.size() != 2)
    l.fail(fmt::format("there is no rotation of {} by angles {}", to_string(shape), to_string(table)));
  const bool is_flat = shape.size() == 3;
  const int64_t length = shape[is_flat ? 1 : 2], width = checked_product({2, table[1]});
  const int64_t dim = attributes.between("rotary_embedding_dim", 0, kMaxElements, 0),
                named = attributes.between("num_heads", 0, kMostHeads, 0);
  int64_t heads = is_flat ? named : shape[1];
  if (is_flat && heads == 0) {
    if (dim != 0) l.fail("rotary_embedding_dim goes with num_heads");
    if (width == 0 || shape[2] % width != 0) l.fail(fmt::format("{} is no heads of {} elements", to_string(shape), width));
    heads = std::clamp<int64_t>(shape[2] / width, 1, kMostHeads);
  }
  const ValueId in_heads = is_flat ? divided(l, x, heads, "its input") : x;
  if ((dim == 0 ? l.shape(in_heads)[3] : dim) != width || (!is_flat && named != 0 && named != heads))
    l.fail(fmt::format("its angles {} do not turn heads of {} elements", to_string(table), l.shape(in_heads)[3]));
  Angles angles;
  if (of_ids.size() < 2 && element_count(of_ids) == 1) {  // the first position
    if (l.graph().constant(ids))
      angles = angles_of(l, 2, kNone, l.integer(1, "the first position"), length);
    else
      angles = angles_of(l, 2, once(l, "Add", {once_reshaped(l, ids, {1}), counted(l, {length}, l.dtype(ids))}), 0, length);
  } else {
    if (of_ids != Shape{shape[0], length})
      l.fail(fmt::format("its position_ids are {}, not [{}, {}]", to_string(of_ids), shape[0], length));
    angles = angles_of(l, 2, ids, 0, length);
  }
  const ValueId y = rotated(l, in_heads, angles, is_flat ? 1 : 2, attributes.get("interleaved", 0) != 0);
  l.output(0, l.reshape(y, shape));
}

void lower_embed_layer_normalization(Lowering& l) {
  const ValueId ids = l.input(0);
  const Shape shape = l.shape(ids);
  if (shape.size() != 2) l.fail(fmt::format("its ids are {}, not [batch, length]", to_string(shape)));
  const int64_t batch = shape[0], length = shape[1];
  const auto rows = [&](size_t table, ValueId of, int64_t least = 0) {
    const Shape of_table = l.shape(l.input(table));
    if (of_table.size() != 2) l.fail(fmt::format("its table {} has not two axes", to_string(of_table)));
    if (of_table[0] < least) l.fail(fmt::format("its table {} has no {} rows", to_string(of_table), least));
    return l.emit("Gather", {l.input(table), of}, {{"axis", int64_t{0}}});
  };
  const auto first_rows = [&](size_t table, int64_t count) { return rows(table, counted(l, {1, count}, DType::int64), count); };
  ValueId sum = l.emit("Add", {rows(2, ids), l.has(8) ? rows(3, l.input(8)) : first_rows(3, length)});
  if (l.has(1))
    sum = l.emit("Add", {sum, rows(4, l.input(1))});
  else if (l.has(4))
    sum = l.emit("Add", {sum, first_rows(4, 1)});  // all are of the first segment
  const Shape of_sum = l.shape(sum);
  if (of_sum.size() != 3 || of_sum.before(2) != shape)
    l.fail(fmt::format("ids {} have embeddings {}", to_string(shape), to_string(of_sum)));
  l.output(0, emit_normalization(l, "LayerNormalization", sum, l.input(5), l.input(6), -1, l.node.attributes.get("epsilon", 1e-12f), 3)[0]);
  if (l.node.outputs > 2) l.output(2, sum);
  if (l.node.outputs < 2) return;
  if (!l.has(7)) return l.output(1, l.constant(Tensor(DType::int32, {batch})));
  const ValueId mask = l.input(7);
  if (l.shape(mask) != shape) l.fail(fmt::format("its mask is {}, its ids {}", to_string(l.shape(mask)), to_string(shape)));
  const ValueId is_word = l.cast(l.emit("Equal", {mask, l.scalar_like(mask, 1)}), DType::int32);
  l.output(1, l.emit("ReduceSum", {is_word}, {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}}));
}

ORT_TRAIN_OPS_END
