// disk_folder: files of ours in the folder that the user names (`nvme_path`): how they get their names, their locks and their space,
// and which of them nobody needs any more.
//
// A live owner holds a lock (flock) on its file, a dead one does not. Thread-safe, and safe beside other processes in the same folder.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "offload/disk_file.h"

namespace ort_train {

inline constexpr std::string_view kSpillPrefix = "ort-train-spill-", kStatePrefix = "ort-train-state-";

// A new file PREFIXnumber with a lock on it. Throws Error(io) where the folder can't be used.
DiskFile create_disk_file(const std::string& folder, std::string_view prefix, Direct direct);

// Takes the space of the whole file. False where the file system can't reserve any. Throws Error(io), on a full disk with the free bytes.
bool reserve_space(DiskFile& file, const std::string& folder, int64_t bytes);

// What the user should know of a new file: no direct I/O, space that could not be reserved, bytes of leftovers that were removed. One
// sentence a line; mostly empty.
std::string note_of(const DiskFile& file, bool reserved, int64_t removed);

// Removes spill files whose owners are dead, and state files (state_file.h) of the dead to which no checkpoint refers; returns the bytes
// that they held. Touches nothing else.
int64_t remove_leftovers(const std::string& folder);

}  // namespace ort_train
