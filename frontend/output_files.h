// The files that runs leave in an output folder. A small file, .ort-train-model.json, remembers what was written, so that nothing else is
// ever overwritten.

#pragma once

#include <string>
#include <vector>

#include "offload/file_system.h"

namespace ort_train {

class OutputFiles {
 public:
  // `names`: relative to the folder. Throws Error(usage) where one is there that no run of ours wrote.
  OutputFiles(std::string folder, std::vector<std::string> names);

  // Puts the new files, one for each name, in their places, the last one first; a crash in between leaves only files that are ours.
  void publish(std::vector<NewFile>& written) const;

 private:
  const std::string folder_;
  const std::vector<std::string> names_;
};

}  // namespace ort_train
