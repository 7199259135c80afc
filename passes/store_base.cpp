// store_base: frozen matrices are stored in fewer bits than float32.
//
//   before   x = Gather(t, i) ; y = MatMul(x, w)                     t, w: float32, frozen
//   after    x = Cast{float32}(Gather(t, i)) ; y = MatMul(x, w)      t: bfloat16, as in the file; w: nf4
//
// Matrices of products, but for the head's and small ones, are stored in the type that the user gives; so are tables and heads that the
// user names. All other matrices and tables are stored in 16 bits if the file has them so, which are the same numbers, else in float32; so
// are those of products where the user gives no type. A weight that anything but products and lookups reads, such as a norm's, stays
// float32. Products read what is stored as float32, panel by panel, without a copy; lookups decode the rows that they take.
//
// Needs: simplified, adapters in place (which say what is frozen), no gradients. Leaves: types of parameters, Casts after lookups.

#include <algorithm>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/adapters.h"
#include "passes/build.h"
#include "passes/passes.h"

namespace ort_train {
namespace {

// What a frozen matrix is stored as.
DType stored_type(const Graph& graph, const Adaptable& matrix, const PassOptions& options) {
  constexpr int64_t kFewest = 4096;  // elements
  const Value& weight = graph.value(graph.find_value(matrix.weight));
  const bool is_output = std::find(graph.outputs.begin(), graph.outputs.end(), graph.find_value(matrix.weight)) != graph.outputs.end();
  if (is_output || !options.own.contains(matrix.weight) || weight.trainable || weight.dtype != DType::float32 || matrix.is_read_by_others ||
      matrix.use == AdaptedUse::convolution)
    return weight.dtype;
  const bool is_product = matrix.use == AdaptedUse::product || matrix.use == AdaptedUse::transposed_product;
  const bool is_head = matrix.is_head || options.heads.contains(matrix.weight);
  const bool is_chosen = is_product && !is_head && matrix.obstacle.empty() && element_count(weight.shape) >= kFewest;
  if ((is_chosen || options.base_named.contains(matrix.weight)) && options.base) return *options.base;
  const auto in_file = options.in_file.find(matrix.weight);
  const bool fits = in_file != options.in_file.end() && (options.precision == DType::float32 || options.precision == in_file->second);
  return fits ? in_file->second : weight.dtype;
}

// Whoever looks up numbers of 16 bits makes float32 of them; those of blocks come as float32.
void widen_lookups(Graph& graph, ValueId table) {
  if (!is_half(graph.value(table).dtype)) return;
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    const Node node = graph.node(id);
    if (node.op->name != "Gather" || node.inputs[0] != table) continue;
    const ValueId found = node.outputs[0];
    graph.value(found).dtype = graph.value(table).dtype;
    Builder builder(graph);
    emit_after(builder.named(node.name, node.ordinal), found);
    insert_after(graph, found, builder.cast(found, DType::float32));
  }
}

}  // namespace

bool store_base(Graph& graph, const PassOptions& options) {
  if (options.base && is_half(*options.base) && options.precision != DType::float32 && options.precision != *options.base)
    throw error(ErrorCode::usage, "`base_dtype` {}: products are in {} here, which takes that type, float32 or fewer bits",
                to_string(*options.base), to_string(options.precision));
  bool changed = false;
  for (const Adaptable& matrix : find_adaptable(graph, options.read)) {
    const DType type = stored_type(graph, matrix, options);
    const ValueId id = graph.find_value(matrix.weight);
    if (type == graph.value(id).dtype) continue;
    graph.value(id).dtype = type;
    widen_lookups(graph, id);
    changed = true;
  }
  return changed;
}

}  // namespace ort_train
