// Feed: brings samples of a data set into the inputs of an entry's graph, checked and in the graph's types.
//
// Labels of causal language models are their tokens moved one to the left inside each sample, the last one ignored, as Hugging Face does it
// (a `labels` array is moved the same way). Where the labels are the tokens themselves, those of padding are ignored, as its collators do
// it. Where the graph is for shorter samples (Options::length_buckets), what comes after is left out.
// A Feed belongs to one data set, graph and binding, which outlive it.

#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frontend/binding.h"
#include "frontend/data_set.h"
#include "graph/graph.h"
#include "passes/losses.h"

namespace ort_train {

// An array of labels that a loss reads.
struct LabelSpec {
  ValueId value = kNone;  // input of the graph
  std::string field = "labels";
  size_t loss = 0;  // which of the job's losses
  bool causal = false;
  LabelKind kind = LabelKind::classes;
  bool counts = true;                   // whether labels that aren't ignored are counted
  int64_t class_count = 0;              // class numbers are below it, or ignore_index
  std::vector<double> class_weights{};  // what a label of each class counts; empty: one
  int64_t ignore_index = -100;
  std::string mask{};  // array that says of each position whether it is padding, whose labels are ignored; empty: there is none
};

class Feed {
 public:
  // Throws Error (data, usage) in one sentence naming the array, what it is and what is wanted.
  // `length`: of the graph's samples, where the job has several lengths.
  Feed(DataSet& data, const Graph& graph, const Binding& binding, const std::vector<LabelSpec>& labels, int64_t length = 0);

  using Places = std::function<std::span<std::byte>(ValueId)>;
  // Reads the samples, as many as the graph's batch. Adds to `counted` (by loss) what the labels count that are class numbers.
  void fill(std::span<const int64_t> samples, const Places& at, std::span<double> counted);
  // Only counts, without touching the graph's memory.
  void count(std::span<const int64_t> samples, std::span<double> counted);
  // Bytes of its buffers.
  int64_t memory_bytes() const;

 private:
  struct Slot {
    ValueId value;
    size_t field;
    DType dtype;
    int64_t elements;                   // of a sample
    int64_t positions;                  // of these the first axis that has several: where a sample is a sequence, its length
    int64_t limit;                      // indices lie in [-limit, limit); 0: no limit
    const LabelSpec* labels = nullptr;  // null: an input of the model
    Shape kept{};                       // of a sample that is cut: what is left of it
    std::optional<size_t> mask{};       // field of LabelSpec::mask
  };
  std::optional<size_t> find_mask(const LabelSpec& labels);
  void add(const std::string& input, const std::string& field, ValueId value, const LabelSpec* labels);
  void check_indices(const Slot& slot, int64_t sample, std::span<const std::byte> bytes) const;
  void ignore_padding(const Slot& slot, int64_t sample, std::span<std::byte> bytes);
  double prepare_and_count_labels(const Slot& slot, int64_t sample, std::span<std::byte> bytes);
  void read(const Slot& slot, int64_t sample, std::span<std::byte> to);

  DataSet& data_;
  const Graph& graph_;
  const Binding& binding_;
  const int64_t length_;
  const std::vector<LabelSpec> labels_;
  std::vector<Slot> slots_;
  std::vector<std::byte> buffer_, label_buffer_, mask_buffer_;
};

// How far indices may go that a graph's input holds: the rows of what it gathers from; 0 where it gathers nothing.
int64_t index_limit(const Graph& graph, ValueId input);

}  // namespace ort_train
