// SpillDisk: the disk of an executor, on a SpillFile through a DiskEngine.
//
// What was written is checked when it is read back; what was never written reads as zeros. One thread at a time.

#pragma once

#include <string>
#include <unordered_map>

#include "exec/disk.h"
#include "offload/disk_engine.h"
#include "offload/spill_file.h"

namespace ort_train {

struct SpillOptions {
  std::string folder;
  DiskOptions engine;
  Direct direct = Direct::automatic;
  bool checksums = true;
};

class SpillDisk : public Disk {
 public:
  // Takes the space. Throws what SpillFile throws.
  SpillDisk(const SpillOptions& options, int64_t bytes);

  int64_t read(int64_t offset, std::byte* to, int64_t bytes) override;
  int64_t write(int64_t offset, const std::byte* from, int64_t bytes) override;
  void wait(int64_t ticket) override;
  void drain() noexcept override;

  // What the user should know, one sentence a line; mostly empty.
  std::string note() const;
  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }

 private:
  const bool checksums_;
  SpillFile file_;
  DiskEngine engine_;
  std::unordered_map<int64_t, uint64_t> sums_;  // by offset; transfers of one offset have one size
  int64_t bytes_read_ = 0, bytes_written_ = 0;
};

}  // namespace ort_train
