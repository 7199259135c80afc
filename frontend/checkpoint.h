// Checkpoints: what a run needs to go on where it was, in OUTPUT_DIR/checkpoint-STEP.
//
//   state.json                                 the manifest: step, data cursor, settings, a checksum of each tensor and of itself
//   weights.safetensors, optimizer.safetensors the tensors; or, in a streamed run,
//   state.bin                                  a link to its state file (offload/state_file.h), whose current slots the manifest lists
//   .ort-train-checkpoint                      says that this project wrote the folder (checkpoint_folder.h)
//
// Saving, in this order, so that a folder named checkpoint-STEP is always complete:
//   1. make .tmp-checkpoint-STEP, write and sync every file in it, the manifest last; sync the folder
//   2. rename it to checkpoint-STEP, sync the output folder. A checkpoint that has this name already (an earlier run's) is renamed
//      first, and gets its name back if step 2 fails
//   3. remove the oldest checkpoints, down to the number that is kept; never the one that is to be loaded at the end of the run
// Weights that the run doesn't change stay in the model's file; the manifest has their checksums, so that a run goes on with the same.
//
// A crash leaves at most a folder .tmp-*, which the next run removes. If the disk damages a checkpoint later, its checksums show it, and a
// run resumes from the one before.
//
// Tensors go from the arena to the file and back without a copy in memory. Those of a streamed run stay where they are: its state file has,
// for each tensor, one slot more than checkpoints are kept, so that the run never writes to a slot that a checkpoint refers to.
//
// One thread at a time, one run an output folder (FolderLock).

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/algorithms.h"
#include "frontend/held_out.h"
#include "frontend/loss_scaling.h"
#include "frontend/note.h"
#include "frontend/schedule.h"
#include "graph/types.h"
#include "offload/state_file.h"

namespace ort_train {

// Everything about a run that isn't a tensor.
struct RunState {
  int64_t run = 0;                                // next_run() when it was begun: tells runs apart that share a folder
  int64_t step = 0;                               // optimizer steps done, with skipped ones
  int64_t epoch = 0, index = 0;                   // the next sample: data cursor
  int64_t tokens = 0;                             // trained on so far
  double seconds = 0;                             // of training, earlier pieces of the run included
  std::vector<double> first_losses, last_losses;  // at most 100 each
  ScheduleState schedule{};
  LossScaleState loss_scale{};
  HeldOutState held_out{};

