#include "offload/spill_disk.h"

namespace ort_train {

SpillDisk::SpillDisk(const SpillOptions& options, int64_t bytes)
    : checksums_(options.checksums), file_(options.folder, bytes, options.direct), engine_(options.engine) {}

int64_t SpillDisk::read(int64_t offset, std::byte* to, int64_t bytes) {
  bytes_read_ += bytes;
  const auto sum = sums_.find(offset);
  return static_cast<int64_t>(engine_.submit({.write = false,
                                              .file = &file_.file(),
                                              .offset = offset,
                                              .data = to,
                                              .bytes = bytes,
                                              .checksum = sum == sums_.end() ? nullptr : &sum->second}));
}

int64_t SpillDisk::write(int64_t offset, const std::byte* from, int64_t bytes) {
  bytes_written_ += bytes;
  return static_cast<int64_t>(engine_.submit({.write = true,
                                              .file = &file_.file(),
                                              .offset = offset,
                                              .data = const_cast<std::byte*>(from),  // a write only reads it
                                              .bytes = bytes,
                                              .checksum = checksums_ ? &sums_[offset] : nullptr}));
}

void SpillDisk::wait(int64_t ticket) { engine_.wait(static_cast<DiskTicket>(ticket)); }

void SpillDisk::drain() noexcept {
  try {
    engine_.drain();
  } catch (...) {  // whoever waits for the transfer that failed is told
  }
}

std::string SpillDisk::note() const {
  std::string text = file_.note();
  if (!engine_.note().empty()) text += (text.empty() ? "" : "\n") + engine_.note();
  return text;
}

}  // namespace ort_train
