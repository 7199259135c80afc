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
    file_.file().remove_name();
    throw;
  }
}

SpillFile::~SpillFile() { file_.file().remove_name(); }

std::string SpillFile::note() const { return note_of(file_, reserved_, removed_); }

}  // namespace ort_train
