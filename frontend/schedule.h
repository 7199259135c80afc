// Learning-rate schedules: those of Hugging Face's Trainer (transformers/optimization.py), number for number.

#pragma once

#include <cstdint>
#include <string>

namespace ort_train {

struct Schedule {
  std::string type = "linear";  // linear | cosine | constant | constant_with_warmup
  double learning_rate = 5e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  // The learning rate of step t, counted from 1: learning_rate * lambda(t - 1).
  double at(int64_t step) const;
};

// Throws Error(usage) for an unknown type. `warmup` below 1 is a share of `total_steps`, rounded up.
Schedule make_schedule(const std::string& type, double learning_rate, double warmup, int64_t total_steps);

}  // namespace ort_train
