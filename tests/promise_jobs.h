// The jobs of the promises' matrix: models of every kind that the project trains, each with data and with the options of its plain run.

#pragma once

#include <string>
#include <vector>

#include "frontend/ort_train.h"
#include "tests/test_files.h"

namespace ort_train::fixtures {

struct PromiseJob {
  std::string name;
  Options options;  // of the plain run: no budget, no disk, one thread

  bool accumulates() const { return options.gradient_accumulation_steps > 1; }
};

// Writes models and data into `folder`, where they stay for as long as the jobs are used.
std::vector<PromiseJob> promise_jobs(const TestFolder& folder, const std::string& profile);

}  // namespace ort_train::fixtures
