// Options::detect_anomaly: ends a run at the first node that makes NaN or infinities of finite numbers.
//
// With loss scaling, such a node of the backward pass ends nothing: the step is skipped, and what was found is there to tell.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "exec/anomaly.h"
#include "exec/executor.h"

namespace ort_train {

class AnomalyWatch : public NodeWatch {
 public:
  AnomalyWatch(const std::vector<const Graph*>& graphs, bool loss_scaling);

  // What runs now, for the sentence: "step 3".
  void set_place(std::string place) { place_ = std::move(place); }
  // What was found first since the last call and didn't end the run; empty where nothing was.
  std::string take() { return std::exchange(kept_, {}); }

  void begin(size_t entry) override { detectors_[entry].begin(); }
  void before(size_t entry, NodeId node, std::span<const void* const> inputs) override;
  void behind(size_t entry, NodeId node, std::span<void* const> outputs) override;

 private:
  void report(size_t entry, NodeId node, std::string found);

  std::vector<const Graph*> graphs_;
  std::vector<AnomalyDetector> detectors_;
  const bool loss_scaling_;
  std::string place_, kept_;
};

}  // namespace ort_train
