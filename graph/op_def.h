// OpDef: what an op means, once, for every device: everything that the graph, autodiff and the planner need to know of it. How it runs on a
// device is its Kernel there (exec/kernel.h).
//
// An op is one file under exec/ops: one OpDef (and those of its gradient helpers), its kernels, and its name in exec/op_list.h. An internal
// op has one meaning whatever the opset: its name and attributes are those of the newest ONNX form where there is one, except that what
// ONNX passes as a constant input (axes, shapes, pads) is an attribute here. Ops without an ONNX counterpart are written in the domain
// kOwnDomain.
//
// An OpDef is a constant: nothing of it is computed when a program starts.

#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/op_traits.h"

namespace ort_train {

inline constexpr std::string_view kOwnDomain = "ort_train";

// A list of at most N, in place.
template <typename T, size_t N> class List {
 public:
  constexpr List() = default;
  constexpr List(std::initializer_list<T> items) {
    for (const T& item : items) items_[size_++] = item;  // more than N: doesn't compile
  }
  constexpr const T* begin() const { return items_; }
  constexpr const T* end() const { return items_ + size_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t i) const { return items_[i]; }

 private:
  T items_[N]{};
  size_t size_ = 0;
};

// Why ops that only gradients use have none of their own.
inline constexpr std::string_view kNoSecondDerivative = "second derivatives are not trained";

// What a shape rule sees.
struct InferContext {
  const Attributes& attributes;
  std::vector<const TensorType*> inputs;  // null where absent
  std::vector<const Tensor*> constants;   // null where not known at compile time
  size_t outputs = 1;                     // how many the node has

  const TensorType& input(size_t i) const;  // throws Error(unsupported) where absent
  // Its value; throws Error(unsupported) where that isn't known at compile time.
  const Tensor& constant(size_t i) const;
  bool has(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
};

// One ONNX form of an op: (domain, name) at opsets since..(next form's since - 1). `lower` emits internal ops; where it is null, inputs,
// outputs and attributes pass unchanged.
struct OnnxForm {
  std::string_view domain{};
  std::string_view name{};
  int since = 1;
  void (*lower)(Lowering&) = nullptr;
  // The most that a node may have, where the form is in no standard that says it; checked before `lower` runs.
  size_t inputs = SIZE_MAX, outputs = SIZE_MAX;
};

struct Alias {
  int output = 0;
  int input = 0;
};

struct OpDef {
  std::string_view name{};
  List<OnnxForm, 6> onnx{};
  std::vector<TensorType> (*infer)(const InferContext&) = nullptr;
  // Emits the gradient in graph ops. Null with `no_gradient` set, or for ops whose inputs are never differentiable.
  void (*gradient)(const Node&, GradientBuilder&) = nullptr;
  std::string_view no_gradient{};  // why there is none, in words, for `check`
  std::string_view hint{};         // what the user can do about it

  List<Alias, 2> alias{};   // output is a view of input: same bytes from view_offset() on, same element order
  List<Alias, 4> writes{};  // output IS input, changed: optimizer updates, accumulation. Never pure
  bool overwrites = false;  // what it writes is not read before: the old content may be anything
  bool random = false;
  List<int, 4> host_inputs{};  // inputs whose values must be known at compile time

  OpTraits traits{};

  int standard = 0;  // a node of this op is valid as ONNX's own op of that name at this opset, unchanged; 0: own domain
};

// All ops, by name; null where there is none. Defined by exec/.
const OpDef* find_op(std::string_view name);
// The same, where the op must exist.
const OpDef& op_named(std::string_view name);
const std::vector<const OpDef*>& all_ops();

// The input of which a node's only output is a view; kNone where it makes none.
ValueId viewed(const Node& node);
// By ValueId: whose memory a value shows; that of a view is its input's.
std::vector<ValueId> memory_owners(const Graph& graph);
// Nodes that normalise by the batch's statistics and keep running ones.
std::vector<NodeId> live_layers(const Graph& graph);
// Where in its input's bytes the view that a node makes begins: the attribute `byte_offset`, where it has one.
int64_t view_offset(const Node& node);

// Runs the op's shape rule on a node's inputs, and checks that it gives as many outputs as the node has, of types that a tensor can have.
// Errors are prefixed by the node's description.
std::vector<TensorType> infer_types(const Graph& graph, const OpDef& op, const std::vector<ValueId>& inputs, const Attributes& attributes,
                                    size_t outputs, std::string_view node_name);

// Attributes that are an element type, as a number. get_type throws Error(unsupported) where it is none.
DType get_type(const Attributes& attributes, std::string_view name, DType otherwise);
void set_type(Attributes& attributes, std::string_view name, DType type);
// kRunsIn; none where it is absent. runs_in throws Error(unsupported) where it is no Precision.
std::optional<Precision> runs_in(const Attributes& attributes);
void set_runs_in(Attributes& attributes, Precision precision);

// Shape rules that many ops share.
std::vector<TensorType> infer_same_as_input(const InferContext& context);   // outputs[i] like inputs[0]
std::vector<TensorType> infer_broadcast(const InferContext& context);       // NumPy broadcasting over all inputs, dtype of the first
std::vector<TensorType> infer_broadcast_bool(const InferContext& context);  // the same, boolean result

}  // namespace ort_train
