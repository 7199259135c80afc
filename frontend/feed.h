// Feed: brings samples of a data set into the inputs of a job graph, checked and in the graph's types.
//
// Labels of causal language models are their tokens moved one to the left inside each sample, the last one ignored, as Hugging Face does it
// (a `labels` array is moved the same way). A Feed belongs to one data set and one graph, which outlive it.

#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "frontend/binding.h"
#include "frontend/data_set.h"
#include "graph/graph.h"

namespace ort_train {

struct LabelSpec {
  ValueId value = kNone;  // input of the graph; kNone: the loss needs no labels
  std::string field = "labels";
  bool causal = false;
  bool classes = true;  // class numbers: below class_count, or ignore_index
  int64_t class_count = 0;
  int64_t ignore_index = -100;
};

class Feed {
 public:
  // Throws Error(data) in one sentence naming the array, what it is and what is wanted.
  Feed(DataSet& data, const Graph& graph, const Binding& binding, const LabelSpec& labels);

  using Places = std::function<std::span<std::byte>(ValueId)>;
  // Reads the samples, as many as the graph's batch. Returns how many labels (or elements) count.
  int64_t fill(std::span<const int64_t> samples, const Places& at);
  // Only counts, without touching the graph's memory.
  int64_t count(std::span<const int64_t> samples);
  // Bytes of its buffers.
  int64_t memory_bytes() const;

 private:
  struct Slot {
    ValueId value;
    size_t field;
    DType dtype;
    int64_t elements;  // of a sample
    int64_t limit;     // indices lie in [-limit, limit); 0: no limit
    bool shifted = false, labels = false;
  };
  void add(const std::string& input, const std::string& field, ValueId value, bool labels);
  void check_indices(const Slot& slot, int64_t sample, std::span<const std::byte> bytes) const;
  int64_t finish_labels(const Slot& slot, int64_t sample, std::span<std::byte> bytes) const;
  void read(const Slot& slot, int64_t sample, std::span<std::byte> to);

  DataSet& data_;
  const Graph& graph_;
  LabelSpec labels_;
  std::vector<Slot> slots_;
  std::vector<std::byte> buffer_, label_buffer_;
};

// How far indices may go that a graph's input holds: the rows of what it gathers from; 0 where it gathers nothing.
int64_t index_limit(const Graph& graph, ValueId input);

}  // namespace ort_train
