// Device: what runs a Program's instructions: memory for its spaces, queues, copies, kernels, and how fast it is.
//
// The executor issues work in the order of a Program's list and waits for it; it decides nothing, and neither does a device. Work of one
// queue begins in the order in which it was issued, each when what it waits for is complete. Files are not a device's: the executor brings
// them (exec/disk.h) to and from the host's memory.
//
// A Device outlives what refers to it, but may end before the memory that it gave. One thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "exec/algorithms.h"
#include "exec/arena.h"
#include "exec/kernel.h"
#include "exec/program.h"

namespace ort_train {

// How fast a device computes, as measured (frontend/calibrate.h) or nominal. Steers plans, never results.
struct ComputeRates {
  double flops = 1e11;                 // of matrix products in float32, per second
  double half_flops = 0;               // of those of 16 bits; 0: as the processor's kernels say (Kernel::efficiency)
  double element_flops = 5e10;         // of exp, tanh, erf and the like
  double bytes_per_second = 1e10;      // of memory that is in the cache, in part
  double far_bytes_per_second = 1e10;  // of more memory than any cache holds
  double launch = 0;                   // seconds that a node takes at least; 0: what a processor's threads take
  bool operator==(const ComputeRates&) const = default;
};

// One instruction, ready to run: a node with its kernel, or a copy between two of the program's memories. What it points to stays until the
// work is complete.
struct Work {
  int32_t number = 0;  // of the instruction in its entry: counts up in a run
  QueueId queue = kCompute;
  SpaceKind where = SpaceKind::host;  // where it computes
  // Numbers of work that is complete before this begins; where the device is synchronous, of work in the background.
  std::span<const int32_t> waits{};
  bool background = false;            // on such a queue (Queue::background)
  const KernelRun* kernel = nullptr;  // null: a copy; of no bytes: nothing but a point in its queue
  std::span<const void* const> inputs{};
  std::span<void* const> outputs{};
  std::byte* workspace = nullptr;
  const std::byte* from = nullptr;  // of a copy
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // Memory for a space of that kind, all zeros. Throws Error(budget) where there isn't so much.
  virtual std::unique_ptr<Memory> allocate(SpaceKind kind, int64_t bytes) = 0;
  // How ops run where a queue computes in a space of that kind: the device's own kernels, or the host's. Null where nothing is computed.
  virtual const KernelTable* kernels(SpaceKind where) const = 0;

  // What is issued from here on is a run of that entry of the program.
  virtual void begin(size_t) {}
  virtual void issue(const Work& work) = 0;
  // Until the work of that number, in this run, is complete; until all of it is. Either throws what a kernel reported in its DataError, or
  // else went wrong; what hadn't begun by then is dropped. So does issue(), where the device is synchronous.
  virtual void wait(int32_t number) = 0;
  virtual void finish() = 0;
  // Before the first run: seconds() will tell what each work took that it has computed. Runs may be slower.
  virtual void time_work() {}
  // What the work of that number took in the run that has ended; 0: it isn't known.
  virtual double seconds(int32_t) const { return 0; }
  // Whether it is written down when work in the background is done: background_spans(), of a run that began since the last call.
  virtual void record_background(bool) {}
  virtual std::span<const AsideSpan> background_spans() const { return {}; }
  // The tasks of the work that was issued last, since time_work(); of a device whose work isn't tasks of threads none.
  virtual TaskTimes tasks() { return {}; }
  // Copies between the host's memory and a device's, or within one, at once; nothing runs then.
  virtual void transfer(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Sets bytes of the device's memory, likewise.
  virtual void fill(std::byte* at, std::byte value, int64_t bytes) = 0;

  // What the last bits of products of that 16-bit type depend on, besides the numbers; in float32 all devices agree.
  virtual std::string makes_products(DType type) const = 0;
  // By which algorithms its libraries make them; null: there is nothing to choose.
  virtual const AlgorithmTable* algorithms() const { return nullptr; }
  // Kernels take memory of the device when they are first run.
  virtual bool loads_late() const { return false; }
  // What the process takes of the memory of a device with its own, by the driver's count; 0: it can't be asked.
  virtual int64_t used_bytes() const { return 0; }

  // The workers that a kernel may find: those that workspaces are for.
  int threads() const { return threads_; }
  // Work is complete when issue() returns, but for what is on a queue in the background: nothing else needs waiting for.
  bool is_synchronous() const { return is_synchronous_; }
  // The number of the work that made issue(), wait() or finish() throw last.
  int32_t failed() const { return failed_; }

  ComputeRates rates{};  // nominal until somebody measures

 protected:
  Device(int threads, bool is_synchronous) : threads_(threads), is_synchronous_(is_synchronous) {}
  int32_t failed_ = -1;

 private:
  const int threads_;
  const bool is_synchronous_;
};

}  // namespace ort_train
