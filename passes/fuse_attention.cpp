// fuse_attention: scaled dot-product attention becomes one node, which never keeps a T x S matrix: it saves q, k, v, the result and one
// number a row, with a mask two, and computes the weights again in the backward pass.
//
//   before   s = MatMul(q, k, trans_b) * scale [+ mask] ; p = Softmax(s) [; p = Where(IsNaN(p), 0, p)] ; y = MatMul(p, v)
//   after    y, lse [, rest] = Attention(q, k, v [, mask], scale, causal, safe, replaces)
//
// q, k, v: (B, H, T, D); rank 3 is read as one batch. Heads of keys and values that are repeated for a group of neighbouring heads of
// queries, Reshape(Expand(k (B, K, 1, S, D), (B, K, G, S, D)), (B, K * G, S, D)), are taken as they were before. The scale may stand at the
// scores, at q, at k, or half at each. A constant mask that hides exactly what lies after each position becomes causal=1; other masks stay
// an input, as long as no parameter reaches them. Masks given as Where(condition, scores, low) become Where(condition, 0, low),
// and `replaces` keeps gradients from scores that were replaced.
//
// Needs: simplify (products have taken their transposes). Leaves: softmaxes over other things, and attention whose weights are an output,
// or in float64 whose scale is no float32.

#include <algorithm>
#include <cmath>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

constexpr double kHidden = -1e30;  // at or below this a mask's entry hides its position

// Strips Mul and Div by a number; returns what is scaled and multiplies `scale`.
ValueId strip_scale(const View& view, ValueId value, double& scale) {
  for (;;) {
    const Node* node = view.made_by(value);
    if (!node || view.readers(value).size() != 1) return value;
    if (node->op->name == "Mul") {
      const int number = view.number(node->inputs[0]) ? 0 : 1;
      const std::optional<double> factor = view.number(node->inputs[number]);
      if (!factor || view.graph().value(node->inputs[1 - number]).shape != view.graph().value(value).shape) return value;
      scale *= *factor;
      value = node->inputs[1 - number];
    } else if (node->op->name == "Div") {
      const std::optional<double> factor = view.number(node->inputs[1]);
      if (!factor || view.graph().value(node->inputs[0]).shape != view.graph().value(value).shape) return value;
      scale /= *factor;
      value = node->inputs[0];
    } else {
      return value;
    }
  }
}

struct Match {
  NodeId last = kNone;  // the product with v
  ValueId q = kNone, k = kNone, v = kNone, result = kNone;
  bool k_transposed = false;  // k is stored (…, D, S)
  bool v_transposed = false;
  double scale = 1;
  bool safe = false;
  std::vector<ValueId> masks;              // added to the scores
  ValueId condition = kNone, low = kNone;  // Where(condition, scores, low), before the masks are added; kept is condition
  bool keep_where_true = true;
};

// From the softmax down to q and k.
bool match_scores(const View& view, ValueId scores, Match& match) {
  for (;;) {
    const Node* node = view.made_by(scores);
    if (!node || view.only_reader(scores) == kNone) return false;
    if (node->op->name == "Add" && match.condition == kNone) {
      int mask = 1;
      if (view.trainable(node->inputs[1])) mask = 0;
      if (view.trainable(node->inputs[mask]) || view.graph().value(node->inputs[1 - mask]).shape != view.graph().value(scores).shape)
        return false;
      match.masks.push_back(node->inputs[mask]);
      scores = node->inputs[1 - mask];
    } else if (node->op->name == "Where" && match.condition == kNone && match.masks.empty()) {
      match.keep_where_true = view.number(node->inputs[2]).has_value();
      const ValueId low = node->inputs[match.keep_where_true ? 2 : 1], kept = node->inputs[match.keep_where_true ? 1 : 2];
      const std::optional<double> number = view.number(low);
      if (!number || *number > kHidden || view.graph().value(kept).shape != view.graph().value(scores).shape) return false;
      match.condition = node->inputs[0];
      match.low = low;
      scores = kept;
    } else {
      break;
    }
  }
  const Node* product = view.made_by(strip_scale(view, scores, match.scale), "MatMul");
  if (!product || product->inputs.size() != 2 || product->attributes.get("trans_a", 0) || view.only_reader(product->outputs[0]) == kNone)
    return false;
  match.scale *= product->attributes.get("alpha", 1.0f);
  match.q = strip_scale(view, product->inputs[0], match.scale);
  match.k = strip_scale(view, product->inputs[1], match.scale);
  match.k_transposed = product->attributes.get("trans_b", 0) == 0;
  return true;
}

