// JobModel: the model that is trained. In go its file and the options; out come its weights, their adapters, groups and number types, and
// its forward graph for each size of batch, from which the graphs of a run's entry points are made (JobGraphs).
//
// For one thread at a time.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exec/workers.h"
#include "frontend/adapters.h"
#include "frontend/import.h"
#include "frontend/job_data.h"
#include "frontend/loss_scaling.h"
#include "frontend/note.h"
#include "frontend/ort_train.h"
#include "frontend/precision.h"
#include "frontend/schedule.h"
#include "passes/pipeline.h"

namespace ort_train {

// What a model is imported for and with. All of it outlives the model.
struct ModelContext {
  const Options& options;
  const Optimizer& optimizer;
  const AdapterSettings& adapting;
  const JobData& data;
  const Schedule& schedule;
  int64_t part_bytes = 0;                // PassOptions::part_bytes
  const KernelTable* kernels = nullptr;  // of the device that will compute; null: the processor's
  Workers& workers;
  const Note& note;
};

class JobModel {
 public:
  explicit JobModel(const ModelContext& context);

  // Imports the model for the usual batch, which sets the fields below; does nothing a second time. Throws Error: unsupported, usage, data.
  void read();
  // The forward graph for a batch of that size, of samples of that length (0: of the only one there is), with the models that losses read.
  // Made by one import when it is first asked for. Good until release_graphs().
  const Graph& forward_graph(int64_t batch, int64_t length);
  const Graph& main_forward_graph();  // of whole batches, of the longest samples
  // Frees the forward graphs.
  void release_graphs() { forwards_.clear(); }

  // For passes over forward graphs, and over what is made of them. The first graphs of all are written where `dump_after` asks for it.
  const PassOptions& passes() const { return passes_; }
  PassOptions first_passes();
  const std::vector<std::string>& passes_run() const { return passes_run_; }  // with first_passes(), by name

  // Empty until the model has been read:
  ModelInfo info;
  std::vector<Weight> weights;
  size_t output_count = 0;  // of the trained model itself: a forward graph has those of other models after them
  NumberTypes types;
  DType product_type = DType::float32;  // the 16-bit type in which the model has products; float32: in none
  LossScaling scaling;
  std::vector<Adapter> adapters;           // none where nothing is adapted
  std::vector<ParameterGroup> groups;      // by Value::group
  std::vector<GroupReport> group_reports;  // the same

 private:
  Graph make_forward_graph(int64_t batch, int64_t length);
  Imported import_for(const ImportOptions& import, int64_t length) const;
  void settle_types(const Imported& imported);
  void adopt(Imported& imported);
  void check_and_report(const Imported& imported);
  void note_where_gradients_stop(const Graph& graph) const;

  const ModelContext context_;
  const Options& options_;
  const Note& note_;
  PassOptions passes_;  // of all graphs
  std::vector<std::string> passes_run_;
  bool is_read_ = false;
  std::map<std::pair<int64_t, int64_t>, Graph> forwards_;  // by batch and length
};

}  // namespace ort_train
