// Folders of checkpoints: their names, which of them this project wrote, how they begin and end.
//
// Other tools use the same names: Hugging Face's Trainer saves in OUTPUT_DIR/checkpoint-500, too. A folder is ours only if it has our
// marker, the first file that we write into it, or a manifest (state.json) of our shape whose checksum is right. Whatever else has such a
// name is never loaded, renamed, replaced or removed; and of a folder of ours only the files that we wrote are removed.
//
//   checkpoint-N                a checkpoint, saved after optimizer step N
//   .tmp-checkpoint-N           one that is being written
//   .tmp-replaced-checkpoint-N  one that made room for a new one of the same step, until that one is complete
//   .tmp-old-checkpoint-N       one that is being removed
//
// Links are never followed: a link of such a name is not ours.

#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "graph/error.h"

namespace ort_train {

// The files of a checkpoint.
inline constexpr const char* kManifest = "state.json";
inline constexpr const char* kWeightsFile = "weights.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateLink = "state.bin";  // a hard link to the state file, where a streamed run has its tensors
inline constexpr const char* kMarkerFile = ".ort-train-checkpoint";
inline constexpr int64_t kManifestLimit = int64_t{256} << 20;

// What may stand before "checkpoint-N".
inline constexpr std::string_view kWritten = ".tmp-", kRemoved = ".tmp-old-", kReplaced = ".tmp-replaced-";

struct CheckpointFolder {
  int64_t step = 0;
  std::string path;
};

// Of a checkpoint that can't be believed: "PATH: WHY".
Error corrupt(const std::string& path, const std::string& why);

std::string checkpoint_path_of(const std::string& output_dir, int64_t step);
// The same folder's name with one of the prefixes.
std::string with_prefix(const std::string& path, std::string_view prefix);

// Whether anything has this name, a link that leads nowhere, too.
bool is_taken(const std::string& path);
// Whether we wrote this folder.
bool is_our_checkpoint(const std::string& folder);
// Ours, the largest step first. `replaced`: also those that made room for one that never came.
std::vector<CheckpointFolder> find_checkpoints(const std::string& output_dir, bool replaced = false);
// "checkpoint-N" for a folder of this name, and for one that made room for one that never came; else empty. Whose it is isn't asked.
std::string checkpoint_name(const std::string& folder);

// The body of a checkpoint's manifest. Throws Error(corrupt) where it is missing, damaged or of another format, Error(io) where it can't
// be read.
nlohmann::json read_manifest(const std::string& folder);
// Writes and syncs it, with its checksum.
void write_manifest(const std::string& folder, nlohmann::json body);

// Makes the folder, with our marker in it. Throws Error(io), also where something of that name is there.
void begin_folder(const std::string& folder);
// Removes what we wrote into a folder, and the folder itself unless somebody else's files are in it. False where a call failed: what is
// left keeps the marker that says whose it is, or is empty.
bool remove_our_files(const std::string& folder);

// Throws Error(usage) where a name that a run needs is taken by something that isn't ours, or by a folder of ours into which somebody has
// put files. A run that is stopped saves wherever it is, so it may need the names of all steps first..last.
void refuse_foreign_names(const std::string& output_dir, int64_t first, int64_t last);

// Whether that run (RunState::run) saved the checkpoint; one that is broken is nobody's.
bool is_of_run(const std::string& folder, int64_t run);
// How many checkpoints of that run are there, and the bytes of all others.
struct CheckpointsThere {
  int64_t own = 0, others_bytes = 0;
};
CheckpointsThere checkpoints_there(const std::string& output_dir, int64_t run);

// Leftovers of runs that were killed, by what has to be done with them: `lost` were being written or removed, `put_back` made room for a
// checkpoint that never came. Only ours, and empty folders.
struct CheckpointLeftovers {
  std::vector<std::string> lost, put_back;
};
CheckpointLeftovers find_leftovers(const std::string& output_dir);

}  // namespace ort_train
