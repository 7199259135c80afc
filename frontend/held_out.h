// HeldOutState: what a run has seen of its held-out data, and what it still has to look at. It belongs to the state of a run: one that is
// resumed ends early, and finds the same best step, where an uninterrupted one does.

#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace ort_train {

struct HeldOutState {
  std::optional<double> best{};  // the lowest loss; none: no finite one yet
  int64_t best_step = 0;         // after which it was
  int64_t without_better = 0;    // evaluations since the last one that was better by more than the threshold
  bool is_due = false;           // the evaluation after the last step is still to be made
  std::string log_line{};        // the log's line of that step, to which it adds its loss

  // Takes note of a loss, as transformers' EarlyStoppingCallback and Trainer do: each is compared with the lowest of all before it, also
  // where that one wasn't lower than its predecessor by the threshold.
  void observe(int64_t step, double loss, double threshold) {
    const bool is_lower = std::isfinite(loss) && (!best || loss < *best);
    without_better = is_lower && (!best || *best - loss > threshold) ? 0 : without_better + 1;
    if (!is_lower) return;
    best = loss;
    best_step = step;
  }
};

}  // namespace ort_train
