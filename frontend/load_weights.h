// Loading a job's weights into the memory of a runtime: from the model's files, as they are there, in another type or in blocks; or as the
// numbers that fresh ones begin with.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontend/job.h"

namespace ort_train {

class Runtime;

class WeightLoader {
 public:
  // Both outlive it.
  WeightLoader(Runtime& runtime, const Job& job) : runtime_(runtime), job_(job) {}

  // All weights, or those alone that the job doesn't change. Returns the checksums of these, by parameter. Throws Error: data, io.
  std::map<std::string, std::string> load(bool unchanged_alone);

 private:
  std::string load_weight(const Weight& weight, const std::vector<Slice>& slices);
  std::string load_blocks(const Weight& weight, const std::vector<Slice>& slices);
  void load_fresh(const Weight& weight, const std::vector<Slice>& slices);
  std::vector<double> squares_of(const Weight& weight, size_t axis) const;

  Runtime& runtime_;
  const Job& job_;
  struct {
    std::string of{};
    std::vector<double> sums{};
  } squares_;  // the last that load_fresh() asked for: two tensors are made of them
};

}  // namespace ort_train
