// OpTraits: what passes and the front end ask of an op, so that none of them has to know its name. An op's own file fills them; all are
// optional.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/attributes.h"
#include "graph/graph.h"

namespace ort_train {

class Builder;

// Rows [first, first + count) of the `total` along the first axis of a parameter that is in parts.
struct RowRange {
  int64_t first = 0, count = 0, total = 0;
};

// A node that takes over some of another one's work; stage and name are that one's.
struct PartNode {
  std::string_view op;
  std::vector<ValueId> inputs;
  Attributes attributes;
};

// How an op does with parts of a parameter, of whatever rank: each a range of its rows, in ascending order (passes/split_weights.h). The
// parts have to give the bits of the whole, wherever they begin.
struct Division {
  // For a node that reads the parameter as `input`: parts may begin at multiples of so many rows, a function of shapes alone; 0: this node
  // needs the whole.
  int64_t (*rows)(const Graph&, const Node&, size_t input) = nullptr;
  // What it does with one part, instead of the whole. Each such node gets the output of the one before it, kNone at first; the output of
  // the last one is the node's.
  PartNode (*share)(const Graph&, const Node&, size_t input, ValueId part, const RowRange& rows, ValueId before) = nullptr;
  // For a node whose only output is the parameter's gradient: one that makes these rows of it. None where the node can't be divided.
  std::optional<PartNode> (*gradient)(const Graph&, const Node&, const RowRange& rows) = nullptr;
};

// In which type mixed precision runs an op (passes/mixed_precision.cpp), whose low type is float16 or bfloat16.
enum class Precision : uint8_t {
  follow,   // in the widest type of what it reads
  low,      // in the low type: products, for whose speed all of this is
  float32,  // in float32: what needs its range or adds up many numbers
};

// Attributes that are an element type (get_type and set_type in graph/op_def.h).
inline constexpr const char* kResultType = "to";        // of output 0, where it isn't the one that follows from the inputs
inline constexpr const char* kComputeType = "compute";  // what a product's wider operands are rounded to as it reads them

// An attribute by which an importer says how a node runs, a Precision as a number (runs_in and set_runs_in in graph/op_def.h), where that
// isn't how its op does. A product that follows has the type of its operands but for constants, which it reads as they are. No node has it
// behind passes/mixed_precision.cpp.
inline constexpr const char* kRunsIn = "runs_in";

// What an op that follows does with a constant of one element that the low type hasn't.
enum class SingleNumber : uint8_t {
  rounded,     // takes the nearest number that the low type has: ops that choose or compare
  added,       // computes with it as it is, in float32; one that is too large for the low type is a mask's, and becomes its largest number
  multiplied,  // computes with it as it is, in float32
};

struct PrecisionTraits {
  Precision runs = Precision::follow;
  uint32_t keeps_float32 = 0;   // a bit for each input that is float32 whatever the op runs in: biases, scales, statistics, states
  bool rounds = false;          // has kComputeType: weights need no copy in the low type
  bool chooses_result = false;  // has kResultType, float32 or the low type: a Cast of its result is its own affair
  SingleNumber single = SingleNumber::rounded;
};

// What a normalisation takes mean and variance from, where that isn't each sample by itself.
enum class Statistics : uint8_t {
  none,
  batch,    // of the batch: it needs several values for each of them
  running,  // parameters that stay as they are
};

inline constexpr PrecisionTraits kInFloat32{.runs = Precision::float32};

// What a node makes of one axis of an input that ends in padding: rows that the model doesn't have, because it takes only as many of a
// batch as a mask selects (frontend/import_selection.h).
struct AxisPath {
  static constexpr size_t kEnds = ~size_t{0};
  enum Use : uint8_t {
    unknown,   // can't be told
    kept,      // element i has a part in elements i of the outputs' axis alone
    filled,    // right where the padding of this input is `fill`
    repeated,  // right where the padding repeats the element before it
  };
  Use use = unknown;
  size_t axis = kEnds;             // of the outputs, on which the padding goes on
  int64_t times = 1, divided = 1;  // kept: that axis has times / divided as many elements, each made of some of these
  double fill = 0;
  std::string_view reader{};  // repeated: the op that reads, of inputs 0 and 1, what this one overwrites
};
using AxisRule = AxisPath (*)(const Graph&, const Node&, size_t input, size_t axis);
// Of ops that work element by element, with broadcasting.
AxisPath along_elements(const Graph& graph, const Node& node, size_t input, size_t axis);
// Of ops that work along the attribute `axis`, or from there on, and treat what lies before it alike. Inputs have the outputs' rank.
AxisPath along_other_axes(const Graph& graph, const Node& node, size_t input, size_t axis);
AxisPath along_axes_before(const Graph& graph, const Node& node, size_t input, size_t axis);
// Of ops whose inputs and outputs all have the batch as their first axis, where these samples don't meet.
AxisPath along_batch(const Graph& graph, const Node& node, size_t input, size_t axis);

struct OpTraits {
  // Output 0 has the numbers of input 0, under another shape or in another type: with input 0's own type it is input 0.
  bool same_numbers = false;
  Statistics statistics = Statistics::none;
  // Its derivative is zero wherever it has one, so that gradients don't pass it. Refused: parameters without a way around it,
  // and straight-through estimators.
  bool is_step = false;
  // Changes a node into what it means outside training, when nothing is random and no statistics change. Null: that is itself.
  void (*outside_training)(Graph&, NodeId) = nullptr;
  // Where `input` of a node is of indices into a parameter: how many rows they choose from. 0: it is something else.
  int64_t (*index_limit)(const Graph&, const Node&, size_t input) = nullptr;
  Division division{};
  // Emits the sum of the only outputs of these nodes as one node, where that is better: the nodes are of this op, with equal attributes and
  // inputs of equal types, in the order of what they are gradients of. kNone: it isn't. Null: it never is.
  ValueId (*sum)(Builder&, const std::vector<NodeId>& nodes) = nullptr;
  // For a node whose only output is a gradient: one that adds it to `sum` instead, in place, which is float32 or wider. None where this
  // node can't, or where the gradient can't be made in parts (Division::gradient): then whole and parts would add differently. Null: none
  // can.
  std::optional<PartNode> (*accumulated)(const Graph&, const Node&, ValueId sum) = nullptr;
  PrecisionTraits precision{};
  AxisRule along = nullptr;  // null: unknown
  // The op that does the same, and elementwise ops behind it (graph/fused_elementwise.h) in the same pass over memory: input 0 of their
  // steps is what the op would make; their result, of the same type, is output 0. Behind the op's own inputs come the steps' others.
  std::string_view fused{};
};

}  // namespace ort_train
