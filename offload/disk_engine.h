// DiskEngine: reads and writes of large pieces of files in the background, straight between the drive and the caller's memory.
//
// Requests are cut into blocks; so many blocks of each direction are kept in flight, across requests, while there are any. Requests of one
// direction begin in the order of submission. A read and a write have no order between them: whoever reads what was written waits
// for the write first. The memory and the file of a request belong to the engine until wait() has returned or thrown for it.
//
// Any thread may call; a DiskEngine runs threads of its own, which nothing of the caller's can hold up. It allocates when it is made and
// when something fails, and where requests are recorded, and not otherwise.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/run_trace.h"
#include "offload/disk_file.h"

namespace ort_train {

enum class DiskMethod {
  automatic,  // io_uring where the kernel lets us, else threads
  uring,      // or Error(io)
  threads,    // one blocking pread or pwrite a thread
};

struct DiskOptions {
  DiskMethod method = DiskMethod::automatic;
  int64_t block_bytes = int64_t{1} << 20;  // a multiple of 256 KiB, the piece of a checksum
  int depth = 8;                           // blocks in flight, each way
  int requests = 64;                       // outstanding; a submit beyond them waits until the oldest is done
  // Memory that most requests will lie in, which outlives the engine. io_uring pins it once instead of with each block, where the kernel
  // permits: see pinning_bytes() and may_pin().
  std::span<std::byte> memory{};
};

// What the kernel takes at most, for as long as the engine lives, to pin so much memory: a table of its pages.
int64_t pinning_bytes(int64_t memory);
// Whether this process may pin so much memory: RLIMIT_MEMLOCK allows it, or CAP_IPC_LOCK any. An engine that may not works as well
// unpinned.
bool may_pin(int64_t memory);

struct DiskRequest {
  bool write = false;
  const DiskFile* file = nullptr;
  int64_t offset = 0;         // this, data and bytes: multiples of kDiskAlignment where the file is direct
  std::byte* data = nullptr;  // a write only reads it
  int64_t bytes = 0;
  // Where given: a write puts the checksum of its bytes here (see checksum.h), and a read fails whose bytes have another one. The engine's
  // threads compute it. Lives as long as `data`.
  uint64_t* checksum = nullptr;
};

using DiskTicket = uint64_t;  // counts up from 1

// When a request was carried out: from its first block's start to its last block's end, checksums included.
struct TransferRecord {
  DiskTicket ticket = 0;
  bool write = false;
  int64_t bytes = 0;
  RunSpan span{};
};

class DiskQueue;
class DiskWorker;

class DiskEngine {
 public:
  explicit DiskEngine(const DiskOptions& options = {});
  // Waits for the blocks in flight; drops what has not begun.
  ~DiskEngine();
  DiskEngine(const DiskEngine&) = delete;
  DiskEngine& operator=(const DiskEngine&) = delete;

  DiskTicket submit(const DiskRequest& request);
  // Returns when the request is done. Throws the Error(io) of a request that failed: at the wait for it, and at each wait for a request
  // that was submitted after it. Those that had not begun by then are not carried out.
  void wait(DiskTicket ticket);
  // Waits for all; throws the first failure, if there ever was one.
  void drain();
  // Whether requests that begin from now on are recorded. What was recorded since it was taken last, in the order in which it ended.
  void record(bool on);
  std::vector<TransferRecord> take_records();

  DiskMethod method() const { return method_; }
  // Where io_uring was refused: a sentence that says so. Otherwise empty.
  const std::string& note() const { return note_; }
  // Of the options' memory: all of it or nothing.
  int64_t pinned_bytes() const;

 private:
  std::unique_ptr<DiskQueue> queue_;
  std::unique_ptr<DiskWorker> worker_;
  DiskMethod method_;
  std::string note_;
};

}  // namespace ort_train
