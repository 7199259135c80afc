// Plans dumped problems (`ort-train plan … --dump-problem F.json`) without model or machine, and says how far each plan is above the lower
// bound; with --print in front of them, prints problem and plan, too. Of a job's candidates it says this of the fastest. Without files,
// in the project's folder: those in tests/problems.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "graph/error.h"
#include "passes/plan/backing.h"
#include "tests/fastest_candidate.h"
#include "tests/print_plan.h"
#include "tests/problem_file.h"

namespace ort_train::planning {
namespace {

// A plan for each memory.
void plan_all_memories(const std::string& name, const Problem& problem) {
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<HierarchyPlan> levels = plan_hierarchy(problem);
  if (!levels) throw error(ErrorCode::data, "{}: its memories are too small", name);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(R"({{"problem": "{}", "bound_s": {:.6g}, "plan_s": {:.6g}, "above_percent": {:.2f}, "took_s": {:.2f}}})"
             "\n",
             name, levels->bound, levels->seconds, 100 * (levels->seconds / levels->bound - 1), took);
}

void plan_file(const std::string& path, bool prints) {
  const std::vector<Problem> candidates = read_problems(path);
  const std::string name = std::filesystem::path(path).stem().stem().string();
  if (!candidates[0].backing.empty()) return plan_all_memories(name, candidates[0]);
  const auto begin = std::chrono::steady_clock::now();
  const Fastest fastest = fastest_of(candidates);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!fastest.problem) throw error(ErrorCode::data, "{}: its memory is less than one step needs", path);
  const Problem& problem = *fastest.problem;
  const Plan& plan = fastest.plan;
  // No plan is faster than the bound, but for rounding.
  if (plan.seconds < fastest.bound * (1 - 1e-6))
    throw error(ErrorCode::device, "{}: a plan of {} s is below the bound {} s", path, plan.seconds, fastest.bound);
  if (prints) {
    fmt::print("{}", print(problem));
    for (size_t r = 0; r < problem.runs.size(); ++r) fmt::print("run '{}'\n{}", problem.runs[r].name, print(problem.runs[r], plan.runs[r]));
  }
  size_t steps = 0;
  for (const Run& run : problem.runs) steps += run.steps();
  fmt::print(
      R"({{"problem": "{}", "candidates": {}, "fastest": "{}", "steps": {}, "bound_s": {:.6g}, "plan_s": {:.6g}, "above_percent": {:.2f}, "took_s": {:.2f}}})"
      "\n",
      name, candidates.size(), problem.name, steps, fastest.bound, plan.seconds, 100 * (plan.seconds / fastest.bound - 1), took);
}

}  // namespace
}  // namespace ort_train::planning

int main(int argc, char** argv) {
  const bool prints = argc > 1 && std::string(argv[1]) == "--print";
  std::vector<std::string> paths(argv + (prints ? 2 : 1), argv + argc);
  if (paths.empty()) {
    for (const auto& file : std::filesystem::directory_iterator("tests/problems")) {
      if (file.path().extension() == ".gz") paths.push_back(file.path());
    }
    std::sort(paths.begin(), paths.end());
  }
  try {
    for (const std::string& path : paths) ort_train::planning::plan_file(path, prints);
  } catch (const std::exception& problem) {
    std::fputs(fmt::format("{}\n", problem.what()).c_str(), stderr);
    return 1;
  }
}
