#include "passes/plan/problem.h"

#include <algorithm>
#include <numeric>

#include "exec/program.h"

namespace ort_train::planning {

std::vector<int64_t> used_bytes_by_step(const Problem& problem, const Run& run) {
  std::vector<int64_t> load(run.steps(), whole_sectors(problem.immovable));
  for (const Block& block : run.blocks) {
    for (int32_t t = block.first; t <= block.last; ++t) load[static_cast<size_t>(t)] += block.bytes;
  }
  for (const Piece& piece : run.pieces) {
    for (const Use& use : piece.uses) {
      for (int32_t t = use.step; t <= use.last(); ++t) load[static_cast<size_t>(t)] += piece.bytes;
    }
  }
  return load;
}

int64_t floor_bytes(const Problem& problem) {
  int64_t floor = 0;
  for (const Run& run : problem.runs) {
    for (const int64_t bytes : used_bytes_by_step(problem, run)) floor = std::max(floor, bytes);
  }
  return floor;
}

double computing(const Run& run) { return std::accumulate(run.seconds.begin(), run.seconds.end(), 0.0); }

}  // namespace ort_train::planning
