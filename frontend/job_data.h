// JobData: the samples of a run. In go the options that name the data and the model's declared inputs; out come the data sets, which array
// feeds which input, the samples to train on and those held out, the batches of every step, and how many steps there are.
//
// It refers to the options, the start and the note, which outlive it. For one thread at a time.

#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "frontend/attach_model.h"
#include "frontend/binding.h"
#include "frontend/data_set.h"
#include "frontend/feed.h"
#include "frontend/note.h"
#include "frontend/ort_train.h"
#include "frontend/run_start.h"
#include "passes/entry_set.h"
#include "passes/losses.h"

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
  int64_t epoch = 0, index = 0;  // the data cursor after the step
  int64_t tokens = 0;            // of all samples, with what a batch's length adds; samples, where the job has no sequence
};

class JobData {
 public:
  // Opens the data and binds the model's inputs. Throws Error: usage, data, unsupported.
  JobData(const Options& options, const RunStart& start, const Note& note);

  Batching batching(const SampleRange& range) const {
    return {.samples = range.count, .batch = binding.batch, .is_fixed = binding.batch_is_fixed};
  }
  Batch batch_of(const SampleRange& range, std::vector<int64_t> samples) const;
  // The batches of a step whose first sample is `index` of the epoch's order.
  StepBatches batches_of_step(int64_t epoch, int64_t index) const;
  // Whether the run reaches the end of an epoch, where a batch may be smaller.
  bool ends_an_epoch() const;
  // The longest length of batches; 0 where the job has only one length.
  int64_t longest() const { return lengths.empty() ? 0 : lengths.front().length; }
  // What fills the inputs of these entries, by entry; null where nothing does. They refer to the graphs. Throws Error(data).
  std::vector<std::unique_ptr<Feed>> feeds(const EntrySet& set, const LossSpec& losses) const;
  // Bytes that the data sets take once loaded.
  int64_t memory_bytes() const;
  int64_t unpacked_bytes() const;  // of these, what files have compressed
  void load();

  DataSets sets;
  Binding binding;
  std::vector<Attachment> attached;          // other models that the losses read: the binding has their inputs, too
  SampleRange train_samples, valid_samples;  // valid: none where its data is null
  std::string no_valid;                      // why that is so though there is a validation file; it is only where `eval_steps` is 0
  std::vector<LengthReport> lengths;         // of batches, the longest first; none: all have one
  int64_t total_steps = 0;                   // of the whole run
  int64_t eval_steps = 0, save_steps = 0;    // from one evaluation, and one checkpoint, to the next (a whole epoch's); 0: none

 private:
  void settle_labels();
  std::vector<bool> find_token_labels(const DataSet& data) const;  // by term
  std::set<std::string> arrays_used() const;
  void settle_valid();
  void note_lengths() const;
  void check_valid(DataSet& valid) const;
  void divide_samples();
  void hold_out();
  void note_left_out(const SampleRange& range, const char* what, const char* when) const;
  int64_t length_of(const SampleRange& range, int64_t sample) const;
  void count_steps();
  void settle_lengths();
  int64_t steps_of_epoch(int64_t index) const;  // from that sample on

  const Options& options_;
  const RunStart& start_;
  const Note& note_;
  const std::vector<LossTerm> terms_;
  std::string tokens_{};                   // the array that a language model reads and learns; empty: there is none
  std::vector<bool> labels_are_tokens_{};  // by term: the data have no labels, they are those
  bool ignores_padding_ = false;           // of such labels
};

}  // namespace ort_train
