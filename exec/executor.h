// Executor: a dumb loop over a Program's instructions: it issues them to a device, and waits. It prepares every kernel when it is made, and
// decides nothing.
//
// It refers to the Program, the graphs, the device, the memory and the disk; all must outlive it. One thread at a time, but for `stop`.
// What lies where the host can't touch it is handed out as a copy, in a staging area of the program.

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "exec/device.h"
#include "exec/disk.h"
#include "exec/program.h"
#include "exec/run_trace.h"

namespace ort_train {

struct RunTimes {
  // By instruction: to compute a node, where the device is synchronous or time_work() was called; else to issue it; to begin a copy.
  std::vector<double> seconds;
  std::vector<TaskTimes> tasks{};  // by instruction, where time_work() was called and the device is synchronous; else empty
  double waiting = 0;              // seconds for copies of the file, and for work that these wait for
};

// Looks at what nodes read and make, right before and behind each. What it throws ends the run.
class NodeWatch {
 public:
  virtual ~NodeWatch() = default;
  virtual void begin(size_t entry) = 0;
  virtual void before(size_t entry, NodeId node, std::span<const void* const> inputs) = 0;
  virtual void behind(size_t entry, NodeId node, std::span<void* const> outputs) = 0;
};

class Executor {
 public:
  // Prepares all kernels of all entries; equal specs of one op share one. Throws what preparing a kernel throws, with its node named.
  Executor(const Program& program, std::vector<const Graph*> graphs, Device& device);
  ~Executor();

  size_t prepared_kernels() const;
  // Gives it memory, by space (null for the file's), from the device: copies constants to their places, makes optimizer state and
  // accumulators what they begin as; that of the disk, too, if it is fresh, so full of zeros. Before the first run. Throws Error(internal)
  // if any is smaller than the program's, or if the program needs a disk and has none. Before anything is filled in, a device that loads
  // its kernels late (Device::loads_late) runs them all, on whatever is there; behind that its memory is full of NaN.
  void attach(std::vector<Memory*> spaces, Disk* disk = nullptr, bool fresh = true);
  // … of a program with one space of memory.
  void attach(Memory& memory, Disk* disk = nullptr, bool fresh = true) { attach(std::vector<Memory*>{&memory}, disk, fresh); }

  // Where an entry's input is filled in. Throws Error(internal) for a value without a place.
  std::span<std::byte> input(size_t entry, ValueId value) const;
  // The bytes of a value that the entry, which ran last, keeps: good until the next call but for inputs. Throws Error(internal) as above.
  std::span<const std::byte> bytes(size_t entry, ValueId value);
  // The bytes of a persistent value that isn't a constant, by name; throws Error(internal) where there is none. One that the host can't
  // touch where it lives is first brought to a staging area, over what the last run left there (`area` 1: beside the one before): its bytes
  // are good until the next run or call for that area. Area 1 is for accumulators.
  std::span<std::byte> persistent(std::string_view name, int area = 0);
  // The same without bringing it there: its bytes are about to be written whole.
  std::span<std::byte> blank(std::string_view name);
  // The bytes that persistent() or blank() gave for that area have been changed: brings them to where they live.
  void changed(std::string_view name, int area = 0);
  // The host's memory that nothing lives in between runs, for a caller that copies: at most `most` bytes, whole sectors, aligned. What the
  // last run left there, or persistent() of the disk, is gone.
  std::span<std::byte> spare(int64_t most);

  // Runs an entry from first to last instruction; its inputs must have been filled since its last run, and it must be one that may follow
  // the last entry (may_run; else throws Error(internal)). `stop`, polled between instructions, abandons the run (returns false): state
  // that it had changed by then stays changed. Allocates nothing itself.
  bool run(size_t entry, const std::atomic<bool>* stop = nullptr);

  // The instruction at which the last run failed, as far as known: nothing after it has run. -1: none, or not known, as of a device that
  // isn't synchronous.
  int32_t failed() const;

  // Before the first run: times() is to tell what a device that isn't synchronous took for each node, not how long it was issued, and of
  // a synchronous one the tasks of each node. Runs may be slower, and allocate memory.
  void time_work();
  // From the next run on, this one watches; null: nobody. Only of a synchronous device, whose memory is the host's.
  void watch(NodeWatch* watch);
  // From the next run on, it is written there when what happened, which must stay until nobody is traced any more; null: nowhere. Only of a
  // synchronous device.
  void trace(RunTrace* trace);

  // The highest end of any place of the space that was written or read so far: what its memory really had to be.
  int64_t measured_peak_bytes(SpaceId space = kMemory) const;

  // Of an entry's last run.
  const RunTimes& times(size_t entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ort_train
