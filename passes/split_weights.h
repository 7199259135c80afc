// split_weights: large weights become parts, each a range of rows, so that never more than a part of one, of its gradient and
// of its state need be in memory at once.
//
//   before   y = MatMul{trans_b}(x, w)                       w (50257, 768)
//   after    y1 = MatMulPart{y_from 0}(x, w[0:5376])
//            y2 = MatMulPart{y_from 5376}(x, w[5376:10752], base y1) …      in place
//
// What becomes of a node is its op's affair (Division in graph/op_traits.h): matrix products, lookups and convolutions can do with parts. A
// node that gets or makes a part is told the whole weight's shape (MatMulPart by its first factor and y_columns, GatherPart by `total`,
// GatherGrad by `shape`): whatever its kernel chooses that could change a bit, it chooses by that, so that the parts have the whole's bits.
// A node of the backward pass that can't gets the weight put together again.
//
// All entries of a job have the same parts, whatever the budget: their size follows from the model. It changes no bit: products along the
// weight's rows are summed in blocks (exec/depth_block.h), and parts begin where those do; norms are summed in blocks of fewer rows, weight
// by weight. They also begin at multiples of 256 elements, but where that would make them larger than 16 MiB. What has no more rows than a
// block is not divided, nor what may go into a pack (passes/pack_weights.h). Each part's Value says of which weight it is and where it
// begins (Value::whole).

#pragma once

#include <map>
#include <string>
#include <vector>

#include "passes/pipeline.h"

namespace ort_train {

// A pass on the optimized forward graph: says in Value::part_rows which weights are divided, frozen ones too, and how: those of at
// least twice options.part_bytes whose uses can all do with parts.
bool mark_parts(Graph& graph, const PassOptions& options);

// The usual size of parts: a 128th of all parameters, between 4 and 16 MiB. Smaller ones would take less memory, larger ones make fewer
// transfers: with these GPT-2 124M (256 tokens) trains in 82 MB and GPT-2-XL (1,024) in 196 MB.
int64_t usual_part_bytes(const Graph& graph);

// Divides the marked parameters of a job's graph, which has its backward pass but no update. `gradients`: parameter -> those of its uses;
// the parts' stand there afterwards. Adds to job.slices.
bool split_weights(EntryGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients);

}  // namespace ort_train
