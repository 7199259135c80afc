// Rows of a linear program are made where a solution violates them most, some way from each other.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ort_train::planning {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnit = 1e6;        // bytes of a row of memory
constexpr double kTolerance = 3e-4;  // of a run's time, that a row of room may be violated

struct Stretch {  // between two moments
  double violation = 0;
  int32_t begin = 0, end = 0;
};

// Those that are violated most and don't meet; false if there are none.
template <typename Body> bool for_worst(std::vector<Stretch>& all, size_t most, Body&& body) {
  std::stable_sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) { return a.violation > b.violation; });
  std::vector<Stretch> done;
  for (const Stretch& stretch : all) {
    const auto meets = [&](const Stretch& other) { return stretch.begin < other.end && other.begin < stretch.end; };
    if (std::any_of(done.begin(), done.end(), meets)) continue;
    done.push_back(stretch);
    body(stretch);
    if (done.size() == most) break;
  }
  return !done.empty();
}

}  // namespace ort_train::planning