  // Updates made, with the one of that step: skipped ones don't count, neither for the optimizer nor for the schedule.
  int64_t update_of(int64_t of_step) const { return of_step - loss_scale.skipped; }
};

// A tensor that lives across steps.
struct StateTensor {
  std::string name;
  TensorType type;
  std::string owner{};  // optimizer state: the parameter, or the part of one, that it belongs to
  std::string whole{};  // where it is a part: of what; other runs of the model may have other parts
  int64_t offset = 0;   // the byte of the whole where it begins
  // Where it is in memory; one that lives on a disk is brought there first, unless it is about to be overwritten as a whole. Good until
  // another tensor is asked for.
  std::function<std::span<std::byte>(bool overwrite)> bytes;
  std::function<void()> changed;  // after what bytes() gave was written to
  bool on_disk = false;           // it lives in the run's state file
};

// The setting that says what Device::makes_products() says; of runs that make none of 16 bits there is none.
inline constexpr const char* kProductsSetting = "products";
// The setting that tells data from other data of the same name.
inline constexpr const char* kDataHashSetting = "data_hash";

struct CheckpointContent {
  std::vector<StateTensor> weights, optimizer;   // that the run changes
  std::map<std::string, std::string> unchanged;  // weights that stay as they are in the model's file: name -> checksum, 16 hex digits
  std::string model;                             // hash of the parameters' names, types and order, whatever their parts
  std::map<std::string, std::string> settings;   // options that change numbers
  Algorithms algorithms;                         // of the device's libraries, by which products of 16 bits are made
};

struct Loaded {
  RunState state;
  std::string path;
  std::map<std::string, std::string> settings;  // as they were when it was saved
};

// Which checkpoints stay when a run has saved another one.
struct KeptCheckpoints {
  size_t count = 2;       // of this run, the new one included
  int64_t best_step = 0;  // this one is among them, however old it is, and with the new one if that is another; 0: there is none
  bool ends_run = false;  // it is the run's last
};

// Writes a checkpoint and removes the oldest of this run that aren't kept; those of earlier runs go when this one has as many, or ends.
// Returns the new folder's path. Throws Error(io); what was saved before stays as it is. `slots`: the state file that holds all tensors
// already, with the slots for as many checkpoints as are kept; null: they are written out.
std::string save_checkpoint(const std::string& output_dir, const RunState& state, const CheckpointContent& content,
                            const KeptCheckpoints& kept, StateFile* slots = nullptr);

// What a run that begins now is called (RunState::run): the time in nanoseconds, or more where the folder has a run that is called so or
// later, be it that the clock was set back. So the largest number is always the run that was begun last.
int64_t next_run(const std::string& output_dir);

// Called before the tensors of the checkpoint in `folder` are read, for what they are read into and for content.unchanged. Where they are
// in a state file, that is `table`'s, found at `path` (else null); true says that the run goes on with this file.
using BeforeLoad = std::function<bool(const SlotTable* table, const std::string& path, const std::string& folder)>;

// Loads the newest valid checkpoint in output_dir into content's tensors, or `only`, the folder of one. Those that aren't valid are
// skipped, with a note each. `nvme_path`: where else a state file may be. Throws Error(corrupt) where there are some and none is valid,
// Error(io) where the newest may be but can't be read, Error(usage) where there is none, or none of this model.
Loaded load_checkpoint(const std::string& output_dir, const CheckpointContent& content, const Note& note, const std::string& nvme_path = {},
                       const BeforeLoad& before = nullptr, const std::string& only = {});

// Reads the checkpoint in `folder` into the content's tensors, which are those of the run that has saved it, at any moment of it. Throws
// Error(corrupt or io).
void reload_checkpoint(const std::string& folder, const RunState& of, const CheckpointContent& content, const std::string& nvme_path);
// Whether its tensors are in a state file, and in which (SlotTable::id; empty: in none, or it can't be read).
bool is_in_state_file(const std::string& folder);
std::string state_id(const std::string& folder);

// What the checkpoint in `folder` says of its run; none where it can't be read.
std::optional<RunState> saved_state(const std::string& folder);
// By which algorithms its run made products of 16 bits, if as Device::makes_products() says of this device; if not, an empty table. None
// where it can't be read.
std::optional<Algorithms> saved_algorithms(const std::string& folder, const std::string& makes_products);

// Paths of the checkpoints in output_dir that load_checkpoint() would take before `path`; all of them where `path` isn't there or empty.
std::vector<std::string> checkpoints_newer_than(const std::string& output_dir, const std::string& path);

// A run that goes on from `path` in its state file keeps the slots of `kept` checkpoints: of that one and of those before it that refer to
// the same file. The tables of the latter, the oldest first.
std::vector<SlotTable> tables_before(const std::string& output_dir, const std::string& path, size_t kept);
// Removes the others before `path` that refer to it: a run that was killed before it came to that has left them.
void remove_superseded(const std::string& output_dir, const std::string& path, size_t kept);

// Removes what killed runs have left of checkpoints that were being written or removed, and gives one that had made room its name back.
void remove_checkpoint_leftovers(const std::string& output_dir);

// Bytes that one checkpoint takes on disk, without a state file.
int64_t checkpoint_bytes(const CheckpointContent& content, bool in_slots = false);

// Free bytes that a run needs for checkpoints of `bytes` each. `kept`, `saves`: how many it keeps, and how many it will write. `own`: of
// these there already; `others`: bytes of earlier runs' checkpoints, which go when there are `kept` new ones. `last`: bytes that are
// written after the last checkpoint.
int64_t space_needed(int64_t bytes, int64_t kept, int64_t saves, int64_t own, int64_t others, int64_t last);

}  // namespace ort_train
