// JobGraphs: the graphs of a run's entry points (train, update, evaluate, predict). In go the model's forward graphs, the options and the
// shapes of the batches; out comes, for a strategy of optimizer steps, the set of all entries.
//
// It refers to all that it is made of. For one thread at a time.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frontend/job_data.h"
#include "frontend/job_model.h"
#include "frontend/note.h"
#include "frontend/ort_train.h"
#include "passes/entry_set.h"

namespace ort_train {

class JobGraphs {
 public:
  JobGraphs(const Options& options, const Optimizer& optimizer, const JobData& data, JobModel& model, const Note& note)
      : options_(options), optimizer_(optimizer), data_(data), model_(model), note_(note) {}

  // The graphs of all entry points of that strategy, each before the passes that a plan decides (finish()). Reads the model. Throws
  // Error: unsupported, usage, data.
  EntrySet entries(const StepStrategy& strategy);
  // Whether a step uses weights so late that their updates may wait for that, with an entry set of Deferral::most.
  bool has_weights_used_late();

  // Set by entries():
  LossSpec losses;
  // Of a job on text, the place among the model's outputs of the one by which text is written: that a loss reads, with a number for each
  // token at each position. None: there is no such output; then `no_text` says so.
  std::optional<size_t> text_output;
  std::string no_text;

 private:
  LossSpec make_losses() const;
  LossSpec losses_of(int64_t batch) const;  // of graphs for a batch of so many samples
  OptimizerSpec optimizer_spec(const StepStrategy& strategy) const;
  void note_losses(const Graph& forward) const;
  void settle_text(const Graph& forward);
  PassOptions passes(bool is_first = false) const;
  // `unbuilt`: an entry that has its shape, and neither a name nor a graph. `is_first`: its graphs are the first of all.
  void add_train(EntrySet& set, const JobEntry& unbuilt, const OptimizerSpec& update, bool is_first = false);
  void add_evaluate(EntrySet& set, const LengthReport& length);
  void add_predict(EntrySet& set);
  void check_live_layers(const Graph& forward, int64_t batch) const;
  void check_dumps() const;

  const Options& options_;
  const Optimizer& optimizer_;
  const JobData& data_;
  JobModel& model_;
  const Note& note_;
  std::optional<Packs> packs_;  // of small weights, chosen with the first entries, for the first batch size
};

}  // namespace ort_train
