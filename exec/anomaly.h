// AnomalyDetector: finds the nodes of a run that make NaN or infinities of finite numbers.
//
// What only passes such numbers on isn't to blame, nor is what makes infinities before any trained weight comes in, as attention masks have
// them. It looks at every number of every tensor, so it is slow.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

class AnomalyDetector {
 public:
  explicit AnomalyDetector(const Graph& graph);  // outlives it

  // A run begins: what is in the memory is new.
  void begin();
  // Before a node runs, which may write over its inputs, and behind it; null where an input or output is absent. Both return what is wrong,
  // named by tensor or node; empty where nothing is.
  std::string before(NodeId node, std::span<const void* const> inputs);
  std::string behind(NodeId node, std::span<void* const> outputs);

 private:
  // Of a tensor's numbers.
  struct Found {
    bool seen = false;
    int64_t nan = 0, infinite = 0;
    int64_t first = -1;
    bool is_finite() const { return nan + infinite == 0; }
  };
  Found look(ValueId value, const void* data) const;
  bool makes_state_infinite(const Node& node, size_t output) const;
  std::string describe_found(ValueId value, const Found& found) const;

  const Graph& graph_;
  std::vector<bool> trained_;  // by ValueId: a trained weight has come in
  std::vector<Found> found_;   // by ValueId, in this run
};

}  // namespace ort_train
