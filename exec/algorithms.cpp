#include "exec/algorithms.h"

#include "graph/error.h"

namespace ort_train {

std::optional<std::string> AlgorithmTable::find(const std::string& computed) const {
  const std::lock_guard lock(mutex_);
  const auto found = chosen_.find(computed);
  return found == chosen_.end() ? std::nullopt : std::optional(found->second);
}

void AlgorithmTable::choose(const std::string& computed, const std::string& algorithm) {
  const std::lock_guard lock(mutex_);
  chosen_.emplace(computed, algorithm);
}

void AlgorithmTable::choose(const Algorithms& saved) {
  const std::lock_guard lock(mutex_);
  for (const auto& [computed, algorithm] : saved) {
    const auto found = chosen_.find(computed);
    if (found != chosen_.end() && found->second != algorithm)
      throw error(
          ErrorCode::usage,
          "the run that is resumed computed {} by an algorithm ({}) other than this process does ({}): resume it in a process of its "
          "own",
          computed, algorithm, found->second);
  }
  chosen_.insert(saved.begin(), saved.end());
}

Algorithms AlgorithmTable::all() const {
  const std::lock_guard lock(mutex_);
  return chosen_;
}

Error unknown_algorithm(const std::string& library, const std::string& computed, const std::string& algorithm) {
  return error(ErrorCode::device,
               "the run that is resumed computed {} by an algorithm ({}) that {} doesn't have here: resume it with the GPU, the driver and "
               "the libraries with which it was saved",
               computed, algorithm, library);
}

}  // namespace ort_train
