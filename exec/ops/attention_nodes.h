// Nodes that importers and gradients of attention make: heads, the op Attention, products of heads that share keys or values.

#pragma once

#include <utility>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace ort_train {

// (B, S, H, D) -> (B, H, S, D) and back
inline ValueId swap_heads(Builder& b, ValueId x) { return b.transpose(x, {0, 2, 1, 3}); }

// (B, H, S, E) -> (B, S, H * E)
inline ValueId joined(Builder& b, ValueId y) {
  const Shape shape = b.shape(y);
  return b.reshape(swap_heads(b, y), {shape[0], shape[2], checked_product({shape[1], shape[3]})});
}

// q (B, H, S, D), k (B, K, T, D), v (B, K, T, E) -> y (B, H, S, E). `added` to scores: kNone where there is nothing.
inline ValueId emit_attention(Builder& b, ValueId q, ValueId k, ValueId v, ValueId added, float scale, bool causal) {
  std::vector<ValueId> inputs{q, k, v};
  if (added != kNone) inputs.push_back(added);
  const Attributes attributes{{"scale", scale}, {"causal", int64_t{causal}}, {"safe", int64_t{1}}};
  return b.emit_many("Attention", std::move(inputs), attributes, added != kNone ? 3 : 2)[0];
}

// x (B, H, S, n) times y (B, K, m, o) or its transpose: neighbouring heads of x that share one of y are rows of one matrix.
inline ValueId grouped_product(Builder& b, ValueId x, ValueId y, Attributes attributes) {
  const Shape of_x = b.shape(x), of_y = b.shape(y);
  if (of_x[1] != of_y[1]) x = b.reshape(x, {of_x[0], of_y[1], checked_product({of_x[1] / of_y[1], of_x[2]}), of_x[3]});
  const ValueId product = b.emit("MatMul", {x, y}, std::move(attributes));
  return b.reshape(product, {of_x[0], of_x[1], of_x[2], b.shape(product)[3]});
}

}  // namespace ort_train
