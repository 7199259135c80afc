// From the imported forward graph to the graphs of a job's entry points.

#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "exec/program.h"
#include "graph/graph.h"
#include "passes/losses.h"
#include "passes/optimizer.h"
#include "passes/passes.h"

namespace ort_train {

struct OptimizerSpec {
  Optimizer optimizer = make_optimizer();
  double weight_decay = 0;                                              // where the parameter's group has none: on those of rank 2 and more
  std::vector<ParameterGroup> groups = std::vector<ParameterGroup>(1);  // by Value::group
  double max_grad_norm = 1.0;                                           // 0: no clipping
  bool clip_per_layer = false;                                          // each weight's gradient by its own norm, instead of all by theirs
  bool loss_scaling = false;  // gradients are those of the loss times a number that is fed, see kLossScaleInput
  bool rounds = false;        // weights of 16 bits are rounded stochastically, with numbers that follow from `seed`
  uint64_t seed = 0;
  bool accumulate = false;  // gradients are summed over micro-batches into accumulators: two graphs instead of one, see below
  bool deferred = false;    // an update waits for the next step, where it runs before the first use of its weight: three graphs, see below
  std::set<std::string> at_once{};  // but not of these weights, for which the next step would wait (used_soon)
};

// Names of graph inputs that the pipeline adds.
inline constexpr const char* kScalarsInput = "ort_train.scalars";  // float32 [n]: Optimizer::scalars; of group i: with .i after it
inline constexpr const char* kDeferredScalarsInput = "ort_train.deferred_scalars";       // the same, of the step that deferred updates
inline constexpr const char* kLossScaleInput = "ort_train.loss_scale";                   // float32 []: multiplies the loss's gradient
inline constexpr const char* kDeferredLossScaleInput = "ort_train.deferred_loss_scale";  // the same, of the step that deferred updates
inline constexpr const char* kInverseCountInput =
    "ort_train.inverse_count";  // float32 []: JobLoss::inverse_count; of loss i: with .i after it

// A range of bytes of a persistent value.
struct Slice {
  std::string name{};
  int64_t offset = 0, bytes = 0;
  bool operator==(const Slice&) const = default;
};

// A graph and the values of it that the trainer reads and writes. kNone where the graph has no such value.
struct EntryGraph {
  Graph graph;
  EntryRole role{};
  std::vector<JobLoss> losses;
  std::vector<ValueId> scalars;           // inputs by group, see kScalarsInput; or none
  std::vector<ValueId> deferred_scalars;  // inputs by group, see kDeferredScalarsInput; or none
  ValueId loss_scale = kNone;             // input, see kLossScaleInput
  ValueId deferred_loss_scale = kNone;    // input, see kDeferredLossScaleInput
  ValueId grad_norm = kNone;              // float32 []: global norm before clipping, of the gradients as they are: scaled
  ValueId stored_norm = kNone;            // float32 []: the same where an update is deferred; persistent
  std::vector<ValueId> outputs;           // the model's outputs
  // Parameter -> gradient, scaled, before clipping; of an accumulating step: in the graph with the norm.
  std::map<ValueId, ValueId> gradients;
  std::map<ValueId, ValueId> squares;                    // gradient -> sums of its squares
  std::map<ValueId, std::vector<ValueId>> accumulators;  // parameter -> the sum for each of its uses; persistent, named "NAME.grad"
  std::map<std::string, std::vector<Slice>> slices;      // where the model's parameters are that are divided or packed, in order; by name
};

// What the model calls its outputs. Rewriting replaces values; rename_outputs() gives the names back, to each output a value of its own.
std::vector<std::string> names_of_outputs(const Graph& graph);
void rename_outputs(Graph& graph, const std::vector<std::string>& names);

// Simplifies and fuses an imported graph in place, once, before the job graphs are derived from it.
void optimize_forward(Graph& forward, const PassOptions& options);

// The names of the weights that are used before a share of the forward pass is over, by what it takes on a nominal machine.
std::set<std::string> used_soon(const Graph& forward, double share = 0.02);

// Forward only: the model's outputs, of which `forward` may have more after them: those of other models that its losses read.
EntryGraph build_predict_graph(const Graph& forward, size_t outputs, const PassOptions& options);
// Forward and loss, no gradients.
EntryGraph build_evaluate_graph(const Graph& forward, const LossSpec& loss, const PassOptions& options);
// Forward, loss, backward and update: one optimizer step of one batch. With optimizer.accumulate it ends in the accumulation of each
// parameter's gradient (per use for shared ones) into persistent values "NAME.grad", and build_update_graph does the rest. With
// optimizer.deferred most gradients are stored there, and the norm, instead of being used; with both, the norm of the sums so far.
EntryGraph build_train_graph(const Graph& forward, const LossSpec& loss, const OptimizerSpec& optimizer, const PassOptions& options);
// Deferred: the update that `train` left behind, each weight's before its first use, then what `train` does; of an accumulating step, as
// its first micro-batch: the sums begin anew.
EntryGraph build_deferred_graph(const EntryGraph& train, const OptimizerSpec& optimizer, const PassOptions& options);
// Reads the accumulators, clips, updates, and clears them; or, deferred, makes the update that was left behind. `train` is the graph of the
// accumulating or deferring step.
EntryGraph build_update_graph(const EntryGraph& train, const OptimizerSpec& optimizer, const PassOptions& options);

}  // namespace ort_train
