// Job: what a trainer computes, before anything is planned: the model, read and bound; its data, losses and updates; the graphs of its
// entry points and what feeds them. It decides nothing about memory. It refers to the options, the start and the workers, which outlive it.
// For one thread at a time.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/workers.h"
#include "frontend/adapters.h"
#include "frontend/attach_model.h"
#include "frontend/binding.h"
#include "frontend/data_set.h"
#include "frontend/feed.h"
#include "frontend/import.h"
#include "frontend/loss_scaling.h"
#include "frontend/memory.h"
#include "frontend/ort_train.h"
#include "frontend/precision.h"
#include "frontend/run_start.h"
#include "frontend/schedule.h"
#include "passes/entry_set.h"

namespace ort_train {

// Samples [begin, begin + count) of a data set.
struct SampleRange {
  DataSet* data = nullptr;
  int64_t begin = 0, count = 0;
};

// How an epoch's samples are divided into batches. The last batch may be smaller, unless the model's file fixes the size: then the samples
// that don't fill one are left out.
struct Batching {
  int64_t samples = 0, batch = 1;
  bool is_fixed = false;

  int64_t usable() const { return is_fixed ? samples / batch * batch : samples; }
  int64_t remainder() const { return usable() % batch; }  // samples of the smaller batch; 0: there is none
};

struct Batch {
  std::vector<int64_t> samples{};  // numbers
  int64_t length = 0;              // JobEntry::length of the entry for them
};

// The micro-batches of one optimizer step.
struct StepBatches {
  std::vector<Batch> batches{};
  int64_t epoch = 0, index = 0;  // the cursor behind it
  int64_t tokens = 0;            // of all samples, with what a batch's length adds; samples, where the job has no sequence
};

class Job {
 public:
  // Opens the data and binds the model's inputs. `part_bytes`: PassOptions::part_bytes. Throws Error: usage, data, unsupported.
  Job(const Options& options, const RunStart& start, int64_t part_bytes, const KernelTable* kernels, Workers& workers,
      std::function<void(const std::string&)> note);

  // Sets what is known once the model has been read, below; does nothing a second time. Throws Error: unsupported, usage, data.
  void read_model() { forward_graph(binding.batch, lengths.empty() ? 0 : lengths.front().length); }
  // The graphs of all entry points of that strategy, each before the passes that a plan decides (finish()). Reads the model. Throws
  // Error: unsupported, usage, data.
  EntrySet entries(const StepStrategy& strategy);
  // No more calls of that: frees what they share.
  void end_planning() { forwards_.clear(); }
  // What fills the inputs of these, by entry; null where nothing does. They refer to the graphs. Throws Error(data).
  std::vector<std::unique_ptr<Feed>> feeds(const EntrySet& set) const;
  // Whether a step uses weights so late that their updates may wait for that, with an entry set of Deferral::most.
  bool has_weights_used_late() const;

  Batching batching(const SampleRange& range) const {
    return {.samples = range.count, .batch = binding.batch, .is_fixed = binding.batch_is_fixed};
  }
  Batch batch_of(const SampleRange& range, std::vector<int64_t> samples) const;
  // The samples of a step that begins there, in the epoch's order.
  StepBatches batches_of_step(int64_t epoch, int64_t index) const;
  // The options that change numbers, as a checkpoint keeps them.
  std::map<std::string, std::string> settings() const;
  // What the data sets take, loaded.
  int64_t data_bytes() const;

  const PeakSince peak;  // from the import on
  const Options& options;
  const Optimizer optimizer;
  const AdapterSettings adapting;
  DataSets data;
  Binding binding;
  SampleRange train_range, valid_range;  // valid: none where its data is null
  std::vector<LengthReport> lengths;     // of batches, the longest first; none: all have one
  int64_t total_steps = 0;
  Schedule schedule;
  // Empty until read_model(), or entries(), has been called:
  ModelInfo info;
  std::vector<Weight> weights;
  NumberTypes types;
  DType products = DType::float32;  // the 16-bit type in which the model has products; float32: in none
  LossScaling scaling;
  LossSpec losses;                         // by entries()
  std::vector<Adapter> adapters;           // none where nothing is adapted
  std::vector<ParameterGroup> groups;      // by Value::group
  std::vector<GroupReport> group_reports;  // the same

 private:
  void divide_samples();
  void settle_lengths();
  void settle_schedule();
  LossSpec loss_spec() const;
  OptimizerSpec optimizer_spec(const StepStrategy& strategy) const;
  PassOptions first_passes();
  // The model's graph for a batch, and a length of the job's or 0; made by one import when it is first asked for, which the first time
  // sets what read_model() says.
  const Graph& forward_graph(int64_t batch, int64_t length);
  Graph make_forward_graph(int64_t batch, int64_t length);
  Imported import_for(const ImportOptions& import, int64_t length) const;
  void check_and_report_model(const Imported& imported);
  void adopt_model(Imported& imported);
  void note_where_gradients_stop(const Graph& graph) const;
  void settle_types(const Imported& imported);
  void check_dumps() const;
  void check_live_layers(const Graph& forward, int64_t batch) const;
  void add_train(EntrySet& set, const JobEntry& like, const OptimizerSpec& update, const PassOptions& passes);
  void add_evaluate(EntrySet& set, const LengthReport& length);
  void add_predict(EntrySet& set);

  int64_t steps_of_epoch(int64_t index) const;  // from that sample on
  bool ends_an_epoch() const;

  Workers& workers_;
  const std::function<void(const std::string&)> note_;
  const RunStart& start_;
  std::vector<Attachment> attached_;                       // other models that the losses read
  PassOptions passes_;                                     // of all graphs
  std::vector<std::string> ran_;                           // names of passes
  bool model_read_ = false;                                // info and weights are there
  bool has_entries_ = false;                               // some were made
  size_t model_outputs_ = 0;                               // how many outputs the trained model has itself
  std::optional<Packs> packs_;                             // of small weights, chosen for the first batch size
  std::map<std::pair<int64_t, int64_t>, Graph> forwards_;  // by batch and length, ready to be made into entries
};

}  // namespace ort_train
