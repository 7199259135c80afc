// The means of a job's losses, whose sums its graphs make and whose counts follow from the labels.

#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "graph/error.h"
#include "passes/losses.h"

namespace ort_train {

// How much a graph's loss sum weighs in the job's: a mean that the model itself makes stands for all its samples; other sums weigh 1.
inline double weight_of_sum(const JobLoss& loss, int64_t samples) {
  return loss.counted == Counted::batches ? static_cast<double>(samples) : 1;
}

// Of an optimizer step, of an evaluation.
struct LossMeans {
  explicit LossMeans(const std::vector<JobLoss>& of) : losses(of), sums(of.size()), counted(of.size()) {}

  // What counts in a batch of that graph whatever its labels. A mean that the model itself outputs counts for its samples, so that a short
  // last batch weighs as what it is.
  void count_batch(const std::vector<JobLoss>& of_graph, int64_t samples) {
    for (size_t i = 0; i < of_graph.size(); ++i) {
      if (of_graph[i].counted == Counted::samples) counted[i] += of_graph[i].per_sample * static_cast<double>(samples);
      if (of_graph[i].counted == Counted::batches) counted[i] += static_cast<double>(samples);
    }
  }
  void add_labels(std::span<const double> labels) {
    for (size_t i = 0; i < losses.size(); ++i) counted[i] += labels[i];
  }
  // Of one batch of so many samples: what its graph says (`scalar`), and what its labels count.
  void add_losses(const std::vector<JobLoss>& of_graph, int64_t samples, std::span<const double> labels,
                  const std::function<float(ValueId)>& scalar) {
    for (size_t i = 0; i < of_graph.size(); ++i) {
      sums[i] += static_cast<double>(scalar(of_graph[i].sum)) * weight_of_sum(of_graph[i], samples);
      if (of_graph[i].count != kNone)
        require(scalar(of_graph[i].count) == static_cast<float>(labels[i]), "labels were counted differently");
    }
  }
  bool counts() const {
    return std::any_of(counted.begin(), counted.end(), [](double count) { return count > 0; });
  }
  double loss() const {
    double sum = 0;
    for (size_t i = 0; i < losses.size(); ++i) sum += counted[i] > 0 ? losses[i].weight * (sums[i] / counted[i]) : 0;
    return sum;
  }

  const std::vector<JobLoss>& losses;
  std::vector<double> sums, counted;  // by loss
};

}  // namespace ort_train
