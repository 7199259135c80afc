// Waits: what each instruction of an entry has to wait for: whatever touched the same bytes before it, where one of the two writes them.
//
// A queue that is ordered waits for itself. What an earlier instruction of a queue has waited for is complete for all later ones. Of copies
// each is waited for by itself: until then its places are taken.

#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace ort_train {

// What an instruction waits for or touches besides its operands.
struct WaitsBesides {
  std::vector<Place> writes{};     // places that it takes as a whole
  std::vector<int32_t> earlier{};  // instructions
};

// Sets Instruction::waits of all of an entry's code. `besides`: by instruction.
void add_waits(std::vector<Instruction>& code, const std::vector<Queue>& queues, const std::vector<WaitsBesides>& besides);

}  // namespace ort_train
