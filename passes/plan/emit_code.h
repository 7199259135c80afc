// emit_code: the instructions of an entry, by its plan, in their order and without places: computing steps, and the copies among them.

#pragma once

#include <cstdint>
#include <vector>

#include "passes/plan/emit.h"

namespace ort_train {

inline constexpr SpaceId kSpaceOfLevel[] = {kMemory, kHost};  // by level: a memory of the plan, the nearest first

inline const std::vector<planning::Stay>& stays_of(const EntryPlan& plan, size_t level) { return plan.levels[level].plan->stays; }
// The store of a level: the next memory, or the file.
inline SpaceId store_of(const EntryPlan& plan, size_t level) { return level + 1 < plan.levels.size() ? kSpaceOfLevel[level + 1] : kFile; }
inline size_t level_of_step(const EntryPlan& plan, int32_t step) { return plan.run_draft->backing[static_cast<size_t>(step)] ? 1 : 0; }

struct EntryCode {
  std::vector<Instruction> code{};
  std::vector<int32_t> step_at{};                           // the instruction of each step
  std::vector<std::vector<int32_t>> read_at{}, write_at{};  // by level and stay: that of its copy; -1: none
  std::vector<int32_t> fed_at{};  // by buffer: that of the copy which brings an input, fed to the host's memory; -1: none
};
EntryCode lay_code(const Draft& draft, const EntryPlan& plan, const std::vector<Queue>& queues);

}  // namespace ort_train
