// RunFolder: the output folder of one run (Options::output_dir): its lock, the checkpoints in it, and the new model. In go the state of the
// run and the tensors of its runtime; out come checkpoints, and model.onnx or an adapter's files. Files that other options name (logs,
// reports) are not its affair.
//
// It refers to the job and the start, which outlive it. One thread at a time.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "frontend/checkpoint.h"
#include "frontend/file.h"
#include "frontend/job.h"
#include "frontend/note.h"
#include "frontend/run_start.h"
#include "frontend/runtime.h"

namespace ort_train {

class RunFolder {
 public:
  RunFolder(const Job& job, const RunStart& start) : job_(job), options_(job.options), start_(start) {}

  const RunStart& start() const { return start_; }

  // --- the checkpoint that the run goes on from
  // Reads it into the runtime, whose memory is there: the tensors that the run changes, and from the model's file the others.
  Loaded load(Runtime& runtime, const Note& note);
  // Throws Error(usage) where another process has saved a newer one since.
  void check_newest() const;

  // --- training
  // Makes the folder, locks it, and removes what killed runs have left. Throws Error(usage) where another run has it, or this one would
  // replace what it may not.
  void open();
  void close() { lock_.reset(); }
  // Gives a run that doesn't go on with its checkpoint's own a number (RunState::run) above all that are in the folder, which is locked: a
  // call before train() may have read the weights while another process trained there.
  void number_run(RunState& state) const;
  // Removes checkpoints that the one it goes on from has superseded. Throws Error(io) where the disk has no room for what will be written.
  void make_room(const Runtime& runtime, const RunState& state) const;

  // --- saving
  // Somebody may have moved or removed the folder: then makes and locks a new one of that name. Returns a note for the user, or nothing.
  // Throws Error(io) where another run has saved there meanwhile.
  std::string reclaim(int64_t run);
  // Writes a checkpoint, and removes the oldest. `slots`: Runtime::fill_slots(), or null where it is to be written out. `kept`: as below.
  void save(const Runtime& runtime, StateFile* slots, const RunState& state, const KeptCheckpoints& kept);
  // What is kept beside a new checkpoint. `in_slots`: the run's checkpoints are in its state file.
  KeptCheckpoints kept(const RunState& state, bool in_slots, bool ends_run) const;
  // Whether a checkpoint was moved elsewhere or linked, though the run goes on writing to its state. A note for the user, once, or nothing.
  std::string note_links(const StateFile* slots);
  const std::string& last_checkpoint() const { return last_checkpoint_; }  // the last that was saved or read; empty: none

  // --- the checkpoint of the lowest held-out loss (HeldOutState::best_step)
  // Whether the run has it here, as files that no later step overwrites.
  bool has_best(const Runtime& runtime, const RunState& state) const;
  void load_best(const Runtime& runtime, const RunState& state) const;

  // --- the result
  // Writes the trained model, or with Options::adapter_only the adapter alone; returns its path.
  std::string write_model(const Runtime& runtime) const;

 private:
  void check_replaced() const;
  void check_space(const Runtime& runtime, const RunState& state) const;

  const Job& job_;
  const Options& options_;
  const RunStart& start_;
  std::optional<FolderLock> lock_;  // while the run trains
  std::string last_checkpoint_;
  bool has_noted_links_ = false;
};

}  // namespace ort_train
