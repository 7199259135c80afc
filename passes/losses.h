// Losses: what a job may minimize of its model's outputs. Each is one entry of the list in losses.cpp.
//
// A job has one or several: its loss is the sum of weight * mean of each. A mean is a sum over what counts (labels that aren't ignored,
// elements, samples), divided by how many count in the whole optimizer step, so that micro-batches of different sizes weigh as they should.

#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

enum class LabelKind : uint8_t {
  none,
  classes,    // int64: the output's shape without the axis of classes; LossTerm::ignore_index where none is
  numbers,    // the output's type and shape
  signs,      // int64 (N): 1 or -1
  sequences,  // int64 (N, S): class numbers, and LossTerm::ignore_index after the end; beside it may stand the lengths of the inputs, (N)
};

// What a mean is over.
enum class Counted : uint8_t {
  labels,   // those that aren't ignored, each as its class weighs
  samples,  // as many things a sample: elements, rows, itself
  batches,  // the model says its own mean
};

struct LossParameter {
  std::string_view name;
  double value = 0;               // where none is given
  double least = 0, most = 1e30;  // that it may be
  bool is_list = false;           // or numbers for each class
};

// One loss of a job.
struct LossTerm {
  std::string kind = "cross_entropy";
  std::vector<std::string> outputs{};         // of the model, that it reads; empty: the first
  std::vector<std::string> labels{"labels"};  // names of the graph inputs that it adds
  bool has_own_labels = false;                // the user has named them
  double weight = 1;
  int64_t ignore_index = -100;
  int64_t longest = 0;                                      // LabelKind::sequences: how many labels a sample has at most
  std::map<std::string, std::vector<double>> parameters{};  // those that are given
};

struct LossSpec {
  std::vector<LossTerm> terms{LossTerm{}};
  int64_t samples = 0;  // of a batch of the graph; 0: as many as the first output's first axis has
  std::string teacher;  // what begins the names of the outputs of the model that `distillation` follows; empty: there is none
};

// What is known of a loss by its name. Throws Error(usage) with the names that there are.
struct LossShape {
  LabelKind labels = LabelKind::none;
  size_t outputs = 1;  // that it reads
  std::vector<LossParameter> parameters;
};
const LossShape& loss_named(std::string_view name);
const std::vector<std::string>& loss_names();

// A loss in a job's graph.
struct JobLoss {
  std::vector<ValueId> labels{};  // inputs
  LabelKind kind = LabelKind::none;
  Counted counted = Counted::labels;
  double per_sample = 0;                // Counted::samples: how many
  int64_t classes = 0;                  // of labels that are class numbers
  std::vector<double> class_weights{};  // of these; or none
  int64_t ignore_index = -100;
  double weight = 1;
  ValueId sum = kNone;            // float32 []: over what counts; Counted::batches: the mean itself
  ValueId count = kNone;          // float32 [], for Counted::labels
  ValueId inverse_count = kNone;  // input of a training graph: weight / what counts in the optimizer step
};

// What a user should know of how the losses read the model's outputs.
std::vector<std::string> loss_notes(const Graph& forward, const LossSpec& spec);

// Puts the losses at the end of a forward graph. Throws Error(usage | unsupported) for one that the model's outputs can't give.
std::vector<JobLoss> build_losses(Graph& graph, const LossSpec& spec);

}  // namespace ort_train
