// Checkpoints: OUTPUT_DIR/checkpoint-STEP with weights.safetensors, optimizer.safetensors and state.json.
//
// Written as .tmp-checkpoint-STEP: every file synced, then the manifest (state.json: run state, settings, a checksum of each tensor and of
// itself), then the folder, then renamed, then the parent synced. A folder of the right name is therefore whole, unless the disk broke it
// later, which the checksums show. Older ones are pruned only after that, never below two; one of that name (another run's) steps aside
// for the rename, and comes back where it fails. Tensors go from the arena to the file and back, without a copy; those that live on a disk
// by way of the arena.
//
// A streamed run's tensors stay where they are, in its state file (offload/state_file.h), whose current slots the manifest writes down in
// place of the two files. The next checkpoint's slots are those that this one leaves free, so only the last one is kept.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/types.h"
#include "offload/state_file.h"

namespace ort_train {

// Everything about a run that isn't a tensor.
struct RunState {
  int64_t run = 0;               // when it was begun, in nanoseconds: tells runs apart that share a folder
  int64_t step = 0;              // optimizer steps done
  int64_t epoch = 0, index = 0;  // the next sample: data cursor
  uint64_t seed = 0;
  int64_t tokens = 0;                             // trained on so far
  double seconds = 0;                             // of training, earlier pieces of the run included
  std::vector<double> first_losses, last_losses;  // at most 100 each
};

// A tensor that lives across steps.
struct StateTensor {
  std::string name;
  TensorType type;
  std::string whole{};  // where it is a part: of what; other runs of the model may have other parts
  int64_t offset = 0;   // the byte of the whole where it begins
  // Where it is in memory; one that lives on a disk is brought there first, unless it is about to be overwritten as a whole. Good until
  // another tensor is asked for.
  std::function<std::span<std::byte>(bool overwrite)> bytes;
  std::function<void()> changed;  // after what bytes() gave was written to
  bool on_disk = false;           // it lives in the run's state file
};

struct CheckpointContent {
  std::vector<StateTensor> weights, optimizer;
  std::string model;                            // hash of the parameters' names, types and order, whatever their parts
  std::map<std::string, std::string> settings;  // options that change numbers
  int64_t part_bytes = 0;                       // the size of parts that the weights are in
};

struct Loaded {
  RunState state;
  std::string path;
  std::map<std::string, std::string> settings;  // as they were when it was saved
};

using Note = std::function<void(const std::string&)>;

// Returns the new folder's path. Throws Error(io); what was saved before stays as it is. `slots`: where all tensors are already, in place
// of being written.
std::string save_checkpoint(const std::string& output_dir, const RunState& state, const CheckpointContent& content,
                            StateFile* slots = nullptr);

// Called before the tensors of a checkpoint are read, for what they are read into. Where they are in a state file, that is `table`'s, found
// at `path` (else null); true says that the run goes on with this file.
using BeforeLoad = std::function<bool(const SlotTable* table, const std::string& path)>;

// Loads the newest valid checkpoint into content's tensors. Those that aren't valid are skipped, with a note each. `nvme_path`: where else
// a state file may be. Throws Error(corrupt) where there are some and none is valid, Error(io) where the newest may be but can't be read,
// Error(usage) where there is none, or none of this model.
Loaded load_checkpoint(const std::string& output_dir, const CheckpointContent& content, const Note& note, const std::string& nvme_path = {},
                       const BeforeLoad& before = nullptr);

// "checkpoint-STEP" where the folder is a checkpoint's, or one that a killed run moved out of the way of what then never came; or empty.
std::string checkpoint_name(const std::string& folder);

// The size of parts of what is saved last there: a run that goes on with the same can do so in its state file. 0: nobody knows.
int64_t saved_part_bytes(const std::string& output_dir);

// Removes the checkpoints before `path` that refer to its state file: what a run that was killed before it came to that has left.
void remove_superseded(const std::string& output_dir, const std::string& path);

// Removes what a killed run has left of checkpoints that were on their way in or out, and puts back one that had stepped aside.
void remove_checkpoint_leftovers(const std::string& output_dir);

// Bytes that one checkpoint takes on disk, without a state file.
int64_t checkpoint_bytes(const CheckpointContent& content, bool in_slots = false);

}  // namespace ort_train
