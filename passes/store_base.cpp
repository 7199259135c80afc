// store_base: frozen matrices of products are stored in fewer bits.
//
//   before   y = MatMul(x, w)      w: float32 [768, 3072], frozen
//   after    y = MatMul(x, w)      w: nf4 [768, 3072]
//
// Products read them as float32, panel by panel, so no copy is made. A weight that anything else reads (lookups, norms), one that is small
// or whose result is an output of the model (the head) stays as it is.
//
// Needs: simplified, adapters in place (which say what is frozen), no gradients. Leaves: types of parameters.

#include <algorithm>

#include "graph/op_def.h"
#include "passes/adapters.h"
#include "passes/passes.h"

namespace ort_train {

bool store_base(Graph& graph, const PassOptions& options) {
  constexpr int64_t kFewest = 4096;  // elements
  if (options.base == DType::float32) return false;
  bool changed = false;
  for (const Adaptable& matrix : find_adaptable(graph)) {
    Value& weight = graph.value(graph.find_value(matrix.weight));
    const bool is_product = matrix.use == AdaptedUse::product || matrix.use == AdaptedUse::transposed_product;
    if (!is_product || matrix.is_head || !matrix.obstacle.empty() || weight.trainable || weight.dtype != DType::float32 ||
        element_count(weight.shape) < kFewest)
      continue;
    weight.dtype = options.base;
    changed = true;
  }
  return changed;
}

}  // namespace ort_train
