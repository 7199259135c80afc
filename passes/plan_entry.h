// make_entry: from a draft (and what stream.h decided of it) to an entry of a program: its instructions, transfers among them, with
// addresses.

#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "passes/pack.h"
#include "passes/plan_draft.h"
#include "passes/stream.h"

namespace ort_train {

// `persistents` have their places, which take the program's persistent bytes. `stream` and `visits`: null where everything is in memory.
// `packing`: with `enough` bytes of the arena. `placed`: one of the same storages, whose addresses it gets, or null: they are packed.
// Raises the bytes of the program's file to what it needs.
Entry make_entry(const Draft& draft, const std::vector<Persistent>& persistents, const StreamDraft* stream,
                 const std::vector<Visit>* visits, const PackOptions& packing, const Entry* placed, Program& program);

}  // namespace ort_train
