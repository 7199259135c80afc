// DiskFile: an open file for a DiskEngine, with direct I/O (past the page cache) where the file system has it.
//
// May be used by any number of threads; it outlives the requests that name it.

#pragma once

#include <cstdint>
#include <string>

#include "offload/file_system.h"

namespace ort_train {

// What offsets, sizes and addresses of direct I/O are multiples of: enough for every drive and file system in use.
inline constexpr int64_t kDiskAlignment = 4096;

enum class Direct {
  automatic,  // where the file system has it
  on,         // or Error(io)
  off,        // through the page cache, which takes any offset, size and address
};

class DiskFile {
 public:
  static DiskFile open(std::string path, Direct direct = Direct::off);  // for reading; a regular file
  DiskFile(File file, Direct direct);

  // For all but transfers: those of an engine may need alignment.
  File& file() { return file_; }
  const File& file() const { return file_; }
  const std::string& path() const { return file_.path(); }
  int descriptor() const { return file_.descriptor(); }
  bool direct() const { return direct_; }
  // Where direct I/O was wanted and refused: a sentence that says so. Otherwise empty.
  const std::string& note() const { return note_; }

  // Reads the first block: some file systems refuse direct I/O only then. For a file that has just got its size.
  void probe(Direct direct);

 private:
  void refuse(Direct direct, int code);

  File file_;
  bool direct_ = false;
  std::string note_;
};

}  // namespace ort_train