// From the softmax up to the product with v.
bool match_result(const View& view, ValueId weights, Match& match) {
  const std::vector<NodeId>& readers = view.readers(weights);
  if (view.is_output(weights)) return false;
  if (readers.size() == 2) {  // Where(IsNaN(weights), 0, weights)
    const auto is = [&](NodeId id, std::string_view op) { return view.graph().node(id).op->name == op; };
    const NodeId test = is(readers[0], "IsNaN") ? readers[0] : readers[1], where = test == readers[0] ? readers[1] : readers[0];
    if (!is(test, "IsNaN") || !is(where, "Where")) return false;
    const Node& node = view.graph().node(where);
    if (node.inputs[0] != view.graph().node(test).outputs[0] || node.inputs[2] != weights || view.number(node.inputs[1]) != 0.0)
      return false;
    match.safe = true;
    weights = node.outputs[0];
  }
  match.last = view.only_reader(weights);
  if (match.last == kNone) return false;
  const Node& product = view.graph().node(match.last);
  if (product.op->name != "MatMul" || product.inputs.size() != 2 || product.inputs[0] != weights) return false;
  if (product.attributes.get("trans_a", 0) || product.attributes.get("alpha", 1.0f) != 1.0f) return false;
  match.v = product.inputs[1];
  match.v_transposed = product.attributes.get("trans_b", 0) != 0;
  match.result = product.outputs[0];
  return true;
}

// Whether a constant mask (…, T, S) hides exactly the columns after each row.
bool hides_the_future(const Tensor& mask, int64_t rows, int64_t columns) {
  if (mask.shape.size() < 2 || mask.dtype != DType::float32 || rows != columns || rows == 1) return false;
  if (mask.shape[mask.shape.size() - 2] != rows || mask.shape.back() != columns) return false;
  const std::span<const float> data = mask.data<float>();
  int64_t row = 0;
  for (auto at = data.begin(); at != data.end(); at += columns, row = (row + 1) % rows) {
    if (!std::all_of(at, at + row + 1, [](float bias) { return bias == 0; })) return false;
    if (!std::all_of(at + row + 1, at + columns, [](float bias) { return !(bias > kHidden); })) return false;
  }
  return true;
}

// Heads before they were repeated, each for its neighbours: (B, K, S, D); kNone where they weren't.
ValueId unrepeated(const View& view, Builder& builder, ValueId heads) {
  const Node* joined = view.made_by(heads, "Reshape");
  const Node* repeated = joined ? view.made_by(joined->inputs[0], "Expand") : nullptr;
  if (!repeated) return kNone;
  const Shape of = view.graph().value(heads).shape;
  Shape from = view.graph().value(repeated->inputs[0]).shape, to = view.graph().value(repeated->outputs[0]).shape;
  if (of.size() != 4 || from.size() != 5 || to.size() != 5 || from[2] != 1 || of != Shape{to[0], to[1] * to[2], to[3], to[4]}) return kNone;
  to[2] = 1;
  if (from != to) return kNone;
  from.erase(from.begin() + 2);
  return builder.reshape(repeated->inputs[0], from);
}

