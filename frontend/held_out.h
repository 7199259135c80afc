// HeldOutState: what a run has seen of its held-out data, and what it still has to look at. It belongs to the state of a run: one that is
// resumed ends early, and finds the same best step, where an uninterrupted one does.

#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace ort_train {

struct HeldOutState {
  std::optional<double> best{};    // the lowest loss of those whose weights may be the result; none: no finite one yet
  int64_t best_step = 0;           // after which it was
  std::optional<double> lowest{};  // of all that were seen, whether or not the weights could be saved
  int64_t without_better = 0;      // evaluations since the last one that was better by more than the threshold
  bool is_due = false;             // the evaluation after the last step is still to be made
  std::string log_line{};          // the log's line of that step, to which it adds its loss

  // Takes note of a loss, as transformers' EarlyStoppingCallback and Trainer do: each is compared with the lowest of all before it, also
  // where that one wasn't lower than its predecessor by the threshold.
  void observe(int64_t step, double loss, double threshold) {
    const bool is_lowest = is_below(loss, lowest);
    without_better = is_lowest && (!lowest || *lowest - loss > threshold) ? 0 : without_better + 1;
    if (is_lowest) lowest = loss;
    if (!is_below(loss, best)) return;
    best = loss;
    best_step = step;
  }

  static bool is_below(double loss, const std::optional<double>& other) { return std::isfinite(loss) && (!other || loss < *other); }
};

}  // namespace ort_train
