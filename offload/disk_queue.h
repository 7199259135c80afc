// DiskQueue: the books of a DiskEngine: requests outstanding, the blocks they are cut into, their completions and failures. DiskWorker:
// what carries the blocks out.
//
// The queue belongs to the engine, outlives its worker, and is locked within; a block belongs to the worker from take() to finish().

#pragma once

#include <condition_variable>
#include <csignal>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/error_type.h"
#include "offload/disk_engine.h"

namespace ort_train {

struct DiskBlock {
  size_t slot = 0;  // of the request
  int descriptor = -1;
  bool write = false, direct = false, hashed = false;
  std::byte* data = nullptr;
  int64_t offset = 0, bytes = 0;
  int64_t done = 0;          // bytes that the kernel has moved
  uint64_t first_piece = 0;  // of the checksum
  int retries = 0;
  bool failed = false;
  int code = 0;  // errno; 0 where the kernel moved nothing
};

class DiskQueue {
 public:
  explicit DiskQueue(const DiskOptions& options);

  // For the engine. `wake`: the worker found nothing there last time, and may sleep.
  DiskTicket submit(const DiskRequest& request, bool& wake);
  void wait(DiskTicket ticket);
  void drain();
  void record(bool on);
  std::vector<TransferRecord> take_records();
  void stop();

  // For the worker. The next block of this direction; false when there is none now, or, waiting, when there will be none.
  bool take(bool write, DiskBlock& block);
  bool take_waiting(bool write, DiskBlock& block);
  bool stopped();
  // Books what the kernel said (bytes, or -errno); true when the block is over, false when [done, bytes) is to be asked for again.
  static bool advance(DiskBlock& block, int64_t result);
  // Computes the block's checksum where it is to have one, and books the block as over.
  void finish(const DiskBlock& block);

 private:
  struct Slot {
    DiskRequest request;
    DiskTicket ticket = 0;
    int64_t issued = 0;  // bytes, in blocks
    int in_flight = 0;   // blocks
    uint64_t sum = 0;
    bool over = true;
    std::exception_ptr error;
    RunClock::time_point begun;  // of its first block, where it is recorded; else zero
  };
  // A FIFO of slots that have blocks to issue.
  struct Line {
    std::vector<size_t> ring;
    size_t first = 0, count = 0;
    bool starved = true;  // a worker has looked in vain since the last request came
    std::condition_variable work;
  };

  bool take_locked(Line& line, DiskBlock& block);
  void complete(Slot& slot);
  void fail(Slot& slot, const Error& failure);
  void abandon(DiskTicket after);

  const int64_t block_bytes_;
  std::mutex submitting_;  // taken before mutex_
  std::mutex mutex_;
  std::condition_variable over_;
  std::vector<Slot> slots_;  // of ticket t: t modulo their number
  Line lines_[2];            // reads, writes
  DiskTicket last_ = 0;
  DiskTicket failed_from_ = std::numeric_limits<DiskTicket>::max();
  std::exception_ptr first_error_;
  bool stopped_ = false;
  bool records_requests_ = false;
  std::vector<TransferRecord> records_;
};

class DiskWorker {
 public:
  virtual ~DiskWorker() = default;  // after DiskQueue::stop and wake: returns when no block is in flight
  virtual void wake() = 0;          // there is something new in the queue
  virtual int64_t pinned_bytes() const { return 0; }
};

// Null, and the reason as errno, where the kernel, a seccomp filter or a sysctl refuses io_uring.
std::unique_ptr<DiskWorker> start_uring(DiskQueue& queue, const DiskOptions& options, int& code);
std::unique_ptr<DiskWorker> start_threads(DiskQueue& queue, const DiskOptions& options);

// While it lives, threads are started with all signals blocked: they are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace ort_train
