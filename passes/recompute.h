// recompute: computes again in the backward pass what the forward pass would otherwise have to keep for it.
//
// How much is a choice on a ladder, whose rungs trade seconds for bytes. Whatever the choice, the same bits come out: what is computed
// again is the same node with the same inputs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

inline constexpr size_t kAllGroups = ~size_t{0};

// Fits graphs of one model with other batches, too.
struct RecomputeChoice {
  size_t groups = 0;  // number of groups of saved tensors that are recomputed, the cheapest first (passes/saved_tensors.h)
  size_t every = 1;   // with kAllGroups: every n-th boundary between segments is kept; 0: n is about the square root of their number

  bool operator==(const RecomputeChoice&) const = default;
};

// "none", "sqrt", "all".
RecomputeChoice recompute_mode(const std::string& mode);

// What became of the tensors that the backward pass reads of the forward pass.
struct Recomputed {
  int64_t kept = 0, kept_bytes = 0;
  int64_t again = 0, again_bytes = 0;
  std::vector<NodeId> nodes{};  // that run again
};

// The pass, on a train graph with its updates; graphs are not simplified after it. False where nothing is recomputed.
bool recompute(Graph& graph, const RecomputeChoice& choice, Recomputed* result = nullptr);

// The rungs: nothing, one group more each, everything between boundaries; then fewer and fewer boundaries, down to their square root.
std::vector<RecomputeChoice> recompute_ladder(const Graph& graph);
// Of a ladder a few, as indices: `parts` + 1 of those that keep all boundaries, evenly.
std::vector<size_t> sampled_rungs(const std::vector<RecomputeChoice>& ladder, size_t parts);

}  // namespace ort_train
