// build_loss: puts the job's loss at the end of a forward graph.
//
//   before   logits: (…, V)
//   after    loss_sum, lse = SoftmaxCrossEntropy(logits, labels) ; count = CountLabels(labels)          cross_entropy
//            loss_sum = SquaredError(prediction, labels)                                                mse; count: elements
//            loss_sum = ReduceSum of what the table kElementLosses makes of each prediction and label   l1 and the like; count: elements
//            loss_sum = the output itself                                                               output
//
// Most exported classifiers end in a Softmax. cross_entropy takes the softmax of what it reads, so of such an output it reads what goes
// into the Softmax; the output stays what it is.
//
// The loss of a batch is loss_sum / count; backward starts from 1 / (the count of the whole optimizer step), an input.

#include <algorithm>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/match.h"

namespace ort_train {
namespace {

ValueId read_output(const Graph& graph, const LossSpec& spec) {
  if (graph.outputs.empty()) throw error(ErrorCode::unsupported, "the model has no output that a loss could read");
  if (spec.output.empty()) return graph.outputs[0];
  std::string names;
  for (ValueId output : graph.outputs) {
    if (graph.value(output).name == spec.output) return output;
    names += (names.empty() ? "" : ", ") + graph.value(output).name;
  }
  throw error(ErrorCode::usage, "the model has no output '{}'; it has: {} (`output` NAME)", spec.output, names);
}

// The node that makes the value, but for Casts, if it is one of that op.
const Node* maker(const Graph& graph, ValueId value, std::string_view op) {
  const View view(graph);
  for (const Node* node = view.made_by(value, "Cast"); node != nullptr; node = view.made_by(value, "Cast")) value = node->inputs[0];
  return view.made_by(value, op);
}

// What goes into the Softmax or LogSoftmax along the last axis (cross_entropy), or into the Sigmoid (binary_cross_entropy), that makes an
// output; the output itself where none does.
ValueId logits_behind(const Graph& graph, const LossSpec& spec, ValueId output) {
  if (spec.kind == "binary_cross_entropy") {
    const Node* const sigmoid = maker(graph, output, "Sigmoid");
    return sigmoid == nullptr ? output : sigmoid->inputs[0];
  }
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    const Node* const node = spec.kind == "cross_entropy" ? maker(graph, output, op) : nullptr;
    if (node == nullptr) continue;
    const auto rank = static_cast<int64_t>(graph.value(output).shape.size());
    if (normalize_axis(node->attributes.get("axis", -1), rank, "axis") == rank - 1) return node->inputs[0];
  }
  return output;
}

// Means over elements of what is made of a number x of the output and a number y of the labels, as in torch.nn.functional.
struct ElementLoss {
  std::string_view name;
  ValueId (*of)(Builder& b, ValueId x, ValueId y);
};

ValueId absolute_difference(Builder& b, ValueId x, ValueId y) { return b.emit("Abs", {b.emit("Sub", {x, y})}); }

// d^2 / 2 for d = |x - y| < 1, else d - 1/2: with q = min(d, 1), q^2 / 2 + (d - q).
ValueId smooth_difference(Builder& b, ValueId x, ValueId y) {
  const ValueId d = absolute_difference(b, x, y), q = b.emit("Min", {d, b.scalar_like(d, 1)});
  const ValueId square = b.emit("Mul", {b.emit("Mul", {q, q}), b.scalar_like(d, 0.5)});
  return b.emit("Add", {square, b.emit("Sub", {d, q})});
}

// -(y log s(x) + (1 - y) log(1 - s(x))), s the sigmoid: log(1 + e^x) - x y.
ValueId binary_cross_entropy(Builder& b, ValueId x, ValueId y) { return b.emit("Sub", {b.emit("Softplus", {x}), b.emit("Mul", {x, y})}); }

constexpr ElementLoss kElementLosses[] = {
    {"l1", absolute_difference}, {"smooth_l1", smooth_difference}, {"binary_cross_entropy", binary_cross_entropy}};

const ElementLoss* find_element_loss(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kElementLosses), std::end(kElementLosses), [&](const ElementLoss& l) { return l.name == name; });
  return found == std::end(kElementLosses) ? nullptr : found;
}

}  // namespace

