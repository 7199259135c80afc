// Problems of the planner, as `--dump-problem` writes them; compressed by gzip or not.

#pragma once

#include <zlib.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "passes/plan/search.h"
#include "passes/problem_dump.h"

namespace ort_train::planning {

inline std::vector<Problem> read_problems(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  if (!file) throw error(ErrorCode::data, "{}: there is no such file", path);
  std::string text, some(size_t{1} << 16, '\0');
  for (int bytes = 0; (bytes = gzread(file, some.data(), static_cast<unsigned>(some.size()))) > 0;)
    text.append(some, 0, static_cast<size_t>(bytes));
  gzclose(file);
  return problems_from_json(text);
}

// The alternative whose plan is the fastest; none where the memory is too small for all of them.
struct Fastest {
  const Problem* problem = nullptr;
  Plan plan{};
  double bound = 0;
};
inline Fastest fastest_of(const std::vector<Problem>& alternatives) {
  Fastest fastest;
  for (const Problem& problem : alternatives) {
    if (problem.memory < floor_bytes(problem)) continue;
    Search search(problem);
    if (fastest.problem && search.bound() >= fastest.plan.seconds) continue;
    const std::optional<Plan> found = search.best();
    Plan plan = found ? *found : least_plan(problem);
    if (!fastest.problem || plan.seconds < fastest.plan.seconds) fastest = {&problem, std::move(plan), search.bound()};
  }
  return fastest;
}

}  // namespace ort_train::planning
