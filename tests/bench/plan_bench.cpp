// Plans dumped problems (`ort-train plan … --dump-problem F.json`) by one forward pass (passes/plan/assign.h), and says how far each plan
// is above the lower bound. Without arguments, in the project's folder: the problems in tests/problems, whose README has the figures of the
// planner in use.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>

#include "graph/error.h"
#include "passes/plan/assign.h"
#include "passes/stream_bound.h"
#include "passes/stream_hold.h"

namespace ort_train::planning {
namespace {

std::vector<StreamEntry> entries_of(const Problem& problem) {
  std::vector<StreamEntry> entries;
  for (const Run& run : problem.runs) {
    StreamEntry entry{
        .pieces = {}, .fixed = std::vector<int64_t>(run.steps(), problem.always), .seconds = run.seconds, .weight = run.weight};
    for (const Block& block : run.blocks) {
      for (int32_t t = block.first; t <= block.last; ++t) entry.fixed[static_cast<size_t>(t)] += block.bytes;
    }
    for (const Piece& piece : run.pieces) {
      entry.pieces.push_back({.bytes = piece.bytes, .uses = piece.uses, .persistent = piece.lasting});
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<Stay> stays_of(const StreamEntry& entry, size_t number, const Holder& holder) {
  std::vector<Stay> stays;
  for (uint32_t p = 0; p < entry.pieces.size(); ++p) {
    const StreamPiece& piece = entry.pieces[p];
    if (holder.is_resident(piece)) continue;
    bool changed = false;
    for (size_t u = 0; u < piece.uses.size(); ++u) {
      Stay stay{.piece = p, .first = piece.uses[u].step, .last = piece.uses[u].step};
      stay.reads = piece.uses[u].reads && (u > 0 || piece.persistent >= 0);
      changed |= piece.uses[u].changes;
      while (u + 1 < piece.uses.size() && (holder.held(number, p, u) || piece.uses[u + 1].step == piece.uses[u].step + 1)) {
        stay.last = piece.uses[++u].step;
        changed |= piece.uses[u].changes;
      }
      stay.writes = changed && (u + 1 < piece.uses.size() ? piece.uses[u + 1].reads : piece.persistent >= 0);
      if (stay.writes) changed = false;
      stays.push_back(stay);
    }
  }
  std::stable_sort(stays.begin(), stays.end(), [](const Stay& a, const Stay& b) { return a.first < b.first; });
  return stays;
}

// Of an optimizer step: the least that passes with some eagernesses take.
double fastest(const Problem& problem, const std::vector<Cores>& cores) {
  constexpr double kEarly[] = {0.03, 0.12, 0.25, 0.5, 1};  // of the time in which all of the memory could be read
  constexpr double kQueued[] = {1, 0.1, 0.02, 0};          // of the run's time
  double least = std::numeric_limits<double>::infinity();
  for (const double early : kEarly) {
    for (const double queued : kQueued) {
      double seconds = 0;
      for (size_t r = 0; r < problem.runs.size(); ++r) {
        const Run& run = problem.runs[r];
        if (run.weight < kRarely) continue;
        const double computing = std::accumulate(run.seconds.begin(), run.seconds.end(), 0.0);
        const Eagerness eagerness{.queued = queued * computing, .early = early * static_cast<double>(problem.memory) / problem.disk.read};
        seconds += run.weight * cores[r].assign(run, problem.disk, eagerness).seconds;
      }
      least = std::min(least, seconds);
    }
  }
  return least;
}

void plan_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const Problem problem = problem_from_json(text.str());
  const std::vector<StreamEntry> entries = entries_of(problem);
  const StreamRates& disk = problem.disk;
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  const int64_t floor = stream_floor(entries);
  if (problem.memory < floor) throw error(ErrorCode::data, "{}: {} bytes hold less than the {} of one step", path, problem.memory, floor);
  StreamBound bound(entries, problem.lasting.size(), problem.memory, disk, std::numeric_limits<double>::infinity());
  const double bound_took = since();
  Holder holder(entries, problem.lasting.size(), problem.memory, disk);
  double least = std::numeric_limits<double>::infinity();
  size_t steps = 0;
  for (const Run& run : problem.runs) steps += run.steps();
  for (const double like : {0.06, 0.0, 0.22}) {
    if (!bound.settle(static_cast<int64_t>(like * static_cast<double>(problem.memory - floor)))) continue;
    const HoldOrder order = holder.like(bound);
    for (const double free : {0.0, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6, 0.8, 1.0}) {
      holder.choose(order, problem.memory, static_cast<int64_t>(free * static_cast<double>(problem.memory - floor)));
      int64_t resident = problem.always;
      for (size_t i = 0; i < problem.lasting.size(); ++i) resident += holder.resident()[i] ? problem.lasting[i].bytes : 0;
      std::vector<Cores> cores;
      for (size_t r = 0; r < problem.runs.size() && cores.size() == r; ++r) {
        std::optional<Cores> placed = Cores::place(problem.runs[r], stays_of(entries[r], r, holder), problem.memory - resident, disk);
        if (placed) cores.push_back(std::move(*placed));
      }
      if (cores.size() == problem.runs.size()) least = std::min(least, fastest(problem, cores));
    }
  }
  // No plan is faster than the bound, but for rounding.
  if (least < bound.seconds() * (1 - 1e-6))
    throw error(ErrorCode::device, "{}: a plan of {} s is below the bound {} s", path, least, bound.seconds());
  fmt::print(
      R"({{"problem": "{}", "steps": {}, "bound_s": {:.6g}, "plan_s": {:.6g}, "above_percent": {:.2f}, "bound_took_s": {:.2f}, "took_s": {:.2f}}})"
      "\n",
      std::filesystem::path(path).stem().string(), steps, bound.seconds(), least, 100 * (least / bound.seconds() - 1), bound_took, since());
}

}  // namespace
}  // namespace ort_train::planning

int main(int argc, char** argv) {
  std::vector<std::string> paths(argv + 1, argv + argc);
  if (paths.empty()) {
    for (const auto& file : std::filesystem::directory_iterator("tests/problems")) {
      if (file.path().extension() == ".json") paths.push_back(file.path());
    }
    std::sort(paths.begin(), paths.end());
  }
  try {
    for (const std::string& path : paths) ort_train::planning::plan_file(path);
  } catch (const std::exception& problem) {
    std::fputs(fmt::format("{}\n", problem.what()).c_str(), stderr);
    return 1;
  }
}
