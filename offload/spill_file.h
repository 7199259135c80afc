// SpillFile: what of a run lies on the disk, in a folder that the user names (`nvme_path`), and ends with it. All its space is taken when
// it is made, and it is removed with the object.
//
// What a killed run left in the folder is removed when the next SpillFile is made there. Whoever deletes the file during the run only takes
// its name: the space stays until the object ends.
//
// Requests on file() may come from any thread; the rest belongs to one.

#pragma once

#include <cstdint>
#include <string>

#include "offload/disk_file.h"

namespace ort_train {

class SpillFile {
 public:
  // Throws Error(io) where the folder doesn't exist, can't be written to, or has no room for `bytes` (a multiple of kDiskAlignment).
  SpillFile(const std::string& folder, int64_t bytes, Direct direct = Direct::automatic);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  const DiskFile& file() const { return file_; }
  int64_t bytes() const { return bytes_; }
  // What the user should know: no direct I/O, space that could not be reserved, leftovers removed. One sentence a line; mostly empty.
  std::string note() const;

 private:
  int64_t bytes_;
  int64_t removed_ = 0;  // bytes of leftovers
  bool reserved_ = true;
  DiskFile file_;
};

}  // namespace ort_train
