#include "exec/algorithms.h"

#include "graph/error.h"

namespace ort_train {

std::optional<std::string> AlgorithmTable::find(const std::string& problem) const {
  const std::lock_guard lock(mutex_);
  const auto found = chosen_.find(problem);
  return found == chosen_.end() ? std::nullopt : std::optional(found->second);
}

std::string AlgorithmTable::choose(const std::string& problem, const std::string& algorithm) {
  const std::lock_guard lock(mutex_);
  return chosen_.emplace(problem, algorithm).first->second;
}

void AlgorithmTable::restore(const Algorithms& saved) {
  const std::lock_guard lock(mutex_);
  for (const auto& [problem, algorithm] : saved) {
    const auto found = chosen_.find(problem);
    if (found != chosen_.end() && found->second != algorithm)
      throw error(
          ErrorCode::usage,
          "the run that is resumed computed {} by an algorithm ({}) other than this process does ({}): resume it in a process of its "
          "own",
          problem, algorithm, found->second);
  }
  chosen_.insert(saved.begin(), saved.end());
}

Error AlgorithmTable::refuse(const std::string& library, const std::string& problem) {
  const std::lock_guard lock(mutex_);
  const auto removed = chosen_.extract(problem);
  return error(ErrorCode::device,
               "the run that is resumed computed {} by an algorithm ({}) that {} doesn't have here: resume it with the GPU, the driver and "
               "the libraries with which it was saved",
               problem, removed.empty() ? "unknown" : removed.mapped(), library);
}

Algorithms AlgorithmTable::all() const {
  const std::lock_guard lock(mutex_);
  return chosen_;
}

}  // namespace ort_train