const std::vector<std::string>& loss_names() {
  static const auto& names = *new std::vector<std::string>([] {
    std::vector<std::string> all{"cross_entropy", "mse"};
    for (const ElementLoss& loss : kElementLosses) all.emplace_back(loss.name);
    all.emplace_back("output");
    return all;
  }());
  return names;
}

std::string loss_note(const Graph& forward, const LossSpec& spec) {
  const ValueId read = read_output(forward, spec);
  const std::string& name = forward.value(read).name;
  const bool is_sigmoid = maker(forward, read, "Sigmoid") != nullptr;
  if (logits_behind(forward, spec, read) != read)
    return fmt::format("the output '{}' is a {}: the loss is taken of what goes into it", name, is_sigmoid ? "Sigmoid" : "Softmax");
  if (spec.kind == "cross_entropy" && is_sigmoid)
    return fmt::format(
        "the output '{}' is a Sigmoid, and cross_entropy takes the softmax of its numbers: is `loss` binary_cross_entropy meant?", name);
  return "";
}

void build_loss(JobGraph& job, const LossSpec& spec) {
  Graph& graph = job.graph;
  ValueId read = read_output(graph, spec);
  const TensorType type = graph.value(read).type();
  if (!is_floating(type.dtype))
    throw error(ErrorCode::unsupported, "the output '{}' is {}; a loss needs floating-point numbers", graph.value(read).name,
                to_string(type));
  Builder builder(graph);
  builder.named("loss");
  const auto add_labels = [&](DType dtype, Shape shape) {
    job.labels = graph.add_value({.name = spec.labels, .dtype = dtype, .shape = std::move(shape), .kind = ValueKind::input});
    graph.inputs.push_back(job.labels);
  };
  if (spec.kind == "cross_entropy") {
    if (type.shape.empty())
      throw error(ErrorCode::unsupported,
                  "the output '{}' is a scalar; cross_entropy needs an axis of classes (`loss` output if it is the loss)",
                  graph.value(read).name);
    add_labels(DType::int64, Shape(type.shape.begin(), type.shape.end() - 1));
    const Attributes attributes{{"ignore_index", spec.ignore_index}};
    Attributes terms = attributes;
    if (spec.label_smoothing != 0) terms.set("smoothing", static_cast<float>(spec.label_smoothing));
    if (spec.z_loss != 0) terms.set("z_loss", static_cast<float>(spec.z_loss));
    read = logits_behind(graph, spec, read);
    // It computes in float32 from logits of 16 bits as from their float32 copy, without that.
    const View view(graph);
    if (const Node* cast = view.made_by(read, "Cast"); cast && is_half(graph.value(cast->inputs[0]).dtype)) read = cast->inputs[0];
    job.loss_sum = builder.emit_many("SoftmaxCrossEntropy", {read, job.labels}, terms, 2)[0];
    job.count = builder.emit("CountLabels", {job.labels}, attributes);
  } else if (spec.kind == "mse") {
    add_labels(type.dtype, type.shape);
    job.loss_sum = builder.emit("SquaredError", {read, job.labels});
  } else if (const ElementLoss* const loss = find_element_loss(spec.kind)) {
    const ValueId x = builder.cast(logits_behind(graph, spec, read), compute_type(type.dtype));
    add_labels(compute_type(type.dtype), type.shape);
    const ValueId losses = loss->of(builder, x, job.labels);
    job.loss_sum = builder.sum(builder.reshape(losses, {element_count(type.shape)}), {0}, compute_type(type.dtype));
  } else if (spec.kind == "output") {
    if (element_count(type.shape) != 1)
      throw error(ErrorCode::unsupported, "the output '{}' is {}; `loss` output needs one number", graph.value(read).name, to_string(type));
    job.loss_sum = builder.reshape(read, {});
  } else {
    throw error(ErrorCode::usage, "unknown loss '{}'; known: {}", spec.kind, fmt::join(loss_names(), ", "));
  }
}

}  // namespace ort_train
