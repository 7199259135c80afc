// Graph: the one intermediate representation, from the imported model to the training step.
//
// It owns vectors of Node and Value; handles are 32-bit ids that stay valid for the graph's life (removed things leave a tombstone).
// `order()` is the execution order: topological, the user's own order first, then what autodiff and the passes placed.
// Not thread-safe; a graph belongs to one thread at a time.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/attributes.h"
#include "graph/error.h"
#include "graph/types.h"

namespace ort_train {

struct OpDef;

using ValueId = uint32_t;
using NodeId = uint32_t;
inline constexpr uint32_t kNone = ~uint32_t{0};  // an absent optional input, a value without a producer

enum class ValueKind : uint8_t {
  input,            // fed by the caller each step: token ids, labels, step scalars
  parameter,        // a weight of the user's model; lives across steps
  activation,       // computed in the forward pass
  gradient,         // computed in the backward pass
  optimizer_state,  // moments and the like; lives across steps, starts as Value::fill
  accumulator,      // a gradient summed over micro-batches; lives across steps, starts at zero, cleared by the update
  constant,         // known at compile time
};
std::string_view to_string(ValueKind kind);

enum class Stage : uint8_t { forward, backward, update };
std::string_view to_string(Stage stage);

struct Value {
  std::string name{};  // unique in the graph
  DType dtype = DType::float32;
  Shape shape{};
  ValueKind kind = ValueKind::activation;
  NodeId producer = kNone;                   // kNone for inputs, parameters, state and constants
  std::shared_ptr<const Tensor> constant{};  // set exactly where kind is constant
  bool trainable = false;                    // parameters only: false where frozen
  bool quantized_state = false;              // parameters only: an optimizer that quantizes its state does so with this one's
  uint32_t group = 0;                        // parameters only: the row of the job's table of groups (passes/optimizer.h)
  int64_t part_rows = 0;                     // parameters only: so many rows go by themselves (passes/split_weights.h); 0: it is one piece
  std::string owner{};                       // optimizer state, accumulators: the parameter that they belong to, by name
  std::string whole{};                       // parameters and state that are a range of a whole's bytes: its name; else empty
  int64_t whole_offset = 0;                  // the byte of the whole where it begins
  uint32_t ordinal = 0;                      // parameters of 16 bits: of the whole in the model, by which its random numbers are found
  double fill = 0;                           // optimizer state: what each element begins as
  // Outputs of a model only: what the model calls it where an input or a weight has that name; else empty.
  std::string output_name{};

  TensorType type() const { return {dtype, shape}; }
  int64_t bytes() const { return bytes_of(dtype, element_count(shape)); }
};

struct Node {
  const OpDef* op = nullptr;
  std::vector<ValueId> inputs{};   // kNone where an optional input is absent
  std::vector<ValueId> outputs{};  // kNone where an optional output is absent
  Attributes attributes{};
  Stage stage = Stage::forward;
  std::string name{};    // the user's node this came from, for messages: "/h.0/attn/Softmax"
  uint32_t ordinal = 0;  // of the user's node in the model file: the address of its random numbers
};

class Graph {
 public:
  std::string name;

  // Values. Names are made unique by a suffix where taken; a type that no tensor can have throws Error(unsupported).
  ValueId add_value(Value value);
  ValueId add_constant(Tensor tensor, std::string name = "constant");
  const Value& value(ValueId id) const { return values_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  size_t value_count() const { return values_.size(); }
  ValueId find_value(std::string_view name) const;  // kNone where there is none
  void rename(ValueId id, std::string name);        // made unique as in add_value
  // The constant behind a value, or null.
  const Tensor* constant(ValueId id) const { return id == kNone ? nullptr : values_[id].constant.get(); }

  // Nodes. `before` = kNone appends to the order. Sets the producer of the outputs.
  NodeId add_node(Node node, NodeId before = kNone);
  const Node& node(NodeId id) const { return nodes_[id]; }
  Node& node(NodeId id) { return nodes_[id]; }
  size_t node_count() const { return nodes_.size(); }
  const std::vector<NodeId>& order() const { return order_; }
  void set_order(std::vector<NodeId> order);
  void remove_node(NodeId id);
  // Drops nodes that write no state and whose outputs nobody reads; true if there were any.
  bool remove_dead_nodes();
  // Every later reader of `from`, and the graph's outputs, read `to` instead.
  void replace_uses(ValueId from, ValueId to);
  // readers()[value] = the nodes that read it, in order, a node once for each use.
  std::vector<std::vector<NodeId>> readers() const;

  // What the graph is given and what it must leave, in the user's order.
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  // What the model calls an output; the output of that name, kNone where there is none.
  const std::string& output_name(ValueId id) const { return values_[id].output_name.empty() ? values_[id].name : values_[id].output_name; }
  ValueId find_output(std::string_view name) const;
  // Gives an output that name. An activation or gradient that has it is renamed; others are found by their names and keep them.
  void name_output(ValueId id, const std::string& name);
  // Parameters in import order; any kind in the order of making. Of the kinds that live across steps only those that no node makes: what an
  // update leaves has the kind of what it changed, but is the same memory.
  std::vector<ValueId> parameters() const;
  std::vector<ValueId> values_of(ValueKind kind) const;

  // Each read has an earlier writer, types agree with the ops' own rules, state is written by declared writers only …
  // Throws Error(internal) that names `after`, the pass that broke it.
  void verify(std::string_view after) const;

  // Readable text, one node a line, for tests and debugging.
  std::string to_text() const;

 private:
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<NodeId> order_;
  std::unordered_map<std::string, ValueId> names_;
};

// "Conv 'layer3/conv1'": how messages name a node.
std::string describe(const Graph& graph, NodeId id);

}  // namespace ort_train
