#include "offload/spill_file.h"

#include "graph/error.h"
#include "offload/disk_folder.h"

namespace ort_train {

SpillFile::SpillFile(const std::string& folder, int64_t bytes, Direct direct)
    : bytes_(bytes), removed_(remove_leftovers(folder)), file_(create_disk_file(folder, kSpillPrefix, direct)) {
  try {
    require(bytes >= 0 && bytes % kDiskAlignment == 0, "a spill file is made of whole blocks");
    reserved_ = reserve_space(file_, folder, bytes);
    file_.probe(direct);
  } catch (...) {
    remove_name(file_);
    throw;
  }
}

SpillFile::~SpillFile() { remove_name(file_); }

std::string SpillFile::note() const {
  std::string note = file_.note();
  const auto add = [&](const std::string& sentence) { note += (note.empty() ? "" : "\n") + sentence; };
  if (!reserved_)
    add(fmt::format("'{}': the file system can't reserve space, so a disk that fills up will show during the run", file_.path()));
  if (removed_ > 0) add(fmt::format("{} bytes that a killed run had left beside '{}' were removed", removed_, file_.path()));
  return note;
}

}  // namespace ort_train
