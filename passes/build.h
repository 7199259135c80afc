// The steps of pipeline.cpp that turn a forward graph into a job's graph.

#pragma once

#include "passes/pipeline.h"

namespace ort_train {

// Makes a builder emit right after the node that makes `value`, while it is still at hand, or the last of those that make `values`; at the
// end where no node makes one.
void emit_after(Builder& builder, ValueId value);
void emit_after(Builder& builder, const std::vector<ValueId>& values);

// Every reader of `from` but the node that makes `to` reads that instead.
void insert_after(Graph& graph, ValueId from, ValueId to);

// Adds the norm of job.gradients as job.grad_norm.
void build_norm(EntryGraph& job, Stage stage);
// Inputs for the optimizer's scalars, one for each parameter group: each has a learning rate of its own. Behind them stands the step
// where weights are rounded (exec/random.h).
std::vector<ValueId> add_scalars(Graph& graph, const OptimizerSpec& spec, const char* name);
// Of these nodes the one that comes first in the graph's order; kNone where none is in it.
NodeId first_in_order(const Graph& graph, const std::vector<NodeId>& nodes);
// An input for the loss scale of a step; kNone where the optimizer's gradients aren't scaled.
ValueId add_loss_scale(Graph& graph, const OptimizerSpec& spec, const char* name);
// What all updates of a step read.
struct StepNumbers {
  ValueId norm = kNone;            // of the gradients
  std::vector<ValueId> scalars{};  // by group
  ValueId loss_scale = kNone;
  std::map<ValueId, ValueId> squares{};  // gradient -> sums of its squares, where they are there
};
// Adds clipping and the update of each gradient's parameter (parameter -> gradient). `before`, where given, says the node that a
// parameter's update stands before (kNone: after all), and clipping stands before the first node. Returns what each parameter is after its
// update.
using UpdatePlaces = std::function<NodeId(ValueId parameter)>;
std::map<ValueId, ValueId> build_update(Graph& graph, const OptimizerSpec& spec, const std::map<ValueId, ValueId>& gradients,
                                        const StepNumbers& step, const UpdatePlaces& before = nullptr);

// The last pass of each job's graph.
bool fuse_elementwise(EntryGraph& job, const PassOptions& options);

}  // namespace ort_train
