// Executor: a dumb loop over a Program's instructions. It prepares every kernel when it is made, and decides nothing.
//
// It refers to the Program, the graphs, the arena, the disk and the workers; all must outlive it. One thread at a time, but for `stop`.

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "exec/arena.h"
#include "exec/disk.h"
#include "exec/kernel.h"
#include "exec/program.h"

namespace ort_train {

struct RunTimes {
  std::vector<double> seconds;  // by instruction: of a node, to compute it; of a copy, to begin it
  double waiting = 0;           // seconds for copies, those that begin them included
};

class Executor {
 public:
  // Prepares all kernels of all entries; equal specs of one op share one. Throws what preparing a kernel throws, with its node named.
  Executor(const Program& program, std::vector<const Graph*> graphs, Workers& workers);
  ~Executor();

  size_t prepared_kernels() const;
  // Gives it its memory: copies constants to their places, zeroes optimizer state and accumulators. Before the first run.
  // Throws Error(device) if the arena is smaller than the program's, or if the program needs a disk (fresh, so full of zeros) and has none.
  void attach(Arena& arena, Disk* disk = nullptr);

  std::byte* at(const Place& place) const;
  // The bytes of a value in an entry; throws Error(device) for a value without a place.
  std::span<std::byte> bytes(size_t entry, ValueId value) const;
  // The bytes of a persistent value that isn't a constant, by name; throws Error(device) where there is none. One that lives on the disk is
  // first read into the arena, over what the last run left there (`desk` 1: beside the one before): its bytes are good until the next run
  // or call for that desk. Desk 1 is for accumulators.
  std::span<std::byte> persistent(std::string_view name, int desk = 0);
  // The same without reading it from the disk: its bytes are about to be written whole.
  std::span<std::byte> blank(std::string_view name);
  // The bytes that persistent() or blank() gave for that desk have been changed: brings them to the disk, where they live there.
  void changed(std::string_view name, int desk = 0);
  // Memory that nothing lives in between runs, for a caller that copies: at most `most` bytes, whole sectors, aligned. What the last run or
  // persistent() left there is gone.
  std::span<std::byte> spare(int64_t most);

  // Runs an entry from first to last instruction; its inputs must have been filled since its last run, and it must be one that may follow
  // the last entry (may_run; else throws Error(device)). `stop`, polled between
  // instructions, abandons the run (returns false): state that it had changed by then stays changed. Allocates nothing itself.
  bool run(size_t entry, const std::atomic<bool>* stop = nullptr);

  // The highest end of any place that was written or read so far: what the arena really had to be.
  int64_t measured_peak_bytes() const;

  // Of an entry's last run.
  const RunTimes& times(size_t entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ort_train
