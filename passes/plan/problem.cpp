#include "passes/plan/problem.h"

#include <algorithm>
#include <numeric>

#include "exec/program.h"

namespace ort_train::planning {

std::vector<int64_t> fixed_load(const Problem& problem, const Run& run) {
  std::vector<int64_t> load(run.steps(), whole_sectors(problem.always));
  for (const Block& block : run.blocks) {
    for (int32_t t = block.first; t <= block.last; ++t) load[static_cast<size_t>(t)] += block.bytes;
  }
  return load;
}

std::vector<int64_t> least_load(const Problem& problem, const Run& run) {
  std::vector<int64_t> load = fixed_load(problem, run);
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
    for (const int64_t bytes : least_load(problem, run)) floor = std::max(floor, bytes);
  }
  return floor;
}

double step_seconds(const Problem& problem, const std::vector<double>& seconds) {
  double sum = 0;
  for (size_t r = 0; r < problem.runs.size(); ++r) sum += problem.runs[r].weight < kRarely ? 0 : problem.runs[r].weight * seconds[r];
  return sum;
}

double computing(const Run& run) { return std::accumulate(run.seconds.begin(), run.seconds.end(), 0.0); }

}  // namespace ort_train::planning
