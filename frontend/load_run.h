// How a run comes into memory: its weights from the model's file, or with the optimizer's state from the checkpoint that it goes on from.

#pragma once

#include "frontend/job.h"
#include "frontend/note.h"
#include "frontend/run_folder.h"
#include "frontend/runtime.h"

namespace ort_train {

// Opens the files on the disk and fills the runtime's tensors; returns where the run begins (RunFolder::number_run() is yet to come). Notes
// what makes the run differ from an uninterrupted one: other data or settings than its checkpoint's. Throws Error: data, io, corrupt,
// usage.
RunState load_run(const Job& job, RunFolder& folder, Runtime& runtime, const Note& note);

}  // namespace ort_train
