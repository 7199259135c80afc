// micro_batches: one graph for several micro-batches of an accumulating step, which go through the model together.
//
//   before   segment 1 of batch 1, segment 2 of batch 1, …           the same for batch 2 in another run of the entry, …
//   after    segment 1 of batch 1, of batch 2, …, segment 2 of batch 1, of batch 2, …
//
// What a segment's weights and sums cost to bring is paid once for all of them. Each batch has its own copy of nodes, activations and fed
// inputs; parameters, constants and the sums are shared, and a sum takes the batches in their order: the same bits as one after the other.
// Updates of the step before run once, ahead of all batches' use of a weight; the norm of the sums is that of the last batch.

#pragma once

#include <vector>

#include "graph/graph.h"

namespace ort_train {

// Values of the first batch -> the same of each batch: [batch][value]; what is shared maps to itself.
using MicroBatches = std::vector<std::vector<ValueId>>;

// The pass, on an accumulating train graph. The order that it leaves is to stay: PlanEntry::ordered. `shared`: fed inputs that all batches
// read. The copies' inputs and outputs are added to the graph's.
MicroBatches join_micro_batches(Graph& graph, size_t batches, const std::vector<ValueId>& shared);

}  // namespace ort_train
