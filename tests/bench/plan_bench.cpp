// Plans dumped problems (`ort-train plan … --dump-problem F.json`) without model or machine, and says how far each plan is above the lower
// bound; with --print in front of them, prints problem and plan, too. Without files, in the project's folder: those in tests/problems.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "graph/error.h"
#include "passes/plan/behind.h"
#include "tests/print_plan.h"
#include "tests/problem_file.h"

namespace ort_train::planning {
namespace {

// A plan for each memory.
void plan_all_memories(const std::string& name, const Problem& problem) {
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<Layers> layers = plan_layers(problem);
  if (!layers) throw error(ErrorCode::data, "{}: its memories are too small", name);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(R"({{"problem": "{}", "bound_s": {:.6g}, "plan_s": {:.6g}, "above_percent": {:.2f}, "bound_took_s": 0, "took_s": {:.2f}}})"
             "\n",
             name, layers->bound, layers->seconds, 100 * (layers->seconds / layers->bound - 1), took);
}

void plan_file(const std::string& path, bool prints) {
  const Problem problem = read_problem(path);
  const std::string name = std::filesystem::path(path).stem().stem().string();
  if (!problem.behind.empty()) return plan_all_memories(name, problem);
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  const int64_t floor = floor_bytes(problem);
  if (problem.memory < floor) throw error(ErrorCode::data, "{}: {} bytes hold less than the {} of one step", path, problem.memory, floor);
  Search search(problem);
  const double bound_took = since();
  const std::optional<Plan> found = search.best();
  const Plan plan = found ? *found : least_plan(problem);
  const double took = since();
  // No plan is faster than the bound, but for rounding.
  if (plan.seconds < search.bound() * (1 - 1e-6))
    throw error(ErrorCode::device, "{}: a plan of {} s is below the bound {} s", path, plan.seconds, search.bound());
  if (prints) {
    fmt::print("{}", print(problem));
    for (size_t r = 0; r < problem.runs.size(); ++r) fmt::print("run '{}'\n{}", problem.runs[r].name, print(problem.runs[r], plan.runs[r]));
  }
  size_t steps = 0;
  for (const Run& run : problem.runs) steps += run.steps();
  fmt::print(
      R"({{"problem": "{}", "steps": {}, "bound_s": {:.6g}, "plan_s": {:.6g}, "above_percent": {:.2f}, "bound_took_s": {:.2f}, "took_s": {:.2f}}})"
      "\n",
      name, steps, search.bound(), plan.seconds, 100 * (plan.seconds / search.bound() - 1), bound_took, took);
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
