// Staging areas: host memory in which tensors that the host can't address in place (on a disk or on a device) are looked at between runs.

#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "passes/plan/drafts.h"

namespace ort_train {

// Sets the program's staging areas and its spare memory, above what always lives in the host's memory, whose bytes it raises where they
// don't do. An accumulator gets a second area.
void add_staging(const std::vector<Draft>& drafts, const std::vector<Persistent>& values, Program& program);

// Bytes of the host's memory beside a device that this takes at most.
int64_t most_staging_bytes(const JobDraft& job);

}  // namespace ort_train
