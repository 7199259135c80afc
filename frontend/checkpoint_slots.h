// What the checkpoint of a streamed run has in place of tensor files: the table of a state file's slots (offload/state_file.h) in its
// manifest and, where both lie on one file system, a name of that file.

#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "frontend/checkpoint.h"
#include "offload/state_file.h"

namespace ort_train {

nlohmann::json slots_to_json(const SlotTable& table, const CheckpointContent& content);
// Throws Error(corrupt), or nlohmann's exceptions.
SlotTable slots_of(const nlohmann::json& json);

// Where the file is now: beside the manifest, where the table says, or in the folder `nvme_path` (empty: there is none).
std::string find_state_file(const SlotTable& table, const std::string& checkpoint, const std::string& nvme_path);

// Reads every tensor from the state file at `path`, or checks it where it is to stay there. Throws Error(corrupt).
void read_slots(const std::string& path, const SlotTable& table, const nlohmann::json& json, const nlohmann::json& parts,
                const CheckpointContent& content, bool in_place);

// Whether a checkpoint in that folder refers to a state file, or may do so and can't be read.
bool refers_to_state(const std::string& output_dir, const std::string& id);

// Removes the state file if no checkpoint refers to it any more and no run uses it.
void release_state(const std::string& output_dir, const SlotTable& table);

}  // namespace ort_train
