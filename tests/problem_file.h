// Problems of the planner, as `--dump-problem` writes them; compressed by gzip or not.

#pragma once

#include <zlib.h>

#include <string>
#include <vector>

#include "graph/error.h"
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

}  // namespace ort_train::planning