// The one mask that the fused node adds, kNone where causal=1 says it all.
ValueId combined_mask(Builder& builder, const Match& match, bool& causal) {
  Graph& graph = builder.graph();
  const int64_t rows = graph.value(match.q).shape[graph.value(match.q).shape.size() - 2];
  const Shape& k = graph.value(match.k).shape;
  const int64_t columns = match.k_transposed ? k.back() : k[k.size() - 2];
  std::vector<ValueId> masks = match.masks;
  if (match.condition != kNone) {
    const ValueId zero = builder.scalar_like(match.low, 0);
    const ValueId low = builder.reshape(match.low, {});
    masks.push_back(match.keep_where_true ? builder.emit("Where", {match.condition, zero, low})
                                          : builder.emit("Where", {match.condition, low, zero}));
  }
  ValueId total = kNone;
  for (ValueId mask : masks) {
    if (const Tensor* tensor = graph.constant(mask); tensor && !causal && hides_the_future(*tensor, rows, columns)) {
      causal = true;
      continue;
    }
    total = total == kNone ? mask : builder.emit("Add", {total, mask});
  }
  return total;
}

bool fuse_softmax(Graph& graph, NodeId softmax_id, const Folder& folder) {
  const View view(graph);
  const Node softmax = graph.node(softmax_id);
  const auto rank = static_cast<int64_t>(graph.value(softmax.outputs[0]).shape.size());
  const int64_t axis = softmax.attributes.get("axis", -1);
  if ((axis != -1 && axis != rank - 1) || (rank != 3 && rank != 4)) return false;
  Match match;
  if (!match_scores(view, softmax.inputs[0], match) || !match_result(view, softmax.outputs[0], match)) return false;
  const auto rank_of = [&](ValueId v) { return static_cast<int64_t>(graph.value(v).shape.size()); };
  if (rank_of(match.q) != rank || rank_of(match.k) != rank || rank_of(match.v) != rank) return false;
  const bool is_double = graph.value(match.q).dtype == DType::float64;
  if (is_double && !is_float32(match.scale)) return false;
  for (int64_t i = 0; i < rank - 2; ++i) {  // no broadcasting of heads or batches here
    const int64_t dim = graph.value(match.q).shape[i];
    if (graph.value(match.k).shape[i] != dim || graph.value(match.v).shape[i] != dim) return false;
  }

  Builder builder(graph);
  builder.before(match.last).named(softmax.name, softmax.ordinal).folding(folder);
  const auto as_heads = [&](ValueId value, bool transposed) {  // (B, H, T, D)
    if (transposed) value = builder.transpose(value, rank == 3 ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{0, 1, 3, 2});
    if (rank == 4) return value;
    const Shape shape = graph.value(value).shape;
    return builder.reshape(value, {1, shape[0], shape[1], shape[2]});
  };
  const ValueId k = unrepeated(view, builder, match.k), v = unrepeated(view, builder, match.v);
  if (k != kNone && v != kNone && graph.value(k).shape[1] == graph.value(v).shape[1]) match.k = k, match.v = v;
  bool causal = false;
  ValueId mask = combined_mask(builder, match, causal);
  if (mask != kNone && rank == 3) {
    Shape shape = graph.value(mask).shape;
    if (shape.size() == 3) shape.insert(shape.begin(), 1);
    mask = builder.reshape(mask, shape);
  }
  std::vector<ValueId> inputs{as_heads(match.q, false), as_heads(match.k, match.k_transposed), as_heads(match.v, match.v_transposed)};
  if (mask != kNone) inputs.push_back(mask);
  Attributes attributes{{"scale", static_cast<float>(match.scale)}, {"causal", int64_t{causal}}, {"safe", int64_t{match.safe}}};
  if (mask != kNone && match.condition != kNone) attributes.set("replaces", int64_t{1});
  const ValueId y = builder.emit_many("Attention", inputs, std::move(attributes), mask != kNone ? 3 : 2)[0];
  graph.replace_uses(match.result, builder.reshape(y, graph.value(match.result).shape));
  graph.remove_dead_nodes();
  return true;
}

}  // namespace

bool fuse_attention(Graph& graph, const PassOptions& options) {
  bool changed = false;
  for (NodeId id : std::vector<NodeId>(graph.order())) {
    const OpDef* op = graph.node(id).op;
    if (op && op->name == "Softmax") changed |= fuse_softmax(graph, id, options.folder);
  }
  return changed;
}

}  // namespace ort_train
