// split_weights: large tables and matrices become parts, each a range of rows, so that never more than a part of one, of its gradient and
// of its state need be in memory at once.
//
//   before   y = MatMul{trans_b}(x, w)                       w (50257, 768)
//   after    y1 = MatMulPart{y_from 0}(x, w[0:5056])
//            y2 = MatMulPart{y_from 5056}(x, w[5056:10112], base y1) …      in place
//
// What a part is depends on the weight and its uses alone, so that all entries and all budgets have the same parts and the same sums.

#pragma once

#include <map>
#include <vector>

#include "passes/pipeline.h"

namespace ort_train {

// A pass on the optimized forward graph: says in Value::part_rows which trainable matrices are divided (all of their uses are products
// from the right, or lookups of rows), and how. Those of at least twice options.part_bytes are.
bool mark_parts(Graph& graph, const PassOptions& options);

// Divides the marked parameters of a job's graph, which has its backward pass but no update. `gradients`: parameter -> those of its uses;
// the parts' stand there afterwards. Adds to job.slices.
bool split_weights(JobGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients);

}  // namespace ort_train
