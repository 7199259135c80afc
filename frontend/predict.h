// The forward pass alone: text from a character model, outputs for given inputs. Of jobs that have such an entry; no update waits.

#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "frontend/job.h"
#include "frontend/runtime.h"

namespace ort_train {

// As Trainer::sample().
struct Continuation {
  std::string prompt;
  int64_t length = 0;  // characters
  double temperature = 0;
  uint64_t seed = 0;
};
std::string sample_text(const Job& job, const EntrySet& set, Runtime& runtime, const Continuation& wanted, const std::atomic<bool>& stop);

// As Trainer::predict().
std::map<std::string, std::vector<float>> predict_batch(const Binding& binding, const EntrySet& set, Runtime& runtime,
                                                        const std::map<std::string, std::vector<int64_t>>& integers,
                                                        const std::map<std::string, std::vector<float>>& reals);

}  // namespace ort_train
