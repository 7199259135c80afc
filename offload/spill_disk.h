// SpillDisk: the disk of an executor, through a DiskEngine: a SpillFile for what ends with the run and, where there is one, a StateFile for
// what outlives it.
//
// What was written is checked when it is read back; what was never written reads as zeros. One thread at a time.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/disk.h"
#include "offload/disk_engine.h"
#include "offload/spill_file.h"
#include "offload/state_file.h"

namespace ort_train {

struct SpillOptions {
  std::string folder;
  DiskOptions engine;
  Direct direct = Direct::automatic;
  bool checksums = true;
};

// Tensors of the state file that the program's transfers move, at the front of its disk.
struct StateHome {
  int64_t offset = 0;  // in the program's disk
  std::string name;    // in the state file
};

class SpillDisk : public Disk {
 public:
  // Takes the space. Throws what SpillFile throws.
  SpillDisk(const SpillOptions& options, int64_t bytes);
  // `bytes` is the program's disk, of which the first `state_bytes` are the homes'.
  SpillDisk(const SpillOptions& options, int64_t bytes, int64_t state_bytes, std::unique_ptr<StateFile> state,
            const std::vector<StateHome>& homes);

  int64_t read(int64_t offset, std::byte* to, int64_t bytes) override;
  int64_t write(int64_t offset, const std::byte* from, int64_t bytes) override;
  void wait(int64_t ticket) override;
  void drain() noexcept override;

  // Null where the job has none.
  StateFile* state() { return state_.get(); }
  // Brings a tensor that lives in memory to the state file, by way of `staging`: whole blocks, aligned; good to use again after finish().
  void write_state(const std::string& name, std::span<const std::byte> bytes, std::span<std::byte> staging);
  // Until everything is on its file. Throws Error(io) if anything failed.
  void finish();

  // What the user should know, one sentence a line; mostly empty.
  std::string note() const;
  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }
  int64_t pinned_bytes() const { return engine_.pinned_bytes(); }
  // As the engine's; tickets are those of read() and write().
  void record(bool on) { engine_.record(on); }
  std::vector<TransferRecord> take_records() { return engine_.take_records(); }

 private:
  const bool checksums_;
  const int64_t state_bytes_ = 0;
  std::unique_ptr<StateFile> state_;
  std::unordered_map<int64_t, size_t> homes_;  // offset -> number in the state file
  SpillFile file_;
  // Checksums of the spill file's transfers, by offset; transfers of one offset have one size. The engine writes to them until its last
  // block is done, as to the state file's.
  std::unordered_map<int64_t, uint64_t> sums_;
  DiskEngine engine_;          // the last member that a transfer touches: it ends first
  DiskTicket staged_[2] = {};  // transfers of the staging memory's halves
  size_t half_ = 0;            // that is used next
  int64_t bytes_read_ = 0, bytes_written_ = 0;
};

}  // namespace ort_train
