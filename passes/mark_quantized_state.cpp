// mark_quantized_state: which weights an optimizer that quantizes its state may do so for. What an update needs is known before weights are
// divided and packed: all parts of a weight are treated as the whole is.
//
//   before   W [50257, 768], of which a Gather takes rows ; A [768, 768] ; b [768]
//   after    A's state is quantized: b is small, and an embedding's gradients are too uneven (arXiv 2110.02861, section 2.3)
//
// Updates compute with quantized state in float32. A float64 weight keeps float64 state.
//
// Needs: lookups that read the weight itself. Leaves: Value::quantized_state, which parts and packs take over.

#include <algorithm>

#include "graph/op_def.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

// Whether a node takes rows of the weight by their indices.
bool is_lookup(const Graph& graph, const Node& node, ValueId weight) {
  if (node.op->traits.index_limit == nullptr || std::count(node.inputs.begin(), node.inputs.end(), weight) == 0) return false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != weight && node.op->traits.index_limit(graph, node, i) > 0) return true;
  }
  return false;
}

}  // namespace

bool mark_quantized_state(Graph& graph, const PassOptions& options) {
  if (!options.optimizer.quantized) return false;
  const auto readers = graph.readers();
  bool changed = false;
  for (const ValueId id : graph.parameters()) {
    Value& weight = graph.value(id);
    const bool is_embedding =
        std::any_of(readers[id].begin(), readers[id].end(), [&](NodeId reader) { return is_lookup(graph, graph.node(reader), id); });
    weight.quantized_state =
        compute_type(weight.dtype) == DType::float32 && options.optimizer.quantizes(element_count(weight.shape), is_embedding);
    changed |= weight.quantized_state;
  }
  return changed;
}

}  // namespace ort_train
