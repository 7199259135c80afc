// What the rewriting passes ask of a graph: who made a value, who reads it, is it this number.
//
// A View is a snapshot of the readers; take a new one after changing the graph.

#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

class View {
 public:
  explicit View(const Graph& graph);

  const Graph& graph() const { return graph_; }
  // The node that makes `value`, if it is of that op (any op where `op` is empty); null else.
  const Node* made_by(ValueId value, std::string_view op = {}) const;
  // The only reader of `value`, kNone where there are none or several, or where the value is an output of the graph.
  NodeId only_reader(ValueId value) const;
  const std::vector<NodeId>& readers(ValueId value) const { return readers_[value]; }
  bool is_output(ValueId value) const { return output_[value]; }
  // False of a value that was added after the view was made: nothing else may be asked of it.
  bool knows(ValueId value) const { return value < readers_.size(); }
  // The number of a constant with one element.
  std::optional<double> number(ValueId value) const;
  bool is_number(ValueId value, double number, double tolerance = 0) const;  // relative
  // Whether a trainable parameter reaches it.
  bool trainable(ValueId value) const { return trainable_[value]; }

 private:
  const Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> output_, trainable_;
};

// Whether float32 has this number.
inline bool is_float32(double number) { return static_cast<double>(static_cast<float>(number)) == number; }

// The other input of a commutative two-input node that reads `one`; kNone where it doesn't.
ValueId other_input(const Node& node, ValueId one);

}  // namespace ort_train
