// PlanningRoom: the memory for planning itself. The arena isn't there while plans are made, so its bytes are what planning may take, beside
// the reserve.

#pragma once

#include <cstdint>
#include <functional>

namespace ort_train {

// The bytes of a budget that aren't the arena's, by the number of the program's instructions.
using Reserve = std::function<int64_t(int64_t instructions)>;

// Bytes of graphs with `instructions` instructions.
inline int64_t graph_bytes(const Reserve& reserve, int64_t instructions) { return reserve(instructions) - reserve(0); }

struct PlanningRoom {
  int64_t bytes = 0;
  bool for_several = false;  // several candidates, with their planners, may be kept at a time
  bool for_two = false;      // two may be planned at once

  // `instructions`: of the plan with everything in memory.
  PlanningRoom(int64_t budget, const Reserve& reserve, int64_t instructions, int threads) : bytes(budget - reserve(instructions)) {
    // A candidate with its search takes about twice the job's graphs. GPT-2-XL's took 12 times 15 MB together; the rest is headroom.
    constexpr int64_t kGraphs = 32;
    for_several = bytes >= kGraphs * graph_bytes(reserve, instructions);
    for_two = for_several && threads > 1;
  }
};

}  // namespace ort_train
