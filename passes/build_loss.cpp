// build_loss: puts the job's loss at the end of a forward graph.
//
//   before   logits: (…, V)
//   after    loss_sum, lse = SoftmaxCrossEntropy(logits, labels) ; count = CountLabels(labels)          cross_entropy
//            loss_sum = SquaredError(prediction, labels)                                                mse; count is the number of
//            elements loss_sum = the output itself                                                               output
//
// The loss of a batch is loss_sum / count; backward starts from 1 / (the count of the whole optimizer step), an input.

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/match.h"

namespace ort_train {

void build_loss(JobGraph& job, const LossSpec& spec) {
  Graph& graph = job.graph;
  if (graph.outputs.empty()) throw error(ErrorCode::unsupported, "the model has no output that a loss could read");
  ValueId read = graph.outputs[0];
  if (!spec.output.empty()) {
    read = kNone;
    std::string names;
    for (ValueId output : graph.outputs) {
      names += (names.empty() ? "" : ", ") + graph.value(output).name;
      if (graph.value(output).name == spec.output) read = output;
    }
    if (read == kNone) throw error(ErrorCode::usage, "the model has no output '{}'; it has: {} (`output` NAME)", spec.output, names);
  }
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
    // It computes in float32 from logits of 16 bits as from their float32 copy, without that.
    const View view(graph);
    if (const Node* cast = view.made_by(read, "Cast"); cast && is_half(graph.value(cast->inputs[0]).dtype)) read = cast->inputs[0];
    job.loss_sum = builder.emit_many("SoftmaxCrossEntropy", {read, job.labels}, attributes, 2)[0];
    job.count = builder.emit("CountLabels", {job.labels}, attributes);
  } else if (spec.kind == "mse") {
    add_labels(type.dtype, type.shape);
    job.loss_sum = builder.emit("SquaredError", {read, job.labels});
  } else if (spec.kind == "output") {
    if (element_count(type.shape) != 1)
      throw error(ErrorCode::unsupported, "the output '{}' is {}; `loss` output needs one number", graph.value(read).name, to_string(type));
    job.loss_sum = builder.reshape(read, {});
  } else {
    throw error(ErrorCode::usage, "unknown loss '{}'; known: cross_entropy, mse, output", spec.kind);
  }
}

}  // namespace ort_train
