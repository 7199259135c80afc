// How nodes come into being: Builder emits them for passes, Lowering for importers, GradientBuilder for autodiff.
//
// All three infer the types of what they emit. A builder refers to its graph and lives no longer.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

// Evaluates a node whose inputs are all constants; empty where it must stay a node (too large, not evaluable).
using Folder = std::function<std::vector<Tensor>(const Graph&, const Node&)>;

class Builder {
 public:
  explicit Builder(Graph& graph, Stage stage = Stage::forward) : graph_(graph), stage_(stage) {}

  // Where and as what the next nodes are emitted.
  Builder& before(NodeId node) {
    before_ = node;
    return *this;
  }
  Builder& named(std::string node_name, uint32_t ordinal = 0);
  // Folds what is constant as soon as it is emitted.
  Builder& folding(Folder folder) {
    folder_ = std::move(folder);
    return *this;
  }

  // Emits one node; returns its outputs (of the kind that fits the stage).
  std::vector<ValueId> emit_many(std::string_view op, std::vector<ValueId> inputs, Attributes attributes, size_t outputs);
  ValueId emit(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return emit_many(op, std::move(inputs), std::move(attributes), 1)[0];
  }
  ValueId constant(Tensor tensor);
  ValueId zeros(Shape shape, DType type);
  // A scalar of the value's own element type, for arithmetic with it.
  ValueId scalar_like(ValueId value, double number);

  // Shorthands.
  ValueId reshape(ValueId value, Shape shape);
  ValueId transpose(ValueId value, std::vector<int64_t> permutation);
  // Sums a broadcast gradient back to `shape` (itself where the shapes agree).
  ValueId reduce_to(ValueId value, Shape shape);
  // The same, to the shape and the type of `like`.
  ValueId reduce_like(ValueId value, ValueId like);
  // Over these axes, which go. Sums of 16-bit numbers are rounded to the type that is asked for once.
  ValueId sum(ValueId value, std::vector<int64_t> axes, DType to);
  // As elements of that type: itself, or a Cast of it.
  ValueId cast(ValueId value, DType to);

  Graph& graph() { return graph_; }
  const Value& value(ValueId id) const { return graph_.value(id); }
  const Shape& shape(ValueId id) const { return graph_.value(id).shape; }
  DType dtype(ValueId id) const { return graph_.value(id).dtype; }

 protected:
  ValueId reduce(ValueId value, Shape shape, DType to);

  Graph& graph_;
  Stage stage_;
  NodeId before_ = kNone;
  std::string node_name_;
  uint32_t ordinal_ = 0;
  Folder folder_;
};

// One node of the user's file, as an importer sees it: shapes are bound, what could be folded is constant.
struct OnnxNode {
  std::string domain, op_type, name;
  int opset = 0;  // of its domain, where the node stands
  Attributes attributes;
  std::vector<ValueId> inputs;  // kNone where absent
  size_t outputs = 1;
};

class Lowering : public Builder {
 public:
  // `widens`: 16-bit types stand for float32 (frontend/import.h).
  Lowering(Graph& graph, const OnnxNode& node, bool widens = false)
      : Builder(graph), node(node), widens_(widens), results_(node.outputs, kNone) {}

  const OnnxNode& node;

  // What a type that the node's attributes name is in the graph.
  DType type(DType named) const { return widens_ ? compute_type(named) : named; }
  uint32_t ordinal() const { return ordinal_; }  // of the node in the user's file
  bool has(size_t i) const { return i < node.inputs.size() && node.inputs[i] != kNone; }
  ValueId input(size_t i) const;                                        // throws Error(unsupported) where absent
  const Tensor& constant_input(size_t i, std::string_view what) const;  // throws where its value is not known at compile time
  std::vector<int64_t> ints(size_t i, std::string_view what) const { return constant_input(i, what).to_int64(); }
  // A constant of one element.
  int64_t integer(size_t i, std::string_view what) const;
  double number(size_t i, std::string_view what) const;
  // Axes and the like: attribute `name` in old opsets, constant input i in new ones; `otherwise` where neither is there.
  std::vector<int64_t> ints_from(std::string_view name, size_t i, std::vector<int64_t> otherwise) const;

  // Says which value the i-th ONNX output is.
  void output(size_t i, ValueId value) { results_.at(i) = value; }
  // The same of the first of them, as far as the node has so many.
  void output_all(const std::vector<ValueId>& values);
  const std::vector<ValueId>& results() const { return results_; }
  // Emits the named op with the node's own inputs (or those given) and the attributes given, and binds all outputs.
  void pass_on(std::string_view op, Attributes attributes);
  void pass_on(std::string_view op, std::vector<ValueId> inputs, Attributes attributes);

  [[noreturn]] void fail(const std::string& why) const;  // Error(unsupported), prefixed by the node's description

 private:
  const Tensor& single(size_t i, std::string_view what) const;
  const bool widens_;
  std::vector<ValueId> results_;
};

class GradientBuilder : public Builder {
 public:
  GradientBuilder(Graph& graph, NodeId node, std::vector<ValueId> output_gradients, std::vector<bool> wanted,
                  Stage stage = Stage::backward);

  // The gradient of output i; zeros (emitted on demand) where nothing downstream depends on it but another output's does.
  ValueId output_gradient(size_t i);
  bool has_output_gradient(size_t i) const { return output_gradients_[i] != kNone; }
  // Whether anyone wants the gradient of input i; skip the work where not.
  bool wants(size_t i) const { return i < wanted_.size() && wanted_[i]; }
  // Says what the gradient of input i is; its shape must be the input's.
  void input_gradient(size_t i, ValueId gradient);
  const std::vector<ValueId>& input_gradients() const { return input_gradients_; }

 private:
  NodeId node_;
  std::vector<ValueId> output_gradients_;
  std::vector<bool> wanted_;
  std::vector<ValueId> input_gradients_;
};

}  // namespace ort_train
