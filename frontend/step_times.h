// StepTimes: what the steps of a call of train() took. In goes each step's time; out come the last, the mean and the median.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/calibration.h"

namespace ort_train {

struct StepTime {
  double seconds = 0;                       // the whole step
  double computing_ms = 0, waiting_ms = 0;  // parts of it
};

class StepTimes {
 public:
  StepTimes() { recent_ms_.reserve(kRecent); }

  void add(const StepTime& step) {
    last_ = step;
    sum_.seconds += step.seconds;
    sum_.computing_ms += step.computing_ms;
    sum_.waiting_ms += step.waiting_ms;
    if (recent_ms_.size() < kRecent)
      recent_ms_.push_back(step.seconds * 1e3);
    else
      recent_ms_[static_cast<size_t>(count_) % kRecent] = step.seconds * 1e3;
    ++count_;
  }

  const StepTime& last() const { return last_; }
  StepTime mean() const {  // zeros where there is none
    const auto steps = static_cast<double>(std::max<int64_t>(count_, 1));
    return {.seconds = sum_.seconds / steps, .computing_ms = sum_.computing_ms / steps, .waiting_ms = sum_.waiting_ms / steps};
  }
  int64_t count() const { return count_; }
  double median_milliseconds() const { return median(recent_ms_); }  // of the last 100

 private:
  static constexpr size_t kRecent = 100;
  StepTime last_, sum_;
  int64_t count_ = 0;
  std::vector<double> recent_ms_;  // a ring
};

}  // namespace ort_train
