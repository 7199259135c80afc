#include "offload/file_range.h"

#include "graph/error.h"

namespace ort_train {

File open_range(const FileRange& range) { return range.root.empty() ? File::open(range.path) : File::open_beneath(range.path, range.root); }

void read_range(const FileRange& range, std::span<std::byte> to) {
  require(range.offset >= 0 && range.bytes >= 0 && static_cast<uint64_t>(range.bytes) == to.size(),
          "a file range is as long as its buffer");
  open_range(range).read(range.offset, to);
}

}  // namespace ort_train
